"""Counts what a request has before it is decoded: two bytes can be an item, and each becomes an object of a hundred.

This looks at the wire format's fields only, at one level, and at a second one within those. A request that is not well
formed is left to the decoder, which refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from holdfast.errors import LimitExceeded, MalformedRequest

PROPERTIES_MAX: Final = 50_000
"""Of all messages of a request together: five each for 10,000 messages. They take some 50 ms."""

OTHERS_MAX: Final = 64
"""Fields beside those that are counted, at each level: the contract has eleven at the most."""

SMALL_BYTES: Final = 16 << 10
"""Of a request that needs no look: decoding it takes less than a millisecond, whatever it has."""

PAYLOAD: Final = 1  # the numbers of a draft's fields
PROPERTIES: Final = 4

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5

Check = Callable[[int], None]
"""Raises if there are more than may be."""


def check_properties(count: int) -> None:
    if count > PROPERTIES_MAX:
        raise LimitExceeded(
            what="The properties of the messages of one request", limit=PROPERTIES_MAX, advice="Send several"
        )


def check_items(raw: bytes, field: int, check: Check) -> None:
    """Call `check` with the number of occurrences of a field, at the latest when it is one too many."""
    if len(raw) <= SMALL_BYTES:
        return
    for count, _ in enumerate(_occurrences(raw, field, 0, len(raw)), 1):
        check(count)


def check_settlements(raw: bytes, field: int, inner: int, check: Check) -> None:
    """`check_items` of settlements within a batch, which a request has once."""
    if len(raw) > SMALL_BYTES:
        check_items(raw, field, _check_once)
        _check_inner(raw, field, inner, check)


def _check_once(count: int) -> None:
    if count > 1:
        raise MalformedRequest(problem="it has its batch several times")


def _check_inner(raw: bytes, field: int, inner: int, check: Check) -> None:
    """The same for a field in all occurrences of another together."""
    count = 0
    for start, end in _occurrences(raw, field, 0, len(raw)):
        if end - start > 1:
            for _ in _occurrences(raw, inner, start, end):
                count += 1
                check(count)


def check_messages(raw: bytes, field: int, check: Check) -> None:
    """`check_items` of drafts, and their properties."""
    if len(raw) <= SMALL_BYTES:
        return
    possible = 0  # properties
    for count, (start, end) in enumerate(_occurrences(raw, field, 0, len(raw)), 1):
        check(count)
        possible += (end - _end_of_payload(raw, start, end)) // 2
    if possible > PROPERTIES_MAX:
        _check_inner(raw, field, PROPERTIES, check_properties)


def _end_of_payload(raw: bytes, start: int, end: int) -> int:
    """Where the first field of a draft ends if it is the payload, as in most: most have nothing else."""
    if end - start < 2 or raw[start] != PAYLOAD << 3 | _BYTES:
        return start
    size, at = raw[start + 1], start + 2
    if size >= 128:
        size, at = _number(raw, start + 1, end)
    return min(at + size, end)


def _occurrences(raw: bytes, field: int, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the occurrences of a field begin and end that has a length."""
    wanted = field << 3 | _BYTES
    others = 0
    while at < end:
        tag = raw[at]
        at += 1
        if tag >= 128:  # also a small one that is written longer than need be
            tag, at = _number(raw, at - 1, end)
        kind = tag & 7
        if kind == _BYTES:
            size = raw[at] if at < end else 0
            at += 1
            if size >= 128:
                size, at = _number(raw, at - 1, end)
            if at + size > end:
                return
            if tag == wanted:
                yield at, at + size
                at += size
                continue
            at += size
        elif kind == _VARINT:
            _, at = _number(raw, at, end)
        elif kind in (_FIXED_64, _FIXED_32):
            at += 8 if kind == _FIXED_64 else 4
        else:
            raise MalformedRequest(problem="it has groups, which the contract has not")
        others += 1
        if others > OTHERS_MAX:
            raise MalformedRequest(problem="it repeats fields, or has many that the contract has not")


def _number(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """A varint, and where it ends; past the end if it is cut."""
    value = shift = 0
    while at < end:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift >= 70:
            break
    return 0, end + 1
