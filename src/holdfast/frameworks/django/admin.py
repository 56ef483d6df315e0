"""The outbox in Django's admin: what waits, what was refused and why, and sending it again."""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from holdfast.frameworks.django.models import OutboxMessage


@admin.register(OutboxMessage)
class OutboxMessageAdmin(admin.ModelAdmin):
    list_display = ("id", "queue", "created_at", "problem")
    list_filter = ("queue",)
    readonly_fields = ("id", "queue", "created_at", "problem")
    actions = ("send_again",)

    @admin.action(description="Send again what was refused")
    def send_again(self, _request: Any, rows: Any) -> None:
        rows.update(problem=None)
