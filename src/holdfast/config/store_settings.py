"""The settings of the store, in the way of `settings`."""

from typing import Annotated

import msgspec

from holdfast.config.kinds import Choice, Duration, Secret, Size
from holdfast.config.secret import SecretText
from holdfast.units import GIB, MIB, MILLISECOND, MINUTE, SECOND, TIB


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which store keeps the records, and how much memory it may use."""

    kind: Annotated[str, Choice(("rocks", "memory", "postgres"), flag="--store")] = "rocks"
    """Where records are kept: `rocks` is embedded and keeps everything in data_dir, `postgres` keeps them in the
    database that store.url names, `memory` loses everything when the process ends. The last is for tests and trials.
    The lake of the journal is in data_dir (journal.directory) whatever the store."""

    url: Annotated[SecretText, Secret(8, 4096)] = SecretText("")
    """The database of the store `postgres`, as libpq writes it: `postgresql://user:password@host/database`, with
    whatever libpq understands (several hosts, `sslmode=verify-full`, `passfile`). The node's records are in the schema
    `holdfast_` with the node's number of four digits, which is made at the first start. It has a password, so it is no
    flag: use the file or the variable."""

    read_timeout: Annotated[int, Duration(10 * MILLISECOND, MINUTE)] = 250 * MILLISECOND
    """How long a read of a remote store (`postgres`) may take. The node does nothing else meanwhile; a read takes a
    millisecond or two. After this what needed it is refused (`store_away`), and nobody waits for the store until it has
    answered again."""

    patience: Annotated[int, Duration(SECOND, 10 * MINUTE)] = 10 * SECOND
    """How long a remote store (`postgres`) may be away before it counts as failed: for a restart or a failover of the
    database. Meanwhile callers wait for their answers, and connections stay. Nothing is lost or doubled either way."""

    cache_bytes: Annotated[int, Size(MIB, TIB)] = 32 * MIB
    """RocksDB's block cache, shared by all tables. It serves reads of the backlog: a block is 16 KiB, so 32 MiB hold
    2,000, enough for the heads of as many shards. What the export of the journal reads is read once and not cached.
    More helps only when many consumers browse."""

    min_free_bytes: Annotated[int, Size(0, TIB)] = 256 * MIB
    """Enqueues are refused (`disk_full`) while the file system has less than this left; what is admitted counts twice
    until it is written, in the log and in a table. Acks need room too, for the log and for compaction: 256 MiB are four
    write buffers. Refusing early keeps the node able to drain."""

    reserve_bytes: Annotated[int, Size(0, TIB)] = 128 * MIB
    """A file of this size occupies room on the disk, and is given up when the disk is really full, also if others fill
    it: what is stored can then be leased and settled, and nothing new is taken until the file is back, which needs
    twice its size. A lake on the same disk (journal.directory) takes nothing of it, nor of another
    store.write_buffer_bytes: the journal waits in the store meanwhile. While less than this is left beside it, nothing
    is compacted but what was deleted, file by file. At least twice store.write_buffer_bytes, which is what is written
    when the store is opened again; less is refused. 0: none is kept, and a full disk refuses settlements too."""

    sync_in_place_max: Annotated[int, Duration(0, 10 * MILLISECOND)] = MILLISECOND
    """Syncs run on a thread of their own; to hand one over and back takes 0.1 to 0.2 ms. While one caller alone waits,
    and the last 16 syncs took no longer than this each, most are done without that thread, which on a fast disk saves a
    single client a quarter of the time. The node does nothing else meanwhile: a disk that was fast and hesitates once
    holds up everything once. 0: always on the thread."""

    slow_sync: Annotated[int, Duration(MILLISECOND, 10 * MINUTE)] = SECOND
    """A sync that takes longer is slow: every answer "stored" waits for one. The log says when syncs begin to be slow,
    and when none has been for a minute; `holdfast_commit_sync_seconds` has all of them."""

    write_buffer_bytes: Annotated[int, Size(MIB, 16 * GIB)] = 64 * MIB
    """Memory for writes that are in the log but not yet in sorted files, over all tables. A message that is acked
    before its buffer is flushed never reaches a sorted file, so a larger buffer saves disk writes for short-lived
    messages: at 10,000 messages a second of 1 KiB, 64 MiB are about 6 s of traffic. Opening after a crash replays up to
    this much. A larger buffer needs a larger store.reserve_bytes."""
