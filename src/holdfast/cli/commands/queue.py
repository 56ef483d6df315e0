"""`holdfast queue`: create, show, change and empty queues."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast import wire
from holdfast.cli.commands.group import group
from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import age, count, plural, rate, size
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_one, show_rows
from holdfast.cli.support.queue_names import QUEUE
from holdfast.cli.support.queue_options import given_settings, queue_settings
from holdfast.errors import QueueExists


@click.group()
def queue() -> None:
    """Create, show, change and empty queues."""


queue.add_command(group)


@queue.command()
@click.argument("name")
@queue_settings
@click.option("--exist-ok", is_flag=True, help="A queue that already exists is left as it is, without an error.")
@dry_run_option
@output_format
def create(name: str, exist_ok: bool, dry_run: bool, output: str, **values: Any) -> None:
    """Create the queue NAME. Settings that are not given have their defaults."""
    given = given_settings(values)
    if dry_run:
        show_note(f"Would create {name} with {_settings_text(given)}.")
        return
    with connected() as client:
        try:
            made = client.create_queue(name, given)
            show_note(f"Created {name}.")
        except QueueExists:
            if not exist_ok:
                raise
            made = client.queue(name)
            show_note(f"{name} exists already; it was left as it is.")
    if output != "table":
        show_one(output, _plain(made))


@queue.command("list")
@click.argument("prefix", default="")
@output_format
def list_all(prefix: str, output: str) -> None:
    """List the queues whose names start with PREFIX, or all."""
    with connected() as client:
        found = client.queues(prefix)
    rows: list[dict[str, object]] = [
        {
            "name": each.name,
            "depth": count(each.depth),
            "partitions": count(each.config.partitions),
            "ordering": each.config.ordering,
            "groups": ", ".join(group.name for group in each.groups),
            "state": _state(each),
        }
        for each in found
    ]
    if output == "table":
        if rows:
            show_rows(output, ["name", "depth", "partitions", "ordering", "groups", "state"], rows)
        else:
            show_note("There are no queues" + (f" that start with {prefix!r}." if prefix else " yet."))
    else:
        show_rows(output, [], [_plain(each) for each in found])


def _state(found: wire.Queue) -> str:
    return "paused" if found.config.paused else "dead letters" if found.automatic else "running"


@queue.command()
@click.argument("name", type=QUEUE)
@output_format
def show(name: str, output: str) -> None:
    """Show the queue NAME: its configuration, groups and depth."""
    with connected() as client:
        found = client.queue(name)
    document = _plain(found)
    if output != "table":
        show_one(output, document)
        return
    config: dict[str, Any] = document.pop("config")
    groups = ", ".join(f"{group.name} ({group.kind})" for group in found.groups)
    show_one(output, {**document, "depth": count(found.depth), "groups": groups, **_flat(config)})


def _flat(config: dict[str, Any]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flat[name] = value
    return flat


@queue.command()
@click.argument("name", type=QUEUE)
@queue_settings
@dry_run_option
@output_format
def update(name: str, dry_run: bool, output: str, **values: Any) -> None:
    """Change settings of the queue NAME. Settings that are not given stay as they are."""
    given = given_settings(values)
    if not given:
        raise click.UsageError("Nothing to change: give a setting, as --max-depth 1000.")
    with connected() as client:
        before = _flat(_plain(client.queue(name))["config"])
        if dry_run:
            changes = {field: value for field, value in given.items() if str(before.get(field)) != str(value)}
            show_note(f"Would set {_settings_text(changes)}." if changes else "Nothing would change.")
            return
        after = client.update_queue(name, given)
    changed = {field: value for field, value in _flat(_plain(after)["config"]).items() if value != before.get(field)}
    show_note(f"Set {_settings_text(changed)} of {name}." if changed else f"Nothing changed: {name} was so already.")
    if output != "table":
        show_one(output, _plain(after))


def _settings_text(given: dict[str, object]) -> str:
    return ", ".join(f"{field} = {value}" for field, value in given.items()) or "its defaults"


names_argument = click.argument("names", type=QUEUE, metavar="NAME...", nargs=-1, required=True)


@queue.command()
@names_argument
@yes_option
@dry_run_option
@output_format
def delete(names: tuple[str, ...], yes: bool, dry_run: bool, output: str) -> None:
    """Delete queues with all their messages."""
    with connected() as client:
        held = {name: client.queue(name).depth for name in names}
        for name, depth in held.items():
            if dry_run:
                show_note(f"Would delete {name} with {plural(depth, 'message')}.")
                continue
            confirm(f"Delete {name} with {plural(depth, 'message')}?", yes)
            gone = client.delete_queue(name)
            _done(output, f"Deleted {name} with {plural(gone, 'message')}.", name, gone)


@queue.command()
@names_argument
@yes_option
@dry_run_option
@output_format
def purge(names: tuple[str, ...], yes: bool, dry_run: bool, output: str) -> None:
    """Delete all waiting messages of queues. Leased messages stay."""
    with connected() as client:
        held = {name: client.queue(name).depth for name in names}
        for name, depth in held.items():
            if dry_run:
                show_note(f"Would purge {name} of up to {plural(depth, 'message')}.")
                continue
            confirm(f"Remove up to {plural(depth, 'message')} from {name}?", yes)
            gone = client.purge_queue(name)
            _done(output, f"Removed {plural(gone, 'message')} from {name}.", name, gone)


@queue.command()
@names_argument
@dry_run_option
@output_format
def pause(names: tuple[str, ...], dry_run: bool, output: str) -> None:
    """Pause deliveries of queues. They still accept messages."""
    with connected() as client:
        for name in names:
            if dry_run:
                show_note(f"Would pause {name}; {plural(client.queue(name).depth, 'message')} in it.")
                continue
            held = client.pause_queue(name).depth
            _done(output, f"Paused {name}; {plural(held, 'message')} in it.", name, held)


@queue.command()
@names_argument
@dry_run_option
@output_format
def resume(names: tuple[str, ...], dry_run: bool, output: str) -> None:
    """Resume deliveries of paused queues."""
    with connected() as client:
        for name in names:
            if dry_run:
                show_note(f"Would resume {name}; {plural(client.queue(name).depth, 'message')} in it.")
                continue
            held = client.resume_queue(name).depth
            _done(output, f"Resumed {name}; {plural(held, 'message')} in it.", name, held)


def _done(output: str, text: str, name: str, messages: int) -> None:
    """Report a change: as a note for people, as one object for each queue for programs."""
    show_note(text)
    if output != "table":
        show_one(output, {"queue": name, "messages": messages})


@queue.command()
@names_argument
@output_format
def stats(names: tuple[str, ...], output: str) -> None:
    """Show stats of queues and their groups."""
    with connected() as client:
        found = [client.stats(name) for name in names]
    if output != "table":
        show_rows(output, [], [_plain(each) for each in found])
        return
    for each in found:
        show_one("table", _queue_stats(each))
        if each.groups:
            click.echo()
            columns = [
                "group",
                "kind",
                "ready",
                "leased",
                "scheduled",
                "acked",
                "failed",
                "dead",
                "consumers",
                "oldest",
                "wait p95",
                "work p95",
            ]
            show_rows("table", columns, [_group_stats(group) for group in each.groups])
        if each is not found[-1]:
            click.echo()


def _queue_stats(stats: wire.QueueStats) -> dict[str, object]:
    return {
        "queue": stats.name,
        "depth": count(stats.depth),
        "ready": count(stats.ready),
        "scheduled": count(stats.scheduled),
        "size": size(stats.size_bytes),
        "oldest": age(stats.oldest_message_age_seconds),
        "enqueued": f"{count(stats.enqueued)} ({count(stats.duplicates)} duplicates, {count(stats.refused)} refused)",
        "rates": ", ".join(f"{name} {rate(value)}" for name, value in stats.rates.items()),
    }


def _group_stats(group: wire.GroupStats) -> dict[str, object]:
    return {
        "group": group.name,
        "kind": group.kind,
        "ready": count(group.ready if group.kind == "lease" else group.lag),
        "leased": count(group.leased),
        "scheduled": count(group.scheduled),
        "acked": count(group.acked),
        "failed": count(sum(group.failures.values())),
        "dead": count(sum(group.dead.values())),
        "consumers": count(group.consumers),
        "oldest": age(group.oldest_message_age_seconds),
        "wait p95": f"{count(group.delivery_latency.p95_ms)} ms",
        "work p95": f"{count(group.processing_latency.p95_ms)} ms",
    }


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    built = msgspec.to_builtins(value)
    assert isinstance(built, dict)
    return built
