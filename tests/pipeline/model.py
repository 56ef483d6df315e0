"""What `messages` must say, in plain Python: one event after another, no columns, no Spark.

It also knows for whom each message is, as the broker does: the groups that exist when it is enqueued, and those that
are created while it is live.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from holdfast.pipeline.lake.tables import ENDS, MESSAGES

Row = dict[str, Any]
Key = tuple[int, str | None]

_TO_WAITING = ("failed", "released")
_COUNTS = {"leased": "leases", "failed": "failures", "released": "releases", "extended": "extensions"}
_OF_THE_END = ("outcome", "ended_at", "ended_lsn", "ended_node", "reason")
_STORED = ("client_message_id", "key", "correlation_id", "source_id", "source_queue", "size_bytes", "protocol", "node")


class Group(NamedTuple):
    kind: str
    start_after: int
    has: set[int]
    """What it has received and not ended."""


class Model:
    """The rows after any number of events, given in the order of their lsn."""

    def __init__(self) -> None:
        self._stored: dict[int, Row] = {}
        self._rows: dict[Key, Row] = {}
        self._groups: dict[tuple[str, int], dict[str, Group]] = {}  # by queue and partition
        self._live: dict[tuple[str, int], set[int]] = {}
        self._kept: set[int] = set()  # ended in all leasing groups, live for cursor groups
        self._alone: set[int] = set()  # live, and for no group
        self.following: list[Row] = []  # events that follow from others

    def take(self, event: Row) -> None:
        place = (event["queue"], event["partition"])
        if event["event"] in {"group_created", "group_deleted", "queue_deleted"}:
            self._regroup(place, event)
            return
        message, group, kind = event["message_id"], event["group"], event["event"]
        if kind == "enqueued":
            self._live.setdefault(place, set()).add(message)
        self._take(event)
        if kind == "enqueued":
            groups = self._groups.get(place, {})
            for name in groups:
                self._receive(place, name, message, event)
            if not groups:
                self._alone.add(message)
        if kind in ENDS:
            self._end(place, group, message)

    def _receive(self, place: tuple[str, int], name: str | None, message: int, event: Row) -> None:
        if name is None:
            self._alone.add(message)
        else:
            self._alone.discard(message)
            self._groups[place][name].has.add(message)
        following = {**dict.fromkeys(event), **{n: event[n] for n in ("lsn", "at", "node", "namespace")}}
        following.update(queue=place[0], partition=place[1], message_id=message, group=name, event="received")
        self.following.append(following)
        self._take(following)

    def _end(self, place: tuple[str, int], name: str | None, message: int) -> None:
        groups = self._groups.get(place, {})
        if name is None:
            self._gone(place, message)
            return
        groups[name].has.discard(message)
        if not any(message in group.has for group in groups.values()):
            self._gone(place, message)
        elif groups[name].kind == "lease" and not any(
            message in group.has for group in groups.values() if group.kind == "lease"
        ):
            self._kept.add(message)

    def _gone(self, place: tuple[str, int], message: int) -> None:
        self._live.get(place, set()).discard(message)
        self._alone.discard(message)

    def _regroup(self, place: tuple[str, int], event: Row) -> None:
        groups, live = self._groups.setdefault(place, {}), self._live.get(place, set())
        if event["event"] == "group_created":
            group = groups[event["group"]] = Group(event["group_kind"], event["start_after"], set())
            for message in sorted(live):
                if message > group.start_after and not (group.kind == "lease" and message in self._kept):
                    self._receive(place, event["group"], message, event)
            return
        for name in [event["group"]] if event["event"] == "group_deleted" else list(groups):
            for message in sorted(groups.pop(name).has):
                end = {**dict.fromkeys(event), **{n: event[n] for n in ("lsn", "at", "node", "namespace")}}
                end.update(queue=place[0], partition=place[1], message_id=message, group=name)
                self.following.append({**end, "event": "purged", "reason": "group_deleted"})
                self._take(self.following[-1])
                if not any(message in group.has for group in groups.values()):
                    self._receive(place, None, message, event)

    def live(self) -> set[tuple[str, str | None, int]]:
        """Queue, group and message of every delivery that has not ended."""
        return {(row["queue"], group, message) for (message, group), row in self.rows().items() if not row["outcome"]}

    def _take(self, event: Row) -> None:
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
        elif kind == "received":
            row.update(state="waiting", received_at=event["at"], **dict.fromkeys(_OF_THE_END))
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
        row.update(dict.fromkeys(_OF_THE_END))

    def rows(self) -> dict[Key, Row]:
        """The table: with what is known of each message in all its rows, and what follows from it."""
        found: dict[Key, Row] = {}
        for (message, group), row in self._rows.items():
            if group is None and message not in self._alone and row["outcome"] is None:
                continue
            made = {**row, **self._stored[message]}
            enqueued, planned = made["enqueued_at"], made["deliver_at"]
            available = max(filter(None, (enqueued, planned, made["received_at"]))) if enqueued else None
            made["wait_ms"] = _ms(made["first_leased_at"], available)
            made["processing_ms"] = (
                _ms(made["ended_at"], made["last_leased_at"]) if made["outcome"] == "acked" else None
            )
            made["total_ms"] = _ms(made["ended_at"], enqueued)
            found[message, group] = made
        return found


def _ms(later: datetime | None, earlier: datetime | None) -> float | None:
    return (later - earlier).total_seconds() * 1000 if later and earlier else None
