"""QueueAdmin: queues and groups."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from holdfast.auth.principal import Action
from holdfast.core.queue import GroupKind, GroupRecord, QueueRecord, check_name, to_fields
from holdfast.engine.catalog import QueueName
from holdfast.engine.stats import GroupStats, QueueStats
from holdfast.errors import GroupExists, InvalidArgument, QueueInUse
from holdfast.grpc_api.call import GrpcCall
from holdfast.grpc_api.codecs import duration, to_duration, to_timestamp
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.methods import Methods
from holdfast.units import format_duration

METHODS = Methods("holdfast.v1.QueueAdmin")

PAGE_MAX: Final = 1_000
PAGE: Final = 100
COUNT_MAX: Final = 1 << 40


def page_size(asked: int) -> int:
    if asked > PAGE_MAX:
        raise InvalidArgument(field="page_size", problem=f"is at most {PAGE_MAX}, not {asked}")
    return asked or PAGE


# --- configuration --------------------------------------------------------------------------------------------------

_ENUMS: Final = {"ordering": pb.Ordering, "journal": pb.Journal, "durability": pb.Durability}
_NESTED: Final = ("retry", "dlq", "throttle", "breaker")


def config_fields(config: Any, prefix: str = "") -> dict[str, object]:
    """What is set in a configuration, as the core reads it."""
    fields: dict[str, object] = {}
    for descriptor, value in config.ListFields():
        name = prefix + descriptor.name
        if descriptor.name in _NESTED:
            fields |= config_fields(value, f"{name}.")
        elif descriptor.name in _ENUMS:
            fields[name] = _word(_ENUMS[descriptor.name], name, value)
        elif isinstance(value, pb.TopicFilters):
            fields[name] = list(value.filters)
        elif descriptor.message_type is not None:
            fields[name] = format_duration(duration(value, name))
        else:
            fields[name] = value
    return fields


def _word(enum: Any, name: str, value: int) -> str:
    """`ORDERING_STRICT` as `strict`."""
    try:
        word: str = enum.Name(value)
    except ValueError:
        raise InvalidArgument(field=name, problem=f"is not known: {value}") from None
    return word.removeprefix(f"{name.upper()}_").lower()


def _config(record: QueueRecord) -> pb.QueueConfig:
    config = record.config
    retry, dlq, limits = config.retry, config.dlq, config.throttle
    return pb.QueueConfig(
        partitions=config.partitions,
        ordering=f"ORDERING_{config.ordering.value.upper()}",
        max_message_size=config.max_message_size,
        max_depth=config.max_depth,
        message_ttl=to_duration(config.message_ttl),
        delivery_timeout=to_duration(config.delivery_timeout),
        batch_size=config.batch_size,
        dedup_window=to_duration(config.dedup_window),
        journal=f"JOURNAL_{config.journal.value.upper()}",
        durability=f"DURABILITY_{config.durability.value.upper()}",
        topics=pb.TopicFilters(filters=config.topics),
        paused=config.paused,
        retry=pb.RetryConfig(
            max_retries=retry.max_retries,
            initial_backoff=to_duration(retry.initial_backoff),
            max_backoff=to_duration(retry.max_backoff),
            multiplier=retry.multiplier,
            jitter=retry.jitter,
            total_timeout=to_duration(retry.total_timeout),
        ),
        dlq=pb.DeadLetterConfig(
            enabled=dlq.enabled, queue=dlq.queue, alert_webhook=str(to_fields(config)["dlq.alert_webhook"])
        ),
        throttle=pb.ThrottleConfig(
            concurrency=limits.concurrency,
            rate=limits.rate,
            burst=limits.burst,
            key_concurrency=limits.key_concurrency,
            key_rate=limits.key_rate,
            key_burst=limits.key_burst,
            fair=limits.fair,
        ),
        breaker=pb.BreakerConfig(dead_letters=config.breaker.dead_letters, window=to_duration(config.breaker.window)),
    )


_KINDS: Final = {
    pb.GROUP_KIND_UNSPECIFIED: GroupKind.LEASE,
    pb.GROUP_KIND_LEASE: GroupKind.LEASE,
    pb.GROUP_KIND_CURSOR: GroupKind.CURSOR,
}
_STARTS: Final = {pb.GROUP_START_UNSPECIFIED: None, pb.GROUP_START_EARLIEST: True, pb.GROUP_START_LATEST: False}


def _kind(kind: GroupKind) -> pb.GroupKind:
    return pb.GROUP_KIND_CURSOR if kind is GroupKind.CURSOR else pb.GROUP_KIND_LEASE


def _group(record: GroupRecord) -> pb.Group:
    return pb.Group(
        name=record.name,
        kind=_kind(record.kind),
        created_at=to_timestamp(record.created_at),
        max_lag_messages=record.max_lag_messages,
        max_lag_age=to_duration(record.max_lag_age),
    )


def _queue(call: GrpcCall, name: QueueName) -> pb.Queue:
    record = call.node.queues.get(name)
    return pb.Queue(
        name=record.name,
        namespace=record.namespace,
        created_at=to_timestamp(record.created_at),
        automatic=record.automatic,
        depth=call.node.queues.depth(name),
        config=_config(record),
        groups=[_group(group) for group in record.groups],
    )


def _visible(call: GrpcCall, name: str) -> QueueName:
    call.principal.require_sight(name)
    return (call.principal.namespace, check_name(name))


# --- queues ---------------------------------------------------------------------------------------------------------


@METHODS.unary("CreateQueue", pb.CreateQueueRequest, Action.ADMIN, act="queue.create")
async def create_queue(call: GrpcCall, request: pb.CreateQueueRequest) -> pb.CreateQueueResponse:
    fields = config_fields(request.config)
    call.audit_details.update(queue=request.name, config=fields)
    name = call.queue(request.name, Action.ADMIN)
    call.principal.require_config(fields)
    await call.node.queues.create(name, fields)
    return pb.CreateQueueResponse(queue=_queue(call, name))


@METHODS.unary("GetQueue", pb.GetQueueRequest, None)
async def get_queue(call: GrpcCall, request: pb.GetQueueRequest) -> pb.GetQueueResponse:
    return pb.GetQueueResponse(queue=_queue(call, _visible(call, request.name)))


@METHODS.unary("ListQueues", pb.ListQueuesRequest, None)
async def list_queues(call: GrpcCall, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
    size = page_size(request.page_size)
    records = call.node.queues.in_namespace(call.principal.namespace, request.prefix, request.page_token)
    seen = list(islice((record for record in records if call.principal.can_see(record.name)), size))
    return pb.ListQueuesResponse(
        queues=[_queue(call, (record.namespace, record.name)) for record in seen],
        next_page_token=seen[-1].name if len(seen) == size else "",
    )


@METHODS.unary("UpdateQueue", pb.UpdateQueueRequest, Action.ADMIN, act="queue.update")
async def update_queue(call: GrpcCall, request: pb.UpdateQueueRequest) -> pb.UpdateQueueResponse:
    fields = config_fields(request.config)
    call.audit_details["config"] = fields
    name = call.queue(request.name, Action.ADMIN)
    call.principal.require_config(fields)
    await call.node.queues.update(name, fields)
    await call.node.queues.grown(name)
    return pb.UpdateQueueResponse(queue=_queue(call, name))


@METHODS.unary("DeleteQueue", pb.DeleteQueueRequest, Action.ADMIN, act="queue.delete")
async def delete_queue(call: GrpcCall, request: pb.DeleteQueueRequest) -> pb.DeleteQueueResponse:
    name = call.queue(request.name, Action.ADMIN)
    try:
        messages = await call.node.queues.delete(name)
    except QueueInUse:
        users = call.node.queues.dead_queue_users(name)
        seen = [repr(user) for user in users if call.principal.can_see(user)]
        hidden = [] if len(seen) == len(users) else ["queues that you may not see"]
        raise QueueInUse(queue=name[1], users=", ".join(seen + hidden)) from None
    call.audit_details["messages"] = messages
    return pb.DeleteQueueResponse(messages=messages)


@METHODS.unary("PurgeQueue", pb.PurgeQueueRequest, Action.ADMIN, act="queue.purge")
async def purge_queue(call: GrpcCall, request: pb.PurgeQueueRequest) -> pb.PurgeQueueResponse:
    messages = await call.node.queues.purge(call.queue(request.name, Action.ADMIN))
    call.audit_details["messages"] = messages
    return pb.PurgeQueueResponse(messages=messages)


# --- stats ----------------------------------------------------------------------------------------------------------


@METHODS.unary("GetQueueStats", pb.GetQueueStatsRequest, Action.ADMIN)
async def get_queue_stats(call: GrpcCall, request: pb.GetQueueStatsRequest) -> pb.GetQueueStatsResponse:
    name = call.queue(request.name, Action.ADMIN)
    stats = await call.node.inspection.stats(name)
    return pb.GetQueueStatsResponse(stats=_stats(stats, _dead_letters(call, name)))


def _dead_letters(call: GrpcCall, name: QueueName) -> int:
    """How many messages its dead queue holds, if the caller may know: one that was configured may be anybody's."""
    node = call.node
    dead = node.dead_letters.queue_of(name)
    if dead is None or not node.queues.exists(dead):
        return 0
    return node.queues.depth(dead) if node.queues.is_automatic(dead) or call.principal.can_see(dead[1]) else 0


def _over_groups(stats: QueueStats, number: Callable[[GroupStats], int]) -> int:
    return sum([number(group) for group in stats.groups])


def _stats(stats: QueueStats, dead_letters: int) -> pb.QueueStats:
    members: dict[str, int] = {}
    for group in stats.groups:
        for member, partitions in group.members.items():
            members[member] = members.get(member, 0) + len(partitions)
    return pb.QueueStats(
        name=stats.name,
        total_messages=stats.depth,
        inflight_messages=_over_groups(stats, lambda group: group.leased),
        dlq_messages=dead_letters,
        enqueue_rate=stats.rates.get("enqueued", 0.0),
        ack_rate=stats.rates.get("acked", 0.0),
        active_consumers=_over_groups(stats, lambda group: group.consumers),
        partitions_assigned=members,
        namespace=stats.namespace,
        partitions=stats.partitions,
        ready_messages=stats.ready,
        scheduled_messages=stats.scheduled,
        size_bytes=stats.size_bytes,
        enqueued=stats.enqueued,
        duplicates=stats.duplicates,
        refused=stats.refused,
        oldest_message_age=to_duration(stats.oldest_age),
        groups=[_group_stats(group) for group in stats.groups],
    )


def _group_stats(stats: GroupStats) -> pb.GroupStats:
    return pb.GroupStats(
        name=stats.name,
        kind=_kind(stats.kind),
        ready=stats.ready,
        scheduled=stats.scheduled,
        leased=stats.leased,
        lag=stats.lag,
        acked=stats.acked,
        redelivered=stats.redelivered,
        failures=stats.failures,
        dead=stats.dead,
        consumers=stats.consumers,
        oldest_message_age=to_duration(stats.oldest_age),
        unattended=to_duration(stats.unattended),
    )


# --- groups ---------------------------------------------------------------------------------------------------------


@METHODS.unary("ListGroups", pb.ListGroupsRequest, None)
async def list_groups(call: GrpcCall, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
    record = call.node.queues.get(_visible(call, request.queue))
    return pb.ListGroupsResponse(groups=[_group(group) for group in record.groups])


@METHODS.unary("CreateGroup", pb.CreateGroupRequest, Action.CONSUME)
async def create_group(call: GrpcCall, request: pb.CreateGroupRequest) -> pb.CreateGroupResponse:
    name, group = call.queue(request.queue, Action.CONSUME), check_name(request.group, "group")
    if request.kind not in _KINDS or request.start not in _STARTS:
        raise InvalidArgument(field="kind and start", problem="are not both known")
    if request.max_lag_messages > COUNT_MAX:
        raise InvalidArgument(field="max_lag_messages", problem=f"is 0 to {COUNT_MAX}")
    kind, age = _KINDS[request.kind], duration(request.max_lag_age, "max_lag_age")
    try:
        record = await call.node.groups.create(
            name,
            group,
            kind,
            earliest=_STARTS[request.start],
            max_lag_messages=request.max_lag_messages,
            max_lag_age=age,
            by_consumer=not call.principal.may(Action.ADMIN, name[1]),
        )
    except GroupExists:
        known = call.node.queues.get(name).group(group)
        if known is None or (known.kind, known.max_lag_messages, known.max_lag_age) != (
            kind,
            request.max_lag_messages,
            age,
        ):
            raise
        record = known
    return pb.CreateGroupResponse(group=_group(record))


@METHODS.unary("DeleteGroup", pb.DeleteGroupRequest, Action.ADMIN, act="group.delete", resource="queue")
async def delete_group(call: GrpcCall, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
    call.audit_details["group"] = request.group
    await call.node.groups.delete(call.queue(request.queue, Action.ADMIN), check_name(request.group, "group"))
    return pb.DeleteGroupResponse()
