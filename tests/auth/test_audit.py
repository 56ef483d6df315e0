"""The audit log: a line for each act, nothing secret in it, and never more than so many bytes."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import structlog

from holdfast.auth.audit import AuditLog, numbered_files
from holdfast.auth.audit_chain import verify
from holdfast.auth.gate import Gate
from holdfast.auth.principal import Principal
from holdfast.config import AuditSettings, Config, NodeSettings
from holdfast.errors import Forbidden, QueueNotFound, Unauthenticated
from holdfast.units import DAY, KIB, MINUTE
from tests.auth.conftest import Clock
from tests.auth.rig import settings, user, write_users

OPS = Principal(name="ops", namespace="acme", method="password")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(node=NodeSettings(data_dir=tmp_path / "data"))


@pytest.fixture
def audit(config: Config, clock: Clock) -> AuditLog:
    return AuditLog(config, clock)


def lines(config: Config, name: str = "audit.log") -> list[dict[str, object]]:
    return [json.loads(line) for line in (config.node.data_dir / name).read_text().splitlines()]


def test_an_act_is_one_line_with_who_what_when_and_how_it_ended(audit: AuditLog, config: Config) -> None:
    with audit.act(OPS, "queue.purge", "orders", front="http", peer="10.0.0.7") as found:
        found["messages"] = 17
    with pytest.raises(QueueNotFound), audit.act(OPS, "queue.delete", "bills", front="mqtt"):
        raise QueueNotFound(queue="bills", namespace="acme")
    with pytest.raises(Forbidden), audit.act(None, "queue.delete", "bills", front="http"):
        raise Forbidden(action="admin", resource="bills")
    with pytest.raises(ZeroDivisionError), audit.act(OPS, "queue.pause", "bills", front="http"):
        raise ZeroDivisionError
    first, *others = lines(config)
    assert len(str(first.pop("chain"))) == 64
    assert first == {
        "number": 1,
        "at": "2027-01-15T08:00:00.000Z",
        "who": "ops",
        "namespace": "acme",
        "method": "password",
        "front": "http",
        "act": "queue.purge",
        "resource": "orders",
        "result": "ok",
        "peer": "10.0.0.7",
        "details": {"messages": 17},
        "previous": "0" * 64,
    }
    assert [(line["act"], line["result"], line["who"]) for line in others] == [
        ("queue.delete", "queue_not_found", "ops"),
        ("queue.delete", "forbidden", ""),
        ("queue.pause", "internal", "ops"),
    ]


def test_it_is_for_the_servers_user_only(audit: AuditLog, config: Config) -> None:
    audit.record(OPS, "x", "y", "ok", front="http")
    assert (config.node.data_dir / "audit.log").stat().st_mode & 0o777 == 0o600


def test_secrets_and_line_breaks_and_floods_stay_out(audit: AuditLog, config: Config) -> None:
    evil = Principal(name='x"}\n{"who":"ops', namespace="acme", method="token")
    audit.record(evil, "a", "b\nc", "ok", front="http", new_password="hunter2", webhook_token="t0p", note="z" * 9999)
    audit.record(OPS, "a", "b", "ok", front="http", **{f"n{i}": "y" * 1000 for i in range(200)})
    one, two = lines(config)
    assert one["who"] == 'x"}\n{"who":"ops'
    details = one["details"]
    assert isinstance(details, dict)
    assert details["new_password"] == details["webhook_token"] == "********"
    assert len(details["note"]) == 1001
    assert "hunter2" not in (config.node.data_dir / "audit.log").read_text()
    assert list(two["details"]) == ["cut"]  # type: ignore[call-overload]


@pytest.mark.parametrize("files", [1, 2, 4])
def test_full_files_are_numbered_and_the_oldest_deleted(config: Config, clock: Clock, files: int) -> None:
    config = msgspec.structs.replace(config, audit=AuditSettings(file_bytes=64 * KIB, files=files, keep=0))
    audit = AuditLog(config, clock)
    for number in range(3000):
        audit.record(OPS, "act", f"queue{number}", "ok", front="http")
    names = ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"][:files]
    assert sorted(path.name for path in config.node.data_dir.iterdir()) == names
    assert all((config.node.data_dir / name).stat().st_size <= 64 * KIB for name in names)
    told = [line["resource"] for name in reversed(names) for line in lines(config, name)]
    assert told == [f"queue{number}" for number in range(3000 - len(told), 3000)], "in order, without a gap"


def test_entries_that_are_young_are_not_pushed_out_by_others(config: Config, clock: Clock) -> None:
    settings = AuditSettings(file_bytes=64 * KIB, files=2, keep=3_000 * DAY)
    config = msgspec.structs.replace(config, audit=settings)
    audit = AuditLog(config, clock)
    audit.record(OPS, "queue.delete", "orders", "ok", front="http")
    path = config.node.data_dir / "audit.log"

    def fill() -> None:
        for _ in range(600):
            audit.record(OPS, "queue.update", "orders", "ok", front="http")

    with structlog.testing.capture_logs() as logs:
        fill()
        fill()
    assert len(numbered_files(path)) > 2
    assert logs[-1]["event"] == "audit log grows: its files are younger than audit.keep"
    verified = verify(numbered_files(path)[::-1])
    assert (verified.entries, verified.first.number, verified.findings) == (1201, 1, [])
    clock.advance(3_001 * DAY)
    for _ in range(300):
        audit.record(OPS, "queue.update", "orders", "ok", front="http")
    assert len(numbered_files(path)) == 2
    assert verify(numbered_files(path)[::-1]).findings == []


def test_what_was_configured_is_told_in_full_and_no_secret(audit: AuditLog, config: Config) -> None:
    given = {"dlq": {"alert_webhook": "https://u:hunter2@a.example/x"}, "topics": ["a/#", "b/+"], "api_key": "hunter3"}
    audit.record(OPS, "queue.update", "orders", "ok", front="http", config=given)
    [line] = lines(config)
    assert line["details"] == {
        "config": {
            "dlq": {"alert_webhook": "https://********@a.example/x"},
            "topics": ["a/#", "b/+"],
            "api_key": "********",
        }
    }


async def test_logins_and_refused_credentials_are_told(
    audit: AuditLog, config: Config, clock: Clock, tmp_path: Path
) -> None:
    file = write_users(tmp_path / "users.json", user("a"))
    door = Gate(msgspec.structs.replace(config, auth=settings(users_file=file)), clock, audit)
    for password in ("wrong", "correct horse", "correct horse"):
        with suppress(Unauthenticated):
            await door.password("a", password, "10.0.0.7")
    with suppress(Unauthenticated):
        await door.password("a password in the wrong field", "x", "10.0.0.7")
    assert [(line["act"], line["result"], line["peer"], line.get("details")) for line in lines(config)] == [
        ("login", "unauthenticated", "10.0.0.7", {"user": "a"}),
        ("login", "ok", "10.0.0.7", None),
        ("login", "unauthenticated", "10.0.0.7", {"user": "unknown"}),
    ]


def test_logins_are_written_at_a_bounded_rate(audit: AuditLog, config: Config) -> None:
    for _ in range(700):
        audit.record(OPS, "login", "password", "ok", front="gate")
    audit.record(OPS, "queue.delete", "orders", "ok", front="http")
    told = lines(config)
    assert len(told) == 601
    assert told[-1]["details"] == {"logins_not_written": 100}


def test_a_file_that_somebody_moved_away_is_begun_anew(audit: AuditLog, config: Config) -> None:
    audit.record(OPS, "one", "", "ok", front="http")
    path = config.node.data_dir / "audit.log"
    path.rename(path.with_name("moved"))
    audit.record(OPS, "two", "", "ok", front="http")
    path.unlink()
    audit.record(OPS, "three", "", "ok", front="http")
    assert [line["act"] for line in lines(config)] == ["three"]
    assert [line["act"] for line in lines(config, "moved")] == ["one"]


def test_a_line_torn_by_a_crash_does_not_swallow_the_next(audit: AuditLog, config: Config) -> None:
    audit.record(OPS, "one", "", "ok", front="http")
    audit.close()
    with (config.node.data_dir / "audit.log").open("a") as file:
        file.write('{"at": "20')
    audit.record(OPS, "two", "", "ok", front="http")
    last = (config.node.data_dir / "audit.log").read_text().splitlines()[-1]
    assert json.loads(last)["act"] == "two"


def test_what_cannot_be_written_is_in_the_other_log(
    audit: AuditLog, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit.record(OPS, "one", "", "ok", front="http")
    write = os.write
    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:10]))
        audit.record(OPS, "lost", "orders", "ok", front="http")
    assert [line["log_level"] for line in logs] == ["error"]
    assert json.loads(logs[0]["entry"])["act"] == "lost"
    audit.record(OPS, "three", "", "ok", front="http")
    last = (config.node.data_dir / "audit.log").read_text().splitlines()[-1]
    assert json.loads(last)["act"] == "three"


def test_who_is_refused_again_and_again_does_not_push_out_what_was_done(
    audit: AuditLog, config: Config, clock: Clock
) -> None:
    audit.record(OPS, "queue.delete", "orders", "ok", front="http")
    for _ in range(1000):
        audit.record(OPS, "queue.delete", "bills", "forbidden", front="http")
    told = lines(config)
    assert len(told) == 61
    audit.record(OPS, "queue.create", "orders", "ok", front="http")
    assert lines(config)[-1]["details"] == {"refusals_not_written": 940}
    clock.advance(MINUTE)
    audit.record(OPS, "queue.delete", "bills", "forbidden", front="http")
    assert "details" not in lines(config)[-1]
    assert len(lines(config)) == 63


def test_it_can_be_switched_off(config: Config, clock: Clock) -> None:
    audit = AuditLog(msgspec.structs.replace(config, audit=AuditSettings(enabled=False)), clock)
    audit.record(OPS, "x", "y", "ok", front="http")
    assert not config.node.data_dir.exists()


async def test_changed_credentials_are_an_act(audit: AuditLog, config: Config, clock: Clock, tmp_path: Path) -> None:
    file = write_users(tmp_path / "users.json", user("a"), user("b"), user("c"))
    auth = settings(users_file=file)
    door = Gate(msgspec.structs.replace(config, auth=auth), clock, audit)
    kept = await door.password("b", "correct horse", "")
    write_users(file, user("b", "other password"), user("c", None, subject="CN=c"), user("d"))
    assert not door.valid(kept)
    login, line = lines(config)
    assert (login["act"], login["result"], login["method"], login["who"]) == ("login", "ok", "password", "b")
    assert (line["act"], line["resource"], line["front"]) == ("users.reload", "auth.users_file", "node")
    assert line["details"] == {"added": "d", "removed": "a", "changed": "b, c"}


async def test_what_was_written_is_synced_off_the_loop_before_anybody_is_told(
    audit: AuditLog, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, int]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append((threading.current_thread() is threading.main_thread(), status.st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(3):
        audit.record(OPS, "queue.pause", "orders", "ok", front="http")
    await audit.synced()
    size = (config.node.data_dir / "audit.log").stat().st_size
    assert (False, size) in synced
    assert not any(on_the_loop for on_the_loop, _ in synced)
    before = len(synced)
    await audit.synced()
    assert len(synced) == before, "there is nothing to sync"
    audit.record(OPS, "queue.pause", "orders", "ok", front="http")
    audit.close()
    assert len(synced) > before


async def test_files_that_were_numbered_meanwhile_are_synced_too(
    config: Config, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = AuditLog(msgspec.structs.replace(config, audit=AuditSettings(file_bytes=4 * KIB)), clock)
    synced: set[int] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(60):
        audit.record(OPS, "queue.pause", "orders", "ok", front="http")
    await audit.synced()
    files = [path for path in config.node.data_dir.iterdir() if path.name.startswith("audit.log")]
    assert len(files) > 1
    assert {path.stat().st_ino for path in files} <= synced
    audit.close()


async def test_a_disk_that_cannot_sync_is_told_and_nobody_waits_for_ever(
    audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(os, "fsync", fsync)
    with structlog.testing.capture_logs() as logs:
        audit.record(OPS, "queue.pause", "orders", "ok", front="http")
        await audit.synced()
    assert [entry["event"] for entry in logs] == ["audit log cannot be synced"]
    audit.close()
