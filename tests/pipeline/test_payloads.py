"""How payloads change over time is shown, and fields that a policy names are hidden."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.jobs.masking import check_rules, masked
from holdfast.pipeline.jobs.schema_drift import drift, fields_of_shape
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import EVENTS
from tests.pipeline.scenes import Built, ask

KEY = "k" * 32
BEGUN = datetime(2026, 3, 1, tzinfo=UTC)


def enqueued(number: int, payload: object, queue: str = "orders", **fields: object) -> tuple[object, ...]:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    row = {"lsn": number, "message_id": number, "at": BEGUN + timedelta(hours=number), "event": "enqueued"}
    row |= {"namespace": "default", "queue": queue, "payload": body, **fields}
    return tuple(row.get(name) for name in EVENTS.names)


def test_fields_that_are_new_gone_or_of_two_types_are_named_with_their_first_message(spark: SparkSession) -> None:
    payloads: list[object] = [
        {"id": 1, "amount": 5, "note": "x"},
        {"id": 2, "amount": 5, "items": [{"sku": "a"}]},
        {"id": "3", "amount": 5, "items": []},
        {"id": 4, "amount": 5.5, "items": [{"sku": "b"}]},
    ]
    rows = [enqueued(number, payload) for number, payload in enumerate(payloads, 1)]
    events = spark.createDataFrame([*rows, enqueued(9, b"plain", "mail")], EVENTS.ddl)
    found = {(one.field, one.type): one for one in drift(events, "orders")}
    assert {key: one.changes for key, one in found.items() if one.changes} == {
        ("payload.id", "NUMBER"): ["type"],
        ("payload.id", "STRING"): ["new", "gone", "type"],
        ("payload.note", "STRING"): ["gone"],
        ("payload.items", "ARRAY"): ["new"],
        ("payload.items[]", "OBJECT"): ["new"],
        ("payload.items[]", "VOID"): ["new", "gone"],
        ("payload.items[].sku", "STRING"): ["new"],
    }
    text = found["payload.id", "STRING"]
    assert (text.example, text.messages, text.of, text.first_seen) == (3, 1, 4, BEGUN + timedelta(hours=3))
    assert not found["payload.amount", "NUMBER"].changes, "5 and 5.5 are both numbers"
    assert [one.field for one in drift(events, "mail")] == ["payload"]


def test_a_shape_is_read_whole() -> None:
    assert fields_of_shape("OBJECT<`a b`: ARRAY<OBJECT<c: NUMBER, `d: <`: VOID>>, e: BOOLEAN>") == {
        *(("payload", "OBJECT"), ("payload.`a b`", "ARRAY"), ("payload.`a b`[]", "OBJECT")),
        *(("payload.`a b`[].c", "NUMBER"), ("payload.`a b`[].`d: <`", "VOID"), ("payload.e", "BOOLEAN")),
    }
    assert fields_of_shape("text") == {("payload", "text")}


def test_named_fields_are_hidden_in_their_queue_and_its_dead_queue_and_nothing_else_is(spark: SparkSession) -> None:
    person = {"who": [{"email": "a@b", "age": 7}, {"email": "a@b"}], "n": 12345678901234567890}
    properties = [("tenant", "t"), ("tenant", "u"), ("other", "o")]
    rows = [
        enqueued(1, person, key="a@b", properties=properties),
        enqueued(2, person, "dlq/orders", key="a@b"),
        enqueued(3, person, "mail", key="a@b"),
        enqueued(4, b"to a@b"),
        enqueued(5, {"n": 1}),
    ]
    events = spark.createDataFrame(rows, EVENTS.ddl)
    fields = ["payload.who.email", "payload.who.age", "key", "properties.tenant"]
    policy = {"key": KEY, "mask": [{"queue": "orders", "fields": fields}]}
    found = {row["lsn"]: row for row in masked(events, policy).toArrow().to_pylist()}
    hidden = json.loads(found[1]["payload"])
    assert hidden["n"] == person["n"]
    assert hidden["who"][0]["email"] == found[1]["key"] == found[2]["key"], "the same value is the same hash"
    assert len({hidden["who"][0]["email"], hidden["who"][0]["age"], "a@b", "7"}) == 4
    assert [one["value"] == given for one, (_, given) in zip(found[1]["properties"], properties, strict=True)] == [
        *(False, False, True),
    ]
    assert found[2]["payload"] == found[1]["payload"], "its dead letters too"
    assert (json.loads(found[3]["payload"]), found[3]["key"]) == (person, "a@b")
    assert found[4]["payload"] is None, "nobody knows what is in it"
    assert json.loads(found[5]["payload"]) == {"n": 1}
    assert b"a@b" not in b"".join(row["payload"] or b"" for row in found.values() if row["queue"] != "mail")
    nothing = {"mask": [{"fields": ["payload", "key"], "by": "null"}]}
    assert {(row["payload"], row["key"]) for row in masked(events, nothing).select("payload", "key").collect()} == {
        (None, None)
    }


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({}, "a policy has `key` and"),
        ({"mask": [{"fields": ["key"]}]}, "hashes need a `key` of 32 characters"),
        ({"mask": [{"fields": ["key"], "by": "rot13"}]}, "`by` is"),
        ({"mask": [{"fields": ["amount"], "by": "null"}]}, "no field 'amount' to hide"),
        ({"mask": [{"fields": ["key.a"], "by": "null"}]}, "no field 'key.a' to hide"),
        ({"mask": [{"queues": "a", "fields": ["key"]}]}, "a \\[\\[mask\\]\\] has `fields`"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused(policy: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_rules(policy)


def test_the_commands_show_drift_and_copy_a_table(built: Built, spark: SparkSession, tmp_path: Path) -> None:
    fields = json.loads(ask(built, "drift", "--all", "-o", "json").stdout)
    assert {("tasks", "payload.n", "NUMBER"), ("tasks", "payload.kind", "STRING")} <= {
        (one["queue"], one["field"], one["type"]) for one in fields
    }
    assert "payload" in ask(built, "drift").stdout + ask(built, "drift").stderr
    policy = tmp_path / "policy.toml"
    policy.write_text(f'key = "{KEY}"\n[[mask]]\nfields = ["consumer"]\n')
    target = tmp_path / "copy"
    ask(built, "copy", "messages", str(target), "--mask", str(policy))
    copied = spark.read.parquet(f"file://{target}")
    plain = Lake(built.lake).read(spark, "messages")
    assert copied.columns == plain.columns
    assert copied.count() == plain.count()
    consumers = {row[0] for row in copied.select("consumer").distinct().collect()}
    assert not consumers & {"w1", "w2"}
    assert len(consumers) == plain.select("consumer").distinct().count()
    assert "is there already" in ask(built, "copy", "messages", str(target), code=2).stderr
    assert "is one of events, messages" in ask(built, "copy", "letters", str(tmp_path / "no"), code=1).stderr
    policy.write_text("[[mask]]\nfields = ['key']\n")
    refused = ask(built, "copy", "messages", str(tmp_path / "no"), "--mask", str(policy), code=1)
    assert "--mask cannot be followed: hashes need" in refused.stderr
    assert not (tmp_path / "no").exists()
