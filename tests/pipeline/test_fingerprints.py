"""Fingerprints without Spark, as the console has them, are the same as those in the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import fingerprints
from holdfast.pipeline.build import dead_letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ERRORS = [
    "",
    "  timeout after 17 ms  ",
    "user a.b+c@example.org of 10.0.0.7:5432 failed at 2026-01-31T12:00:00.5Z",
    "no such key 550e8400-e29b-41d4-a716-446655440000 in 0xdeadBEEF, commit 1a2b3c4d5e",
    "two\tlines\n of\r\n text, 3.14 and -7",
    "Grüße 12€ \u0663",
    "x" * 400 + "1",
]
PAYLOADS = [
    b"",
    b"plain text",
    b"\xff\xfe",
    b"null",
    b"true",
    b'"a string"',
    b"17",
    b"1.5",
    b"1e400",
    b"123456789012345678901234567890123456789012345",
    b"[]",
    b"{}",
    b"[1, 2.5, null]",
    b'[1, "two"]',
    b"[[1], [], [null]]",
    b'[{"a": 1}, {"b": "x", "a": 2.5}]',
    b'[{"a": 1}, {"a": [1]}]',
    b'{"b": {"c": [true, false]}, "a": null, "A": 1}',
    b'{"with space": 1, "tick`": 2, "1st": 3, "": 4, "\xc3\xa4": 5, "_ok9": 6}',
    b'{"FLOAT": "DOUBLE"}',
    b"[true, null]",
    b'{"a": 1} trailing',
    b"12 monkeys",
    b"12monkeys",
    b"2026-01-31",
    b"truex",
    b"NaN",
    b" \n ",
    b"\t[1]",
    b'{"a": 1, "a": 2}',
]


def test_the_lake_and_the_console_see_the_same_causes(spark: SparkSession) -> None:
    rows = [("rejected", error, bytearray(PAYLOADS[0])) for error in ERRORS]
    rows += [("max_retries", ERRORS[1], bytearray(payload)) for payload in PAYLOADS]
    frame = spark.createDataFrame(rows, "reason string, error string, payload binary")
    found = dead_letters.with_fingerprint(frame).collect()
    lake = {
        (row["reason"], row["error"], bytes(row["payload"])): (
            row["error_pattern"],
            row["payload_shape"],
            row["fingerprint"],
        )
        for row in found
    }
    console = {
        (reason, error, bytes(payload)): (
            fingerprints.error_pattern(error),
            fingerprints.payload_shape(bytes(payload)),
            fingerprints.fingerprint(reason, error, bytes(payload)),
        )
        for reason, error, payload in rows
    }
    assert console == lake
