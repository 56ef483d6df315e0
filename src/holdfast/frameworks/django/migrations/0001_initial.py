"""The outbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[object]] = [
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("queue", models.TextField()),
                ("message", models.TextField(help_text="The draft of the message, as JSON of the HTTP API.")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "problem",
                    models.TextField(
                        blank=True, help_text="Why the server will not take it. Empty: it waits.", null=True
                    ),
                ),
            ],
            options={
                "verbose_name": "outbox message",
                "db_table": "holdfast_outbox",
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("problem__isnull", True)), fields=["id"], name="holdfast_outbox_waiting"
                    )
                ],
            },
        ),
    ]
