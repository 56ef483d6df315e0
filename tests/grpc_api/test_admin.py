"""QueueAdmin: queues, groups, stats, dead letters."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from holdfast.grpc_api.generated import queue_pb2 as pb
from tests.grpc_api.rig import Api, drafts, refused

NO_DEAD_QUEUE = pb.QueueConfig(dlq=pb.DeadLetterConfig(enabled=False))


async def test_every_setting_of_a_queue_is_read_and_shown(api: Api, queue: str) -> None:
    config = pb.QueueConfig(
        partitions=3,
        ordering=pb.ORDERING_NONE,
        max_message_size=1000,
        max_depth=0,
        message_ttl=Duration(),
        delivery_timeout=Duration(seconds=5, nanos=500_000_000),
        batch_size=2,
        dedup_window=Duration(seconds=60),
        journal=pb.JOURNAL_METADATA,
        durability=pb.DURABILITY_BUFFERED,
        topics=pb.TopicFilters(filters=["sensors/#"]),
        paused=True,
        retry=pb.RetryConfig(
            max_retries=0,
            initial_backoff=Duration(seconds=1),
            max_backoff=Duration(seconds=9),
            multiplier=1.5,
            jitter=0.25,
            total_timeout=Duration(seconds=90),
        ),
        dlq=pb.DeadLetterConfig(enabled=True, queue=f"{queue}/dead", alert_webhook="http://10.0.0.1/alert"),
        throttle=pb.ThrottleConfig(
            concurrency=4, rate=2.5, burst=9, key_concurrency=1, key_rate=0.0, key_burst=0, fair=False
        ),
        breaker=pb.BreakerConfig(dead_letters=20, window=Duration(seconds=30)),
    )
    assert {field.name for field, _ in config.ListFields()} == set(pb.QueueConfig.DESCRIPTOR.fields_by_name)
    await api.CreateQueue(pb.CreateQueueRequest(name=f"{queue}/dead", config=NO_DEAD_QUEUE))
    created = (await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=config))).queue
    assert created.config == config
    assert (created.name, created.namespace, created.automatic, created.depth) == (queue, "default", False, 0)
    changed = pb.QueueConfig(paused=False, topics=pb.TopicFilters(), retry=pb.RetryConfig(max_retries=4))
    updated = (await api.UpdateQueue(pb.UpdateQueueRequest(name=queue, config=changed))).queue.config
    assert (updated.paused, list(updated.topics.filters), updated.retry.max_retries) == (False, [], 4)
    assert updated.retry.jitter == 0.25
    assert (await api.GetQueue(pb.GetQueueRequest(name=queue))).queue.config == updated


@pytest.mark.parametrize(
    "config",
    [
        pb.QueueConfig(ordering=99),  # type: ignore[arg-type]
        pb.QueueConfig(message_ttl=Duration(seconds=-1)),
        pb.QueueConfig(partitions=0),
        pb.QueueConfig(max_message_size=(1 << 64) - 1),
        pb.QueueConfig(retry=pb.RetryConfig(multiplier=float("nan"))),
        pb.QueueConfig(retry=pb.RetryConfig(jitter=float("inf"))),
        pb.QueueConfig(topics=pb.TopicFilters(filters=["a/#/b"])),
    ],
    ids=str,
)
async def test_settings_that_cannot_be_are_refused(api: Api, queue: str, config: pb.QueueConfig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=config))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    async with refused("queue_not_found", grpc.StatusCode.NOT_FOUND):
        await api.GetQueue(pb.GetQueueRequest(name=queue))


async def test_queues_are_listed_by_pages(api: Api, queue: str) -> None:
    names = [f"{queue}/{number}" for number in range(5)]
    for name in names:
        await api.CreateQueue(pb.CreateQueueRequest(name=name, config=pb.QueueConfig(partitions=1)))
    found: list[str] = []
    token = ""
    while True:
        page = await api.ListQueues(pb.ListQueuesRequest(prefix=f"{queue}/", page_size=2, page_token=token))
        found += [one.name for one in page.queues]
        token = page.next_page_token
        if not token:
            break
    assert found == names
    async with refused("queue_exists", grpc.StatusCode.ALREADY_EXISTS):
        await api.CreateQueue(pb.CreateQueueRequest(name=names[0]))
    async with refused("invalid_argument", grpc.StatusCode.INVALID_ARGUMENT):
        await api.ListQueues(pb.ListQueuesRequest(page_size=1001))


async def test_a_queue_is_purged_and_deleted(api: Api, queue: str) -> None:
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1", b"2")))
    assert (await api.PurgeQueue(pb.PurgeQueueRequest(name=queue))).messages == 2
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"3")))
    assert (await api.DeleteQueue(pb.DeleteQueueRequest(name=queue))).messages == 1
    async with refused("queue_not_found", grpc.StatusCode.NOT_FOUND):
        await api.PurgeQueue(pb.PurgeQueueRequest(name=queue))


async def test_groups_are_made_and_removed(api: Api, queue: str) -> None:
    await api.CreateQueue(pb.CreateQueueRequest(name=queue))
    request = pb.CreateGroupRequest(
        queue=queue, group="log", kind=pb.GROUP_KIND_CURSOR, start=pb.GROUP_START_LATEST, max_lag_messages=5
    )
    made = (await api.CreateGroup(request)).group
    assert (made.name, made.kind, made.max_lag_messages) == ("log", pb.GROUP_KIND_CURSOR, 5)
    assert (await api.CreateGroup(request)).group == made
    request.kind = pb.GROUP_KIND_LEASE
    async with refused("group_exists", grpc.StatusCode.ALREADY_EXISTS):
        await api.CreateGroup(request)
    assert [group.name for group in (await api.ListGroups(pb.ListGroupsRequest(queue=queue))).groups] == ["log"]
    await api.DeleteGroup(pb.DeleteGroupRequest(queue=queue, group="log"))
    assert not (await api.ListGroups(pb.ListGroupsRequest(queue=queue))).groups
    async with refused("group_not_found", grpc.StatusCode.NOT_FOUND):
        await api.DeleteGroup(pb.DeleteGroupRequest(queue=queue, group="log"))


async def rejected(api: Api, queue: str, *payloads: bytes) -> None:
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(*payloads)))
    deliveries = (await api.Lease(pb.LeaseRequest(queue=queue, limit=100))).deliveries
    settlements = [
        pb.Settlement(
            id=one.message.id, lease_token=one.lease_token, action=pb.SETTLE_ACTION_REJECT, error="no such customer"
        )
        for one in deliveries
    ]
    assert (await api.Settle(pb.SettleRequest(queue=queue, settlements=settlements))).settled == len(payloads)


async def test_dead_letters_are_listed_and_redriven(api: Api, queue: str) -> None:
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(partitions=1)))
    assert not (await api.ListDeadLetters(pb.ListDeadLettersRequest(queue=queue))).dead_letters
    await rejected(api, queue, b"1", b"2")
    listed = (await api.ListDeadLetters(pb.ListDeadLettersRequest(queue=queue))).dead_letters
    assert sorted(one.payload for one in listed) == [b"1", b"2"]
    assert {(one.origin.reason, one.origin.error, one.origin.source_queue) for one in listed} == {
        ("rejected", "no such customer", queue)
    }
    stats = (await api.GetQueueStats(pb.GetQueueStatsRequest(name=queue))).stats
    assert (stats.name, stats.dlq_messages, stats.enqueued, stats.total_messages) == (queue, 2, 2, 0)
    assert dict(stats.groups[0].dead) == {"rejected": 2}
    one = pb.DeadLetterFilter(ids=[next(one.id for one in listed if one.payload == b"1")])
    dry = (await api.Redrive(pb.RedriveRequest(queue=queue, filter=one, dry_run=True))).job
    assert (dry.dry_run, dry.matched, dry.moved, dry.state) == (True, 1, 0, "done")
    job = (await api.Redrive(pb.RedriveRequest(queue=queue, filter=one))).job
    while job.state == "running":
        await asyncio.sleep(0)
        job = (await api.GetRedrive(pb.GetRedriveRequest(queue=queue, id=job.id))).job
    assert (job.state, job.moved, job.HasField("ended_at")) == ("done", 1, True)
    assert (await api.CancelRedrive(pb.CancelRedriveRequest(queue=queue, id=job.id))).job.state == "done"
    (back,) = (await api.Lease(pb.LeaseRequest(queue=queue, limit=10))).deliveries
    assert back.message.payload == b"1"
    (left,) = (await api.ListDeadLetters(pb.ListDeadLettersRequest(queue=queue))).dead_letters
    assert left.payload == b"2"
    for wrong in (pb.RedriveRequest(queue=queue, rate=-1), pb.RedriveRequest(queue=queue, group="a", all_groups=True)):
        async with refused("invalid_argument", grpc.StatusCode.INVALID_ARGUMENT):
            await api.Redrive(wrong)
    async with refused("redrive_not_found", grpc.StatusCode.NOT_FOUND):
        await api.GetRedrive(pb.GetRedriveRequest(queue=queue, id="none"))
