"""What `messages` must say, in plain Python: one event after another, no columns, no Spark."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.pipeline.lake.tables import ENDS, MESSAGES

Row = dict[str, Any]
Key = tuple[int, str | None]

_TO_WAITING = ("failed", "released")
_COUNTS = {"leased": "leases", "failed": "failures", "released": "releases", "extended": "extensions"}
_STORED = ("client_message_id", "key", "correlation_id", "source_id", "source_queue", "size_bytes", "protocol", "node")


class Model:
    """The rows after any number of events, given in the order of their lsn."""

    def __init__(self) -> None:
        self._stored: dict[int, Row] = {}
        self._rows: dict[Key, Row] = {}

    def take(self, event: Row) -> None:
        message, group, kind = event["message_id"], event["group"], event["event"]
        stored = self._stored.setdefault(message, {"duplicates": 0, "edits": 0})
        if kind == "enqueued":
            stored.update({name: event[name] for name in _STORED}, enqueued_at=event["at"], enqueued_lsn=event["lsn"])
        if kind in {"enqueued", "edited"}:
            stored.update(priority=event["priority"], deliver_at=event["deliver_at"], planned_lsn=event["lsn"])
        stored["duplicates"] += kind == "duplicate"
        stored["edits"] += kind == "edited"
        row = self._rows.setdefault((message, group), self._fresh(event))
        row["last_lsn"] = event["lsn"]
        if kind in _COUNTS:
            row[_COUNTS[kind]] += 1
        if event["attempt"] is not None and (kind in {"leased", "failed"} or kind in ENDS):
            row["attempts"] = max(row["attempts"], event["attempt"])
        if kind == "leased":
            self._leased(row, event)
        elif kind == "extended":
            row["state"] = "leased"
        elif kind in _TO_WAITING:
            row["state"] = "waiting"
        elif kind in ENDS:
            row.update(state=kind, outcome=kind, ended_at=event["at"], ended_lsn=event["lsn"], ended_node=event["node"])
            row["reason"] = event["reason"]
            row["consumer"] = event["consumer"] or row["consumer"]
        if kind == "failed":
            row["last_failed_at"] = event["at"]
        if kind in {"failed", "dead", "dropped", "expired"} and event["error"] is not None:
            row["error"] = event["error"]

    @staticmethod
    def _fresh(event: Row) -> Row:
        row = dict.fromkeys(MESSAGES.names)
        row.update({name: event[name] for name in ("message_id", "group", "namespace", "queue", "partition")})
        row.update(attempts=0, leases=0, failures=0, releases=0, extensions=0, state="waiting", first_lsn=event["lsn"])
        return row

    @staticmethod
    def _leased(row: Row, event: Row) -> None:
        row["first_leased_at"] = min(filter(None, (row["first_leased_at"], event["at"])))
        row.update(state="leased", last_leased_at=event["at"], leased_lsn=event["lsn"], consumer=event["consumer"])
        row.update(outcome=None, ended_at=None, ended_lsn=None, ended_node=None, reason=None)

    def rows(self) -> dict[Key, Row]:
        """The table: with what is known of each message in all its rows, and what follows from it."""
        grouped = {message for message, group in self._rows if group is not None}
        found: dict[Key, Row] = {}
        for (message, group), row in self._rows.items():
            if group is None and message in grouped and row["outcome"] is None:
                continue
            made = {**row, **self._stored[message]}
            enqueued, planned = made["enqueued_at"], made["deliver_at"]
            available = max(filter(None, (enqueued, planned))) if enqueued else None
            made["wait_ms"] = _ms(made["first_leased_at"], available)
            made["processing_ms"] = (
                _ms(made["ended_at"], made["last_leased_at"]) if made["outcome"] == "acked" else None
            )
            made["total_ms"] = _ms(made["ended_at"], enqueued)
            found[message, group] = made
        return found


def _ms(later: datetime | None, earlier: datetime | None) -> float | None:
    return (later - earlier).total_seconds() * 1000 if later and earlier else None
