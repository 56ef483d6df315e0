"""Tokens that were taken back before their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.auth import keys, revoked
from holdfast.auth.gate import Gate
from holdfast.auth.revoked import Revocation
from holdfast.errors import InvalidConfig, Unauthenticated
from tests.auth.conftest import Clock
from tests.auth.rig import gate, token, write, write_keys

KEY = keys.generate("EdDSA")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "revoked.jsonl", b"")


@pytest.fixture
def door(tmp_path: Path, file: Path, clock: Clock) -> Gate:
    return gate(clock, key_file=write_keys(tmp_path / "keys.json", KEY.public()), revoked_file=file)


async def test_a_revoked_token_is_refused_also_where_it_was_remembered_and_its_connections_end(
    door: Gate, file: Path, clock: Clock
) -> None:
    mine, other = token(clock, KEY, jti="mine"), token(clock, KEY, jti="other")
    who, they = await door.token(mine, "10.0.0.1"), await door.token(other, "10.0.0.1")
    assert door.valid(who)
    write(file, revoked.as_document([Revocation(jti="mine")]))
    assert (door.valid(who), door.valid(they)) == (False, True)
    with pytest.raises(Unauthenticated, match="taken back"):
        await door.token(mine, "10.0.0.1")
    assert await door.token(other, "10.0.0.1") == they
    assert door.counts.tokens_refused == 1
    write(file, b"")
    assert door.valid(await door.token(mine, "10.0.0.1"))


async def test_a_token_without_an_id_cannot_be_meant(door: Gate, file: Path, clock: Clock) -> None:
    write(file, b'{"jti": "else"}\n')
    assert door.valid(await door.token(token(clock, KEY), "10.0.0.1"))


async def test_a_list_gone_bad_changes_nothing(door: Gate, file: Path, clock: Clock) -> None:
    write(file, b'{"jti": "mine"}\n')
    with pytest.raises(Unauthenticated):
        await door.token(token(clock, KEY, jti="mine"), "10.0.0.1")
    write(file, b"what?")
    with pytest.raises(Unauthenticated):
        await door.token(token(clock, KEY, jti="mine"), "10.0.0.1")


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b'{"jti": ""}', b'{"jti": "x", "what": 1}', b'{"jti": "a"}\n{"jti": "b"}']
)
def test_a_list_that_is_not_good_keeps_the_server_from_starting(content: bytes, file: Path, clock: Clock) -> None:
    write(file, content)
    with pytest.raises(InvalidConfig, match="revoked_file"):
        gate(clock, revoked_file=file, revoked_max=1)


def test_lines_of_tokens_that_ended_long_ago_are_left_out() -> None:
    kept = [Revocation(jti="a"), Revocation(jti="b", exp=100_000.0)]
    assert revoked.still_needed([*kept, Revocation(jti="c", exp=10)], 100_001) == kept
    assert list(revoked.read(revoked.as_document(kept) + b"\n", 5).values()) == kept
