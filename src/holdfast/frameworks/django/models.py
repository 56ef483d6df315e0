"""The outbox's table, in whatever database the application uses."""

from __future__ import annotations

from django.db import models

from holdfast.outbox.table import NAME


class OutboxMessage(models.Model):
    """A message that is enqueued when the transaction that wrote it has committed."""

    id = models.BigAutoField(primary_key=True)
    queue = models.TextField()
    message = models.TextField(help_text="The draft of the message, as JSON of the HTTP API.")
    created_at = models.DateTimeField(auto_now_add=True)
    problem = models.TextField(null=True, blank=True, help_text="Why the server will not take it. Empty: it waits.")

    class Meta:
        db_table = NAME
        ordering = ("id",)
        indexes = (models.Index(fields=["id"], name=f"{NAME}_waiting", condition=models.Q(problem__isnull=True)),)
        verbose_name = "outbox message"

    def __str__(self) -> str:
        return f"{self.id} for {self.queue}"
