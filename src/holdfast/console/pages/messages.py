"""Messages: browse them, look at one and its whole life, send, edit, delete."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.config.kinds import split_address
from holdfast.console.caller import ApiProblem, Caller, link, whole_number
from holdfast.console.page import Pages
from holdfast.console.pages.queue import api_of
from holdfast.console.payloads import VIEWS, show
from holdfast.console.refusals import PageRefused
from holdfast.console.snippets import snippets
from holdfast.http_api.server.response import Header, Response
from holdfast.units import format_duration, parse_instant

PAGES = Pages()
STATES: Final = ("", "ready", "scheduled", "leased", "settled")
PER_PAGE: Final = 50
PAGES_READ: Final = 10
"""Pages of the API that are read for one page here, when a filter leaves few of their messages."""

PREVIEW_CHARS: Final = 160
BAD, GOOD, WARN, BUSY = "bad", "good", "warn", "busy"
LOOKS: Final = {
    "enqueued": "",
    "leased": BUSY,
    "extended": BUSY,
    "acked": GOOD,
    "failed": BAD,
    "dead": BAD,
    "dropped": BAD,
    "expired": WARN,
    "purged": WARN,
    "edited": WARN,
    "released": WARN,
}


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages to show."""

    state: str
    group: str
    key: str
    priority: str
    after: str
    before: str

    def fits(self, message: wire.MessageView) -> bool:
        """What the API does not choose by itself."""
        enqueued_at = parse_instant(message.enqueued_at)
        return (
            (not self.key or message.key == self.key)
            and (not self.priority or str(message.priority) == self.priority)
            and (not self.after or enqueued_at >= _instant(self.after))
            and (not self.before or enqueued_at < _instant(self.before))
        )


def _instant(text: str) -> int:
    """What an input for a time gives is in UTC, and has no offset."""
    try:
        return parse_instant(
            text if text.endswith("Z") or "+" in text else f"{text}{':00' if len(text) == 16 else ''}Z"
        )
    except ValueError:
        raise PageRefused(400, "No such time", f"{text!r} is not a time: write 2026-01-31T12:00 (UTC).") from None


def _chosen(caller: Caller) -> Chosen:
    state = caller.query("state")
    return Chosen(
        state=state if state in STATES else "",
        group=caller.query("group"),
        key=caller.query("key"),
        priority=caller.query("priority"),
        after=caller.query("after"),
        before=caller.query("before"),
    )


@PAGES.get("/queues/{name}/messages")
async def browse(caller: Caller) -> Response:
    name, chosen, cursor = caller.parameters[0], _chosen(caller), caller.query("cursor")
    wanted = caller.query("id").strip()
    if wanted:
        return caller.redirect(link("queues", name, "messages", wanted))
    queue = await caller.get(wire.Queue, api_of(caller))
    found: list[wire.MessageView] = []
    for _ in range(PAGES_READ):
        target = api_of(caller, "messages", limit=PER_PAGE, cursor=cursor, state=chosen.state, group=chosen.group)
        page = await caller.get(wire.MessagePage, target)
        found += [message for message in page.messages if chosen.fits(message)]
        cursor = page.cursor
        if not cursor or len(found) >= PER_PAGE:
            break
    following = link("queues", name, "messages", **msgspec.structs.asdict(chosen), cursor=cursor) if cursor else ""
    previews = [(message, _preview(message)) for message in found]
    return caller.page(
        "messages.html", queue=queue, name=name, chosen=chosen, messages=previews, following=following, states=STATES
    )


def _preview(message: wire.MessageView) -> str:
    payload = message.body()[: 4 * PREVIEW_CHARS]
    text = payload.decode(errors="ignore")
    if isinstance(message.base64, bytes):
        return f"{len(message.base64)} bytes"
    return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"


@PAGES.get("/queues/{name}/messages/{id}")
async def show_one(caller: Caller) -> Response:
    name, message_id = caller.parameters
    try:
        message = await caller.get(wire.MessageView, api_of(caller, "messages", message_id))
    except ApiProblem as error:
        if error.problem.code != "message_not_found":
            raise
        return caller.page("message_gone.html", name=name, message_id=message_id)
    shown = show(message.body(), message.content_type, caller.query("as"))
    waits = all(delivery.state in ("ready", "scheduled") for delivery in message.deliveries)
    return caller.page(
        "message.html",
        name=name,
        message=message,
        size_bytes=len(message.body()),
        shown=shown,
        views=VIEWS,
        waits=waits,
        snippets=snippets(_url(caller), name, message),
        problem="",
    )


def _url(caller: Caller) -> str:
    """Where the server is, as the browser knows it."""
    config = caller.console.config
    scheme = "https" if config.tls.certificate_file is not None else "http"
    host = caller.request.header(b"host") or "{}:{}".format(*split_address(config.http.listen))
    return f"{scheme}://{host}"


@PAGES.get("/queues/{name}/messages/{id}/payload")
async def payload(caller: Caller) -> Response:
    """The payload as a file."""
    message_id = caller.parameters[1]
    message = await caller.get(wire.MessageView, api_of(caller, "messages", message_id, encoding="base64"))
    safe = "".join(char for char in message_id if char.isdigit())
    headers: list[Header] = [(b"content-disposition", f'attachment; filename="{safe}.bin"'.encode())]
    return Response(message.body(), 200, b"application/octet-stream", headers)


# --- its life -------------------------------------------------------------------------------------------------------


class Step(msgspec.Struct, frozen=True):
    """One step on the timeline; `gap` is how long after the one before it came."""

    queue: str
    step: wire.HistoryStep
    look: str
    gap: str


@PAGES.get("/queues/{name}/messages/{id}/life", waits=True)
async def life(caller: Caller) -> Response:
    """A part of the page: every step, from the journal; of a dead letter, or one that was redriven, those of its source
    before."""
    name, message_id = caller.parameters
    steps, complete = await _history(caller, name, message_id)
    source, source_id = caller.query("source"), caller.query("source_id")
    if source and source_id and caller.may("consume", source):
        earlier, all_of_them = await _history(caller, source, source_id)
        steps, complete = [*earlier, *steps], complete and all_of_them
    steps.sort(key=lambda one: one[1].lsn)
    return caller.page("_life.html", steps=_timeline(steps), complete=complete, name=name)


async def _history(caller: Caller, queue: str, message_id: str) -> tuple[list[tuple[str, wire.HistoryStep]], bool]:
    try:
        target = link("api", "v1", "queues", queue, "messages", message_id, "history")
        found = await caller.get(wire.History, target)
    except ApiProblem as error:
        if error.problem.code != "message_not_found":
            raise
        return [], True
    return [(queue, step) for step in found.steps], found.complete


def _timeline(steps: list[tuple[str, wire.HistoryStep]]) -> list[Step]:
    found: list[Step] = []
    before = 0
    for queue, step in steps:
        at = parse_instant(step.at)
        gap = format_duration((at - before) // 1000 * 1000) if before and at - before >= 1000 else ""
        found.append(Step(queue, step, LOOKS.get(step.event, ""), gap))
        before = at
    return found


# --- changes --------------------------------------------------------------------------------------------------------


@PAGES.get("/queues/{name}/send")
async def send_form(caller: Caller) -> Response:
    name = caller.parameters[0]
    caller.principal.require(Action.PRODUCE, name)
    return caller.page("send.html", name=name, values={}, problem="")


@PAGES.post("/queues/{name}/send")
async def send(caller: Caller) -> Response:
    name, form = caller.parameters[0], await caller.form()
    try:
        draft = _draft(form)
        receipt = msgspec.json.decode(
            await caller.api("POST", api_of(caller, "messages"), {"messages": [draft], "atomic": True}),
            type=wire.Receipt,
        )
    except ApiProblem as error:
        return caller.page(
            "send.html", status=error.problem.status, name=name, values=form, problem=error.problem.detail
        )
    except PageRefused as refused:
        return caller.page("send.html", status=400, name=name, values=form, problem=refused.text)
    to = link("queues", name, "messages", receipt.ids[0] or "") if caller.may("consume", name) else link("queues", name)
    return caller.redirect(to, "repeated" if receipt.duplicates else "sent")


def _draft(form: dict[str, str]) -> dict[str, object]:
    """What the form says, as the API takes it."""
    text = form.get("payload", "").replace("\r\n", "\n")
    draft: dict[str, object] = {}
    match form.get("kind"):
        case "json":
            try:
                msgspec.json.decode(text)
            except msgspec.DecodeError as error:
                raise PageRefused(400, "No JSON", f"The payload is not JSON: {error}") from None
            draft["payload"] = msgspec.Raw(text.encode())
        case "base64":
            draft["base64"] = text.strip()
        case _:
            draft["text"] = text
    for field in ("key", "message_id", "delay", "deliver_at", "ttl", "content_type", "correlation_id", "reply_to"):
        if form.get(field, "").strip():
            draft[field] = form[field].strip()
    if form.get("priority", "").strip():
        draft["priority"] = _number(form["priority"].strip())
    properties = [line.partition("=") for line in form.get("properties", "").splitlines() if line.strip()]
    if properties:
        draft["properties"] = {name.strip(): value.strip() for name, _, value in properties}
    return draft


def _number(text: str) -> object:
    """What is no number is passed on as it is: the API says what is wrong."""
    found = whole_number(text)
    return text if found is None else found


@PAGES.post("/queues/{name}/messages/{id}/edit")
async def edit(caller: Caller) -> Response:
    name, message_id = caller.parameters
    form = await caller.form()
    change: dict[str, object] = {}
    if form.get("priority", "").strip():
        change["priority"] = _number(form["priority"].strip())
    if form.get("deliver_at", "").strip():
        change["deliver_at"] = form["deliver_at"].strip()
    await caller.api("PATCH", api_of(caller, "messages", message_id), change)
    return caller.redirect(link("queues", name, "messages", message_id), "edited")


@PAGES.get("/queues/{name}/messages/{id}/delete")
async def delete_form(caller: Caller) -> Response:
    name, message_id = caller.parameters
    caller.principal.require(Action.ADMIN, name)
    return caller.page("message_confirm.html", name=name, message_id=message_id)


@PAGES.post("/queues/{name}/messages/{id}/delete")
async def delete(caller: Caller) -> Response:
    name, message_id = caller.parameters
    await caller.api("DELETE", api_of(caller, "messages", message_id))
    return caller.redirect(link("queues", name, "messages"), "message-deleted")
