"""The audit log: who administered what, the newest first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.auth.audit import numbered_files
from holdfast.auth.principal import Action
from holdfast.console.caller import Caller
from holdfast.console.page import Pages
from holdfast.http_api.server.response import Response

PAGES = Pages()
SHOWN_MAX: Final = 200
READ_BYTES: Final = 4 << 20
"""From the end of the log: some 14,000 entries."""


@PAGES.get("/audit")
async def show(caller: Caller) -> Response:
    """All of it for who may see the server; the entries of the namespace for who administers the whole of it."""
    if not caller.principal.may_node:
        caller.principal.require_filter(Action.ADMIN, "#")
    settings = caller.console.config
    path = settings.node.data_dir / settings.audit.file
    await caller.console.gate.audit.synced()
    entries = await asyncio.to_thread(_newest, path)
    chosen = {field: caller.query(field).strip() for field in ("who", "act", "resource", "result")}
    found = [entry for entry in entries if _fits(entry, chosen) and _visible(caller, entry)]
    return caller.page("audit.html", entries=found[:SHOWN_MAX], more=len(found) > SHOWN_MAX, chosen=chosen)


def _newest(path: Path) -> list[dict[str, Any]]:
    """The last entries, the newest first."""
    lines: list[bytes] = []
    left = READ_BYTES
    for file in numbered_files(path):
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(size - left, 0))
            content = opened.read(left)
        read = content.split(b"\n")
        lines += reversed(read[1:] if size > left else read)  # the first may be cut
        left -= len(content)
        if left <= 0:
            break
    entries: list[dict[str, Any]] = []
    for line in lines:
        try:
            entry = msgspec.json.decode(line) if line else None
        except msgspec.DecodeError:  # it was being written
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def _visible(caller: Caller, entry: dict[str, Any]) -> bool:
    return caller.principal.may_node or entry.get("namespace") == caller.namespace


def _fits(entry: dict[str, Any], chosen: dict[str, str]) -> bool:
    return all(text.casefold() in str(entry.get(field, "")).casefold() for field, text in chosen.items())
