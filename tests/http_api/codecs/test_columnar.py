"""Deliveries shown by the lot and acks read by columns say what they would say one by one."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import wire
from holdfast.auth.principal import Principal
from holdfast.core.commands import Leased, Verb
from holdfast.core.records import NO_EXTRA, Extra, Message, Origin
from holdfast.errors import HoldfastError
from holdfast.http_api.codecs.json_acks import Acks, read_acks
from holdfast.http_api.codecs.json_batch import HOMOGENEOUS_MIN, encode_batch, ids_in_json
from holdfast.http_api.codecs.shapes import delivery_to_wire, read_settlement
from holdfast.http_api.server.response import encode

CALLER = Principal(name="somebody", namespace="default", method="token")

ids = st.integers(1, (1 << 63) - 1)
instants = st.integers(1, 4_000_000_000_000_000)
extras = st.sampled_from(
    [
        NO_EXTRA,
        Extra(content_type="text/plain; charset=utf-8"),
        Extra(content_type="application/json"),
        Extra(content_type="application/octet-stream"),
        Extra(key='a "key"', message_id="m", properties=(("a", "1"), ("a", "2"), ("b", "\0"))),
        Extra(correlation_id="\u00e9", reply_to="r", correlation_data=b"\xff", content_type="text/csv"),
        Extra(origin=Origin(7, "source", "group", "rejected", "boom", 2, 5, 6)),
    ]
)
payloads = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([b'{"a":\n [1, 2]}', b"17", b"null", b'"\\u0000"', b"{]", b"\xff\xfe"]),
)


@st.composite
def batch_encoding(draw: st.DrawFn) -> list[Leased]:
    """A lease: stretches of messages that share what is not their own."""
    found: list[Leased] = []
    deadline = draw(instants)
    for _ in range(draw(st.integers(0, 4))):
        extra, priority = draw(extras), draw(st.sampled_from([0, 128, 255]))
        due = draw(st.sampled_from([0, 5_000_000]))
        for _ in range(draw(st.sampled_from([1, HOMOGENEOUS_MIN - 1, HOMOGENEOUS_MIN, 9]))):
            end = draw(st.sampled_from([0, 9_000_000, 9_000_001]))
            message = Message(draw(ids), draw(ids), priority, draw(instants), due, end, extra, draw(payloads))
            attempt, partition = draw(st.integers(1, 3)), draw(st.integers(0, 2))
            found.append(Leased(message, draw(ids), attempt, deadline, partition, "the group", 3))
    return found


@given(batch_encoding(), st.sampled_from(["auto", "base64"]))
def test_a_batch_is_encoded_as_its_deliveries_one_by_one(found: list[Leased], encoding: str) -> None:
    one_by_one = encode(wire.Leased([delivery_to_wire(leased, "tasks", encoding) for leased in found]))
    shown = encode_batch(found, "tasks", encoding)
    assert json.loads(shown) == json.loads(one_by_one)
    assert msgspec.json.decode(shown, type=wire.Leased) == msgspec.json.decode(one_by_one, type=wire.Leased)


@given(
    st.lists(st.tuples(ids, ids), min_size=1, max_size=20),
    st.sampled_from([-1, 0, 7]),
    st.sampled_from(["default", "other"]),
    st.booleans(),
)
def test_acks_are_read_as_settlements_are(pairs: list[tuple[int, int]], partition: int, group: str, said: bool) -> None:
    settlements = [wire.Settlement(id=str(a), lease_token=str(b), partition=partition) for a, b in pairs]
    body = encode(wire.Settle(group=group, settlements=settlements))
    if said:
        body = body.replace(b'"lease_token"', b'"action":"ack","lease_token"')
    acks = read_acks(body)
    assert acks == Acks(group, [a for a, _ in pairs], [b for _, b in pairs], partition)
    one_by_one = [read_settlement(item, CALLER) for item in msgspec.json.decode(body, type=wire.Settle).settlements]
    assert [(one.id, one.token, one.verb, one.partition) for one in one_by_one] == [
        (a, b, Verb.ACK, partition) for a, b in zip(acks.ids, acks.tokens, strict=True)
    ]


ACK = {"id": "12", "lease_token": "34"}


@pytest.mark.parametrize(
    "others",
    [
        {"action": "nack"},
        {"action": "nothing"},
        {"delay": "1s"},
        {"timeout": "1s"},
        {"error": "boom"},
        {"consumer": "ann"},
        {"partition": 3},
        {"partition": "3"},
        {"lease_token": ""},
        {"lease_token": 34},
        {"id": ""},
        {"id": "0"},
        {"id": "-12"},
        {"id": "+12"},
        {"id": " 12"},
        {"id": "1_2"},
        {"id": "1,2"},
        {"id": ","},
        {"id": "12,"},
        {"id": "012"},
        {"id": "1e1"},
        {"id": "\u0661\u0662"},
        {"id": "9223372036854775808"},
        {"id": "00000000000000000012"},
        {"id": "99999999999999999999999999"},
        {"id": None},
        {"more": 1},
    ],
)
def test_what_is_more_or_wrong_is_left_to_the_general_way(others: dict[str, object]) -> None:
    assert read_acks(json.dumps({"settlements": [ACK, {**ACK, **others}]}).encode()) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"settlements":[]}',
        b'{"settlements":[{"id":"12"}]}',
        b'{"settlements":[{"id":"12","lease_token":"34"}],"more":1}',
        b'{"settlements":[{"id":"12","lease_token":"34"}],"group":7}',
        b'{"settlements":[{"id":"\xff","lease_token":"34"}]}',
        b'{"settlements":[{"id":"\\ud800","lease_token":"34"}]}',
        b'{"settlements":' + b"[" * 100_000,
    ],
)
def test_a_body_that_is_none_is_left_to_the_general_way(body: bytes) -> None:
    assert read_acks(body) is None


def test_the_longest_id_is_read() -> None:
    body = json.dumps({"settlements": [{"id": "9223372036854775807", "lease_token": "1"}]}).encode()
    assert read_acks(body) == Acks("default", [(1 << 63) - 1], [1], -1)


def test_ids_that_the_general_way_refuses_are_not_read() -> None:
    for text in ("", "0", "1 ", "1e3", "0x1", "\u00b2"):
        assert read_acks(encode({"settlements": [{"id": text, "lease_token": "1"}]})) is None
        with pytest.raises(HoldfastError):
            read_settlement(wire.Settlement(id=text, lease_token="1"), CALLER)


rows = st.lists(st.tuples(st.integers(1, 15_000), st.integers(1, 300)), max_size=5)


@given(st.sampled_from([0, 9_990, 99_999_999, 1 << 61]), rows)
def test_ids_in_json_are_a_list_of_strings(first: int, rows: list[tuple[int, int]]) -> None:
    grown: list[int] = []
    for gap, count in rows:
        first += gap
        grown += range(first, first + count)
        first += count
    assert ids_in_json(grown) == encode(list(map(str, grown)))


def test_ids_of_many_thousands_in_json() -> None:
    grown = [*range((1 << 60) - 7, (1 << 60) + 23_456), (1 << 60) + 23_458]
    assert ids_in_json(grown) == encode(list(map(str, grown)))
