"""`holdfast receive`: lease messages, for a person, a shell, or a command that works on each."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Literal, NoReturn

import click

from holdfast.cli.support.confirm import dry_run_option
from holdfast.cli.support.connection import connected, settings
from holdfast.cli.support.deliveries import document, exports, row, variables
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_error, show_note, show_rows
from holdfast.cli.support.queue_names import QUEUE
from holdfast.cli.support.times import DURATION
from holdfast.errors import GroupNotFound
from holdfast.escapes import escape_controls

if TYPE_CHECKING:
    from holdfast.client import SyncClient, SyncMessage
    from holdfast.wire import Delivery, ItemError

EXIT_NOTHING = 3
EXIT_FAILED = 1
STOP_SECONDS = 5.0  # that a command has to end after SIGTERM
ERROR_BYTES = 1_000  # of the end of a failing command's output, stored with the message

group_option = click.option(
    "-g", "--group", envvar="HOLDFAST_GROUP", default="default", show_default=True, help="The group to consume as."
)


@click.command()
@click.argument("queue", type=QUEUE)
@group_option
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=1, show_default=True, help="How many at most.")
@click.option(
    "-w",
    "--wait",
    type=DURATION,
    default="0s",
    show_default=True,
    help="If there is none, wait up to this long for the first.",
)
@click.option("--lease", type=DURATION, help="How long the leases last, as 5m. [default: the queue's delivery_timeout]")
@click.option("--ack", is_flag=True, help="Ack what was received as soon as it is printed.")
@click.option(
    "--raw",
    is_flag=True,
    help="Print the payload and nothing else, byte for byte; with --limit each payload is followed by a newline.",
)
@click.option("--export", is_flag=True, help='Print HOLDFAST_ variables for a shell: eval "$(holdfast receive ...)".')
@click.option(
    "--exec",
    "command",
    help="Run this shell command for each message, with the payload on its standard input and the HOLDFAST_ "
    "variables set; its exit code 0 is an ack, any other a nack. Leases are extended while it runs.",
)
@click.option(
    "-f", "--follow", is_flag=True, help="With --exec: continue for ever. Ctrl-C releases what is unfinished."
)
@click.option("--create", is_flag=True, help="Create the group, and the queue, if they do not exist.")
@dry_run_option
@output_format
def receive(
    queue: str,
    group: str,
    limit: int,
    wait: str,
    lease: str | None,
    ack: bool,
    raw: bool,
    export: bool,
    command: str | None,
    follow: bool,
    create: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Lease messages of QUEUE. Settle them with ack, nack, reject, release or extend.

    The group must exist, unless --create is given: every group holds all messages until it has settled them, so that
    one that nobody consumes fills the queue. Exit code 3 if there was nothing to receive.

    \b
    eval "$(holdfast receive jobs --export)" && echo "$HOLDFAST_PAYLOAD" && holdfast ack
    holdfast receive jobs --exec 'jq .url | xargs curl -fsS' --follow
    """
    if command is None and follow:
        raise click.UsageError("--follow needs --exec.")
    if export and limit != 1:
        raise click.UsageError("--export is for one message: a shell has one set of variables.")
    with connected() as client, _explained(client, queue):
        if dry_run:
            waiting = client.stats(queue).ready
            show_note(f"Would lease up to {plural(limit, 'message')} of {plural(waiting, 'message')} ready in {queue}.")
            return
        if command is not None:
            _run_each(client, queue, group, limit, wait, lease, command, follow, create)
            return
        deliveries = client.lease(
            queue, group=group, limit=limit, wait=wait, timeout=lease, consumer=_consumer(), create=create
        )
        if not deliveries:
            _nothing(client, queue)
        try:
            _show(deliveries, output, raw=raw, several=limit > 1, export=export, ack=ack)
        except BaseException:  # they were not printed: a full disk, a closed pipe
            _settle(client, queue, group, deliveries, "release")
            raise
        refused = _settle(client, queue, group, deliveries, "ack") if ack else []
    if output == "table" and not (raw or export or ack):
        first = deliveries[0]
        show_note(
            f"Leased until {first.lease_deadline}. "
            f"Done with one: holdfast ack {shlex.quote(queue)} {first.id} {first.lease_token}"
            + (f" --group {shlex.quote(group)}" if group != "default" else "")
        )
    if refused:
        show_note(f"{plural(len(refused), 'message')} not acked, and will be delivered again: {refused[0].detail}")
        raise click.exceptions.Exit(EXIT_FAILED)


@contextmanager
def _explained(client: SyncClient, queue: str) -> Iterator[None]:
    """Say what to do if the group does not exist."""
    try:
        yield
    except GroupNotFound as error:
        groups = [each.name for each in client.groups(queue) if each.kind == "lease"]
        there = f"Its groups: {', '.join(groups)}; choose one with --group" if groups else "It has no group yet"
        show_error(error)
        show_note(f"{there}, or create this one: --create.")
        raise click.exceptions.Exit(EXIT_FAILED) from None


def _nothing(client: SyncClient, queue: str) -> NoReturn:
    if client.queue(queue).config.paused:
        show_note(f"{queue} is paused, and delivers nothing until: holdfast queue resume {shlex.quote(queue)}")
    else:
        show_note(f"Nothing to receive from {queue}.")
    raise click.exceptions.Exit(EXIT_NOTHING)


def _show(deliveries: list[Delivery], output: str, *, raw: bool, several: bool, export: bool, ack: bool) -> None:
    """Write them, and flush the output."""
    if raw:
        for each in deliveries:
            body = each.body()
            if sys.stdout.isatty():  # what a payload holds does nothing to the terminal
                body = escape_controls(body.decode(errors="replace")).encode()
            sys.stdout.buffer.write(body + (b"\n" if several else b""))
    elif export:
        click.echo(exports(deliveries[0]))
    elif output == "table":
        columns = ["id", "attempt", "age", "prio", "key", "payload"] + ([] if ack else ["token"])
        show_rows(output, columns, [row(each) for each in deliveries])
    else:
        show_rows(output, [], [document(each) for each in deliveries])
    sys.stdout.flush()


def _settle(
    client: SyncClient, queue: str, group: str, deliveries: list[Delivery], action: Literal["ack", "release"]
) -> list[ItemError]:
    """Settle all of them with the same action. Returns what was refused."""
    from holdfast.wire import Settlement  # noqa: PLC0415

    settlements = [Settlement(id=each.id, lease_token=each.lease_token, action=action) for each in deliveries]
    return client.settle(queue, settlements, group=group).errors


def _consumer() -> str:
    """The same for every command of a user on a machine, so that one may settle what another received."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or "somebody"
    return f"cli-{user}@{os.uname().nodename}"[:255]


# --- --exec ---------------------------------------------------------------------------------------------------------


def _run_each(
    client: SyncClient,
    queue: str,
    group: str,
    limit: int,
    wait: str,
    lease: str | None,
    command: str,
    follow: bool,
    create: bool,
) -> None:
    done = failed = 0
    if follow:
        # a stop by a service manager has the effect of Ctrl-C: release, end
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
    with client.consume(queue, group=group, lease=lease, create=create) as consumer:
        while follow or done + failed < limit:
            message = consumer.next() if follow else _next(client, queue, group, wait, lease, create)
            if message is None:
                break
            with message:
                if _run_one(message, command):
                    done += 1
                else:
                    failed += 1
    if done + failed == 0:
        _nothing(client, queue)
    show_note(f"{plural(done, 'message')} acked, {failed:,} failed.")
    if failed:
        raise click.exceptions.Exit(EXIT_FAILED)


def _next(client: SyncClient, queue: str, group: str, wait: str, lease: str | None, create: bool) -> SyncMessage | None:
    found = client.receive(queue, group=group, wait=wait, timeout=lease, create=create)
    return found[0] if found else None


def _run_one(message: SyncMessage, command: str) -> bool:
    """Whether the command succeeded. Its output goes where ours goes; the end of its errors is kept if it fails."""
    environment = os.environ | variables(message.delivery) | {"HOLDFAST_URL": settings().url}
    with subprocess.Popen(  # noqa: S602 - a shell command is what --exec is for
        command, shell=True, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, process_group=0
    ) as child:
        message.on_lost(threading.Thread(target=_end, args=(child,), daemon=True).start)
        try:
            output = _talk(child, message.body)
            child.wait()
        except BaseException:
            _end(child)
            raise
    if message.lost:
        show_note(f"The lease of message {message.id} was lost, and its command was ended: it will be delivered again.")
        return False
    if child.returncode == 0:
        message.ack()
        return True
    words = output.decode(errors="replace").strip()
    message.nack(error=f"exit code {child.returncode}" + (f": {words}" if words else ""))
    return False


def _talk(child: subprocess.Popen[bytes], body: bytes) -> bytes:
    """Write the message to a command, and copy its standard error until it ends. Returns the end of that."""
    assert child.stdin is not None
    assert child.stderr is not None
    giver = threading.Thread(target=_give, args=(child.stdin, body), daemon=True)
    giver.start()
    last = b""
    while output := os.read(child.stderr.fileno(), ERROR_BYTES):
        sys.stderr.buffer.write(output)
        sys.stderr.buffer.flush()
        last = (last + output)[-ERROR_BYTES:]
    giver.join()
    return last


def _give(stdin: IO[bytes], body: bytes) -> None:
    with suppress(BrokenPipeError), stdin:  # the command did not read it
        stdin.write(body)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a command and all that it started: its message is released, and nobody may continue to work on it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        os.killpg(child.pid, signal.SIGKILL)
