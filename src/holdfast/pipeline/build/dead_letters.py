"""`dead_letters`: what died, why, and what became of the dead letter; with a fingerprint that groups similar deaths.

A death and its dead letter are journalled in one commit, so they are in one batch: the `dead` event of the source, and
the `enqueued` event of the dead letter, which names the source. A message that dies in several groups has several dead
letters; the first death belongs to the first of them. When a redrive is undone, the dead letter is a new message that
names the old one, and the row gets its id. dead_letter_task.py joins all that; here are the fingerprints.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.fingerprints import DETAILS, DIGITS, ERROR_MAX, NUMBERS


def error_pattern(error: Column) -> Column:
    """An error without its details: `timeout after 17 ms` and `timeout after 9 ms` are one."""
    short = F.substring(F.coalesce(error, F.lit("")), 1, ERROR_MAX)
    return F.trim(reduce(lambda text, detail: F.regexp_replace(text, *detail), DETAILS, short))


def payload_shape(payload: Column) -> Column:
    """The structure of a payload: keys and types of JSON, else `text`, `binary` or `empty`."""
    text = F.when(F.is_valid_utf8(payload.cast("string")), payload.cast("string"))
    shape = F.schema_of_variant(F.try_parse_json(text))
    numbers = F.regexp_replace(shape, NUMBERS, "NUMBER")
    return (
        F.when(payload.isNull(), F.lit("unknown"))
        .when(F.length(payload) == 0, F.lit("empty"))
        .when(text.isNull(), F.lit("binary"))
        .otherwise(F.coalesce(numbers, F.lit("text")))
    )


def fingerprint(reason: Column, pattern: Column, shape: Column) -> Column:
    """Sixteen hex digits for deaths of the same kind."""
    return F.substring(F.sha2(F.concat_ws("\x01", F.coalesce(reason, F.lit("")), pattern, shape), 256), 1, DIGITS)


def with_fingerprint(deaths: DataFrame) -> DataFrame:
    """Add error pattern, payload shape and fingerprint."""
    shaped = deaths.withColumns(
        {"error_pattern": error_pattern(F.col("error")), "payload_shape": payload_shape(F.col("payload"))}
    )
    return shaped.withColumn(
        "fingerprint", fingerprint(F.col("reason"), F.col("error_pattern"), F.col("payload_shape"))
    )


def latest(now: dict[int, int]) -> dict[int, int]:
    """By dead letter, the one that replaced it; after several undone redrives the last one."""
    found: dict[int, int] = {}
    for dead_letter, following in now.items():
        last = following
        while last in now:
            last = now[last]
        found[dead_letter] = last
    return found
