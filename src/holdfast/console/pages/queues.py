"""All queues: find, sort, choose; create one.

With ten thousand queues a page is as quick as with ten: queues are chosen and sorted by what is known without reading
their partitions, and only those on the page are looked at closely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.console.caller import ApiProblem, Caller, link
from holdfast.console.live import live
from holdfast.console.page import Pages
from holdfast.console.queue_form import given, sections, shown
from holdfast.core.queue import QueueRecord
from holdfast.engine.stats import QueueStats
from holdfast.errors import QueueNotFound
from holdfast.http_api.server.response import Response

PAGES = Pages()
PER_PAGE: Final = 50
PAGES_MAX: Final = 1_000_000
SLICE: Final = 1_000  # queues that are looked at before others have a turn

KINDS: Final[dict[str, tuple[str, Callable[[QueueRecord, int], bool]]]] = {
    "": ("All", lambda _record, _depth: True),
    "backlog": ("With messages", lambda _record, depth: depth > 0),
    "paused": ("Paused", lambda record, _depth: record.config.paused),
    "dead": ("Dead queues", lambda record, _depth: record.automatic),
}
SORTS: Final = ("name", "depth", "enqueued", "acked")


class Row(msgspec.Struct, frozen=True):
    """A queue in the list; `stats` only for who administers it."""

    record: QueueRecord
    depth: int
    stats: QueueStats | None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list, and how it was chosen."""

    rows: list[Row]
    total: int
    find: str
    kind: str
    sort: str
    page: int

    @property
    def pages(self) -> int:
        return max(-(-self.total // PER_PAGE), 1)

    @property
    def first(self) -> int:
        return (self.page - 1) * PER_PAGE

    def href(self, base: str = "queues", **change: object) -> str:
        """The address of this list, changed."""
        chosen: dict[str, object] = {
            "find": self.find,
            "kind": self.kind,
            "sort": self.sort,
            "page": self.page,
            **change,
        }
        if chosen["sort"] == "name":
            chosen["sort"] = ""
        if chosen["page"] == 1:
            chosen["page"] = ""
        return link(*base.split("/"), **chosen)

    def sorted_by(self, column: str) -> str:
        """For `aria-sort`; empty if it is not the column."""
        if self.sort.removeprefix("-") != column:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"

    def turned(self, column: str) -> str:
        """How to sort when its heading is chosen: numbers begin with the greatest."""
        first = column if column == "name" else f"-{column}"
        other = f"-{column}" if column == "name" else column
        return other if self.sort == first else first


async def _listing(caller: Caller) -> Listing:
    find, kind, sort = caller.query("find"), caller.query("kind"), caller.query("sort", "name")
    if kind not in KINDS:
        kind = ""
    if sort.removeprefix("-") not in SORTS:
        sort = "name"
    node = caller.node
    words, fits, depths = find.casefold().split(), KINDS[kind][1], node.inspection.depths()
    chosen: list[tuple[QueueRecord, int]] = []
    for index, record in enumerate(node.queues.in_namespace(caller.namespace), 1):
        depth = depths.get((record.namespace, record.name), 0)
        name = record.name.casefold()
        if fits(record, depth) and all(word in name for word in words) and caller.principal.can_see(record.name):
            chosen.append((record, depth))
        if index % SLICE == 0:
            await asyncio.sleep(0)
    _sort(caller, chosen, sort)
    pages = max(-(-len(chosen) // PER_PAGE), 1)
    page = min(caller.number("page", 1, 1, PAGES_MAX), pages)
    shown_here = chosen[(page - 1) * PER_PAGE : page * PER_PAGE]
    rows = [await _row(caller, record, depth) for record, depth in shown_here]
    return Listing(rows=rows, total=len(chosen), find=find, kind=kind, sort=sort, page=page)


def _sort(caller: Caller, chosen: list[tuple[QueueRecord, int]], sort: str) -> None:
    """They come by name; rates are those of the last sample."""
    column, downwards = sort.removeprefix("-"), sort.startswith("-")
    if column == "name":
        if downwards:
            chosen.reverse()
        return
    if column == "depth":
        chosen.sort(key=lambda one: one[1], reverse=downwards)
        return
    samples, now = caller.console.sampler.samples, caller.node.clock()
    rates: dict[str, float] = {}
    for name in samples.queues():
        if name[0] == caller.namespace:
            rates[name[1]] = sum(samples.series[name].recent(column, 1, now))
    chosen.sort(key=lambda one: rates.get(one[0].name, 0.0), reverse=downwards)


async def _row(caller: Caller, record: QueueRecord, depth: int) -> Row:
    stats = None
    if caller.may("admin", record.name):
        try:
            stats = await caller.node.inspection.stats((record.namespace, record.name))
        except QueueNotFound:  # deleted meanwhile
            depth = 0
    return Row(record, depth, stats)


def _kinds() -> dict[str, str]:
    return {name: text for name, (text, _) in KINDS.items()}


@PAGES.get("/queues")
async def show(caller: Caller) -> Response:
    listing = await _listing(caller)
    may_create = not caller.read_only and caller.principal.may_somewhere(Action.ADMIN)
    template = "_queues.html" if caller.wants_part else "queues.html"
    return caller.page(template, listing=listing, kinds=_kinds(), may_create=may_create)


@PAGES.get("/live/queues", waits=True)
async def updates(caller: Caller) -> Response:
    async def parts() -> dict[str, str]:
        return {"rows": caller.part("_queues_rows.html", listing=await _listing(caller))}

    return live(caller, parts)


@PAGES.get("/new-queue")
async def create_form(caller: Caller) -> Response:
    values = {**shown(wire.QueueConfig()), "name": caller.query("name")}
    return caller.page("queue_form.html", queue=None, sections=sections(), values=values, problem="")


@PAGES.post("/new-queue")
async def create(caller: Caller) -> Response:
    form = await caller.form()
    name = form.get("name", "").strip()
    fields = given(form, shown(wire.QueueConfig()))
    try:
        await caller.api("POST", "/api/v1/queues", wire.QueueCreate(name, fields))
    except ApiProblem as error:
        return refused_form(caller, None, form, error)
    return caller.redirect(link("queues", name), "created")


def refused_form(caller: Caller, queue: str | None, form: dict[str, str], error: ApiProblem) -> Response:
    """The form again, as it was filled in, with what is wrong."""
    values = {**dict.fromkeys(shown(wire.QueueConfig()), ""), "name": "", **form}
    return caller.page(
        "queue_form.html",
        status=error.problem.status,
        queue=queue,
        sections=sections(),
        values=values,
        problem=error.problem.detail,
    )
