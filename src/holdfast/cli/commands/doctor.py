"""`holdfast doctor`: checks everything a server and its clients need, and says how to fix problems."""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from holdfast import __version__, wire
from holdfast.cli.support.connection import connected, settings
from holdfast.cli.support.extras import missing
from holdfast.cli.support.numbers import age, size
from holdfast.cli.support.options import config_file, given, output_format, setting_flags
from holdfast.cli.support.output import show_note, show_one_line, show_rows
from holdfast.config import Config, load
from holdfast.config.kinds import split_address
from holdfast.errors import Forbidden, HoldfastError, ServerUnreachable, StoreError, Unauthenticated
from holdfast.web_address import is_loopback

if TYPE_CHECKING:
    from holdfast.client import SyncClient

Verdict = Literal["ok", "warning", "problem"]

CLOCK_SECONDS = 2.0  # with a larger difference, delays and deadlines look wrong to people
FILES_LEAST = 4_096  # open files: connections and the store's tables
LIBRARIES = ("httpx", "msgspec")
SERVER_LIBRARIES = ("rocksdict", "httptools", "uvloop", "pyarrow", "joserfc", "argon2-cffi")


class Finding(msgspec.Struct, frozen=True):
    """The result of one check, and what to do about it."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


@click.command()
@setting_flags
@config_file
@output_format
def doctor(output: str, config_path: Path | None, **flags: object) -> None:
    """Check versions, the data directory, disk, ports and limits here, and the server of --url.

    Settings are those that `holdfast serve` would see with the same file, environment and flags. Nothing is changed.
    Exit code 1 if there is a problem; warnings alone are 0.
    """
    config = load(config_path, os.environ, given(flags))
    checks = CHECKS if not missing() else (_versions, _client_only, _server)
    findings = [finding for check in checks for finding in check(config)]
    if output == "table":
        for each in findings:
            colour = {"ok": "green", "warning": "yellow", "problem": "bold red"}[each.verdict]
            show_one_line(each.verdict, colour, each.check, each.found, each.advice)
    else:
        show_rows(output, [], [msgspec.to_builtins(each) for each in findings])
    problems = sum(each.verdict == "problem" for each in findings)
    if problems:
        show_note(f"{problems} of {len(findings)} checks found a problem.")
        raise click.exceptions.Exit(1)
    show_note("No problem found.")


def _versions(_config: Config) -> Iterator[Finding]:
    yield Finding("version", "ok", f"holdfast {__version__}, Python {platform.python_version()} on {sys.platform}")
    found: list[str] = []
    for name in LIBRARIES if missing() else LIBRARIES + SERVER_LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("libraries", "problem", f"{name} is missing", "Install holdfast again: pip install holdfast")
    yield Finding("libraries", "ok", ", ".join(found))


def _client_only(_config: Config) -> Iterator[Finding]:
    """A client needs no more than the core libraries; a server cannot run here."""
    advice = 'To run a server here: pip install "holdfast[server]"'
    yield Finding("server libraries", "warning", f"not installed: {', '.join(missing())}", advice)


def _files(_config: Config) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_LEAST:
        advice = f"Raise it before `holdfast serve`: ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}"
        yield Finding("open files", "warning", f"limited to {soft:,}", advice)
    else:
        yield Finding("open files", "ok", f"limited to {soft:,}")


def _store(config: Config) -> Iterator[Finding]:
    path = config.node.data_dir
    if config.store.kind == "memory":
        yield Finding("store", "warning", "memory: everything is gone when the server ends", "Use --store rocks.")
        return
    if config.store.kind == "postgres":
        yield from _database(config)
    existing = next((each for each in (path, *path.absolute().parents) if each.exists()), Path("/"))
    if not existing.is_dir():
        yield Finding("store", "problem", f"{existing} is not a directory", "Choose another --data-dir.")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        advice = f"Give the server's user the right to write to {existing}, or choose another --data-dir."
        yield Finding("store", "problem", f"{existing} cannot be written", advice)
        return
    if config.store.kind == "postgres":
        yield from _disk(config, existing)
        return
    holder = _holder(path / "store" / "holder")
    try:
        found = _format(path / "store")
    except StoreError as error:
        problem, _, advice = str(error).partition(". ")
        yield Finding("store", "problem", problem, advice)
        return
    state = f"in use by pid {holder}" if holder else "not in use" if found else "will be created at the first start"
    yield Finding("store", "ok", f"{config.store.kind} in {path.absolute()}, {state}")
    yield from _disk(config, existing)


def _database(config: Config) -> Iterator[Finding]:
    """The store `postgres`: what `holdfast serve` would refuse, and what it would warn of."""
    from holdfast.store import postgres_database  # noqa: PLC0415 - it needs the server's libraries

    try:
        database = postgres_database(config.store.url.reveal(), config.node.node_id)
        warnings = database.look()
    except HoldfastError as error:
        problem, _, advice = str(error).partition(". ")
        yield Finding("store", "problem", problem, advice)
        return
    yield Finding("store", "ok", f"postgres: {database.name}, schema {database.schema}")
    for warning in warnings:
        found, _, advice = warning.partition(". ")
        yield Finding("database", "warning", found, advice)


def _format(store: Path) -> int | None:
    """The format of the store in a directory, if there is one. Raises StoreError for one that cannot be opened here."""
    from holdfast.store.directory import format_of  # noqa: PLC0415 - it needs the server's libraries
    from holdfast.store.formats import check  # noqa: PLC0415

    found = format_of(store)
    if found is not None:
        check(store, found)
    return found


def _holder(file: Path) -> str:
    """The process that has the store open."""
    try:
        with file.open("rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return handle.read(100).decode("ascii", "replace").strip() or "unknown"
    except OSError:
        return ""
    return ""


def _disk(config: Config, path: Path) -> Iterator[Finding]:
    usage = shutil.disk_usage(path)
    least = config.store.min_free_bytes
    found = f"{size(usage.free)} of {size(usage.total)} free"
    if usage.free < least:
        advice = f"Make room: under {size(least)} (store.min_free_bytes) no messages are accepted."
        yield Finding("disk", "problem", found, advice)
    elif usage.free < 4 * least:
        yield Finding("disk", "warning", found, f"Make room soon: under {size(least)} no messages are accepted.")
    else:
        yield Finding("disk", "ok", found)


def _ports(config: Config) -> Iterator[Finding]:
    addresses = [("http", "--http", config.http.listen, config.http.enabled)]
    addresses.append(("mqtt", "--mqtt", config.mqtt.listen, config.mqtt.enabled))
    addresses.append(("mqtts", "--mqtts", config.mqtt.tls_listen, bool(config.mqtt.tls_listen)))
    running = _holder(config.node.data_dir / "store" / "holder")
    for name, flag, address, enabled in addresses:
        if not enabled:
            continue
        problem = _cannot_listen(address)
        if not problem:
            yield Finding(f"port {name}", "ok", f"{address} is free")
        elif running and "in use" in problem:
            yield Finding(f"port {name}", "ok", f"{address} is in use, and so is the store: by pid {running}")
        else:
            advice = f"Stop what uses it (ss -ltnp shows it), or choose another address with {flag}."
            yield Finding(f"port {name}", "problem", f"{address}: {problem}", advice)


def _cannot_listen(address: str) -> str:
    host, port = split_address(address)
    try:
        family, kind, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(name)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _access(config: Config) -> Iterator[Finding]:
    from holdfast.auth import exposure  # noqa: PLC0415

    if exposure.has_credentials(config.auth):
        yield Finding("credentials", "ok", "callers must authenticate")
        if config.tls.certificate_file is None and not is_loopback(split_address(config.http.listen)[0]):
            advice = "Set tls.certificate_file, or let a proxy in front speak TLS."
            yield Finding("tls", "warning", "off: passwords, tokens and messages can be read on the way", advice)
    elif is_loopback(split_address(config.http.listen)[0]):
        yield Finding("credentials", "ok", "none: everybody on this machine may do everything, others nothing")
    else:
        advice = "Set auth.users_file, auth.key_file or auth.oidc_issuer; see holdfast user and holdfast token."
        yield Finding("credentials", "problem", f"none, and {config.http.listen} is open to others", advice)


def _server(_config: Config) -> Iterator[Finding]:
    url = settings().url
    try:
        with connected() as client:
            began = time.time()
            overview = client.overview()
            took = time.time() - began
            yield Finding("server", "ok", f"{url} answers in {took * 1000:.0f} ms; node {overview.node}")
            yield from _same_version(overview.version)
            yield from _clock(overview.now, began, took)
            yield from _groups(overview)
            yield from _health(client)
    except ServerUnreachable as error:
        yield Finding(
            "server", "problem", str(error), "Start it with `holdfast serve`, or give its address with --url."
        )
    except Unauthenticated as error:
        yield Finding("server", "problem", str(error), "Give --token, --token-file or --user.")
    except HoldfastError as error:
        yield Finding("server", "problem", f"{url}: {error}")


def _same_version(theirs: str) -> Iterator[Finding]:
    if theirs != __version__:
        advice = "Newer servers understand older clients; update the older of both when you can."
        yield Finding("server version", "warning", f"the server has {theirs}, this is {__version__}", advice)
    else:
        yield Finding("server version", "ok", theirs)


def _clock(now: str, began: float, took: float) -> Iterator[Finding]:
    """The server read its clock between the request and the response."""
    difference = datetime.fromisoformat(now).timestamp() - (began + took / 2)
    if abs(difference) > CLOCK_SECONDS + took / 2:
        ahead = "ahead of" if difference > 0 else "behind"
        advice = "Synchronise both machines by NTP (timedatectl shows whether they do)."
        yield Finding("clock", "warning", f"the server is {abs(difference):.1f} s {ahead} this machine", advice)
    else:
        yield Finding("clock", "ok", f"the server's and ours agree within {max(abs(difference), took / 2):.2f} s")


def _groups(overview: wire.Overview) -> Iterator[Finding]:
    """Groups that nobody consumes keep every message until their queues are full."""
    for each in overview.unattended:
        yield Finding(
            "group",
            "warning",
            f"{each.group} of queue {each.queue} has a backlog, and no consumer for {age(each.seconds)}",
            f"Start its consumers, or delete it: holdfast queue group delete {each.queue} {each.group}",
        )
    if not overview.unattended:
        yield Finding("groups", "ok", "every group with a backlog has consumers")


def _health(client: SyncClient) -> Iterator[Finding]:
    try:
        health = client.health()
    except Forbidden:
        yield Finding("health", "warning", "not shown to us", "Use credentials with the scope node.")
        return
    for part in health.parts:
        facts = ", ".join(f"{name} {value}" for name, value in part.facts.items())
        if part.ok:
            yield Finding(f"server {part.name}", "ok", facts or "well")
        else:
            yield Finding(f"server {part.name}", "problem", part.problem, facts)


CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (_versions, _files, _store, _ports, _access, _server)
