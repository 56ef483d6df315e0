"""Tables in which named fields are hidden, for people who may read what happened, but not to whom.

    key = "a long secret"                 # of the hashes: who has it can find out whether a value is a certain one

    [[mask]]
    queue = "orders*"                     # also its dead queue; without it all queues
    fields = ["payload.customer.email", "key", "properties.tenant", "error"]
    by = "hash"                           # or "null"

A hash is the same wherever the value is, so that hidden fields can still be counted and joined. What is not named
stays. A payload of which fields are to be hidden, and which is no JSON object or list, is null as a whole: nobody knows
what is in it.

The rows are masked in Spark's tasks. This module is pickled by value and sent to the executors.
"""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.pipeline.spark.tasks import pickle_by_value

PAYLOAD, PROPERTIES = "payload", "properties"
COLUMNS = ("key", "correlation_id", "client_message_id", "consumer", "error", "error_pattern", PAYLOAD, PROPERTIES)
"""Columns that may hold what people wrote."""

_QUEUES = ("queue", "source_queue", "dead_queue")
_DEAD_PREFIX = "dlq/"
DIGITS = 32

Rules = dict[str, Any]
"""The policy, as it is read from a file: `key` and a list of `mask`."""


def masked(rows: DataFrame, rules: Rules) -> DataFrame:
    """Rows of any table of the lake with the fields of `rules` hidden."""
    check_rules(rules)
    pickle_by_value(sys.modules[__name__])

    def mask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        hide = _hiding(rules)
        for batch in batches:
            yield pa.RecordBatch.from_pylist([hide(row) for row in batch.to_pylist()], schema=batch.schema)

    return rows.mapInArrow(mask, rows.schema)


def check_rules(rules: Rules) -> None:
    """Refuse a policy that cannot be followed."""
    unknown = set(rules) - {"key", "mask"}
    if unknown or not rules.get("mask"):
        raise ValueError(f"a policy has `key` and [[mask]], not {', '.join(sorted(unknown)) or 'nothing'}")
    for rule in rules["mask"]:
        if set(rule) - {"queue", "fields", "by"} or not rule.get("fields"):
            raise ValueError("a [[mask]] has `fields`, and may have `queue` and `by`")
        if rule.get("by", "hash") not in ("hash", "null"):
            raise ValueError(f'`by` is "hash" or "null", not {rule["by"]!r}')
        if rule.get("by", "hash") == "hash" and len(rules.get("key", "")) < DIGITS:
            raise ValueError(f"hashes need a `key` of {DIGITS} characters at least, or anybody could guess values")
        for field in rule["fields"]:
            if field.partition(".")[0] not in COLUMNS or ("." in field and not field.startswith((PAYLOAD, PROPERTIES))):
                raise ValueError(f"there is no field {field!r} to hide: name {', '.join(COLUMNS)} or a part of these")


def _hiding(rules: Rules) -> Callable[[dict[str, Any]], dict[str, Any]]:
    key = rules.get("key", "").encode()

    def hashed(value: Any) -> str | None:
        if value is None:
            return None
        text = value if isinstance(value, bytes) else str(value).encode()
        return hmac.digest(key, text, "sha256").hex()[:DIGITS]

    def removed(_value: Any) -> None:
        return None

    def hide(row: dict[str, Any]) -> dict[str, Any]:
        queues = {row[name] for name in _QUEUES if row.get(name)}
        for rule in rules["mask"]:
            pattern = rule.get("queue", "*")
            if any(fnmatchcase(queue.removeprefix(_DEAD_PREFIX), pattern) for queue in queues):
                by = hashed if rule.get("by", "hash") == "hash" else removed
                for field in rule["fields"]:
                    _hide(row, field, by)
        return row

    return hide


def _hide(row: dict[str, Any], field: str, by: Callable[[Any], Any]) -> None:
    column, _, path = field.partition(".")
    if row.get(column) is None:
        return
    if column == PROPERTIES:
        row[column] = [{**one, "value": by(one["value"])} if path in ("", one["name"]) else one for one in row[column]]
    elif column == PAYLOAD and path:
        row[column] = _within(row[column], path.split("."), by)
    elif column == PAYLOAD:
        value = by(row[column])
        row[column] = None if value is None else value.encode()
    else:
        row[column] = by(row[column])


def _within(payload: bytes, path: list[str], by: Callable[[Any], Any]) -> bytes | None:
    try:
        document = json.loads(payload)
    except ValueError:
        return None
    if not isinstance(document, dict | list):
        return None
    if not _replace(document, path, by):
        return payload
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _replace(document: Any, path: list[str], by: Callable[[Any], Any]) -> bool:
    """Hide a field of a document, in each element of the lists on the way. Whether there was one."""
    if isinstance(document, list):
        there = [_replace(one, path, by) for one in document]  # of every element, not of the first that has it
        return any(there)
    if not isinstance(document, dict) or path[0] not in document:
        return False
    if len(path) > 1:
        return _replace(document[path[0]], path[1:], by)
    value = document[path[0]]
    document[path[0]] = by(value if isinstance(value, str) else json.dumps(value)) if value is not None else None
    return True
