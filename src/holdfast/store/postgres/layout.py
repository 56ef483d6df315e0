"""Which table of the schema has which records, and how their keys are written there.

The first byte of a key is the number of its record's table, so that one array of keys can be of several tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.core.effects import Read
from holdfast.core.records import Table
from holdfast.store.contract import Found, Rows
from holdfast.store.postgres.arrays import bigint, bytea_array
from holdfast.store.postgres.session import BoundStatement, Row
from holdfast.store.postgres.statements import STATEMENTS
from holdfast.store.remote.table import Change

_NAMED: Final = {
    "heads": (Table.META, Table.SHARDS, Table.GROUPS, Table.LEASES, Table.RUNS),
    "packs": (Table.MESSAGE_RUNS, Table.READY_RUNS),
    "journal": (Table.JOURNAL,),
}
HOME: Final = {table: next((name for name, own in _NAMED.items() if table in own), "records") for table in Table}
_PREFIX: Final = {table: bytes([table]) for table in Table}


def call(name: str, *parameters: bytes) -> BoundStatement:
    """A call of a statement by its name."""
    return BoundStatement(STATEMENTS[name], parameters)


def change_calls(change: Change) -> list[BoundStatement]:
    """What stores a change: ranges, then deleted keys, then records."""
    calls: list[BoundStatement] = []
    prefix, home = _PREFIX, HOME
    ranges: dict[str, tuple[list[bytes], list[bytes]]] = {}
    for table, start, end in change.ranges:
        starts, ends = ranges.setdefault(home[table], ([], []))
        starts.append(prefix[table] + start)
        ends.append(prefix[table] + end)
    calls += [call(f"delete_ranges_{name}", *map(bytea_array, pair)) for name, pair in ranges.items()]
    deleted: dict[str, list[bytes]] = {}
    for table, key in change.deletes:
        deleted.setdefault(home[table], []).append(prefix[table] + key)
    calls += [call(f"delete_{name}", bytea_array(keys)) for name, keys in deleted.items()]
    put: dict[str, tuple[list[bytes], list[bytes]]] = {}
    for table, key, value in change.puts:
        keys, values = put.setdefault(home[table], ([], []))
        keys.append(prefix[table] + key)
        values.append(value)
    calls += [call(f"put_{name}", *map(bytea_array, pair)) for name, pair in put.items()]
    return calls


def read_calls(reads: Sequence[Read]) -> list[BoundStatement]:
    """What asks for all of these: one call for the single records of a table of the schema, one for each range."""
    wanted: dict[str, list[bytes]] = {}
    scans: list[BoundStatement] = []
    for table, key, end, limit in reads:
        prefix = _PREFIX[table]
        if end is None:
            wanted.setdefault(HOME[table], []).append(prefix + key)
        else:
            scans.append(call(f"scan_{HOME[table]}", prefix + key, prefix + end, bigint(max(limit, 0))))
    return [call(f"get_{name}", bytea_array(keys)) for name, keys in wanted.items()] + scans


def answers(reads: Sequence[Read], results: list[list[Row]]) -> list[Found]:
    """What each read asked for, from the results of its calls."""
    ranges = sum(read.end is not None for read in reads)
    singles, scans = results[: len(results) - ranges], iter(results[len(results) - ranges :])
    values = {key: value for rows in singles for key, value in rows}
    found: list[Found] = []
    for read in reads:
        if read.end is None:
            found.append(values.get(_PREFIX[read.table] + read.key))
        else:
            rows: Rows = [(key[1:], value) for key, value in next(scans) if key is not None and value is not None]
            found.append(rows)
    return found
