"""The lake's tables: every column, its type and what it means. Nothing here needs Spark; the docs are made from it.

Changing a table: add columns at the end, raise FORMAT, and let `build --rebuild` build the tables from the journal.
The columns of `events` are those of the journal's segments and change with them (journal/segment.py). The values of the
columns of `messages` are computed in build/fold.py.
"""

from __future__ import annotations

from typing import NamedTuple

FORMAT = 2
"""Of the tables, stored in each table's configuration. Tables of another format must be rebuilt."""


ENDS = ("acked", "dead", "dropped", "expired", "purged")
"""Events that end a delivery."""

EVENT_KINDS = (
    *("enqueued", "duplicate", "leased", "extended", *ENDS, "failed", "released", "edited"),
    *("group_created", "group_deleted", "queue_deleted"),
)
"""The events that a journal has."""

RECEIVED = "received"
"""An event that follows from others: a message became a group's, or waits without one (build/recipients.py)."""


class Column(NamedTuple):
    name: str
    kind: str  # as in Spark SQL
    doc: str


class TableSpec(NamedTuple):
    name: str
    doc: str
    columns: tuple[Column, ...]
    statistics_columns: tuple[str, ...]
    """Columns with statistics (the least and greatest value in a file), so that a reader can skip files."""

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
    "Every event, one row each, as the broker journalled it.",
    (
        Column("lsn", "bigint", "Number of the event, without gaps for each node"),
        Column("at", "timestamp", "When it happened, by the node's clock"),
        Column("node", "int", "The node that journalled it"),
        Column("namespace", "string", "Namespace of the queue"),
        Column("queue", "string", "The queue"),
        Column("partition", "int", "Its partition"),
        Column("group", "string", "The group; null for events of no group: enqueued, duplicate, edited"),
        Column(
            "message_id",
            "bigint",
            "The message. Its upper bits are the time at which it was stored. 0 for events of groups",
        ),
        Column("client_message_id", "string", "The producer's own id, on `enqueued` and `duplicate`"),
        Column(
            "event",
            "string",
            "`enqueued`, `duplicate`, `leased`, `extended`, `acked`, `failed`, `released`, `dead`, `dropped`,"
            " `expired`, `purged` or `edited`; of groups `group_created`, `group_deleted` or `queue_deleted`",
        ),
        Column("attempt", "int", "Which attempt, from 1"),
        Column("reason", "string", "Why it failed or died"),
        Column("error", "string", "The consumer's error text"),
        Column("consumer", "string", "The consumer that had the lease"),
        Column("protocol", "string", "The protocol of the producer or consumer"),
        Column("priority", "int", "0 to 255, lower is sooner"),
        Column("key", "string", "The ordering key"),
        Column(
            "deliver_at",
            "timestamp",
            "On `enqueued` and `edited` when it may be delivered; on `failed` the retry; on `extended` the deadline",
        ),
        Column("size_bytes", "bigint", "Size of the payload"),
        Column("source_id", "bigint", "The message that this one was made from: a dead letter, a redrive, a replay"),
        Column("source_queue", "string", "The queue of that message"),
        Column("correlation_id", "string", "The producer's correlation id"),
        Column("properties", _PROPERTIES, "The producer's properties, in their order; a name may occur twice"),
        Column("payload", "binary", "On `enqueued`, if the queue's `journal` is `payload`"),
        Column("group_kind", "string", "On `group_created`: `lease` or `cursor`"),
        Column(
            "start_after",
            "bigint",
            "On `group_created`: no message with this id or a lower one is for the group; 0: all that are live are",
        ),
    ),
    ("lsn", "at", "message_id"),
)

MESSAGES = TableSpec(
    "messages",
    "The state of each message, one row for each message and each group that it is for, from the moment the group"
    " receives it. A message that no group has, because there is none or it was deleted, has one row without a group.",
    (
        Column("message_id", "bigint", "The message"),
        Column("group", "string", "The group; null while the message is for none"),
        Column("namespace", "string", "Namespace of the queue"),
        Column("queue", "string", "The queue"),
        Column("partition", "int", "Its partition"),
        Column("node", "int", "The node that stored it"),
        Column("client_message_id", "string", "The producer's own id"),
        Column("priority", "int", "As it was last set"),
        Column("key", "string", "The ordering key"),
        Column("correlation_id", "string", "The producer's correlation id"),
        Column("source_id", "bigint", "The message that this one was made from"),
        Column("source_queue", "string", "The queue of that message"),
        Column("size_bytes", "bigint", "Size of the payload"),
        Column("protocol", "string", "How it was sent"),
        Column("enqueued_at", "timestamp", "When it was stored; null if the journal was off then"),
        Column("deliver_at", "timestamp", "When it may be delivered, if it was delayed, as it was last set"),
        Column("duplicates", "int", "How often it was sent again within the deduplication window"),
        Column("edits", "int", "How often priority or time were changed"),
        Column("state", "string", "`waiting`, `leased`, or the outcome"),
        Column("outcome", "string", "`acked`, `dead`, `dropped`, `expired` or `purged`; null while it is live"),
        Column("ended_at", "timestamp", "When that was"),
        Column("reason", "string", "Why it ended, if not acked; `group_deleted`: its group was deleted"),
        Column("error", "string", "The last error that a consumer gave"),
        Column("attempts", "int", "The highest attempt that was started; 0: none"),
        Column("leases", "int", "How often it was leased, including released leases"),
        Column("failures", "int", "How often an attempt failed and was retried"),
        Column("releases", "int", "How often it was released"),
        Column("extensions", "int", "How often a lease was extended"),
        Column("first_leased_at", "timestamp", "When it was first leased"),
        Column("last_leased_at", "timestamp", "When it was last leased"),
        Column("last_failed_at", "timestamp", "When it last failed"),
        Column("consumer", "string", "The last consumer"),
        Column("wait_ms", "double", "From the moment it could be delivered to its first lease"),
        Column("processing_ms", "double", "From the last lease to the ack"),
        Column("total_ms", "double", "From enqueue to the end"),
        Column("enqueued_lsn", "bigint", "Its `enqueued` event"),
        Column("planned_lsn", "bigint", "The event that set `priority` and `deliver_at`"),
        Column("leased_lsn", "bigint", "Its last `leased` event"),
        Column("ended_lsn", "bigint", "The event that ended it"),
        Column("ended_node", "int", "The node that journalled the end"),
        Column("first_lsn", "bigint", "Its first event in this group"),
        Column("last_lsn", "bigint", "Its last event in this group"),
        Column("received_at", "timestamp", "When the group received it: it was enqueued, or the group was created"),
    ),
    ("message_id", "enqueued_at", "ended_at", "queue", "source_id"),
)

_COUNTS = (
    ("enqueued", "Messages stored (the queue's own row)"),
    ("enqueued_bytes", "Their payloads (the queue's own row)"),
    ("duplicates", "Duplicates, which were not stored (the queue's own row)"),
    ("edited", "Messages changed while they waited (the queue's own row)"),
    (RECEIVED, "Messages that a group received: enqueued while it existed, or live when it was created"),
    ("leased", "Deliveries leased"),
    ("extended", "Leases extended"),
    ("acked", "Deliveries acked"),
    ("failed", "Attempts that failed, to be retried"),
    ("released", "Leases released"),
    ("dead", "Deliveries that were dead-lettered"),
    ("dropped", "Deliveries that died with no dead queue"),
    ("expired", "Deliveries whose time to live passed, with no dead queue"),
    ("purged", "Deliveries that an administrator removed"),
)

MINUTE_COUNTS = [name for name, _ in _COUNTS]

QUEUE_MINUTES = TableSpec(
    "queue_minutes",
    "Each queue and each of its groups, minute by minute. The row with no group is the queue's own. A minute in which"
    " nothing happened has no row: the depth is that of the last row before it"
    " (`holdfast.pipeline.build.queue_minutes.every_minute` fills them in).",
    (
        Column("namespace", "string", "Namespace of the queue"),
        Column("queue", "string", "The queue"),
        Column("group", "string", "The group; null: the queue itself"),
        Column("minute", "timestamp", "The minute's beginning"),
        *(Column(name, "bigint", doc) for name, doc in _COUNTS),
        Column("gone", "bigint", "Messages that had ended in all groups (the queue's own row)"),
        Column(
            "depth",
            "bigint",
            "At the end of the minute: messages that are live, or in a group's row those it has received and not ended",
        ),
        Column("wait_p50_ms", "double", "Of deliveries first leased in this minute: median wait"),
        Column("wait_p95_ms", "double", "95 of 100 waited no longer"),
        Column("wait_p99_ms", "double", "99 of 100 waited no longer"),
        Column("processing_p50_ms", "double", "Of deliveries acked in this minute: median time from lease to ack"),
        Column("processing_p95_ms", "double", "95 of 100 took no longer"),
        Column("processing_p99_ms", "double", "99 of 100 took no longer"),
        Column(
            "waits", "map<int, bigint>", "The waits as a histogram: bucket b counts 2^(b/8)-1 ms up to 2^((b+1)/8)-1 ms"
        ),
        Column("processings", "map<int, bigint>", "The processing times, likewise"),
        Column(
            "enqueued_total",
            "bigint",
            "Messages stored, or in a group's row received, up to the end of the minute, since the journal began",
        ),
        Column("ended_total", "bigint", "Of those, gone (the queue's own row), or ended in the group"),
    ),
    ("minute",),
)

DEAD_LETTERS = TableSpec(
    "dead_letters",
    "Every delivery that was dead-lettered, with its message and what became of the dead letter.",
    (
        Column(
            "letter_id",
            "bigint",
            "The dead letter, a message of its own (the last, after an undone redrive); null without a journal",
        ),
        Column("namespace", "string", "Namespace of both queues"),
        Column("dead_queue", "string", "The queue of the dead letter"),
        Column("source_id", "bigint", "The message that died"),
        Column("source_queue", "string", "The queue it died in"),
        Column("source_group", "string", "The group it died in; null: no group had leased it"),
        Column("died_at", "timestamp", "When"),
        Column("reason", "string", "`max_retries`, `total_timeout`, `rejected` or `expired`"),
        Column("error", "string", "The last error that a consumer gave"),
        Column("attempts", "int", "The number of attempts"),
        Column("consumer", "string", "The last consumer"),
        Column("enqueued_at", "timestamp", "When the source was stored"),
        Column("first_leased_at", "timestamp", "When it was first leased"),
        Column("last_leased_at", "timestamp", "When it was last leased"),
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
        Column("outcome", "string", "The outcome of the dead letter; null while it waits"),
        Column("ended_at", "timestamp", "When that was"),
        Column("died_lsn", "bigint", "The `dead` event"),
        Column("node", "int", "The node that journalled it"),
    ),
    ("died_lsn", "died_at", "letter_id", "source_id"),
)

GROUPS = TableSpec(
    "groups",
    "Every group of every partition, from its creation to its deletion.",
    (
        Column("node", "int", "The node that journalled it"),
        Column("namespace", "string", "Namespace of the queue"),
        Column("queue", "string", "The queue"),
        Column("partition", "int", "Its partition"),
        Column("group", "string", "The group"),
        Column("kind", "string", "`lease` or `cursor`"),
        Column("created_at", "timestamp", "When it was created in this partition"),
        Column("created_lsn", "bigint", "The `group_created` event"),
        Column("start_after", "bigint", "No message with this id or a lower one is for it; 0: all that were live are"),
        Column("recorded", "boolean", "It existed before it was journalled: what it had before is known by its events"),
        Column("deleted_at", "timestamp", "When it, or its queue, was deleted; null: it exists"),
        Column("deleted_lsn", "bigint", "The event that says so"),
    ),
    (),
)

QUARANTINE = TableSpec(
    "quarantine",
    "Rows of the journal that fail an expectation: a batch with such rows is built in no table, and they leave this one"
    " when it is. The table is there once there was a row.",
    (
        Column("node", "int", "The node that journalled it"),
        Column("segment", "string", "The segment it is in"),
        Column("expectation", "string", "What it fails"),
        Column("row", "bigint", "Its number in the segment, from 0"),
        Column("lsn", "bigint", "Its lsn, as it is there"),
        Column("content", "string", "The row as JSON, without its payload"),
        Column("found_at", "timestamp", "When a build came upon it"),
    ),
    (),
)

TABLES = {spec.name: spec for spec in (EVENTS, MESSAGES, QUEUE_MINUTES, DEAD_LETTERS, GROUPS)}
