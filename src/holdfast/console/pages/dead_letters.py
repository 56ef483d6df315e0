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
from holdfast.console.redrives import DONE, Pace, PacedRedrive
from holdfast.console.refusals import NOT_CONFIRMED, PageRefused
from holdfast.core.queue import DEAD_PREFIX, QueueRecord
from holdfast.http_api.server.response import Response
from holdfast.units import DAY, parse_duration

PAGES = Pages()
READ_MAX: Final = 2_000
"""Dead letters, the oldest, that are read to find clusters."""

PER_READ: Final = 500
PER_MOVE: Final = 1_000
RATE_MIN: Final = 0.1
RATE_MAX: Final = 100_000
WAIT_MAX: Final = DAY
FILTERS: Final = ("reason", "error", "group", "older_than", "newer_than")
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
    chosen = {name: fields.get(name, "").strip() for name in FILTERS}
    return {name: value for name, value in chosen.items() if value}


@PAGES.get("/dead-letters/{name}")
async def show(caller: Caller) -> Response:
    name = caller.parameters[0]
    chosen = {field: caller.query(field).strip() for field in FILTERS}
    read, cursor = await _read(caller, chosen)
    return caller.page(
        "dead_letters.html",
        name=name,
        dead_queue=_dead_queue(caller),
        chosen=chosen,
        reasons=REASONS,
        clusters=clusters(read),
        count=len(read),
        more=bool(cursor),
        redrives=await _redrives(caller),
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


class Redrives(msgspec.Struct, frozen=True):
    """Redrives of a queue's dead letters, newest first: those at a pace, jobs of the server, and what can be undone."""

    paced: list[PacedRedrive]
    jobs: list[wire.RedriveJob]
    audits: list[wire.RedriveAudit]


async def _redrives(caller: Caller) -> Redrives:
    """For who administers the queue."""
    name = caller.parameters[0]
    if not caller.may("admin", name):
        return Redrives([], [], [])
    paced = [run for run in caller.console.redrives.of(caller.namespace, name) if run.state != DONE]
    jobs = await caller.get(wire.RedriveList, api_of(caller, "redrive"))
    audits = await caller.get(wire.RedriveAudits, api_of(caller, "audits"))
    return Redrives(paced, jobs.redrives, audits.audits)


@PAGES.get("/dead-letters/{name}/live", waits=True)
async def updates(caller: Caller) -> Response:
    caller.principal.require(Action.ADMIN, caller.parameters[0])

    async def parts() -> dict[str, str]:
        return {"jobs": caller.part("_redrives.html", name=caller.parameters[0], redrives=await _redrives(caller))}

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


@PAGES.post("/dead-letters/{name}/clusters/{fingerprint}/paced", waits=True)
async def redrive_paced(caller: Caller) -> Response:
    """Begin to redrive a cluster at a rate, or canaries first; it goes on while the page shows how far it is."""
    form, name = await caller.form(), caller.parameters[0]
    pace = Pace(_rate(form.get("rate", "")), _canaries(form.get("canaries", "")), _wait(form.get("wait", "")))
    caller.principal.require(Action.ADMIN, name)
    cluster = await _cluster(caller, caller.parameters[1], form.get("source", ""))
    now = caller.node.clock()
    run = PacedRedrive(
        id=f"console-{now // 1000}-{cluster.fingerprint}",
        namespace=caller.namespace,
        queue=name,
        note=f"console: fingerprint {cluster.fingerprint}",
        pace=pace,
        total=cluster.count,
        started_at=now,
    )
    caller.console.redrives.begin(caller, run, cluster.ids)
    return caller.redirect(_page(caller), "redriving")


def _rate(text: str) -> float:
    try:
        rate = float(text or 0)
    except ValueError:
        rate = -1.0
    if not (rate == 0 or RATE_MIN <= rate <= RATE_MAX):
        raise PageRefused(
            400, "No rate", f"{text!r} is no rate: {RATE_MIN} to {RATE_MAX:,} messages a second. Nothing was changed."
        )
    return rate


def _canaries(text: str) -> int:
    count = whole_number(text.strip() or "0")
    if count is None or count > PER_MOVE:
        raise PageRefused(
            400, "No number", f"Canaries: {text!r} is not a number up to {PER_MOVE:,}. Nothing was changed."
        )
    return count


def _wait(text: str) -> int:
    try:
        wait = parse_duration(text.strip() or "60s")
    except ValueError:
        wait = -1
    if not 0 < wait <= WAIT_MAX:
        raise PageRefused(400, "No duration", f"{text!r} is no time up to a day, as 60s or 5m. Nothing was changed.")
    return wait


@PAGES.post("/dead-letters/{name}/paced/{id}/cancel")
async def cancel_paced(caller: Caller) -> Response:
    name, run_id = caller.parameters
    caller.principal.require(Action.ADMIN, name)
    if not caller.console.redrives.cancel(caller.namespace, name, run_id):
        raise PageRefused(404, "It is not under way", "It has ended meanwhile. What it has moved can be undone.")
    return caller.redirect(_page(caller), "cancelled")


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
    chosen = {field: caller.query(field).strip() for field in FILTERS}
    fingerprint, source = caller.query("fingerprint"), caller.query("source")
    cluster = await _cluster(caller, fingerprint, source) if fingerprint else None
    return caller.page("dead_letters_purge.html", name=name, chosen=chosen, cluster=cluster)


@PAGES.post("/dead-letters/{name}/purge", waits=True)
async def purge(caller: Caller) -> Response:
    form = await caller.form()
    if form.get("confirm", "") != caller.parameters[0]:
        raise NOT_CONFIRMED
    which = _filter(form)
    if form.get("fingerprint"):
        which["ids"] = (await _cluster(caller, form["fingerprint"], form.get("source", ""))).ids
    done = msgspec.json.decode(await caller.api("POST", api_of(caller, "purge"), which), type=wire.Purged)
    return caller.redirect(_page(caller), "dead-purged", done.messages)


@PAGES.post("/dead-letters/{name}/{id}/retry")
async def retry(caller: Caller) -> Response:
    """Redrive one."""
    await caller.api("POST", api_of(caller, caller.parameters[1], "retry"))
    return caller.redirect(_page(caller), "redriven", 1)
