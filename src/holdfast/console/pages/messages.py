"""Messages: browse them, look at one and its whole life, send, edit, delete."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.console.caller import ApiProblem, Caller, link
from holdfast.console.drafts import draft_of, number_of
from holdfast.console.page import Pages
from holdfast.console.pages.queue import api_of
from holdfast.console.payloads import VIEWS, show
from holdfast.console.protobuf_types import NoProtobuf, ProtobufTypes, named_by
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
    types = caller.console.protobuf_types
    names = await asyncio.to_thread(_protobuf_names, types)
    kind = caller.query("type") or named_by(message.content_type)
    if not kind and len(names) == 1:
        kind = names[0]
    protobuf = partial(types.values, name=kind) if types.given else None
    shown = show(message.body(), message.content_type, caller.query("as"), protobuf)
    waits = all(delivery.state in ("ready", "scheduled") for delivery in message.deliveries)
    return caller.page(
        "message.html",
        name=name,
        message=message,
        size_bytes=len(message.body()),
        shown=shown,
        views=[view for view in VIEWS if view != "protobuf" or types.given],
        types=names,
        type=kind,
        waits=waits,
        snippets=snippets(caller.origin, name, message),
        problem="",
    )


def _protobuf_names(types: ProtobufTypes) -> list[str]:
    try:
        return types.names() if types.given else []
    except NoProtobuf:  # the view says why
        return []


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
    """One step on the timeline; `gap` is how long after the one before it came, `moved` whether it is another
    message's than that."""

    step: wire.HistoryStep
    look: str
    gap: str
    moved: bool


@PAGES.get("/queues/{name}/messages/{id}/life", waits=True)
async def life(caller: Caller) -> Response:
    """A part of the page: every step, from the journal, also of the messages that this one was made of, and that were
    made of it: dead letters, and what redrives made of them."""
    name, message_id = caller.parameters
    try:
        found = await caller.get(wire.History, api_of(caller, "messages", message_id, "history", related="true"))
    except ApiProblem as error:
        if error.problem.code != "message_not_found":
            raise
        found = wire.History([])
    return caller.page("_life.html", steps=_timeline(found.steps), found=found, name=name, message_id=message_id)


def _timeline(steps: list[wire.HistoryStep]) -> list[Step]:
    found: list[Step] = []
    before, message = 0, steps[0].message_id if steps else ""
    for step in steps:
        at = parse_instant(step.at)
        gap = format_duration((at - before) // 1000 * 1000) if before and at - before >= 1000 else ""
        found.append(Step(step, LOOKS.get(step.event, ""), gap, step.message_id != message))
        before, message = at, step.message_id
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
        draft = draft_of(form)
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


@PAGES.post("/queues/{name}/messages/{id}/edit")
async def edit(caller: Caller) -> Response:
    name, message_id = caller.parameters
    form = await caller.form()
    change: dict[str, object] = {}
    if form.get("priority", "").strip():
        change["priority"] = number_of(form["priority"].strip())
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
