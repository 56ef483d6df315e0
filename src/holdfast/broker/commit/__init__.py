"""Group commit: one batch a turn, one sync for many batches."""
