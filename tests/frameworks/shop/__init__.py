"""A small application of Django."""
