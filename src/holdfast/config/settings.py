"""Every setting and every limit of the server, with its reason.

A field is one line: name, type, kind with its range, default. The paragraph under it says what it is for and where the
number comes from; the reference page is made from these paragraphs. Durations are microseconds here and `5s` in a
file; sizes are bytes here and `64MiB` in a file.

To add a setting: add the field with its paragraph, run `make docs`. The environment variable, `config show` and the
reference follow by themselves; a kind with `flag=` makes a flag of `holdfast serve`.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.config.kinds import Choice, Count, Duration, Location, Name, Size, Switch
from holdfast.units import DAY, GIB, HOUR, KIB, MIB, MILLISECOND, MINUTE, SECOND, TIB


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who this node is and where it keeps its data."""

    node_id: Annotated[int, Count(0, 1023, flag="--node-id")] = 0
    """The number of this node, unique among nodes that share queues or a lake. It is 10 of the 63 bits of every message
    id, so there can be 1024 nodes. Two nodes with the same number would give out the same ids."""

    data_dir: Annotated[Path, Location(flag="--data-dir")] = Path("data")
    """The directory that holds everything this node must not lose: the store and the journal's lake. It is made if it
    is missing, and belongs to one process at a time."""

    namespace: Annotated[str, Name()] = "default"
    """The namespace of callers whose credentials name none."""

    shutdown_timeout: Annotated[int, Duration(0, 10 * MINUTE)] = 20 * SECOND
    """How long a graceful stop may take before the node stops at once. 20 s leaves room inside the 30 s that
    Kubernetes waits between SIGTERM and SIGKILL. Nothing confirmed is lost either way; leases that were not released
    run until their deadline."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which store keeps the records, and how much memory it may use."""

    kind: Annotated[str, Choice(("rocks", "memory"), flag="--store")] = "rocks"
    """Where records are kept: `rocks` is embedded and keeps everything in data_dir, `memory` loses everything when the
    process ends. The second is for tests and trials."""

    cache_bytes: Annotated[int, Size(MIB, TIB)] = 64 * MIB
    """RocksDB's block cache, shared by all tables. It serves reads of the backlog: one block is 4 KiB or more, so 64
    MiB hold about 16,000 blocks, enough for the heads of thousands of shards. More helps only when many consumers
    browse."""

    min_free_bytes: Annotated[int, Size(0, TIB)] = 256 * MIB
    """Enqueues are refused (`disk_full`) while the file system has less than this left. Acks need room too, for the log
    and for compaction: 256 MiB are four write buffers. Refusing early keeps the node able to drain."""

    write_buffer_bytes: Annotated[int, Size(MIB, 16 * GIB)] = 64 * MIB
    """Memory for writes that are in the log but not yet in sorted files, over all tables. A message that is acked
    before its buffer is flushed never reaches a sorted file, so a larger buffer saves disk writes for short-lived
    messages: at 10,000 messages a second of 1 KiB, 64 MiB are about 6 s of traffic. Opening after a crash replays up to
    this much."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which queues may exist."""

    auto_create: Annotated[bool, Switch()] = True
    """Whether a queue appears, with defaults, when it is first used. Switch it off where a misspelt name must be an
    error. Dead letter queues appear either way: a dead letter must have somewhere to go."""

    max_queues: Annotated[int, Count(1, 1_000_000)] = 10_000
    """How many queues a node holds, so that a client that makes up names cannot fill the memory. A queue at rest costs
    its configuration and, with the default 10 partitions, ten shard heads: about 10 KiB, so 10,000 queues are 100
    MiB."""

    max_groups_per_queue: Annotated[int, Count(1, 1024)] = 64
    """How many groups may subscribe to one queue. Every message is settled once for each group, and a message that some
    groups have settled carries one bit for each: 64 groups are one machine word."""


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the node takes in at once. Above a limit a request is refused at once with an error that says retry."""

    inbox_messages: Annotated[int, Count(1, 10_000_000)] = 100_000
    """Messages and settlements that wait for their turn, over all callers. Past it new ones are refused as `overloaded`
    instead of waiting in memory. At 50,000 a second 100,000 are a wait of 2 s, longer than a caller should be left."""

    inbox_bytes: Annotated[int, Size(MIB, 64 * GIB)] = 64 * MIB
    """Payload bytes that wait for their turn, over all callers: the same limit for large messages. 100,000 messages of
    1 MiB would be 100 GiB; 64 MiB are 64 of the largest or 65,536 of 1 KiB."""

    enqueue_max: Annotated[int, Count(1, 100_000)] = 10_000
    """Messages in one enqueue request. At 256 bytes 10,000 are 2.5 MiB; a larger request gains nothing, since the cost
    of the sync is shared by then, and holds up everybody else for its whole turn."""

    settle_max: Annotated[int, Count(1, 100_000)] = 10_000
    """Settlements in one settle request, for the same reason."""

    lease_max: Annotated[int, Count(1, 10_000)] = 1_000
    """Messages in one lease request. All of them must be worked on before the lease ends: 1,000 in the default 30 s are
    30 ms each. Who is faster asks more often."""

    lease_bytes: Annotated[int, Size(MIB, GIB)] = 32 * MIB
    """Payload bytes in one lease's answer; at least one message is always given. 1,000 messages of 1 MiB would be 1 GiB
    in one answer."""

    max_wait: Annotated[int, Duration(0, HOUR)] = 15 * MINUTE
    """The longest a lease request may wait for a message. A waiting request costs a few hundred bytes and no work, but
    proxies between drop silent connections, most after 15 minutes at the latest."""

    max_waiters: Annotated[int, Count(1, 1_000_000)] = 100_000
    """Lease requests that wait at the same time, over all queues. At about 1 KiB each 100,000 are 100 MiB."""

    max_lease_timeout: Annotated[int, Duration(SECOND, 30 * DAY)] = 12 * HOUR
    """The longest lease that can be asked for or extended to. Until it ends nobody else can work on the message, so it
    bounds how long a vanished consumer can hold one back."""

    hot_cache_bytes: Annotated[int, Size(0, 64 * GIB)] = 64 * MIB
    """Payloads kept in memory after they were stored, so that a consumer who keeps up is served without a read from
    the store. Over all queues; the oldest go first."""


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Consumers to whom messages are pushed."""

    heartbeat_timeout: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = 30 * SECOND
    """A member not heard of for so long is taken out of its group and its partitions go to others. A client should beat
    three times in it, so that one lost beat costs nothing."""

    max_members_per_group: Annotated[int, Count(1, 100_000)] = 10_000
    """Members of one group. The assignment is worked out anew on every join and leave, in time that grows with the
    number of members."""

    max_prefetch: Annotated[int, Count(1, 100_000)] = 1_000
    """Deliveries one member may have in flight, whatever it asks for. All of them count against their lease while they
    wait in its buffer."""


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's way from the store into Parquet segments."""

    enabled: Annotated[bool, Switch()] = True
    """Whether the exporter runs. Off, journal records are dropped from the store once nothing needs them, and there is
    no history: no reports, no replay, no proof. A queue can leave the journal on its own (`journal`)."""

    directory: Annotated[Path, Location()] = Path("lake")
    """Where segments are written, relative to data_dir. An absolute path puts the lake on another disk."""

    segment_bytes: Annotated[int, Size(64 * KIB, 4 * GIB)] = 64 * MIB
    """A segment is closed when its records reach this size, before compression. Larger files are what Spark reads best;
    the exporter holds one in memory while it writes it."""

    segment_age: Annotated[int, Duration(100 * MILLISECOND, DAY)] = 60 * SECOND
    """A segment is closed when its oldest record is this old, so that the lake is never further behind. At 60 s a day
    has at most 1,440 segments from one node."""

    segment_rows: Annotated[int, Count(1, 10_000_000)] = 500_000
    """A segment is closed at this many records, however small they are. Columns of 500,000 rows take about 100 MiB in
    memory while they are written."""


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Calls to a queue's `dlq.alert_webhook`. They run beside the queue and never hold it up."""

    timeout: Annotated[int, Duration(100 * MILLISECOND, 5 * MINUTE)] = 10 * SECOND
    """How long one call may take, from connecting to the end of the answer."""

    attempts: Annotated[int, Count(1, 100)] = 5
    """Calls for one dead letter before it is given up and logged. With the default backoff the fifth comes after
    1 + 2 + 4 + 8 = 15 s."""

    backoff: Annotated[int, Duration(10 * MILLISECOND, HOUR)] = SECOND
    """The pause before the second attempt; each further one is twice as long."""

    max_backoff: Annotated[int, Duration(10 * MILLISECOND, DAY)] = MINUTE
    """The longest pause between two attempts, so that a receiver that was down for long is called soon after it is
    back."""

    queue_size: Annotated[int, Count(1, 1_000_000)] = 1_000
    """Calls that wait. Past it the newest is dropped and counted: a receiver that is down must not cost memory, and the
    dead letters themselves are safe in their queue."""

    concurrency: Annotated[int, Count(1, 1_000)] = 8
    """Calls under way at the same time. With answers in 100 ms 8 are 80 calls a second."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says on standard error."""

    level: Annotated[str, Choice(("debug", "info", "warning", "error"), flag="--log-level")] = "info"
    """The least important line that is written. Nothing is logged for each message at any level but `debug`."""

    format: Annotated[str, Choice(("console", "json"), flag="--log-format")] = "console"
    """How lines look: `console` for people, with colours on a terminal, `json` for machines, one object a line."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration of a node. `Config()` is all defaults; `holdfast.config.load` is what the server uses."""

    node: NodeSettings = NodeSettings()
    store: StoreSettings = StoreSettings()
    queues: QueueSettings = QueueSettings()
    limits: LimitSettings = LimitSettings()
    members: MemberSettings = MemberSettings()
    journal: JournalSettings = JournalSettings()
    webhooks: WebhookSettings = WebhookSettings()
    log: LogSettings = LogSettings()
    origins: dict[str, str] = {}
    """Where each value came from, by dotted name: `default`, `file PATH`, `environment HOLDFAST_X`, `flag --x`."""

    @property
    def lake_dir(self) -> Path:
        """The journal's directory, resolved against the data directory."""
        return self.node.data_dir / self.journal.directory
