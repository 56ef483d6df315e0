"""Users with passwords and certificates: who gets in, who is slowed down, and what changes while the server runs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import argon2
import msgspec
import pytest
import structlog

from holdfast.auth import files, users
from holdfast.auth.gate import Gate
from holdfast.auth.passwords import Passwords
from holdfast.auth.principal import Action
from holdfast.auth.throttle import Throttle, network
from holdfast.auth.users import User
from holdfast.errors import InvalidConfig, LoginThrottled, Unauthenticated
from holdfast.units import HOUR, KIB, MINUTE, SECOND
from tests.auth.conftest import Clock
from tests.auth.rig import CHEAP, gate, settings, token, user, write, write_keys, write_users
from tests.auth.test_tokens import HS

GOOD = "correct horse"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_users(
        tmp_path / "users.json",
        user("shop", GOOD, "produce:orders/#", namespace="acme"),
        user("ops", "battery staple", "admin:#", subject="CN=ops,O=Acme"),
        user("robot", None, "consume:#", subject="CN=robot,O=Acme"),
    )


@pytest.fixture
def door(file: Path, clock: Clock) -> Gate:
    return gate(clock, users_file=file)


async def refused(door: Gate, name: str, password: str | bytes, peer: str = "10.0.0.1") -> str:
    with pytest.raises(Unauthenticated) as caught:
        await door.password(name, password, peer)
    return str(caught.value)


async def throttled(door: Gate, name: str, password: str, peer: str = "10.0.0.1") -> int:
    with pytest.raises(LoginThrottled) as caught:
        await door.password(name, password, peer)
    wait = caught.value.details["retry_after_ms"]
    assert isinstance(wait, int)
    return wait


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - it comes true on a thread
        await asyncio.sleep(0)


# --- who gets in ----------------------------------------------------------------------------------------------------


async def test_a_user_with_its_password_gets_its_namespace_and_scopes(door: Gate) -> None:
    who = await door.password("shop", GOOD, "10.0.0.1")
    assert (who.name, who.namespace, who.method) == ("shop", "acme", "password")
    assert who.may(Action.PRODUCE, "orders/new")
    assert not who.may(Action.CONSUME, "orders/new")
    assert (await door.password("ops", b"battery staple", "")).namespace == "default"


async def test_wrong_password_unknown_user_and_user_without_password_are_told_the_same(door: Gate) -> None:
    answers = {
        await refused(door, "shop", "wrong"),
        await refused(door, "nobody", GOOD),
        await refused(door, "robot", GOOD),
        await refused(door, "", ""),
        await refused(door, "shop", ""),
        await refused(door, "shop", GOOD + "x" * 2000),
        await refused(door, "x" * 2000, GOOD),
        await refused(door, "shop", b"\xff\xfe"),
        await refused(door, "shop\0", "\ud800"),
    }
    assert len(answers) == 1


async def test_a_token_may_come_as_a_password(file: Path, tmp_path: Path, clock: Clock) -> None:
    door = gate(clock, users_file=file, key_file=write_keys(tmp_path / "keys.json", HS.private()))
    who = await door.password("any name", token(clock, HS), "10.0.0.1")
    assert (who.name, who.method) == ("shop", "token")
    assert (await door.password("shop", GOOD, "10.0.0.1")).method == "password"
    with pytest.raises(Unauthenticated, match="signature"):
        await door.password("shop", token(clock, HS)[:-4] + "AAAA", "10.0.0.1")


async def test_without_a_users_file_there_are_no_users(tmp_path: Path, clock: Clock) -> None:
    door = gate(clock, key_file=write_keys(tmp_path / "keys.json", HS.private()))
    assert "no users" in await refused(door, "shop", GOOD)


def test_nothing_given_is_not_enough(door: Gate) -> None:
    with pytest.raises(Unauthenticated, match="no credentials were given"):
        door.anonymous()


def test_a_certificates_subject_stands_for_a_user(door: Gate) -> None:
    who = door.certificate("CN=robot,O=Acme")
    assert who is not None
    assert (who.name, who.method) == ("robot", "certificate")
    assert who.may(Action.CONSUME, "bills")
    assert door.certificate("CN=robot,O=Acme") is who, "its remembered answers are worth keeping"
    for stranger in ("CN=robot", "CN=robot,O=Evil", "O=Acme,CN=robot", "", "cn=robot,o=acme"):
        assert door.certificate(stranger) is None


async def test_without_credentials_a_password_makes_an_anonymous_caller(clock: Clock) -> None:
    assert (await gate(clock).password("guest", "guest", "")).method == "anonymous"


# --- equal work, off the loop ---------------------------------------------------------------------------------------


async def test_an_unknown_user_costs_as_much_as_a_known_one(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost is that of the users' hashes, not of what is configured for new ones."""
    door = gate(clock, users_file=file, hash_memory=64 * KIB, hash_passes=4)
    checked: list[str] = []
    verify = argon2.PasswordHasher.verify

    def spy(self: argon2.PasswordHasher, expected: str, password: bytes) -> bool:
        checked.append(expected)
        return verify(self, expected, password)

    monkeypatch.setattr(argon2.PasswordHasher, "verify", spy)
    for name in ("shop", "nobody", "robot"):
        await refused(door, name, "wrong")
    costs = {hashed.rsplit("$", 2)[0] for hashed in checked}
    assert len(checked) == 3
    assert costs == {"$argon2id$v=19$m=8,t=1,p=1"}


async def test_hashing_never_runs_on_the_loop_and_only_so_many_at_a_time(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = gate(clock, users_file=file, login_concurrency=2, login_waiting=5)
    inside: list[int] = []
    most: list[int] = []
    go = threading.Event()

    def slow(*_: object) -> bool:
        inside.append(threading.get_ident())
        most.append(len(inside))
        assert go.wait(30)
        inside.pop()
        return True

    monkeypatch.setattr(Passwords, "_check", slow)
    logins = [asyncio.create_task(door.password("shop", f"password {n}", "10.0.0.1")) for n in range(7)]
    await until(lambda: len(inside) == 2)
    assert threading.get_ident() not in inside
    with pytest.raises(LoginThrottled, match="Too many logins wait"):
        await door.password("shop", "one too many", "10.0.0.1")
    go.set()
    assert {who.name for who in await asyncio.gather(*logins)} == {"shop"}
    assert max(most) == 2


async def test_a_caller_that_gives_up_gives_its_place_back(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = gate(clock, users_file=file, login_concurrency=1, login_waiting=1)
    go = threading.Event()
    monkeypatch.setattr(Passwords, "_check", lambda *_: go.wait(30))
    first = asyncio.create_task(door.password("shop", "a", "10.0.0.1"))
    second = asyncio.create_task(door.password("shop", "b", "10.0.0.1"))
    await until(lambda: door._passwords._waiting == 1)
    second.cancel()
    await asyncio.wait([second])
    third = asyncio.create_task(door.password("shop", "c", "10.0.0.1"))
    go.set()
    assert (await first).name == (await third).name == "shop"


async def test_a_checked_password_is_remembered_for_a_while_and_not_as_text(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = gate(clock, users_file=file, password_cache=2)
    who = await door.password("shop", GOOD, "10.0.0.1")
    asked: list[object] = []

    def count(_self: Passwords, expected: str | None, *_: object) -> bool:
        asked.append(expected)
        return True

    monkeypatch.setattr(Passwords, "_check", count)
    assert await door.password("shop", GOOD, "10.9.9.9") is who
    assert door._digest(b"login", b"shop", b"correct") != door._digest(b"login", b"shopc", b"orrect")
    assert asked == []
    clock.advance(5 * MINUTE)
    await door.password("shop", GOOD, "10.0.0.1")
    assert len(asked) == 1
    for number in range(5):
        await door.password("shop", f"other {number}", "10.0.0.1")
    assert len(door._logins) == 2
    assert not any(GOOD.encode() in key for key in door._logins)


# --- wrong passwords have a price -----------------------------------------------------------------------------------


async def test_after_so_many_failures_an_address_is_refused_unchecked_until_it_has_waited(
    door: Gate, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        await refused(door, f"user{number}", "guess")
    with monkeypatch.context() as patch:
        patch.setattr(Passwords, "_check", None)  # nobody may be asked
        wait = await throttled(door, "another", "guess")
        assert await throttled(door, "shop", GOOD) == wait == 10_000
    assert (await door.password("shop", GOOD, "10.0.0.2")).name == "shop", "other addresses are not concerned"
    clock.advance(10 * SECOND)
    await refused(door, "user", "guess")
    assert await throttled(door, "user", "guess") == 10_000
    assert (door.counts.logins_failed, door.counts.logins_throttled) == (11, 3)
    clock.advance(100 * SECOND)
    for _ in range(10):
        await refused(door, "whoever", "guess")


async def test_guessing_at_one_user_from_many_addresses_is_slowed_down_too(door: Gate, clock: Clock) -> None:
    for number in range(10):
        await refused(door, "shop", "guess", f"10.0.1.{number}")
    await throttled(door, "shop", "guess", "10.0.2.1")
    await throttled(door, "shop", GOOD, "10.0.2.1")
    assert (await door.password("ops", "battery staple", "10.0.2.1")).name == "ops"
    clock.advance(10 * SECOND)
    assert (await door.password("shop", GOOD, "10.0.2.1")).name == "shop"


async def test_a_client_that_was_in_before_is_not_locked_out_by_strangers_or_neighbours(
    door: Gate, clock: Clock
) -> None:
    home = "10.0.0.1"
    await door.password("shop", GOOD, home)
    clock.advance(HOUR)  # not remembered any more: it is checked again
    for number in range(10):
        await refused(door, "shop", "guess", f"10.0.1.{number}")
    for number in range(10):
        await refused(door, f"neighbour{number}", "guess", home)
    await throttled(door, "neighbour", "guess", home)
    assert (await door.password("shop", GOOD, home)).name == "shop"


async def test_but_guessing_from_there_is_slowed_down_as_well(door: Gate, clock: Clock) -> None:
    await door.password("shop", GOOD, "10.0.0.1")
    for number in range(10):
        await refused(door, "shop", f"guess {number}")
    await throttled(door, "shop", "guess")
    assert (door.counts.logins_failed, door.counts.logins_throttled) == (10, 1)


async def test_success_does_not_forgive_failures(door: Gate) -> None:
    """Or whoever has an account could guess at others, logging in between."""
    for _ in range(5):
        await refused(door, "ops", "guess")
        await refused(door, "root", "guess")
        await door.password("shop", GOOD, "10.0.0.1")
    await throttled(door, "ops", "guess")
    assert (door.counts.logins_failed, door.counts.logins_throttled) == (10, 1)


async def test_many_guesses_at_the_same_time_are_no_way_around(door: Gate) -> None:
    results = await asyncio.gather(
        *(door.password("shop", f"guess {n}", "10.0.0.1") for n in range(100)), return_exceptions=True
    )
    checked = [result for result in results if isinstance(result, Unauthenticated)]
    assert 10 <= len(checked) <= 10 + CHEAP.login_concurrency
    assert all(isinstance(result, Unauthenticated | LoginThrottled) for result in results)


def test_what_is_remembered_of_failures_is_bounded() -> None:
    throttle = Throttle(settings(login_tracked=100))
    for number in range(10_000):
        throttle.failed(f"10.{number // 65536}.{number // 256 % 256}.{number % 256}", f"user{number}", number)
        throttle.succeeded(f"10.0.{number // 256 % 256}.{number % 256}", f"user{number}")
        throttle.failed(f"10.0.{number // 256 % 256}.{number % 256}", f"user{number}", number)
    assert len(throttle._peers._clean_at) == len(throttle._users._clean_at) == len(throttle._known) == 100
    assert len(throttle._pairs._clean_at) == 100


def test_a_clock_that_goes_back_locks_nobody_out_for_long(clock: Clock) -> None:
    throttle = Throttle(CHEAP)
    for _ in range(50):
        throttle.failed("10.0.0.1", "shop", clock())
    clock.advance(-1000 * HOUR)
    assert throttle.wait("10.0.0.1", "shop", clock()) <= 10 * SECOND


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("fe80::1%eth0", "fe80::1%eth1", True),
        ("unix", "unix", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (network(one) == network(other)) is same


# --- the log --------------------------------------------------------------------------------------------------------


async def test_failures_are_logged_without_secrets_and_without_flooding(door: Gate, clock: Clock) -> None:
    with structlog.testing.capture_logs() as logs:
        for number in range(5):
            await refused(door, "shop", f"hunter{number}")
        await refused(door, "my-password-in-the-wrong-field", "x")
        clock.advance(SECOND)
        await refused(door, "my-password-in-the-wrong-field", "x")
    assert [(line["event"], line["user"], line["others_not_logged"]) for line in logs] == [
        ("login failed", "shop", 0),
        ("login failed", "unknown", 5),
    ]
    assert "hunter" not in str(logs)
    assert "wrong-field" not in str(logs)


# --- the file -------------------------------------------------------------------------------------------------------


async def test_a_changed_file_is_used_immediately(door: Gate, file: Path) -> None:
    shop = await door.password("shop", GOOD, "10.0.0.1")
    robot = door.certificate("CN=robot,O=Acme")
    assert robot is not None
    write_users(file, user("shop", "new password", "produce:#"), user("robot", None, subject="CN=robot,O=Acme"))
    assert not door.valid(shop), "a connection that is still open must be ended"
    assert not door.valid(robot), "its scopes have changed"
    await refused(door, "shop", GOOD)
    again = await door.password("shop", "new password", "10.0.0.1")
    assert again.may(Action.PRODUCE, "anything")

    write_users(file, user("shop", "third password"))
    assert door.certificate("CN=robot,O=Acme") is None


async def test_who_did_not_change_stays(door: Gate, file: Path) -> None:
    entries = users.read(users_content(file), 10, 10)
    shop = await door.password("shop", GOOD, "10.0.0.1")
    files.replace(file, entries.without("ops").encode())
    assert door.valid(shop)


def users_content(file: Path) -> bytes:
    return file.read_bytes()


@pytest.mark.parametrize("content", ["{}", '{"version": 1, "users": [{"name": "x"}]}', "\xff"])
async def test_a_file_gone_bad_changes_nothing(door: Gate, file: Path, content: str) -> None:
    write(file, content)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert (await door.password("shop", GOOD, "10.0.0.1")).name == "shop"
    assert len([line for line in logs if line["log_level"] == "error"]) == 1


@pytest.mark.parametrize("content", ["", "\n", None])
async def test_an_emptied_or_deleted_file_closes_the_door(door: Gate, file: Path, content: str | None) -> None:
    connected = await door.password("shop", GOOD, "10.0.0.1")
    if content is None:
        os.unlink(file)  # noqa: PTH108 - a path's own method is called blocking, this one is not
    else:
        write(file, content)
    assert not door.valid(connected)
    await refused(door, "shop", GOOD)
    write_users(file, user("shop", GOOD))
    assert (await door.password("shop", GOOD, "10.0.0.1")).name == "shop"


async def test_a_user_removed_while_its_password_is_checked_does_not_get_in(
    door: Gate, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(*_: object) -> bool:
        write_users(file, user("ops"))
        return True

    monkeypatch.setattr(Passwords, "_check", remove)
    await refused(door, "shop", GOOD)


HASH = user("x").password


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([User("a")], "neither a password nor a subject"),
        ([User("a", password=HASH), User("a", password=HASH)], "names a user twice"),
        ([User("a", subject="CN=x"), User("b", subject="CN=x")], "the same subject"),
        ([User("", password=HASH)], "user name"),
        ([User("a\nb", password=HASH)], "user name"),
        ([User("x" * 256, password=HASH)], "user name"),
        ([User("a", password=HASH, namespace="a/b")], "namespace"),
        ([User("a", password=HASH, scopes=("write:x",))], "produce:, consume: or admin:"),
        ([User("a", password=HASH, scopes=("produce:x",) * 101)], "more than 100 scopes"),
        ([User("a", password="plain text")], "not an argon2id hash"),
        ([User("a", password="$2b$12$abcdefghijklmnopqrstuv")], "not an argon2id hash"),
        ([User("a", password=str(HASH).replace("argon2id", "argon2i"))], "not an argon2id hash"),
        ([User("a", password=str(HASH).replace("m=8,", "m=99999999,"))], "more than 1 GiB"),
        ([User("a", password=str(HASH).replace("t=1,", "t=101,"))], "100 passes"),
        ([User("a", password=str(HASH)[:-8] + "========")], "not an argon2id hash"),
        ([User(f"u{n}", password=HASH) for n in range(11)], "more than 10 users"),
    ],
)
def test_a_users_file_that_is_not_good_keeps_the_server_from_starting(
    tmp_path: Path, clock: Clock, entries: list[User], problem: str
) -> None:
    document = {"version": 1, "users": entries}
    file = write(tmp_path / "users.json", msgspec.json.encode(document))
    with pytest.raises(InvalidConfig, match=problem) as caught:
        gate(clock, users_file=file, users_max=10)
    assert caught.value.details["field"] == "auth.users_file"
    assert "plain text" not in str(caught.value), "no password is quoted, good or not"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"version": 2, "users": []}', "version 2"),
        ('{"version": 1, "users": [], "x": 1}', "unknown field"),
        ('{"version": 1, "users": [{"name": "a", "pasword": ""}]}', "unknown field"),
        ("[]", "not a users file"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, clock: Clock, content: str, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        gate(clock, users_file=write(tmp_path / "users.json", content))


def test_the_file_is_replaced_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    file.write_text("old")
    file.chmod(0o644)
    link = tmp_path / "link.json"
    link.symlink_to(file)
    with file.open() as still_open:
        files.replace(link, b"new")
        assert still_open.read() == "old", "who reads the old one reads it to its end"
    assert file.read_text() == "new"
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "users.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "users.json"
    files.replace(file, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.replace(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["users.json"]
    assert file.read_bytes() == b"old"
