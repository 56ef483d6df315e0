"""What must be done so that a server is as a file says: steps, in the order in which they are done."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast import wire
from holdfast.cli.commands.topology.document import (
    AS_THEY_ARE,
    DEFAULTS,
    GroupEntry,
    QueueEntry,
    ScheduleEntry,
    Topology,
    given,
    same,
    settings_of,
)
from holdfast.cli.support.numbers import plural
from holdfast.errors import InvalidArgument
from holdfast.units import parse_duration, parse_instant

if TYPE_CHECKING:
    from holdfast.client import SyncClient

Sign = Literal["+", "~", "-"]


class Step(msgspec.Struct, frozen=True):
    """One change: made (+), changed (~), deleted (-)."""

    sign: Sign
    what: str
    details: list[str]
    run: Callable[[], object]


def current(client: SyncClient, prefix: str = "") -> tuple[dict[str, wire.Queue], dict[str, wire.Schedule]]:
    """What there is. Dead queues that came by themselves belong to the queues whose dead letters they hold."""
    queues = {each.name: each for each in client.queues(prefix) if not each.automatic}
    return queues, {each.name: each for each in client.schedules.all(prefix)}


def export(client: SyncClient, prefix: str) -> Topology:
    """A server as a file says it."""
    queues, schedules = current(client, prefix)
    return Topology(
        {name: QueueEntry(_given(each), _group_entries(each)) for name, each in queues.items()},
        {name: schedule_entry(each) for name, each in schedules.items()},
    )


def _given(queue: wire.Queue) -> dict[str, object]:
    """Settings that are not at their default."""
    return {name: value for name, value in settings_of(queue.config).items() if not same(name, value, DEFAULTS[name])}


def _group_entries(queue: wire.Queue) -> dict[str, GroupEntry]:
    return {
        group.name: GroupEntry(kind=group.kind, max_lag_messages=group.max_lag_messages, max_lag_age=group.max_lag_age)
        for group in queue.groups
    }


def schedule_entry(schedule: wire.Schedule) -> ScheduleEntry:
    """A schedule as a file says it."""
    message = schedule.message
    names = [name for name in ScheduleEntry.__struct_fields__ if hasattr(schedule, name)]
    own = ("key", "priority", "ttl", "content_type", "properties")
    return ScheduleEntry(
        **{name: getattr(schedule, name) for name in names},
        **{name: getattr(message, name) for name in own},
        payload=_payload(schedule.name, message),
    )


def _payload(name: str, message: wire.Draft) -> object:
    if message.payload is not msgspec.UNSET:
        return msgspec.json.decode(msgspec.json.encode(message.payload))
    if message.text is not msgspec.UNSET:
        return message.text
    if message.base64 is not msgspec.UNSET and message.base64:
        raise InvalidArgument(field=f"Schedule {name}", problem="has bytes as its payload, which a file cannot say")
    return ""


def plan(client: SyncClient, wanted: Topology, prune: bool) -> list[Step]:
    """Steps from what is to what is wanted. Raises InvalidArgument for what cannot be changed."""
    if prune and not wanted.queues and not wanted.schedules:
        raise InvalidArgument(field="FILE", problem="names nothing, and with --prune everything would be deleted")
    queues, schedules = current(client)
    steps: list[Step] = []
    for name, entry in wanted.queues.items():
        steps += _queue_steps(client, name, entry, queues.get(name), prune)
    for name, schedule in wanted.schedules.items():
        steps += _schedule_steps(client, name, schedule, schedules.get(name))
    if prune:
        for name in schedules.keys() - wanted.schedules.keys():
            steps.append(Step("-", f"schedule {name}", [], functools.partial(client.schedules.delete, name)))
        for name, queue in queues.items():
            if name not in wanted.queues:
                details = [f"with {plural(queue.depth, 'message')}"] if queue.depth else []
                steps.append(Step("-", f"queue {name}", details, functools.partial(client.delete_queue, name)))
    return steps


def _queue_steps(
    client: SyncClient, name: str, entry: QueueEntry, found: wire.Queue | None, prune: bool
) -> Iterator[Step]:
    if found is None:
        details = [f"{setting} = {_said(value)}" for setting, value in entry.settings.items()]
        yield Step("+", f"queue {name}", details, functools.partial(client.create_queue, name, entry.settings))
    else:
        changes = dict(_changes(entry, found))
        if changes:
            had = settings_of(found.config)
            details = [f"{setting}: {_said(had[setting])} -> {_said(value)}" for setting, value in changes.items()]
            yield Step("~", f"queue {name}", details, functools.partial(client.update_queue, name, changes))
    groups = {group.name: group for group in found.groups} if found is not None else {}
    for group, wanted in entry.groups.items():
        yield from _group_steps(client, name, group, wanted, groups.get(group))
    if prune and entry.groups and found is not None:  # without groups the file leaves them to those who consume
        details = [f"with those of {plural(found.depth, 'message')} that no other group needs"] if found.depth else []
        for group in groups.keys() - entry.groups.keys():
            yield Step("-", f"group {group} of {name}", details, functools.partial(client.delete_group, name, group))


def _changes(entry: QueueEntry, found: wire.Queue) -> Iterator[tuple[str, object]]:
    """Settings to change. What a file does not name has its default."""
    for setting, value in settings_of(found.config).items():
        if setting in entry.settings:
            wanted = entry.settings[setting]
        elif setting in AS_THEY_ARE:
            continue
        else:
            wanted = DEFAULTS[setting]
        if not same(setting, value, wanted):
            yield setting, wanted


def _group_steps(
    client: SyncClient, queue: str, name: str, wanted: GroupEntry, found: wire.Group | None
) -> Iterator[Step]:
    options: dict[str, Any] = {
        "kind": wanted.kind,
        "start": wanted.start,
        "max_lag_messages": wanted.max_lag_messages,
        "max_lag_age": wanted.max_lag_age,
    }
    if found is None:
        details = [f"{option} = {_said(value)}" for option, value in given(wanted).items()]
        run = functools.partial(client.create_group, queue, name, **options)
        yield Step("+", f"group {name} of {queue}", details, run)
        return
    differs = [
        found.kind != wanted.kind,
        found.max_lag_messages != wanted.max_lag_messages,
        parse_duration(found.max_lag_age) != parse_duration(wanted.max_lag_age),
    ]
    if any(differs):
        problem = "exists with other settings, which cannot be changed: delete it first (holdfast queue group delete)"
        raise InvalidArgument(field=f"Group {name} of {queue}", problem=problem)


def _schedule_steps(
    client: SyncClient, name: str, wanted: ScheduleEntry, found: wire.Schedule | None
) -> Iterator[Step]:
    run = functools.partial(client.schedules.put, name, **msgspec.structs.asdict(wanted))
    if found is None:
        yield Step("+", f"schedule {name}", [_when(wanted), f"queue = {_said(wanted.queue)}"], run)
        return
    had = schedule_entry(found)
    fields = [field for field in wanted.__struct_fields__ if not _same_field(field, had, wanted)]
    if fields:
        details = [f"{field}: {_said(getattr(had, field))} -> {_said(getattr(wanted, field))}" for field in fields]
        yield Step("~", f"schedule {name}", details, run)


def _same_field(field: str, had: ScheduleEntry, wanted: ScheduleEntry) -> bool:
    one, other = getattr(had, field), getattr(wanted, field)
    if field == "content_type" and other is None:
        return True  # it follows from the payload
    if one is not None and other is not None and field in ("every", "jitter", "ttl"):
        return parse_duration(one) == parse_duration(other)
    if one is not None and other is not None and field in ("starts_at", "ends_at"):
        return parse_instant(one) == parse_instant(other)
    return bool(one == other)


def _when(schedule: ScheduleEntry) -> str:
    return f"cron = {_said(schedule.cron)}" if schedule.cron else f"every = {_said(schedule.every)}"


def _said(value: object) -> str:
    return msgspec.json.encode(value).decode()
