"""Hypothesis measures the time of an example; on a busy machine that says nothing about the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
