"""The commands of `holdfast pipeline` that have options of their own; pipeline.py has the rest."""
