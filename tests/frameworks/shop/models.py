"""Its tables."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    item = models.TextField()
    packed = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"
