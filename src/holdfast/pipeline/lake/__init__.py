"""The lake: the journal's segments, Delta tables, maintenance, records of jobs."""
