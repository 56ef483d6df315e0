"""Changes to the payloads of redriven dead letters: fields set by SQL, or a function of the user's.

    --set "payload.amount = payload.amount * 100"     Spark computes the value; everything else stays as it was written
    --transform fixes:cents                           def cents(payload: bytes, dead_letter: dict) -> bytes

Spark computes the values; the driver, through which payloads go to the broker, puts them into the payloads.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from holdfast.errors import InvalidArgument
from holdfast.pipeline.jobs import payload_fields
from holdfast.pipeline.lake.tables import DEAD_LETTERS

DeadLetter = dict[str, Any]
Transform = Callable[[bytes, DeadLetter], Any]

_SET = re.compile(r"\s*payload((?:\.(?:\w+|`[^`]+`)|\[\d+\])*)\s*=(?!=)\s*(.+)", re.DOTALL)
_STEP = re.compile(r"\.(?:(\w+)|`([^`]+)`)|\[(\d+)\]")
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode

Path = tuple[str | int, ...]


class TransformError(Exception):
    """A payload that cannot be changed, and why."""


class Setting(msgspec.Struct, frozen=True):
    """A field to set, and the expression of its value."""

    path: Path
    expression: str

    @property
    def column(self) -> str:
        return "set:" + ".".join(map(str, self.path))


class PayloadChanges(msgspec.Struct, frozen=True):
    """The changes to make to payloads."""

    settings: tuple[Setting, ...] = ()
    function: str = ""
    """`module:function`; it is called after the fields are set."""

    def __bool__(self) -> bool:
        return bool(self.settings or self.function)


def changes(sets: Sequence[str], function: str = "") -> PayloadChanges:
    """Parse the options of the command line."""
    settings: list[Setting] = []
    for text in sets:
        match = _SET.fullmatch(text)
        if match is None:
            raise InvalidArgument(field="--set", problem=f"is payload.FIELD = EXPRESSION, not {text!r}")
        path: Path = tuple(int(index) if index else name or quoted for name, quoted, index in _STEP.findall(match[1]))
        settings.append(Setting(path, match[2].strip()))
    return PayloadChanges(tuple(settings), function)


def load_function(name: str) -> Transform:
    """A function by `module:function`, from the directory the command runs in or from what is installed."""
    module, colon, function = name.partition(":")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(field="--transform", problem=f"cannot be loaded: {error}") from error
    if not callable(found):
        raise InvalidArgument(field="--transform", problem=f"names a function as module:function, not {name!r}")
    transform: Transform = found
    return transform


def with_values(dead_letters: DataFrame, wanted: PayloadChanges) -> DataFrame:
    """Dead letters with the values to set, as JSON. They have a column `text`."""
    with payload_fields.sql_errors_as("--set"):
        found = payload_fields.with_fields(dead_letters, *[setting.expression for setting in wanted.settings])
        for setting in wanted.settings:
            found = found.withColumn(setting.column, payload_fields.value_of(setting.expression))
        found.schema  # noqa: B018 - on a Connect server Spark looks at the expressions only now
    return found


def changed(
    dead_letters: DataFrame, wanted: PayloadChanges
) -> Iterator[tuple[DeadLetter, bytes | TransformError | None]]:
    """Each dead letter of `with_values` with its new payload; None: the function declines it."""
    function = load_function(wanted.function) if wanted.function else None
    own = DEAD_LETTERS.names if function else ("letter_id", "payload")
    chosen = dead_letters.select(*[f"`{name}`" for name in (*own, *(setting.column for setting in wanted.settings))])
    for row in chosen.toLocalIterator():
        dead_letter = row.asDict(recursive=True)
        values = [dead_letter.pop(setting.column) for setting in wanted.settings]
        payload = dead_letter["payload"] = bytes(dead_letter["payload"]) if dead_letter["payload"] is not None else None
        try:
            if payload is None:
                raise TransformError("the lake has no payload of it: the dead queue's journal keeps none")
            for setting, value in zip(wanted.settings, values, strict=True):
                payload = put(payload, setting.path, _plain(value)) if setting.path else _whole(_plain(value))
            new = payload if function is None else _called(function, payload, dead_letter)
        except TransformError as problem:
            yield dead_letter, problem
            continue
        yield dead_letter, new


def _plain(value: str | None) -> bytes:
    """Unwrap the value from the object that Spark put it into."""
    return b"null" if value is None else value[len('{"v":') : -1].encode()


def _whole(value: bytes) -> bytes:
    """A payload that is replaced entirely: text as it is, anything else as JSON."""
    made = msgspec.json.decode(value)
    return made.encode() if isinstance(made, str) else value


def put(document: bytes, path: Path, value: bytes) -> bytes:
    """A JSON document with a new value at a path. Everything else stays byte for byte."""
    step, rest = path[0], path[1:]
    try:
        if isinstance(step, int):
            items = _array(document)
            items[step] = _put(items[step], rest, value)
            return msgspec.json.encode(items)
        members = _object(b"{}" if document == b"null" else document)
        members[step] = _put(members.get(step, msgspec.Raw(b"{}" if rest else b"null")), rest, value)
        return msgspec.json.encode(members)
    except (msgspec.DecodeError, IndexError) as error:
        raise TransformError(f"its payload has no place {_path_text(path)}: {error}") from error


def _put(document: msgspec.Raw, path: Path, value: bytes) -> msgspec.Raw:
    return msgspec.Raw(put(bytes(document), path, value) if path else value)


def _path_text(path: Path) -> str:
    return "payload" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _called(function: Transform, payload: bytes, dead_letter: DeadLetter) -> bytes | None:
    """The function's result for a payload: bytes, text, or something that JSON can encode."""
    with contextlib.redirect_stdout(sys.stderr):  # what it prints is not a part of the command's result
        try:
            made = function(payload, dead_letter)
        except Exception as error:  # whatever a function of the user's raises: this dead letter stays, others go on
            raise TransformError(f"the function raised {type(error).__name__}: {error}") from error
    if made is None or isinstance(made, bytes):
        return made
    return made.encode() if isinstance(made, str) else json.dumps(made).encode()
