"""Stores with a network between: what each of them must offer (table.py), and the one store over it."""
