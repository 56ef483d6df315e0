"""Backups: what is in one, the directory that holds them, the stream that a server sends, and how it is made.

Restoring is in broker/restoring.py, since it writes the journal's lake.
"""
