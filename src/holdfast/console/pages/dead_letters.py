"""Dead letters: why they died, by cluster; redrive them, undo that, purge them; redrives under way."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.console.caller import Caller, link, whole_number
from holdfast.console.clusters import Cluster, clusters
from holdfast.console.live import live
from holdfast.console.page import Pages
from holdfast.console.refusals import NOT_CONFIRMED, PageRefused
from holdfast.core.queue import DEAD_PREFIX, QueueRecord
from holdfast.http_api.server.response import Response

PAGES = Pages()
READ_MAX: Final = 2_000
"""Dead letters, the oldest, that are read to find clusters."""

PER_READ: Final = 500
PER_MOVE: Final = 1_000
REASONS: Final = ("", "max_retries", "total_timeout", "rejected", "expired")


class DeadQueue(msgspec.Struct, frozen=True):
    """A dead queue, and the queues whose dead letters it takes."""

    record: QueueRecord
    depth: int
    sources: list[str]


def api_of(caller: Caller, *rest: str, **query: object) -> str:
    """The API's address of the dead letters of the queue in the path."""
    return link("api", "v1", "queues", caller.parameters[0], "dlq", *rest, **query)


@PAGES.get("/dead-letters")
async def show_all(caller: Caller) -> Response:
    queues, depths = caller.node.queues, caller.node.inspection.depths()
    found: list[DeadQueue] = []
    for record in queues.in_namespace(caller.namespace):
        name = (record.namespace, record.name)
        sources = queues.dead_queue_users(name)
        if (record.automatic or sources) and caller.principal.can_see(record.name):
            found.append(
                DeadQueue(record, depths.get(name, 0), [one for one in sources if caller.principal.can_see(one)])
            )
    found.sort(key=lambda one: (-one.depth, one.record.name))
    return caller.page("dead_queues.html", queues=found)


def _filter(fields: dict[str, str]) -> dict[str, object]:
    """What a form chooses, as the API takes it."""
    chosen = {name: fields.get(name, "").strip() for name in ("reason", "error", "group", "older_than", "newer_than")}
    return {name: value for name, value in chosen.items() if value}


@PAGES.get("/dead-letters/{name}")
async def show(caller: Caller) -> Response:
    name = caller.parameters[0]
    chosen = {field: caller.query(field) for field in ("reason", "error", "group")}
    read, cursor = await _read(caller, chosen)
    jobs, audits = await _history(caller)
    return caller.page(
        "dead_letters.html",
        name=name,
        dead_queue=_dead_queue(caller),
        chosen=chosen,
        reasons=REASONS,
        clusters=clusters(read),
        count=len(read),
        more=bool(cursor),
        jobs=jobs,
        audits=audits,
        problem="",
    )


def _dead_queue(caller: Caller) -> str:
    """Where the dead letters of the queue in the path are."""
    name = caller.parameters[0]
    if name.startswith(DEAD_PREFIX):
        return name
    dead = caller.node.dead_letters.queue_of((caller.namespace, name))
    return dead[1] if dead is not None else name


async def _read(caller: Caller, chosen: dict[str, str]) -> tuple[list[wire.MessageView], str]:
    """The oldest dead letters that fit, and where there are more."""
    found: list[wire.MessageView] = []
    cursor = ""
    for _ in range(READ_MAX // PER_READ):
        target = api_of(caller, limit=PER_READ, cursor=cursor, encoding="base64", **chosen)
        page = await caller.get(wire.MessagePage, target)
        found += page.messages
        cursor = page.cursor
        if not cursor:
            break
    return found, cursor


async def _history(caller: Caller) -> tuple[list[wire.RedriveJob], list[wire.RedriveAudit]]:
    """Redrives, for who administers the queue."""
    if not caller.may("admin", caller.parameters[0]):
        return [], []
    jobs = await caller.get(wire.RedriveList, api_of(caller, "redrive"))
    audits = await caller.get(wire.RedriveAudits, api_of(caller, "audits"))
    return jobs.redrives, audits.audits


@PAGES.get("/dead-letters/{name}/live", waits=True)
async def updates(caller: Caller) -> Response:
    caller.principal.require(Action.ADMIN, caller.parameters[0])

    async def parts() -> dict[str, str]:
        jobs, audits = await _history(caller)
        return {"jobs": caller.part("_redrives.html", name=caller.parameters[0], jobs=jobs, audits=audits)}

    return live(caller, parts)


# --- changes --------------------------------------------------------------------------------------------------------


def _page(caller: Caller) -> str:
    return link("dead-letters", caller.parameters[0])


async def _cluster(caller: Caller, fingerprint: str, source: str) -> Cluster:
    """The cluster as it is now: what has come and gone since the page was opened is noticed."""
    read, _ = await _read(caller, {})
    for cluster in clusters(read):
        if (cluster.fingerprint, cluster.source_queue) == (fingerprint, source):
            return cluster
    raise PageRefused(404, "No such cluster", "Its dead letters are gone: somebody has redriven or purged them.")


@PAGES.post("/dead-letters/{name}/clusters/{fingerprint}/redrive", waits=True)
async def redrive_cluster(caller: Caller) -> Response:
    """Redrive the dead letters of a cluster, or the first few of them, in a way that can be undone."""
    form = await caller.form()
    cluster = await _cluster(caller, caller.parameters[1], form.get("source", ""))
    ids = cluster.ids[: whole_number(form.get("few", "")) or cluster.count]
    audit = f"console-{caller.node.clock() // 1000}-{cluster.fingerprint}"
    moved = 0
    for start in range(0, len(ids), PER_MOVE):
        dead_letters = [wire.AuditedDeadLetter(id=one) for one in ids[start : start + PER_MOVE]]
        move = wire.AuditedMove(dead_letters=dead_letters, note=f"console: fingerprint {cluster.fingerprint}")
        done = msgspec.json.decode(
            await caller.api("POST", api_of(caller, "audits", audit), move), type=wire.RedriveOutcomes
        )
        moved += sum(1 for one in done.dead_letters if one.outcome == "moved")
    return caller.redirect(_page(caller), "redriven", moved)


@PAGES.post("/dead-letters/{name}/audits/{audit}/undo", waits=True)
async def undo(caller: Caller) -> Response:
    """Make dead letters again of the messages of a redrive that nobody has consumed."""
    cursor, undone = "", 0
    while True:
        body = wire.UndoPage(cursor=cursor)
        raw = await caller.api("POST", api_of(caller, "audits", caller.parameters[1], "undo"), body)
        page = msgspec.json.decode(raw, type=wire.RedriveOutcomes)
        undone += sum(1 for one in page.dead_letters if one.outcome == "undone")
        cursor = page.cursor
        if not cursor:
            return caller.redirect(_page(caller), "undone", undone)


@PAGES.post("/dead-letters/{name}/redrive", waits=True)
async def redrive(caller: Caller) -> Response:
    """Begin a job, or count what it would move."""
    form = await caller.form()
    request: dict[str, object] = {"filter": _filter(form), "to": form.get("to", "").strip()}
    request["dry_run"] = form.get("act") == "count"
    for field, read in (("rate", float), ("limit", int)):
        text = form.get(field, "").strip()
        if text:
            try:
                request[field] = read(text)
            except ValueError:
                raise PageRefused(
                    400, "No number", f"{field}: {text!r} is not a number. Nothing was changed."
                ) from None
    job = msgspec.json.decode(await caller.api("POST", api_of(caller, "redrive"), request), type=wire.RedriveJob)
    return caller.redirect(_page(caller), "counted" if job.dry_run else "redriving", job.matched)


@PAGES.post("/dead-letters/{name}/redrives/{redrive}/cancel")
async def cancel(caller: Caller) -> Response:
    await caller.api("DELETE", api_of(caller, "redrive", caller.parameters[1]))
    return caller.redirect(_page(caller), "cancelled")


@PAGES.get("/dead-letters/{name}/purge")
async def purge_form(caller: Caller) -> Response:
    name = caller.parameters[0]
    caller.principal.require(Action.ADMIN, name)
    chosen = {field: caller.query(field) for field in ("reason", "error", "group")}
    return caller.page("dead_letters_purge.html", name=name, chosen=chosen)


@PAGES.post("/dead-letters/{name}/purge", waits=True)
async def purge(caller: Caller) -> Response:
    form = await caller.form()
    if form.get("confirm", "") != caller.parameters[0]:
        raise NOT_CONFIRMED
    done = msgspec.json.decode(await caller.api("POST", api_of(caller, "purge"), _filter(form)), type=wire.Purged)
    return caller.redirect(_page(caller), "dead-purged", done.messages)


@PAGES.post("/dead-letters/{name}/{id}/retry")
async def retry(caller: Caller) -> Response:
    """Redrive one."""
    await caller.api("POST", api_of(caller, caller.parameters[1], "retry"))
    return caller.redirect(_page(caller), "redriven", 1)
