"""The lake: reports that the pipeline has written as HTML, opened inside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from holdfast.console.caller import Caller, link
from holdfast.console.page import Pages
from holdfast.console.refusals import PageRefused
from holdfast.errors import Forbidden
from holdfast.http_api.server.response import Header, Response
from holdfast.units import MILLISECOND

PAGES = Pages()
LISTED_MAX: Final = 200
REPORT_BYTES_MAX: Final = 32 << 20
"""A report with plots of the busiest queues has 1 MiB."""

REPORT_HEADERS: Final[tuple[Header, ...]] = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
            b"frame-ancestors 'self'; sandbox allow-top-navigation-by-user-activation"
        ),
    ),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"referrer-policy", b"no-referrer"),
)
"""A report brings its styles along and has no script: none may run, and nothing of this site's is its own."""


class ReportFile(msgspec.Struct, frozen=True):
    """A report, as a file."""

    name: str
    written_at: int
    size_bytes: int


def _directory(caller: Caller) -> Path:
    """A report tells of all namespaces: it is for who may look at the server."""
    if not caller.principal.may_node:
        raise Forbidden(action="look at", resource="the lake's reports", scope="node")
    config = caller.console.config
    return config.lake_dir / config.console.reports


def _files(directory: Path) -> list[ReportFile]:
    """The newest first."""
    found: list[ReportFile] = []
    for file in directory.glob("*.html") if directory.is_dir() else ():
        if file.is_symlink() or not file.is_file():
            continue
        facts = file.stat()
        found.append(ReportFile(file.name, facts.st_mtime_ns // 1_000, facts.st_size))
    found.sort(key=lambda file: (-file.written_at, file.name))
    return found[:LISTED_MAX]


@PAGES.get("/lake")
async def show(caller: Caller) -> Response:
    directory = _directory(caller)
    files = await asyncio.to_thread(_files, directory)
    wanted = caller.query("report")
    chosen = next((file for file in files if file.name == wanted or not wanted), None)
    if wanted and chosen is None:
        raise _gone(wanted)
    source = link("lake", "reports", chosen.name, v=chosen.written_at // MILLISECOND) if chosen is not None else ""
    return caller.page("lake.html", files=files, chosen=chosen, source=source, directory=directory)


@PAGES.get("/lake/reports/{file}")
async def report(caller: Caller) -> Response:
    """The file itself, for the frame of the page."""
    directory, name = _directory(caller), caller.parameters[0]
    for file in await asyncio.to_thread(_files, directory):
        if file.name == name:
            if file.size_bytes > REPORT_BYTES_MAX:
                raise PageRefused(413, "The report is too large", f"Open it from the server's disk: {directory / name}")
            try:
                content = await asyncio.to_thread((directory / name).read_bytes)
            except FileNotFoundError:
                break
            return Response(content, 200, b"text/html; charset=utf-8", REPORT_HEADERS)
    raise _gone(name)


def _gone(name: str) -> PageRefused:
    return PageRefused(
        404, "No such report", f"There is no report {name}. Reload the page of the lake to see which there are."
    )
