"""Every call of the HTTP API as a value: the request, how to decode the response, and whether it may be repeated.

Nothing here does I/O: a transport performs a `Call`. This file is the list of everything the client puts on the wire. A
call is `repeatable` if it is idempotent: messages carry a producer's id, a repeated settlement gets the same response
as the first, and a lease whose response was lost expires by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast import wire
from holdfast.client.workflow_state import State

Answer = TypeVar("Answer")

LONG_WORK_SECONDS = 600.0
"""How much longer calls may take that scan all messages of a queue."""

NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"

_encode = msgspec.json.Encoder().encode


class Call(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True):
    """One request. `wait_seconds` is how long the server may take on purpose (a long poll)."""

    method: str
    path: str
    read: Callable[[bytes], Answer]
    body: bytes = b""
    repeatable: bool = False
    wait_seconds: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()
    """Beyond those that every request has."""
    tagged: Callable[[bytes, int], Answer] | None = None
    """How to decode a response that has an ETag, instead of `read`."""
    refused: Callable[[list[wire.ItemError]], Answer] | None = None
    """If every item of a batch is refused, the server sends a problem with an error for each item: return it as a
    result."""


def _reader(shape: type[Answer]) -> Callable[[bytes], Answer]:
    return msgspec.json.Decoder(shape).decode


def _nothing(_: bytes) -> None:
    return None


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def _path(*names: str, **query: object) -> str:
    path = "/api/v1/" + "/".join(names)
    given = {name: str(value) for name, value in query.items() if value not in {"", None}}
    return f"{path}?{urlencode(given)}" if given else path


def _queue(name: str, *rest: str, **query: object) -> str:
    return _path("queues", segment(name), *rest, **query)


# --- messages -------------------------------------------------------------------------------------------------------

_receipt = _reader(wire.Receipt)
_leased = _reader(wire.Leased)
_settled = _reader(wire.Settled)
_page = _reader(wire.MessagePage)
_view = _reader(wire.MessageView)
_move = _reader(wire.MoveJob)


def enqueue(queue: str, drafts: Sequence[wire.Draft], *, atomic: bool = False) -> Call[wire.Receipt]:
    count = len(drafts)

    def refused(errors: list[wire.ItemError]) -> wire.Receipt:
        return wire.Receipt(ids=[None] * count, errors=errors)

    return Call(
        method="POST",
        path=_queue(queue, "messages"),
        read=_receipt,
        body=_encode(wire.Enqueue(list(drafts), atomic)),
        repeatable=all(draft.message_id is not None for draft in drafts),
        refused=refused,
    )


def request(queue: str, request: wire.Request, wait_seconds: float) -> Call[wire.Reply]:
    return Call(
        method="POST",
        path=_path("request", segment(queue)),
        read=_reader(wire.Reply),
        body=_encode(request),
        wait_seconds=wait_seconds,
    )


def lease(queue: str, request: wire.Lease, wait_seconds: float) -> Call[wire.Leased]:
    return Call(
        method="POST",
        path=_queue(queue, "leases"),
        read=_leased,
        body=_encode(request),
        repeatable=True,
        wait_seconds=wait_seconds,
    )


def settle(queue: str, group: str, settlements: Sequence[wire.Settlement]) -> Call[wire.Settled]:
    def refused(errors: list[wire.ItemError]) -> wire.Settled:
        return wire.Settled(settled=0, errors=errors)

    return Call(
        method="POST",
        path=_queue(queue, "settle"),
        read=_settled,
        body=_encode(wire.Settle(group=group, settlements=list(settlements))),
        repeatable=True,
        refused=refused,
    )


def import_items(queue: str, items: Sequence[wire.ImportItem]) -> Call[wire.Receipt]:
    count = len(items)

    def refused(errors: list[wire.ItemError]) -> wire.Receipt:
        return wire.Receipt(ids=[None] * count, errors=errors)

    body = _encode(wire.Import(list(items)))
    return Call(method="POST", path=_queue(queue, "import"), read=_receipt, body=body, repeatable=True, refused=refused)


def stream(
    queue: str, group: str, credit: int, lease_seconds: float, consumer: str, *, create: bool
) -> Call[wire.StreamLine]:
    """Deliveries, one on each line. When the connection ends, unsettled deliveries stay leased until their leases
    end."""
    path = _queue(
        queue,
        "stream",
        group=group,
        credit=credit,
        timeout=f"{max(round(lease_seconds * 1000), 1)}ms",
        consumer=consumer,
        gone="keep",
        encoding="base64",
        create="" if create else "false",
    )
    return Call(method="POST", path=path, read=_reader(wire.StreamLine), headers=(("accept", NDJSON),))


# --- workflow state -------------------------------------------------------------------------------------------------


def _state_path(queue: str, message_id: str, group: str, lease_token: str) -> str:
    return _queue(queue, "messages", segment(message_id), "state", group=group, lease_token=lease_token)


def _untagged(_: bytes) -> State:
    raise msgspec.DecodeError("the answer has no ETag")


def state(queue: str, message_id: str, group: str, lease_token: str) -> Call[State]:
    path = _state_path(queue, message_id, group, lease_token)
    headers = (("accept", BYTES),)
    return Call(method="GET", path=path, read=_untagged, tagged=State, headers=headers, repeatable=True)


def put_state(queue: str, message_id: str, group: str, lease_token: str, data: bytes, etag: int | None) -> Call[State]:
    headers = (("content-type", BYTES),) if etag is None else (("content-type", BYTES), ("if-match", f'"{etag}"'))
    return Call(
        method="PUT",
        path=_state_path(queue, message_id, group, lease_token),
        read=_untagged,
        tagged=lambda _, now: State(data, now),
        body=data,
        headers=headers,
        repeatable=etag is None,  # with an ETag a repeated request would find the state that the first one wrote
    )


def drop_state(queue: str, message_id: str, group: str, lease_token: str, etag: int | None) -> Call[None]:
    return Call(
        method="DELETE",
        path=_state_path(queue, message_id, group, lease_token),
        read=_nothing,
        headers=() if etag is None else (("if-match", f'"{etag}"'),),
        repeatable=etag is None,  # with an ETag a repeated request would find no state
    )


# --- transactions ---------------------------------------------------------------------------------------------------

_transaction = _reader(wire.Transaction)


def stage(transaction_id: str, request: wire.Stage) -> Call[wire.Staged]:
    path = _path("transactions", segment(transaction_id), "stage")
    return Call(method="POST", path=path, read=_reader(wire.Staged), body=_encode(request), repeatable=True)


def publish(transaction_id: str) -> Call[wire.Transaction]:
    path = _path("transactions", segment(transaction_id), "publish")
    return Call(
        method="POST", path=path, read=_transaction, body=b"{}", repeatable=True, wait_seconds=LONG_WORK_SECONDS
    )


def transaction(transaction_id: str) -> Call[wire.Transaction]:
    path = _path("transactions", segment(transaction_id))
    return Call(method="GET", path=path, read=_transaction, repeatable=True)


def abort(transaction_id: str) -> Call[wire.Aborted]:
    path = _path("transactions", segment(transaction_id), "abort")
    return Call(method="POST", path=path, read=_reader(wire.Aborted), body=b"{}", repeatable=True)


# --- browsing -------------------------------------------------------------------------------------------------------


def browse(
    queue: str, *, state: str = "", group: str = "", cursor: str = "", limit: int = 100
) -> Call[wire.MessagePage]:
    path = _queue(queue, "messages", state=state, group=group, cursor=cursor, limit=limit, encoding="base64")
    return Call(method="GET", path=path, read=_page, repeatable=True)


def message(queue: str, message_id: str) -> Call[wire.MessageView]:
    path = _queue(queue, "messages", segment(message_id), encoding="base64")
    return Call(method="GET", path=path, read=_view, repeatable=True)


def named_message(queue: str, message_id: str, wait_seconds: float) -> Call[wire.MessageView]:
    wait = f"{wait_seconds:g}" if wait_seconds else ""
    path = _queue(queue, "message-ids", segment(message_id), encoding="base64", wait=wait)
    return Call(method="GET", path=path, read=_view, repeatable=True, wait_seconds=wait_seconds)


def history(queue: str, message_id: str, related: bool = False) -> Call[wire.History]:
    path = _queue(queue, "messages", segment(message_id), "history") + ("?related=true" if related else "")
    return Call(method="GET", path=path, read=_reader(wire.History), repeatable=True)


def edit(queue: str, message_id: str, change: wire.MessageEdit) -> Call[wire.Message]:
    return Call(
        method="PATCH",
        path=_queue(queue, "messages", segment(message_id)),
        read=_reader(wire.Message),
        body=_encode(change),
        repeatable=True,
    )


def delete_message(queue: str, message_id: str, leased: bool = False) -> Call[None]:
    path = _queue(queue, "messages", segment(message_id), leased="true" if leased else "")
    return Call(method="DELETE", path=path, read=_nothing)


# --- queues ---------------------------------------------------------------------------------------------------------

_one_queue = _reader(wire.Queue)
_stats = _reader(wire.QueueStats)
_cursor_range = _reader(wire.CursorRange)


def create_queue(queue: str, config: Mapping[str, object]) -> Call[wire.Queue]:
    body = _encode(wire.QueueCreate(queue, dict(config)))
    return Call(method="POST", path=_path("queues"), read=_one_queue, body=body)


def get_queue(queue: str) -> Call[wire.Queue]:
    return Call(method="GET", path=_queue(queue), read=_one_queue, repeatable=True)


def list_queues(*, prefix: str = "", cursor: str = "", limit: int = 1_000) -> Call[wire.QueueList]:
    path = _path("queues", prefix=prefix, cursor=cursor, limit=limit)
    return Call(method="GET", path=path, read=_reader(wire.QueueList), repeatable=True)


def update_queue(queue: str, config: Mapping[str, object]) -> Call[wire.Queue]:
    return Call(
        method="PUT", path=_queue(queue, "config"), read=_one_queue, body=_encode(dict(config)), repeatable=True
    )


def delete_queue(queue: str) -> Call[wire.QueueDeleted]:
    read = _reader(wire.QueueDeleted)
    return Call(method="DELETE", path=_queue(queue), read=read, wait_seconds=LONG_WORK_SECONDS)


def pause_queue(queue: str) -> Call[wire.Queue]:
    return Call(method="POST", path=_queue(queue, "pause"), read=_one_queue, repeatable=True)


def resume_queue(queue: str) -> Call[wire.Queue]:
    return Call(method="POST", path=_queue(queue, "resume"), read=_one_queue, repeatable=True)


def purge_queue(queue: str) -> Call[wire.Purged]:
    return Call(method="POST", path=_queue(queue, "purge"), read=_reader(wire.Purged), wait_seconds=LONG_WORK_SECONDS)


def stats(queue: str) -> Call[wire.QueueStats]:
    return Call(method="GET", path=_queue(queue, "stats"), read=_stats, repeatable=True)


def consumers(queue: str) -> Call[wire.ConsumerList]:
    return Call(method="GET", path=_queue(queue, "consumers"), read=_reader(wire.ConsumerList), repeatable=True)


def announce_workers(consumer: str, announcement: wire.WorkerAnnouncement) -> Call[None]:
    path = _path("workers", segment(consumer))
    return Call(method="PUT", path=path, read=_nothing, body=_encode(announcement), repeatable=True)


def withdraw_workers(consumer: str) -> Call[None]:
    return Call(method="DELETE", path=_path("workers", segment(consumer)), read=_nothing, repeatable=True)


def partitions(queue: str, since: str | float) -> Call[wire.PartitionList]:
    path = _queue(queue, "partitions", since=since)
    return Call(method="GET", path=path, read=_reader(wire.PartitionList), repeatable=True)


def browse_partition(queue: str, partition: int, first: int, limit: int, *, gone: bool) -> Call[wire.MessageRange]:
    path = _queue(
        queue,
        "partitions",
        str(partition),
        "messages",
        first=first,
        limit=limit,
        encoding="base64",
        gone="true" if gone else "",
    )
    return Call(method="GET", path=path, read=_reader(wire.MessageRange), repeatable=True)


def end_consumer(queue: str, which: wire.ConsumerEnd) -> Call[wire.ConsumersEnded]:
    path = _queue(queue, "consumers", "disconnect")
    return Call(method="POST", path=path, read=_reader(wire.ConsumersEnded), body=_encode(which))


def move(queue: str, request: wire.Move) -> Call[wire.MoveJob]:
    path = _queue(queue, "moves")
    return Call(method="POST", path=path, read=_move, body=_encode(request), wait_seconds=LONG_WORK_SECONDS)


def moves(queue: str) -> Call[wire.MoveList]:
    return Call(method="GET", path=_queue(queue, "moves"), read=_reader(wire.MoveList), repeatable=True)


def move_progress(queue: str, job: str) -> Call[wire.MoveJob]:
    return Call(method="GET", path=_queue(queue, "moves", segment(job)), read=_move, repeatable=True)


def cancel_move(queue: str, job: str) -> Call[wire.MoveJob]:
    return Call(method="DELETE", path=_queue(queue, "moves", segment(job)), read=_move, repeatable=True)


def overview() -> Call[wire.Overview]:
    return Call(method="GET", path=_path("overview"), read=_reader(wire.Overview), repeatable=True)


def quotas(namespace: str) -> Call[wire.QuotaList]:
    path = _path("quotas", namespace=namespace or None)
    return Call(method="GET", path=path, read=_reader(wire.QuotaList), repeatable=True)


def set_quotas(namespace: str, limits: Mapping[str, int | None]) -> Call[wire.QuotaList]:
    return Call(
        method="PUT",
        path=_path("quotas", segment(namespace)),
        body=_encode(wire.QuotaChange(dict(limits))),
        read=_reader(wire.QuotaList),
        repeatable=True,
    )


def health() -> Call[wire.Health]:
    return Call(method="GET", path=_path("health"), read=_reader(wire.Health), repeatable=True)


# --- schedules ------------------------------------------------------------------------------------------------------

_schedule = _reader(wire.Schedule)


def _schedule_path(name: str, *rest: str) -> str:
    return _path("schedules", segment(name), *rest)


def put_schedule(name: str, definition: wire.ScheduleDefinition) -> Call[wire.Schedule]:
    body = _encode(definition)
    return Call(method="PUT", path=_schedule_path(name), read=_schedule, body=body, repeatable=True)


def get_schedule(name: str) -> Call[wire.Schedule]:
    return Call(method="GET", path=_schedule_path(name), read=_schedule, repeatable=True)


def list_schedules(*, prefix: str = "", cursor: str = "", limit: int = 1_000) -> Call[wire.ScheduleList]:
    path = _path("schedules", prefix=prefix, cursor=cursor, limit=limit)
    return Call(method="GET", path=path, read=_reader(wire.ScheduleList), repeatable=True)


def delete_schedule(name: str) -> Call[None]:
    return Call(method="DELETE", path=_schedule_path(name), read=_nothing)


def pause_schedule(name: str) -> Call[wire.Schedule]:
    return Call(method="POST", path=_schedule_path(name, "pause"), read=_schedule, repeatable=True)


def resume_schedule(name: str) -> Call[wire.Schedule]:
    return Call(method="POST", path=_schedule_path(name, "resume"), read=_schedule, repeatable=True)


def run_schedule(name: str) -> Call[wire.ScheduleRun]:
    return Call(method="POST", path=_schedule_path(name, "run"), read=_reader(wire.ScheduleRun))


# --- groups ---------------------------------------------------------------------------------------------------------


def groups(queue: str) -> Call[wire.GroupList]:
    return Call(method="GET", path=_queue(queue, "groups"), read=_reader(wire.GroupList), repeatable=True)


def create_group(queue: str, group: str, request: wire.GroupCreate) -> Call[wire.Group]:
    path = _queue(queue, "groups", segment(group))
    return Call(method="PUT", path=path, read=_reader(wire.Group), body=_encode(request))


def delete_group(queue: str, group: str) -> Call[None]:
    path = _queue(queue, "groups", segment(group))
    return Call(method="DELETE", path=path, read=_nothing, wait_seconds=LONG_WORK_SECONDS)


def cursor_read(queue: str, group: str, request: wire.CursorRead) -> Call[wire.CursorRange]:
    path = _queue(queue, "groups", segment(group), "read")
    return Call(method="POST", path=path, read=_cursor_range, body=_encode(request), repeatable=True)


def cursor_ends(queue: str, group: str) -> Call[wire.CursorEnds]:
    path = _queue(queue, "groups", segment(group), "ends")
    return Call(method="GET", path=path, read=_reader(wire.CursorEnds), repeatable=True)


def cursor_commit(queue: str, group: str, positions: Sequence[wire.Position]) -> Call[wire.CursorCommitted]:
    path = _queue(queue, "groups", segment(group), "commit")
    body = _encode(wire.CursorCommit(list(positions)))
    return Call(method="POST", path=path, read=_reader(wire.CursorCommitted), body=body, repeatable=True)


# --- dead letters ---------------------------------------------------------------------------------------------------

_job = _reader(wire.RedriveJob)
_outcomes = _reader(wire.RedriveOutcomes)


def dead_letters(
    queue: str, *, reason: str = "", error: str = "", group: str = "", cursor: str = "", limit: int = 100
) -> Call[wire.MessagePage]:
    path = _queue(queue, "dlq", reason=reason, error=error, group=group, cursor=cursor, limit=limit, encoding="base64")
    return Call(method="GET", path=path, read=_page, repeatable=True)


def retry_dead(
    queue: str, dead_letter: str, to: str = "", group: str = "", all_groups: bool = False
) -> Call[wire.Retried]:
    path = _queue(
        queue, "dlq", segment(dead_letter), "retry", to=to, group=group, all_groups="true" if all_groups else ""
    )
    return Call(method="POST", path=path, read=_reader(wire.Retried))


def redrive(queue: str, request: wire.Redrive) -> Call[wire.RedriveJob]:
    path = _queue(queue, "dlq", "redrive")
    return Call(method="POST", path=path, read=_job, body=_encode(request), wait_seconds=LONG_WORK_SECONDS)


def redrives(queue: str) -> Call[wire.RedriveList]:
    return Call(method="GET", path=_queue(queue, "dlq", "redrive"), read=_reader(wire.RedriveList), repeatable=True)


def redrive_progress(queue: str, job: str) -> Call[wire.RedriveJob]:
    return Call(method="GET", path=_queue(queue, "dlq", "redrive", segment(job)), read=_job, repeatable=True)


def cancel_redrive(queue: str, job: str) -> Call[wire.RedriveJob]:
    return Call(method="DELETE", path=_queue(queue, "dlq", "redrive", segment(job)), read=_job, repeatable=True)


def audited_redrive(queue: str, audit: str, request: wire.AuditedMove) -> Call[wire.RedriveOutcomes]:
    path = _queue(queue, "dlq", "audits", segment(audit))
    return Call(
        method="POST",
        path=path,
        read=_outcomes,
        body=_encode(request),
        repeatable=True,
        wait_seconds=LONG_WORK_SECONDS,
    )


def redrive_audits(queue: str) -> Call[wire.RedriveAudits]:
    return Call(method="GET", path=_queue(queue, "dlq", "audits"), read=_reader(wire.RedriveAudits), repeatable=True)


def redrive_audit(queue: str, audit: str) -> Call[wire.RedriveAudit]:
    path = _queue(queue, "dlq", "audits", segment(audit))
    return Call(method="GET", path=path, read=_reader(wire.RedriveAudit), repeatable=True)


def redriven(queue: str, audit: str, cursor: str, limit: int) -> Call[wire.RedriveOutcomes]:
    path = _queue(queue, "dlq", "audits", segment(audit), "dead-letters", cursor=cursor, limit=limit)
    return Call(method="GET", path=path, read=_outcomes, repeatable=True, wait_seconds=LONG_WORK_SECONDS)


def undo_redrive(queue: str, audit: str, cursor: str, limit: int) -> Call[wire.RedriveOutcomes]:
    path = _queue(queue, "dlq", "audits", segment(audit), "undo")
    body = _encode(wire.UndoPage(cursor=cursor, limit=limit))
    return Call(method="POST", path=path, read=_outcomes, body=body, repeatable=True, wait_seconds=LONG_WORK_SECONDS)


def purge_dead(queue: str, which: wire.DeadFilter) -> Call[wire.Purged]:
    return Call(
        method="POST",
        path=_queue(queue, "dlq", "purge"),
        read=_reader(wire.Purged),
        body=_encode(which),
        wait_seconds=LONG_WORK_SECONDS,
    )
