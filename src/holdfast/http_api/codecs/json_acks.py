"""Acks of many deliveries by their tokens, as most settlements are: decoded as columns, in a quarter of the time.

Only what `read_settlement` would read the same is read here. Everything else, invalid requests above all, is left to
it: it reports what is wrong.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from holdfast.http_api.codecs.values import ID_MAX


class _Ack(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """`wire.Settlement` that is an ack and says no more than is needed."""

    id: str
    lease_token: str
    action: Literal["ack"] = "ack"
    partition: int = -1


class _Acks(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    settlements: list[_Ack]
    group: str = "default"


class Acks(NamedTuple):
    group: str
    ids: list[int]
    tokens: list[int]
    partition: int
    """That of all; -1: not known."""


_decode = msgspec.json.Decoder(_Acks).decode
_decode_numbers = msgspec.json.Decoder(list[int]).decode


def read_acks(body: bytes) -> Acks | None:
    """The acks that a body of `settle` has, if it has nothing else; None: use `read_settlement`."""
    try:
        request = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    acks = request.settlements
    partitions = {ack.partition for ack in acks}
    if len(partitions) != 1:
        return None
    ids, tokens = _numbers([ack.id for ack in acks]), _numbers([ack.lease_token for ack in acks])
    return None if ids is None or tokens is None else Acks(request.group, ids, tokens, partitions.pop())


def _numbers(texts: list[str]) -> list[int] | None:
    """`read_id` for many; None if one is no id, or is not written as this server writes them."""
    together = ",".join(texts).encode()
    if together.translate(None, b"0123456789,"):
        return None
    try:
        numbers = _decode_numbers(b"[%b]" % together)
    except msgspec.DecodeError:
        return None
    return numbers if len(numbers) == len(texts) and min(numbers) > 0 and max(numbers) <= ID_MAX else None
