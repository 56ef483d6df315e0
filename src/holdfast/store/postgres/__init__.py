"""The PostgreSQL store: a cell's records in a schema of a database that people already run, back up and replicate.

database.py     where they are, and sessions to there
session.py      one connection, driven through libpq
statements.py   the SQL of store/sql
arrays.py       parameters in binary
schema.py       making the schema, and bringing an older one forward
checks.py       what a database must be like
failures.py     what can go wrong
"""
