"""The journal leaves the store as Parquet segments."""
