"""The command line: one file for each noun, `main.py` joins them."""
