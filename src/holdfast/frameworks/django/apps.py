"""The Django application."""

from __future__ import annotations

from django.apps import AppConfig


class HoldfastConfig(AppConfig):
    name = "holdfast.frameworks.django"
    label = "holdfast"
    verbose_name = "Holdfast"
    default_auto_field = "django.db.models.BigAutoField"
