"""Schedules: which there are, when they tick next and what became of it; store, pause, run and delete them."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.console.caller import ApiProblem, Caller, link
from holdfast.console.drafts import draft_of, form_of
from holdfast.console.page import Pages
from holdfast.console.queue_form import FormField, form_fields
from holdfast.console.refusals import NOT_CONFIRMED, PageRefused
from holdfast.http_api.server.response import Response

PAGES = Pages()
PER_PAGE: Final = 100
DEFAULTS: Final = {
    "queue": "",
    "cron": "",
    "every": "",
    "timezone": "UTC",
    "starts_at": "",
    "ends_at": "",
    "jitter": "",
    "catch_up": "skip",
    "overlap": "queue",
}
OUTCOMES: Final = {"enqueued": "good", "duplicate": "", "overlap": "warn", "missed": "warn", "refused": "bad"}


@cache
def _fields() -> list[FormField]:
    return form_fields(wire.ScheduleDefinition, DEFAULTS)


def api_of(caller: Caller, *rest: str) -> str:
    """The API's address of the schedule in the path."""
    return link("api", "v1", "schedules", caller.parameters[0], *rest)


@PAGES.get("/schedules")
async def show_all(caller: Caller) -> Response:
    find, cursor = caller.query("find"), caller.query("cursor")
    target = link("api", "v1", "schedules", prefix=find, cursor=cursor, limit=PER_PAGE)
    found = await caller.get(wire.ScheduleList, target)
    following = link("schedules", find=find, cursor=found.cursor) if found.cursor else ""
    return caller.page("schedules.html", schedules=found.schedules, find=find, following=following)


@PAGES.get("/schedules/{name}")
async def show(caller: Caller) -> Response:
    schedule = await caller.get(wire.Schedule, api_of(caller))
    return caller.page("schedule.html", schedule=schedule, message=form_of(schedule.message), outcomes=OUTCOMES)


# --- changes --------------------------------------------------------------------------------------------------------


def _form(caller: Caller, name: str | None, values: dict[str, str], problem: str = "", status: int = 200) -> Response:
    values = {**DEFAULTS, "name": "", **values}
    return caller.page(
        "schedule_form.html", status=status, schedule=name, fields=_fields(), values=values, problem=problem
    )


@PAGES.get("/new-schedule")
async def create_form(caller: Caller) -> Response:
    caller.principal.require_somewhere(Action.ADMIN)
    return _form(caller, None, {"queue": caller.query("queue")})


@PAGES.get("/schedules/{name}/edit")
async def edit_form(caller: Caller) -> Response:
    schedule = await caller.get(wire.Schedule, api_of(caller))
    values = {field: getattr(schedule, field) for field in DEFAULTS}
    return _form(
        caller,
        schedule.name,
        {**form_of(schedule.message), **{name: str(value or "") for name, value in values.items()}},
    )


@PAGES.post("/new-schedule")
async def create(caller: Caller) -> Response:
    form = await caller.form()
    name = form.get("name", "").strip()
    target = link("api", "v1", "schedules", name)
    try:
        if not name:
            raise PageRefused(400, "No name", "Give the schedule a name.")
        if await _exists(caller, target):
            raise PageRefused(409, "It exists", f"There is a schedule {name} already. Edit it, or choose another name.")
        await caller.api("PUT", target, _definition(form))
    except (ApiProblem, PageRefused) as error:
        return _refused(caller, None, form, error)
    return caller.redirect(link("schedules", name), "schedule-stored")


async def _exists(caller: Caller, target: str) -> bool:
    try:
        await caller.api("GET", target)
    except ApiProblem as error:
        if error.problem.code == "schedule_not_found":
            return False
        raise
    return True


@PAGES.post("/schedules/{name}/edit")
async def edit(caller: Caller) -> Response:
    form, name = await caller.form(), caller.parameters[0]
    try:
        await caller.api("PUT", api_of(caller), _definition(form))
    except (ApiProblem, PageRefused) as error:
        return _refused(caller, name, form, error)
    return caller.redirect(link("schedules", name), "schedule-stored")


def _definition(form: dict[str, str]) -> dict[str, object]:
    """What a form says, as the API takes it. Whether it is paused stays as it is."""
    chosen = {field: form.get(field, "").strip() for field in DEFAULTS}
    return {"message": draft_of(form), **{field: text for field, text in chosen.items() if text}}


def _refused(caller: Caller, name: str | None, form: dict[str, str], error: ApiProblem | PageRefused) -> Response:
    """The form again, as it was filled in, with what is wrong."""
    if isinstance(error, ApiProblem):
        return _form(caller, name, form, error.problem.detail, error.problem.status)
    return _form(caller, name, form, error.text, error.status)


@PAGES.post("/schedules/{name}/pause")
async def pause(caller: Caller) -> Response:
    await caller.api("POST", api_of(caller, "pause"))
    return caller.redirect(link("schedules", caller.parameters[0]), "schedule-paused")


@PAGES.post("/schedules/{name}/resume")
async def resume(caller: Caller) -> Response:
    await caller.api("POST", api_of(caller, "resume"))
    return caller.redirect(link("schedules", caller.parameters[0]), "schedule-resumed")


@PAGES.post("/schedules/{name}/run")
async def run(caller: Caller) -> Response:
    done = msgspec.json.decode(await caller.api("POST", api_of(caller, "run")), type=wire.ScheduleRun)
    did = "schedule-run" if done.outcome == "enqueued" else "schedule-not-run"
    return caller.redirect(link("schedules", caller.parameters[0]), did)


@PAGES.get("/schedules/{name}/delete")
async def delete_form(caller: Caller) -> Response:
    schedule = await caller.get(wire.Schedule, api_of(caller))
    return caller.page("schedule_confirm.html", schedule=schedule)


@PAGES.post("/schedules/{name}/delete")
async def delete(caller: Caller) -> Response:
    if (await caller.form()).get("confirm", "") != caller.parameters[0]:
        raise NOT_CONFIRMED
    await caller.api("DELETE", api_of(caller))
    return caller.redirect("/schedules", "schedule-deleted")
