"""Bodies in slices: the same elements as in one call, or a refusal, in steps that are bounded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.errors import HoldfastError, InvalidArgument, LimitExceeded, MalformedRequest
from holdfast.http_api.codecs.json_slices import (
    CHUNK_BYTES,
    CHUNK_ELEMENTS,
    FIELDS_BYTES_MAX,
    REST_BYTES_MAX,
    WHOLE_BYTES,
    BulkArray,
    check_cheap,
    is_cheap,
    read_bulk,
)

MESSAGES = BulkArray(b"messages", (b"text", b"payload"), "One enqueue", "messages")
ALONE = BulkArray(None, (b"payload",), "One enqueue", "items")
MIB = 1 << 20

values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    max_leaves=10,
)
objects = some.dictionaries(some.text(), values, max_size=5)


def read(
    body: bytes, array: BulkArray = MESSAGES, count_max: int = 10_000, payload_max: int = MIB
) -> tuple[list[bytes], bytes, int]:
    """The chunks, the rest, and how many steps it took."""
    chunks: list[bytes] = []
    work = read_bulk(body, array, count_max, payload_max, chunks.append)
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return chunks, end.value, steps
        steps += 1


@given(some.lists(objects, max_size=20), objects, some.sampled_from([None, 0, 2]), some.booleans())
def test_the_elements_are_those_that_one_call_finds(
    elements: list[dict[str, object]], others: dict[str, object], indent: int | None, ascii_only: bool
) -> None:
    others.pop("messages", None)
    whole = {**others, "messages": elements, "atomic": True}
    body = json.dumps(whole, indent=indent, ensure_ascii=ascii_only).encode()
    chunks, rest, _ = read(body)
    assert [element for chunk in chunks for element in json.loads(chunk)] == elements
    assert json.loads(rest) == {**whole, "messages": []}
    alone = json.dumps(elements, indent=indent, ensure_ascii=ascii_only).encode()
    assert [element for chunk in read(alone, ALONE)[0] for element in json.loads(chunk)] == elements


def test_no_chunk_is_larger_than_it_may_be_but_for_one_payload() -> None:
    elements: list[dict[str, str]] = [{}] * 2_500 + [{"text": "x" * 1_000}] * 500 + [{"text": "y" * CHUNK_BYTES}] + [{}]
    chunks, _, _ = read(json.dumps({"messages": elements}).encode())
    assert [element for chunk in chunks for element in json.loads(chunk)] == elements
    assert all(len(json.loads(chunk)) <= CHUNK_ELEMENTS for chunk in chunks)
    assert [len(json.loads(chunk)) for chunk in chunks if len(chunk) > CHUNK_BYTES + 2] == [1]


def test_the_scan_stops_at_the_first_element_too_many() -> None:
    with pytest.raises(LimitExceeded, match="One enqueue is limited to 100 messages"):
        read(b'{"messages":[' + b"{}," * 101 + b"nonsense", count_max=100)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{},]}',
        b'{"messages":[,{}]}',
        b'{"messages":[{} {}]}',
        b'{"messages":[1,{}]}',
        b'{"messages":[{},1]}',
        b'{"messages":[1,2]}',
        b'{"messages":[{}],"messages":[{}]}',
        b'{"messages":[{}',
        b'{"messages":[{}]}]',
        b'{"messages":[{"text":"x',
        b'{"messages":[{"text":"x\\',
        b"[" * 1_000,
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read(body)


def test_an_array_under_a_name_that_is_written_otherwise_does_not_pass_unseen() -> None:
    with pytest.raises(InvalidArgument, match="besides its messages"):
        read(b'{"mess\\u0061ges":[' + b"{}," * REST_BYTES_MAX + b"{}]}")


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        (b'{"properties":{"a":"%b"}}' % (b"x" * FIELDS_BYTES_MAX), "besides its payload"),
        (b'{"text":"%b","text":"%b"}' % (b"x" * FIELDS_BYTES_MAX, b"y" * FIELDS_BYTES_MAX), "besides its payload"),
        (b'{"payload":1%b}' % (b"0" * FIELDS_BYTES_MAX), "besides its payload"),
        (b'{"text":"%b"}' % (b"x" * (6 * MIB + 10)), "A payload has more"),
        (b'{"payload":[%b0]}' % (b"0," * (3 * MIB + 10)), "A payload has more"),
    ],
)
def test_an_element_may_be_long_by_its_payload_only(element: bytes, problem: str) -> None:
    with pytest.raises(HoldfastError, match=problem):
        read(b'{"messages":[%b]}' % element)


def test_a_long_payload_of_any_kind_is_read() -> None:
    for value in (
        "x" * FIELDS_BYTES_MAX,
        [0] * FIELDS_BYTES_MAX,
        {"a": "y" * FIELDS_BYTES_MAX},
        '\\"' * FIELDS_BYTES_MAX,
    ):
        body = json.dumps({"messages": [{"a": 1, "payload": value, "b": {"c": 2}}]}).encode()
        assert json.loads(read(body)[0][0])[0]["payload"] == value


@pytest.mark.parametrize("item", [b"[]", b"0", b'"x"', b"{}", b'"\\""'], ids=repr)
def test_every_step_is_short_whatever_it_scans(item: bytes) -> None:
    """A step scans 5,000 values or 64 KiB at most: how many steps there are says how long one is."""
    body = b'{"messages":[{"payload":[%b]}]}' % b",".join([item] * (MIB // (len(item) + 1)))
    brackets = body.count(b"[") + body.count(b"{") + body.count(b'"') // 2
    _, _, steps = read(body)
    assert steps >= max(brackets // 5_000, len(body) // (64 << 10)) // 2


def test_a_body_is_cheap_by_what_it_can_hold_at_most() -> None:
    usual = json.dumps({"messages": [{"text": "x" * 256, "key": "k", "priority": 3}] * 9_000}).encode()
    assert is_cheap(usual)
    assert is_cheap(b"[" * WHOLE_BYTES)
    assert is_cheap(b"x" * (8 * MIB))
    assert not is_cheap(b"{}," * 30_000)
    assert not is_cheap(b'{"":"",' * 100_000)
    assert not is_cheap(b"x" * (32 * MIB))
    with pytest.raises(LimitExceeded, match="ten thousand values"):
        check_cheap(b"{}," * 30_000)
