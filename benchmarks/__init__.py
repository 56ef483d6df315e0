"""Benchmarks, reproducible by one command each; `python -m benchmarks` runs them all and prints ratios."""
