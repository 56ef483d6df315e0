"""How RocksDB is set up for queues: which tables live together, and every option with its reason.

A column family is a set of tables that behave alike, with memtables and files of its own:

    state     few records, overwritten all the time
    messages  large values, written once, read once or twice, deleted in about the order they came
    index     all the others: small records in some order, about as many deletes as puts
    lookup    small records asked for by exact key, mostly in vain
    journal   blocks in sequence, read once by the exporter, deleted from the front by ranges

A record's key on disk is the table's number as one byte, then the key.
"""

from __future__ import annotations

from typing import Final

from rocksdict import (
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    ChecksumType,
    CompactOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    ReadOptions,
)

from holdfast.core.records import Table
from holdfast.units import KIB, MIB

_NAMED: dict[str, tuple[Table, ...]] = {
    "state": (Table.META, Table.QUEUES, Table.SHARDS, Table.GROUPS, Table.TRANSACTIONS),
    "messages": (Table.MESSAGES, Table.STAGED, Table.MESSAGE_RUNS),
    "lookup": (Table.DEDUP, Table.SOURCES),
    "journal": (Table.JOURNAL,),
}
_OTHERS = tuple(table for table in Table if all(table not in tables for tables in _NAMED.values()))
FAMILIES: Final[dict[str, tuple[Table, ...]]] = {**_NAMED, "index": _OTHERS}
FAMILY_OF: Final[dict[int, str]] = {int(table): name for name, tables in FAMILIES.items() for table in tables}

CACHE_BYTES: Final = 32 * MIB
WRITE_BUFFER_BYTES: Final = 32 * MIB
TABLE_BYTES_MAX: Final = 64 * MIB
VIEW_CACHE_BYTES: Final = 4 * MIB  # a view is mostly read once, from its beginning to its end

# Parts of the write buffer a family may fill before it is flushed. The index gets little, because a scan steps over
# every tombstone in a memtable one by one (0.1 µs each): 4 MiB hold about 40,000.
_SHARE: Final = {"state": 1 / 16, "messages": 1 / 2, "index": 1 / 8, "lookup": 1 / 8, "journal": 1 / 4}

# Values from this size on live in blob files, so that compaction moves their keys and not themselves. Smaller ones
# are cheaper inline: a blob costs one more read.
_BLOB_BYTES = 4 * KIB

# Options for which the binding has no name at opening. The first read after a deletion of a range sorts all of those in
# the memtable (0.2 µs each), so that there must not be too many.
FAMILY_CHANGES: Final = {"index": {"memtable_max_range_deletions": "400"}}

# A run of fewer records than this is deleted one by one, a longer one by its range. A range costs as much as 5
# deletions, and each of some hundred recent ones costs the next scan 0.2 µs: in the index, which is scanned all the
# time, both ways cost the same at this number at worst. Messages are mostly read by key: a range of them pays sooner.
RANGE_MIN: Final = 32
MESSAGE_RANGE_MIN: Final = 8

# A run of fewer records than this is put one by one: a pack costs as much as about four records.
RUN_MIN: Final = 8

# A scan that skips more tombstones than this has them removed: about a millisecond's worth.
SKIPPED_MAX: Final = 4_000


def database_options(write_buffer_bytes: int, *, create: bool, skip_damaged: bool = False) -> Options:
    """Options of the database as a whole. `skip_damaged`: read on behind damage in the log, for salvage."""
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    # All memtables together; the oldest is flushed when they exceed it. This and the block cache bound the memory.
    options.set_db_write_buffer_size(write_buffer_bytes)
    # A family that is seldom written keeps every log alive since its last flush: force that flush.
    options.set_max_total_wal_size(2 * write_buffer_bytes)
    # Each open table file costs memory outside the cache; 256 × 64 MiB files are opened without churn.
    options.set_max_open_files(256)
    options.set_max_background_jobs(2)
    # Point in time: a torn tail after a power cut is what the contract allows to be lost; what follows it is not read.
    # Damage is found before the database is opened (store/rocks_log.py).
    recovery = DBRecoveryMode.skip_any_corrupted_record() if skip_damaged else DBRecoveryMode.point_in_time()
    options.set_wal_recovery_mode(recovery)
    options.set_paranoid_checks(True)
    # Write tables out bit by bit, or a flush's fsync makes the log's fsync wait behind 16 MiB of dirty pages.
    options.set_bytes_per_sync(MIB)
    # RocksDB's own log of what it did would grow without bound, and dump statistics every ten minutes.
    options.set_max_log_file_size(MIB)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_max_manifest_file_size(4 * MIB)
    return options


def sparing_changes(name: str, sparing: bool) -> dict[str, str]:
    """What is changed of a column family while the disk is nearly full, and changed back. A compaction writes new files
    before it deletes the old ones, and with them copies of half of the blobs that they refer to: it would take the room
    that settling needs. Blob files in which nothing is left are deleted all the same."""
    changes = {"disable_auto_compactions": str(sparing).lower()}
    if name == "messages":
        changes["enable_blob_garbage_collection"] = str(not sparing).lower()
    return changes


def family_options(name: str, write_buffer_bytes: int, cache: Cache, *, sparing: bool = False) -> Options:
    """Options of one column family. `sparing`: as `sparing_changes` says, from the opening on."""
    options = Options(raw_mode=True)
    options.set_disable_auto_compactions(sparing)
    options.set_write_buffer_size(max(64 * KIB, int(write_buffer_bytes * _SHARE[name])))
    options.set_max_write_buffer_number(4)
    # No table is larger than the write buffer: what is left of one is written again when the disk is nearly full.
    options.set_target_file_size_base(min(write_buffer_bytes or WRITE_BUFFER_BYTES, TABLE_BYTES_MAX))
    # Bursts may pile up more files than the defaults (20, 36) before the compaction threads catch up; a stalled write
    # would stop the whole node, and reads of a queue's front look into few of these files anyway.
    options.set_level_zero_slowdown_writes_trigger(40)
    options.set_level_zero_stop_writes_trigger(64)
    options.set_level_compaction_dynamic_level_bytes(True)
    # The same at every level: then a file that overlaps no other one (a queue grows at its end) is moved down by
    # renaming it instead of being written again.
    options.set_compression_type(DBCompressionType.lz4())
    options.set_block_based_table_factory(_tables(cache))
    # Files that are mostly tombstones are compacted without waiting for their level to fill up.
    options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
    match name:
        case "messages":
            options.set_enable_blob_files(True)
            options.set_min_blob_size(_BLOB_BYTES)
            options.set_blob_file_size(64 * MIB)
            options.set_blob_compression_type(DBCompressionType.lz4())
            options.set_enable_blob_gc(not sparing)
            options.set_blob_gc_age_cutoff(0.5)
            options.set_blob_gc_force_threshold(0.5)
            options.set_optimize_filters_for_hits(True)  # a message is looked up because it is there
        case "index":
            pass  # no filter in the memtable: it would cost each record 0.1 µs, and few are ever looked up there
        case "lookup" | "state":
            # Most lookups of an id are in vain; a filter in the memtable answers those without walking it.
            options.set_memtable_prefix_bloom_ratio(0.1)
            options.set_memtable_whole_key_filtering(True)
        case _:
            options.set_optimize_filters_for_hits(True)
    return options


def _tables(cache: Cache) -> BlockBasedOptions:
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_cache_index_and_filter_blocks(True)  # inside the cache's bound, instead of growing with the backlog
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    tables.set_bloom_filter(10, False)
    # Neighbours are read together (a window of a queue), and larger blocks compress better and need less index.
    tables.set_block_size(16 * KIB)
    tables.set_format_version(5)
    tables.set_checksum_type(ChecksumType.xxh3())
    return tables


def range_options(upper: bytes, skipped_max: int, *, fill_cache: bool) -> ReadOptions:
    """Options of a scan that ends before `upper`. The caller keeps them alive as long as the iterator: it points into
    their bytes and does not copy them."""
    options = ReadOptions()
    options.fill_cache(fill_cache)  # type: ignore[call-arg]  # the binding's types lack its argument
    options.set_iterate_upper_bound(upper)
    options.set_max_skippable_internal_keys(skipped_max)
    return options


def sweep_options() -> CompactOptions:
    """Options of a compaction that must get rid of tombstones: down to and including the last level."""
    options = CompactOptions()
    options.set_exclusive_manual_compaction(False)
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    return options
