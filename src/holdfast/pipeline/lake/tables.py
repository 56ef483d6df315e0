"""The lake's tables: every column, its type and what it means. Nothing here needs Spark; the docs are made from it.

Changing a table: add columns at the end, raise FORMAT, and let `build --rebuild` make the tables anew from the journal.
The columns of `events` are those of the journal's segments and change with them (journal/segment.py).
"""

from __future__ import annotations

from typing import NamedTuple

FORMAT = 1
"""Of the tables, kept in each table's configuration. Tables of another format are built anew, not guessed at."""


class Column(NamedTuple):
    name: str
    kind: str  # as in Spark SQL
    doc: str


class TableSpec(NamedTuple):
    name: str
    doc: str
    columns: tuple[Column, ...]
    places: tuple[str, ...]
    """Columns whose least and greatest value in a file are kept, so that a reader can pass files over."""

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def ddl(self) -> str:
        """The schema, as Spark reads it."""
        return ", ".join(f"`{column.name}` {column.kind}" for column in self.columns)


_PROPERTIES = "array<struct<name: string, value: string>>"

EVENTS = TableSpec(
    "events",
    "Everything that ever happened, one row an event, as the broker journalled it.",
    (
        Column("lsn", "bigint", "Number of the event, without gaps for each node"),
        Column("at", "timestamp", "When it happened, by the node's clock"),
        Column("node", "int", "The node that journalled it"),
        Column("namespace", "string", "Namespace of the queue"),
        Column("queue", "string", "The queue"),
        Column("partition", "int", "Its partition"),
        Column("group", "string", "The group it happened in; null where it is no group's: enqueued, duplicate, edited"),
        Column("message_id", "bigint", "The message. Its upper bits are the time of its making"),
        Column("client_message_id", "string", "The producer's own id, on `enqueued` and `duplicate`"),
        Column(
            "event",
            "string",
            "`enqueued`, `duplicate`, `leased`, `extended`, `acked`, `failed`, `released`, `dead`, `dropped`,"
            " `expired`, `purged` or `edited`",
        ),
        Column("attempt", "int", "Which attempt, from 1"),
        Column("reason", "string", "Why it failed or died"),
        Column("error", "string", "What the consumer said was wrong"),
        Column("consumer", "string", "Who had the lease"),
        Column("protocol", "string", "How the producer or consumer talked to the broker"),
        Column("priority", "int", "0 to 255, lower is sooner"),
        Column("key", "string", "The ordering key"),
        Column(
            "deliver_at",
            "timestamp",
            "On `enqueued` and `edited` when it may go out; on `failed` when again; on `extended` the new deadline",
        ),
        Column("size_bytes", "bigint", "Size of the payload"),
        Column("source_id", "bigint", "The message that this one was made from: a dead letter, a redrive, a replay"),
        Column("source_queue", "string", "The queue of that message"),
        Column("correlation_id", "string", "The producer's correlation id"),
        Column("properties", _PROPERTIES, "The producer's properties, in their order; a name may come twice"),
        Column("payload", "binary", "On `enqueued`, if the queue's `journal` is `payload`"),
    ),
    ("lsn", "at", "message_id"),
)

MESSAGES = TableSpec(
    "messages",
    "What became of each message, one row a message and group. A message that no group has touched yet has one row"
    " with no group; that row goes when a group's comes.",
    (
        Column("message_id", "bigint", "The message"),
        Column("group", "string", "The group; null while no group has touched the message"),
        Column("namespace", "string", "Namespace of the queue"),
        Column("queue", "string", "The queue"),
        Column("partition", "int", "Its partition"),
        Column("node", "int", "The node that took it in"),
        Column("client_message_id", "string", "The producer's own id"),
        Column("priority", "int", "As it was last set"),
        Column("key", "string", "The ordering key"),
        Column("correlation_id", "string", "The producer's correlation id"),
        Column("source_id", "bigint", "The message that this one was made from"),
        Column("source_queue", "string", "The queue of that message"),
        Column("size_bytes", "bigint", "Size of the payload"),
        Column("protocol", "string", "How it was sent"),
        Column("enqueued_at", "timestamp", "When it was stored; null if the journal was off then"),
        Column("deliver_at", "timestamp", "When it was to go out, if it was delayed, as it was last set"),
        Column("duplicates", "int", "How often it was sent again within the window and not stored again"),
        Column("edits", "int", "How often priority or time were changed"),
        Column("state", "string", "`waiting`, `leased`, or the outcome"),
        Column("outcome", "string", "`acked`, `dead`, `dropped`, `expired` or `purged`; null while it is live"),
        Column("ended_at", "timestamp", "When that was"),
        Column("reason", "string", "Why it ended, if not acked"),
        Column("error", "string", "The last error that a consumer gave"),
        Column("attempts", "int", "The highest attempt that was begun; 0: none"),
        Column("leases", "int", "How often it was leased, released ones too"),
        Column("failures", "int", "How often a lease ended badly and it was tried again"),
        Column("releases", "int", "How often it was given back"),
        Column("extensions", "int", "How often a lease was extended"),
        Column("first_leased_at", "timestamp", "When it was first handed out"),
        Column("last_leased_at", "timestamp", "When it was last handed out"),
        Column("last_failed_at", "timestamp", "When it last failed"),
        Column("consumer", "string", "Who had it last"),
        Column("wait_ms", "double", "From the moment it could go out to its first lease"),
        Column("processing_ms", "double", "From the last lease to the ack"),
        Column("total_ms", "double", "From enqueue to the end"),
        Column("enqueued_lsn", "bigint", "Its `enqueued` event"),
        Column("planned_lsn", "bigint", "The event that set `priority` and `deliver_at`"),
        Column("leased_lsn", "bigint", "Its last `leased` event"),
        Column("ended_lsn", "bigint", "The event that ended it"),
        Column("ended_node", "int", "The node that journalled the end"),
        Column("first_lsn", "bigint", "Its first event in this group"),
        Column("last_lsn", "bigint", "Its last event in this group"),
    ),
    ("message_id", "enqueued_at", "ended_at"),
)

_COUNTS = (
    ("enqueued", "Messages stored (the queue's own row)"),
    ("enqueued_bytes", "Their payloads (the queue's own row)"),
    ("duplicates", "Messages sent again and not stored (the queue's own row)"),
    ("edited", "Messages changed while they waited (the queue's own row)"),
    ("leased", "Deliveries handed out"),
    ("extended", "Leases extended"),
    ("acked", "Deliveries done"),
    ("failed", "Leases that ended badly, to be tried again"),
    ("released", "Leases given back"),
    ("dead", "Deliveries that went to the dead queue"),
    ("dropped", "Deliveries that died with no dead queue"),
    ("expired", "Deliveries whose time to live passed, with no dead queue"),
    ("purged", "Deliveries that a person removed"),
)

MINUTE_COUNTS = [name for name, _ in _COUNTS]

QUEUE_MINUTES = TableSpec(
    "queue_minutes",
    "Each queue and each of its groups, minute by minute. The row with no group is the queue's own. A minute in which"
    " nothing happened has no row.",
    (
        Column("namespace", "string", "Namespace of the queue"),
        Column("queue", "string", "The queue"),
        Column("group", "string", "The group; null: the queue itself"),
        Column("minute", "timestamp", "The minute's beginning"),
        *(Column(name, "bigint", doc) for name, doc in _COUNTS),
        Column("gone", "bigint", "Messages that all groups seen so far were done with (the queue's own row)"),
        Column(
            "depth",
            "bigint",
            "At the end of the minute: messages stored, or in a group's row those it has yet to do. Too high by what"
            " the queue held for a group that began at its end: the journal does not tell of groups",
        ),
        Column("wait_p50_ms", "double", "Of deliveries first handed out in this minute: median wait"),
        Column("wait_p95_ms", "double", "95 of 100 waited no longer"),
        Column("wait_p99_ms", "double", "99 of 100 waited no longer"),
        Column("processing_p50_ms", "double", "Of deliveries acked in this minute: median time from lease to ack"),
        Column("processing_p95_ms", "double", "95 of 100 took no longer"),
        Column("processing_p99_ms", "double", "99 of 100 took no longer"),
        Column(
            "waits", "map<int, bigint>", "The waits as a histogram: bucket b counts 2^(b/8)-1 ms up to 2^((b+1)/8)-1 ms"
        ),
        Column("processings", "map<int, bigint>", "The processing times, likewise"),
        Column("enqueued_total", "bigint", "Messages stored up to the end of the minute, since the journal began"),
        Column("ended_total", "bigint", "Of those, gone (the queue's own row), or ended in the group"),
        Column("skipped", "bigint", "In a group's row: messages that were gone before the group was first seen"),
    ),
    ("minute",),
)

DEAD_LETTERS = TableSpec(
    "dead_letters",
    "Every delivery that died into a dead queue, with what it was and what became of the letter.",
    (
        Column(
            "letter_id",
            "bigint",
            "The letter, a message of its own: the last, if a redrive was undone. Null if its queue has no journal",
        ),
        Column("namespace", "string", "Namespace of both queues"),
        Column("dead_queue", "string", "Where the letter went"),
        Column("source_id", "bigint", "The message that died"),
        Column("source_queue", "string", "The queue it died in"),
        Column("source_group", "string", "The group it died in; null: no group had come for it"),
        Column("died_at", "timestamp", "When"),
        Column("reason", "string", "`max_retries`, `total_timeout`, `rejected` or `expired`"),
        Column("error", "string", "The last error that a consumer gave"),
        Column("attempts", "int", "How often it was tried"),
        Column("consumer", "string", "Who had it last"),
        Column("enqueued_at", "timestamp", "When the source was stored"),
        Column("first_leased_at", "timestamp", "When it was first tried"),
        Column("last_leased_at", "timestamp", "When it was last tried"),
        Column("client_message_id", "string", "The producer's own id of the source"),
        Column("key", "string", "The ordering key"),
        Column("priority", "int", "Priority"),
        Column("correlation_id", "string", "The producer's correlation id"),
        Column("properties", _PROPERTIES, "The producer's properties"),
        Column("size_bytes", "bigint", "Size of the payload"),
        Column("payload", "binary", "The payload, if the dead queue's `journal` is `payload`"),
        Column("error_pattern", "string", "The error with ids, numbers and other details taken out"),
        Column(
            "payload_shape",
            "string",
            "The payload's structure: keys and types of JSON, else `text`, `binary` or `empty`",
        ),
        Column("fingerprint", "string", "Sixteen hex digits over reason, error pattern and payload shape"),
        Column("outcome", "string", "What became of the letter: null while it waits, `acked` when taken, `purged`, …"),
        Column("ended_at", "timestamp", "When that was"),
        Column("died_lsn", "bigint", "The `dead` event"),
        Column("node", "int", "The node that journalled it"),
    ),
    ("died_lsn", "died_at", "letter_id", "source_id"),
)

TABLES = {spec.name: spec for spec in (EVENTS, MESSAGES, QUEUE_MINUTES, DEAD_LETTERS)}

ENDS = ("acked", "dead", "dropped", "expired", "purged")
"""Events that end a delivery."""
