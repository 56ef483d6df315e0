"""Holdfast: a durable message queue broker."""

__version__ = "0.1.0"
