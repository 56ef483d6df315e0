"""A payload as people read it: JSON, MessagePack and protobuf as a tree that folds, text, or bytes in hex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from markupsafe import Markup

from holdfast.console.protobuf_types import NoProtobuf, is_protobuf

SHOWN_BYTES_MAX: Final = 256 << 10
"""Of a payload on a page; the whole of it can be downloaded."""

NODES_MAX: Final = 5_000
OPEN_NODES: Final = 200
"""A tree of no more than this is open as a whole."""

DEPTH_MAX: Final = 60
HEX_BYTES_MAX: Final = 4_096
VIEWS: Final = ("json", "text", "hex", "msgpack", "protobuf")


Protobuf = Callable[[bytes], object]
"""The fields of a payload; raises NoProtobuf."""


class Shown(msgspec.Struct, frozen=True):
    """A payload in one of its views; `problem` says why it is not shown so."""

    view: str
    html: Markup
    problem: str = ""


def show(payload: bytes, content_type: str | None, view: str = "", protobuf: Protobuf | None = None) -> Shown:
    """The payload in a view, or in the one that fits it. `protobuf` reads it as a message, if there are descriptors."""
    chosen = view if view in VIEWS else _fitting(payload, content_type)
    if not view and protobuf is not None and is_protobuf(content_type):
        chosen = "protobuf"
    if len(payload) > SHOWN_BYTES_MAX and chosen in ("json", "msgpack", "protobuf"):
        return Shown("hex", _hex(payload), "It is too large to be shown as a tree; download it.")
    try:
        if chosen == "json":
            return Shown("json", _Tree().html(msgspec.json.decode(payload)))
        if chosen == "msgpack":
            return Shown("msgpack", _Tree().html(msgspec.msgpack.decode(payload)))
        if chosen == "protobuf" and protobuf is not None:
            return Shown("protobuf", _Tree().html(protobuf(payload)))
        if chosen == "text":
            return Shown("text", _text(payload.decode()[:SHOWN_BYTES_MAX]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NoProtobuf) as error:
        return Shown("hex", _hex(payload), f"It cannot be shown as {chosen}: {error}")
    return Shown("hex", _hex(payload))


def _fitting(payload: bytes, content_type: str | None) -> str:
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind in ("application/msgpack", "application/vnd.msgpack", "application/x-msgpack"):
        return "msgpack"
    if kind.startswith("text/"):
        return "text" if _is_text(payload) else "hex"
    if _is_json(payload):
        return "json"
    return "text" if payload and _is_text(payload) else "hex"


def _is_json(payload: bytes) -> bool:
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _is_text(payload: bytes) -> bool:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\t\r\n" for char in text[:10_000])


def _text(text: str) -> Markup:
    return Markup("<pre>{}</pre>").format(text)


def _hex(payload: bytes) -> Markup:
    lines = []
    for at in range(0, min(len(payload), HEX_BYTES_MAX), 16):
        row = payload[at : at + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {plain}")
    rest = len(payload) - HEX_BYTES_MAX
    if rest > 0:
        lines.append(f"… {rest} more bytes")
    return _text("\n".join(lines) or "(empty)")


class _Tree:
    """Nested values as nested elements that fold."""

    def __init__(self) -> None:
        self._nodes = 0

    def html(self, value: object) -> Markup:
        count = _count(value)
        return self._value(value, Markup(""), 0, open_all=count <= OPEN_NODES)

    def _value(self, value: object, label: Markup, depth: int, *, open_all: bool) -> Markup:
        self._nodes += 1
        if isinstance(value, dict | list) and value:
            if self._nodes > NODES_MAX or depth > DEPTH_MAX:
                return Markup('<div class="leaf">{}<span class="j-more">… not shown</span></div>').format(label)
            items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
            inner = Markup("").join(
                self._value(
                    child,
                    Markup('<span class="j-key">{}</span>: ').format(_key(key))
                    if isinstance(value, dict)
                    else Markup(""),
                    depth + 1,
                    open_all=open_all,
                )
                for key, child in items
            )
            begin, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
            opened = Markup(" open") if open_all or depth < 1 else Markup("")
            return Markup(
                '<details{opened}><summary>{label}{begin}<span class="j-more"> {count} </span></summary>'
                "{inner}{end}</details>"
            ).format(opened=opened, label=label, begin=begin, count=len(items), inner=inner, end=end)
        return Markup('<div class="leaf">{}{}</div>').format(label, _leaf(value))


def _key(key: object) -> str:
    return msgspec.json.encode(key).decode() if isinstance(key, str) else str(key)


def _leaf(value: object) -> Markup:
    if isinstance(value, str):
        return Markup('<span class="j-text">{}</span>').format(msgspec.json.encode(value).decode())
    if value is None or isinstance(value, bool):
        return Markup('<span class="j-word">{}</span>').format(msgspec.json.encode(value).decode())
    if isinstance(value, int | float):
        return Markup('<span class="j-number">{}</span>').format(value)
    if isinstance(value, bytes):
        return Markup('<span class="j-text">0x{}</span>').format(value[:HEX_BYTES_MAX].hex())
    return Markup("<span>{}</span>").format(
        "{}" if isinstance(value, dict) else "[]" if isinstance(value, list) else value
    )


def _count(value: object) -> int:
    """How many values there are, counted up to a few more than are shown open."""
    count, todo = 0, [value]
    while todo and count <= OPEN_NODES:
        one = todo.pop()
        count += 1
        if isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return count
