"""Holdfast inside web frameworks. Each module imports its framework, and nothing else imports these modules."""
