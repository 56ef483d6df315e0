"""What MQTT has stored, read before it is used: on the thread that opens the store, while the loop goes on."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import Final

from holdfast.core.records import Table
from holdfast.store.contract import Reader, Rows

TABLES: Final = (
    Table.MQTT_MESSAGES,
    Table.MQTT_RETAINED,
    Table.MQTT_SESSIONS,
    Table.MQTT_SUBSCRIPTIONS,
    Table.MQTT_INCOMING,
    Table.MQTT_OUTGOING,
)
PAGE: Final = 1_000
_END = b"\xff" * 16


class StoredSessions:
    """All records of MQTT's tables, in memory."""

    def __init__(self, store: Reader) -> None:
        self._rows = {table: _all(store, table) for table in TABLES}

    def scan(self, table: Table, start: bytes, end: bytes, limit: int) -> Rows:
        """As the store would answer."""
        rows = self._rows[table]
        low, high = bisect_left(rows, start, key=itemgetter(0)), bisect_left(rows, end, key=itemgetter(0))
        return rows[low : min(high, low + limit)]


def _all(store: Reader, table: Table) -> Rows:
    rows: Rows = []
    start = b""
    while True:
        page = store.scan(table, start, _END, PAGE)
        rows += page
        if len(page) < PAGE:
            return rows
        start = page[-1][0] + b"\0"
