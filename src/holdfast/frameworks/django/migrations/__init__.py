"""The schema, by Django's migrations."""
