"""`holdfast send`: store messages, from the command line, a file, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from holdfast import wire
from holdfast.cli.support.confirm import dry_run_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import progress_bar, show_json, show_note, show_rows
from holdfast.cli.support.queue_names import QUEUE
from holdfast.cli.support.times import DURATION, INSTANT
from holdfast.errors import InvalidArgument

Draft = Callable[[bytes], wire.Draft]

OF_STORED_MESSAGES = {*wire.MessageView.__struct_fields__, *wire.Delivery.__struct_fields__} - set(
    wire.Draft.__struct_fields__
)
"""What `browse` and `receive` print of a message, and what is not the producer's to say: it is left out."""
FULL_SECONDS = 30.0  # that many lines wait for room in a full queue; a single message does not


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("payload", required=False)
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Send this file as one message; - is standard input.",
)
@click.option(
    "-l",
    "--lines",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Send each line of this file as a message; - is standard input, also meant when nothing is given.",
)
@click.option(
    "--as",
    "shape",
    type=click.Choice(["auto", "text", "json", "bytes", "message"]),
    default="auto",
    show_default=True,
    help="What payloads are. auto: text if it is UTF-8. message: each a JSON object as in the HTTP API, "
    "with payload, text or base64 and any other field.",
)
@click.option("--key", help="Messages of one key are delivered one after another.")
@click.option(
    "--priority", type=click.IntRange(0, 255), default=128, show_default=True, help="A lower value is delivered sooner."
)
@click.option("--delay", type=DURATION, help="Deliver not before this time from now, as 10m.")
@click.option("--deliver-at", type=INSTANT, help="Deliver not before this instant, as 2026-01-31T12:00:00Z.")
@click.option(
    "--ttl", type=DURATION, help="How long it may wait, as 1h; 0s is for ever. [default: the queue's message_ttl]"
)
@click.option(
    "--message-id", help="Your id for it: a second one with it inside the queue's dedup_window is not stored."
)
@click.option("--content-type", help="What the payload is, as image/png.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="A field of your own.")
@click.option("--correlation-id", help="Stored with the message.")
@click.option("--reply-to", help="The queue for replies.")
@click.option(
    "--chunk", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Messages in one request."
)
@dry_run_option
@output_format
def send(
    queue: str,
    payload: str | None,
    path: Path | None,
    lines: Path | None,
    shape: str,
    chunk: int,
    dry_run: bool,
    output: str,
    **options: Any,
) -> None:
    """Store messages in QUEUE: PAYLOAD, a file, or each line of standard input, which PAYLOAD - means too.

    When it returns, they are durable. Prints the id of a single message; with -o json or jsonl the ids of all.

    \b
    holdfast send emails '{"to": "ann@example.com"}' --as json
    holdfast send photos --file cat.jpg --content-type image/jpeg
    seq 1000 | holdfast send numbers
    """
    if sum(given is not None for given in (payload, path, lines)) > 1:
        raise click.UsageError("Give one of PAYLOAD, --file and --lines.")
    if payload == "-":  # as in other commands; for a literal dash there is --file
        payload, lines = None, Path("-")
    if payload is None and path is None and lines is None:
        if sys.stdin.isatty():
            raise click.UsageError("Nothing to send: give PAYLOAD, --file or --lines, or pipe lines in.")
        lines = Path("-")
    make = _maker(shape, options)
    if lines is not None and options["message_id"] is not None:
        raise click.UsageError("--message-id is for one message: with it all lines but the first would be duplicates.")
    with _source(payload, path, lines) as (bodies, total):
        drafts = (make(body) for body in bodies)
        if dry_run:
            show_note(f"Would send {plural(sum(1 for _ in drafts), 'message')} to {queue}.")
            return
        single = lines is None
        full_seconds = 0.0 if single else FULL_SECONDS
        with (
            connected(full_seconds=full_seconds) as client,
            progress_bar("Sending", None if single else total, hidden=single) as advance,
        ):
            result = client.send_many(queue, drafts, chunk=chunk, check=False, progress=advance)
    _report(queue, result.ids, set(result.duplicates), output, single)
    result.check()


def _report(queue: str, ids: list[str | None], duplicates: set[int], output: str, single: bool) -> None:
    rows: list[dict[str, object]] = [
        {"id": stored, "duplicate": index in duplicates} for index, stored in enumerate(ids) if stored is not None
    ]
    if output == "table":
        if single and rows:
            click.echo(rows[0]["id"])
        elif not single:
            show_note(f"Stored {plural(len(rows) - len(duplicates), 'message')} in {queue}.")
        if duplicates:
            show_note(f"{plural(len(duplicates), 'message')} had been stored before.")
    elif single and output == "json":
        show_json(rows[0] if rows else None)
    else:
        show_rows(output, [], rows)


@contextmanager
def _source(payload: str | None, path: Path | None, lines: Path | None) -> Iterator[tuple[Iterator[bytes], int | None]]:
    """Payloads, and how many there are if that is known."""
    if payload is not None:
        yield iter([payload.encode(errors="surrogateescape")]), None
        return
    file = path or lines
    assert file is not None
    if str(file) == "-":
        stream: BinaryIO = sys.stdin.buffer
        yield (iter([stream.read()]) if path else _lines(stream)), None
        return
    try:
        with file.open("rb") as opened:
            if path:
                yield iter([opened.read()]), None
            else:
                yield _lines(opened), _count(file)
    except OSError as error:
        raise InvalidArgument(field=f"File {file}", problem=f"cannot be read: {error.strerror or error}") from None


def _count(file: Path) -> int | None:
    """Lines of a file, for the progress bar; unknown for a pipe."""
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return sum(part.count(b"\n") for part in iter(lambda: opened.read(1 << 20), b""))


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    for line in stream:
        yield line.rstrip(b"\r\n")


def _maker(shape: str, options: dict[str, Any]) -> Draft:
    from holdfast.client import draft  # noqa: PLC0415

    properties = _properties(options.pop("properties"))

    def make(body: bytes) -> wire.Draft:
        match shape:
            case "message":
                return _message(body, {name: value for name, value in options.items() if name != "priority"})
            case "json":
                return draft(_json(body), properties=properties, **options)
            case "bytes":
                return draft(body, properties=properties, **options)
            case "text":
                return draft(_text(body), properties=properties, **options)
            case _:
                try:
                    return draft(body.decode(), properties=properties, **options)
                except UnicodeDecodeError:
                    return draft(body, properties=properties, **options)

    return make


def _properties(pairs: tuple[str, ...]) -> dict[str, list[str]]:
    properties: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"A property is NAME=VALUE, not {pair!r}.")
        properties.setdefault(name, []).append(value)
    return properties


def _json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(field="The payload", problem=f"is not JSON: {error}: {body[:80]!r}") from None


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(field="The payload", problem=f"is not UTF-8: {error}; send it --as bytes") from None


def _message(body: bytes, options: dict[str, Any]) -> wire.Draft:
    if any(value is not None for value in options.values()):
        raise click.UsageError("With --as message each line says everything about its message: give no other option.")
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        given = {name: value for name, value in fields.items() if name not in OF_STORED_MESSAGES}
        return msgspec.json.decode(msgspec.json.encode(given), type=wire.Draft)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(field="The message", problem=f"is wrong: {error}: {body[:80]!r}") from None
