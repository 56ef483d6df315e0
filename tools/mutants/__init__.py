"""Mutants: the code broken on purpose, one way at a time, to see that a test notices."""
