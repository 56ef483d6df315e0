"""The running node through its in-process API, over every store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.broker.node import Node, wall_clock
from holdfast.config.settings import LimitSettings
from holdfast.core import shard as shard_module
from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.queue import Durability, GroupKind
from holdfast.core.records import Extra
from holdfast.engine import engine as engine_module
from holdfast.errors import (
    GroupExists,
    GroupNotFound,
    InvalidArgument,
    InvalidConfig,
    LeaseLost,
    LimitExceeded,
    MessageNotFound,
    MessageTooLarge,
    Overloaded,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    ShuttingDown,
    WrongGroupKind,
)
from holdfast.store.contract import Store
from tests.broker.conftest import Restart, config_for, running
from tests.waiting import until

Q = ("default", "tasks")
SECOND = 1_000_000


def drafts(*payloads: str, **fields: object) -> list[Draft]:
    return [Draft(payload.encode(), **fields) for payload in payloads]  # type: ignore[arg-type]


def payloads(leased: list[Leased]) -> list[str]:
    return [item.message.payload.decode() for item in leased]


def acks(leased: list[Leased], verb: Verb = Verb.ACK) -> list[Settlement]:
    return [Settlement(item.message.id, item.token, verb, partition=item.partition) for item in leased]


async def test_a_message_is_stored_leased_and_acked(node: Node) -> None:
    receipt = await node.messages.enqueue(Q, drafts("a", "b"))
    assert receipt.durability is Durability.FSYNC
    assert len(set(receipt.ids)) == 2

    leased = await node.messages.lease(Q, "g", 10, consumer="c1")
    assert payloads(leased) == ["a", "b"]
    assert [item.attempt for item in leased] == [1, 1]

    assert await node.messages.settle(Q, "g", acks(leased)) == [None, None]
    assert await node.messages.lease(Q, "g", 10) == []
    assert (await node.inspection.stats(Q)).depth == 0


async def test_delivery_is_fifo_over_all_partitions(node: Node) -> None:
    for index in range(50):
        await node.messages.enqueue(Q, drafts(f"{index:02}"))
    leased = await node.messages.lease(Q, "g", 50)
    assert payloads(leased) == [f"{index:02}" for index in range(50)]
    assert len({item.partition for item in leased}) > 1


async def test_a_long_poll_is_woken_by_a_message(node: Node) -> None:
    poll = asyncio.create_task(node.messages.lease(Q, "g", 5, wait=60 * SECOND))
    await asyncio.sleep(0)
    await node.messages.enqueue(Q, drafts("late"))
    assert payloads(await poll) == ["late"]


async def test_a_long_poll_is_woken_by_a_due_time_a_release_and_a_backoff(node: Node) -> None:
    await node.messages.enqueue(Q, drafts("later", deliver_at=wall_clock() + 30_000))
    first = await node.messages.lease(Q, "g", wait=60 * SECOND)
    assert payloads(first) == ["later"]

    poll = asyncio.create_task(node.messages.lease(Q, "g", wait=60 * SECOND))
    await asyncio.sleep(0)
    await node.messages.settle(Q, "g", acks(first, Verb.RELEASE))
    second = await poll
    assert [item.attempt for item in second] == [1]
    assert second[0].token != first[0].token

    poll = asyncio.create_task(node.messages.lease(Q, "g", wait=60 * SECOND))
    await node.messages.settle(Q, "g", [replace(acks(second)[0], verb=Verb.NACK, delay=20_000)])
    assert [item.attempt for item in await poll] == [2]


async def test_a_long_poll_is_woken_when_a_lease_runs_out(node: Node) -> None:
    await node.queues.create(Q, {"retry.initial_backoff": "10ms"})
    await node.messages.enqueue(Q, drafts("slow"))
    first = await node.messages.lease(Q, "g", timeout=20_000)
    again = await node.messages.lease(Q, "g", wait=60 * SECOND)
    assert [item.attempt for item in again] == [2]
    (result,) = await node.messages.settle(Q, "g", acks(first))
    assert isinstance(result, LeaseLost)
    assert await node.messages.settle(Q, "g", acks(again)) == [None]


async def test_a_long_poll_ends_empty_when_its_time_is_over(node: Node) -> None:
    assert await node.messages.lease(Q, "g", wait=10_000) == []
    await node.messages.enqueue(Q, drafts("x"))
    assert payloads(await node.messages.lease(Q, "g")) == ["x"]


async def test_long_polls_are_served_in_the_order_they_came(node: Node) -> None:
    polls = [asyncio.create_task(node.messages.lease(Q, "g", consumer=f"c{n}", wait=60 * SECOND)) for n in range(3)]
    await asyncio.sleep(0)
    await node.messages.enqueue(Q, drafts("a", "b", "c"))
    assert [payloads(await poll) for poll in polls] == [["a"], ["b"], ["c"]]


async def test_a_poll_that_goes_away_leaves_its_message_to_the_next(node: Node) -> None:
    poll = asyncio.create_task(node.messages.lease(Q, "g", wait=60 * SECOND))
    await asyncio.sleep(0)
    enqueue = asyncio.ensure_future(node.messages.enqueue(Q, drafts("x")))
    await asyncio.sleep(0)
    poll.cancel()
    await enqueue
    with pytest.raises(asyncio.CancelledError):
        await poll
    leased = await node.messages.lease(Q, "g", wait=60 * SECOND)
    assert payloads(leased) == ["x"]
    assert leased[0].attempt == 1


async def test_one_call_cancelled_does_not_disturb_others_in_its_batch(node: Node) -> None:
    one = asyncio.ensure_future(node.messages.enqueue(Q, drafts("a")))
    two = asyncio.ensure_future(node.messages.enqueue(Q, drafts("b")))
    await asyncio.sleep(0)
    one.cancel()
    receipt = await two
    assert receipt.ids[0]
    assert sorted(payloads(await node.messages.lease(Q, "g", 5))) == ["a", "b"]


async def test_buffered_queues_say_so_in_the_receipt(node: Node) -> None:
    await node.queues.create(Q, {"durability": "buffered"})
    assert (await node.messages.enqueue(Q, drafts("a"))).durability is Durability.BUFFERED


async def test_a_bad_message_does_not_stop_the_others_of_its_batch(node: Node) -> None:
    await node.queues.create(Q, {"max_message_size": 3, "max_depth": 2})
    receipt = await node.messages.enqueue(Q, [*drafts("a", "long!", "b", "c"), Draft(b"p", priority=256)])
    assert [bool(message_id) for message_id in receipt.ids] == [True, False, True, False, False]
    assert isinstance(receipt.errors[1], MessageTooLarge)
    assert isinstance(receipt.errors[3], QueueFull)
    assert receipt.errors[3].retryable
    assert isinstance(receipt.errors[4], InvalidArgument)


async def test_a_repeated_message_id_is_answered_with_the_first_id(node: Node) -> None:
    first = await node.messages.enqueue(Q, [Draft(b"a", extra=Extra(message_id="m-1"))])
    second = await node.messages.enqueue(Q, [Draft(b"a", extra=Extra(message_id="m-1"))])
    assert second.ids == first.ids
    assert second.duplicates == {0: first.ids[0]}
    assert (await node.inspection.stats(Q)).depth == 1


async def test_groups_each_see_every_message(node: Node) -> None:
    await node.groups.create(Q, "one")
    await node.groups.create(Q, "two")
    await node.messages.enqueue(Q, drafts("a"))
    one, two = await node.messages.lease(Q, "one"), await node.messages.lease(Q, "two")
    assert payloads(one) == payloads(two) == ["a"]
    await node.messages.settle(Q, "one", acks(one))
    assert (await node.inspection.stats(Q)).depth == 1
    await node.messages.settle(Q, "two", acks(two))
    assert (await node.inspection.stats(Q)).depth == 0
    with pytest.raises(GroupExists):
        await node.groups.create(Q, "one")


async def test_deleting_a_group_lets_go_what_only_it_needed(node: Node) -> None:
    await node.groups.create(Q, "fast")
    await node.groups.create(Q, "slow")
    await node.messages.enqueue(Q, drafts("a", "b"))
    await node.messages.settle(Q, "fast", acks(await node.messages.lease(Q, "fast", 5)))
    assert (await node.inspection.stats(Q)).depth == 2
    await node.groups.delete(Q, "slow")
    assert (await node.inspection.stats(Q)).depth == 0
    assert [group.name for group in node.queues.get(Q).groups] == ["fast"]


async def test_cursor_groups_read_a_range_again_until_it_is_committed(node: Node) -> None:
    await node.queues.create(Q, {"partitions": 1})
    await node.groups.create(Q, "spark", GroupKind.CURSOR)
    await node.messages.enqueue(Q, drafts("a", "b", "c"))
    first = await node.cursors.read(Q, "spark", 0, limit=2)
    again = await node.cursors.read(Q, "spark", 0, first.messages[0].seq, limit=2)
    assert [m.payload for m in first.messages] == [m.payload for m in again.messages] == [b"a", b"b"]
    assert await node.cursors.commit(Q, "spark", 0, first.next_seq - 1) == 2
    assert [m.payload for m in (await node.cursors.read(Q, "spark", 0)).messages] == [b"c"]
    assert (await node.inspection.stats(Q)).depth == 1
    with pytest.raises(WrongGroupKind):
        await node.messages.lease(Q, "spark")


async def test_dead_letters_move_to_the_dead_queue_with_their_story(node: Node) -> None:
    await node.queues.create(Q, {"retry.max_retries": 0})
    receipt = await node.messages.enqueue(Q, [Draft(b"bad", extra=Extra(key="k", correlation_id="corr"))])
    leased = await node.messages.lease(Q, "g", consumer="c1")
    await node.messages.settle(Q, "g", [replace(acks(leased)[0], verb=Verb.NACK, error="boom")])
    (dead,) = await node.messages.lease(("default", "dlq/tasks"), "ops")
    origin = dead.message.extra.origin
    assert origin is not None
    assert (origin.source_id, origin.source_queue, origin.source_group) == (receipt.ids[0], "tasks", "g")
    assert (origin.reason, origin.error, origin.attempts) == ("max_retries", "boom", 1)
    assert dead.message.extra.correlation_id == "corr"
    assert (await node.inspection.stats(Q)).groups[0].dead == {"max_retries": 1}
    with pytest.raises(QueueInUse):
        await node.queues.delete(("default", "dlq/tasks"))


async def test_browse_shows_how_messages_stand_without_leasing(node: Node) -> None:
    for index in range(7):
        await node.messages.enqueue(Q, drafts(f"{index}"))
    await node.messages.lease(Q, "g", 2, consumer="c1")
    seen: list[tuple[str, str]] = []
    cursor = ""
    while True:
        page = await node.inspection.browse(Q, 3, cursor)
        seen += [(message.payload.decode(), statuses[0].state) for _, message, statuses in page.messages]
        cursor = page.cursor
        if not cursor:
            break
    assert seen == [(str(n), "leased" if n < 2 else "ready") for n in range(7)]
    assert [m.payload for _, m, _ in (await node.inspection.browse(Q, 10, state="leased")).messages] == [b"0", b"1"]


async def test_a_waiting_message_can_be_edited_and_deleted(node: Node) -> None:
    receipt = await node.messages.enqueue(Q, drafts("a", "b", "c"))
    await node.messages.edit(Q, receipt.ids[2], priority=1)
    await node.messages.delete(Q, receipt.ids[0])
    assert payloads(await node.messages.lease(Q, "g", 5)) == ["c", "b"]
    with pytest.raises(MessageNotFound):
        await node.inspection.find(Q, receipt.ids[0])


async def test_purge_removes_what_waits_and_keeps_what_is_leased(node: Node) -> None:
    await node.messages.enqueue(Q, drafts(*[str(n) for n in range(600)]))
    leased = await node.messages.lease(Q, "g", 2)
    assert await node.queues.purge(Q) == 598
    assert await node.messages.settle(Q, "g", acks(leased)) == [None, None]
    assert (await node.inspection.stats(Q)).depth == 0


async def test_pause_and_resume(node: Node) -> None:
    await node.messages.enqueue(Q, drafts("a"))
    await node.queues.update(Q, {"paused": True})
    assert await node.messages.lease(Q, "g") == []
    poll = asyncio.create_task(node.messages.lease(Q, "g", wait=60 * SECOND))
    await node.queues.update(Q, {"paused": False})
    assert payloads(await poll) == ["a"]


async def test_queue_administration(node: Node) -> None:
    record = await node.queues.create(Q, {"partitions": 2, "retry": {"max_retries": 3}})
    assert (record.config.partitions, record.config.retry.max_retries) == (2, 3)
    with pytest.raises(QueueExists):
        await node.queues.create(Q)
    with pytest.raises(InvalidConfig, match=r"retry.max_retires.*did you mean retry.max_retries"):
        await node.queues.update(Q, {"retry.max_retires": 3})
    await node.messages.enqueue(Q, [Draft(b"x", extra=Extra(key=str(n))) for n in range(20)])
    await node.messages.lease(Q, "g", 20)
    await node.queues.update(Q, {"partitions": 4})
    await node.messages.enqueue(Q, [Draft(b"y", extra=Extra(key=str(n))) for n in range(100, 140)])
    assert {item.partition for item in await node.messages.lease(Q, "g", 100)} == {0, 1, 2, 3}
    assert [queue.name for queue in node.queues.in_namespace("default")] == ["tasks"]
    assert await node.queues.delete(Q) == 60
    with pytest.raises(QueueNotFound):
        await node.inspection.stats(Q)
    assert node.queues.in_namespace("default") == []


async def test_a_deletion_ends_also_when_its_caller_is_cancelled(node: Node) -> None:
    """Else the name could be neither used nor deleted until the next start."""
    await node.messages.enqueue(Q, drafts(*["m"] * 20))
    await node.groups.create(Q, "other", earliest=False)
    polling = asyncio.ensure_future(node.messages.lease(Q, "other", 1, wait=60 * SECOND))
    deletion = asyncio.ensure_future(node.queues.delete(Q))
    await asyncio.sleep(0)
    deletion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deletion
    with pytest.raises(QueueNotFound):
        await polling
    await until(lambda: not node.queues.exists(Q))
    await node.queues.create(Q)
    assert (await node.inspection.stats(Q)).depth == 0


async def test_a_deletion_that_the_end_of_the_node_interrupts_is_finished_by_the_next_start(restart: Restart) -> None:
    node = await restart()
    await node.messages.enqueue(Q, drafts("m"))
    deletion = asyncio.ensure_future(node.queues.delete(Q))
    await asyncio.sleep(0)
    node = await restart()
    with pytest.raises(ShuttingDown):
        await deletion
    await until(lambda: not node.queues.exists(Q))


async def test_namespaces_do_not_meet(node: Node) -> None:
    await node.messages.enqueue(("a", "tasks"), drafts("mine"))
    assert await node.messages.lease(("b", "tasks"), "g") == []
    assert payloads(await node.messages.lease(("a", "tasks"), "g")) == ["mine"]


async def test_too_much_together_is_refused_immediately(store: Store, tmp_path: Path) -> None:
    config = replace(config_for(tmp_path), limits=LimitSettings(inbox_messages=10, enqueue_max=8))
    async with running(config, store) as node:
        with pytest.raises(LimitExceeded):
            await node.messages.enqueue(Q, drafts(*"123456789"))
        first = node.messages.enqueue(Q, drafts(*"12345678"))
        with pytest.raises(Overloaded) as caught:
            await node.messages.enqueue(Q, drafts("a", "b", "c"))
        assert caught.value.retryable
        await first
        await node.messages.enqueue(Q, drafts("a", "b", "c"))
        assert (await node.inspection.stats(Q)).depth == 11


async def test_bad_arguments_are_refused_and_change_nothing(node: Node) -> None:
    with pytest.raises(InvalidArgument):
        await node.messages.lease(Q, "g", 0)
    with pytest.raises(InvalidArgument):
        await node.messages.lease(Q, "g", wait=10**15)
    with pytest.raises(InvalidArgument):
        await node.messages.lease(("default", "a/+/b"), "g")
    assert node.queues.in_namespace("default") == []


async def test_stopping_ends_long_polls_and_refuses_new_work(node: Node) -> None:
    poll = asyncio.create_task(node.messages.lease(Q, "g", wait=60 * SECOND))
    await asyncio.sleep(0)
    await node.stop()
    with pytest.raises(ShuttingDown):
        await poll
    with pytest.raises(ShuttingDown):
        await node.messages.enqueue(Q, drafts("x"))
    await node.start()


async def test_everything_confirmed_is_there_after_a_restart(restart: Restart) -> None:
    node = await restart()
    await node.queues.create(Q, {"partitions": 3})
    await node.messages.enqueue(Q, drafts("a", "b", "c", "d"))
    await node.messages.enqueue(Q, drafts("later", deliver_at=wall_clock() + 3600 * SECOND))
    leased = await node.messages.lease(Q, "g", 3, consumer="c1")
    await node.messages.settle(Q, "g", [acks(leased)[0], replace(acks(leased)[1], verb=Verb.NACK, error="no")])
    before = await node.inspection.stats(Q)

    node = await restart()
    after = await node.inspection.stats(Q)
    assert replace(after, rates={}, oldest_age=0, groups=[]) == replace(before, rates={}, oldest_age=0, groups=[])
    old, new = before.groups[0], after.groups[0]
    assert replace(new, oldest_age=0) == replace(old, oldest_age=0, consumers=0)  # they have not called again yet
    assert (new.ready, new.scheduled, new.leased, new.acked) == (1, 2, 1, 1)
    assert await node.messages.settle(Q, "g", [acks(leased)[2]]) == [None]
    assert payloads(await node.messages.lease(Q, "g", 5)) == ["d"]


async def test_a_long_backlog_of_one_key_does_not_hide_the_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SKIP_BLOCKED_MAX", 50)
    monkeypatch.setattr(shard_module, "SKIP_BLOCKED_MAX", 50)
    monkeypatch.setattr(shard_module, "SKIP_BLOCKED_WINDOW", 20)
    monkeypatch.setattr(shard_module, "WINDOW", 20)
    await node.queues.create(Q, {"partitions": 1})
    await node.messages.enqueue(Q, [Draft(b"hot", extra=Extra(key="hot")) for _ in range(3000)])
    await node.messages.enqueue(Q, [Draft(b"cold", extra=Extra(key="cold"))])
    first = await node.messages.lease(Q, "g", 1)
    assert payloads(first) == ["hot"]
    assert payloads(await node.messages.lease(Q, "g", 1)) == ["cold"]
    # Also for one who waits: the group is new and starts with all that is stored.
    await node.groups.create(Q, "late", earliest=True)
    late = await node.messages.lease(Q, "late", 1)
    poll = asyncio.create_task(node.messages.lease(Q, "late", 1, wait=60 * SECOND))
    assert payloads(late) + payloads(await poll) == ["hot", "cold"]


async def test_long_polls_end_when_their_queue_or_group_is_deleted(node: Node) -> None:
    await node.groups.create(Q, "one")
    await node.groups.create(Q, "two")
    polls = [asyncio.create_task(node.messages.lease(Q, group, wait=60 * SECOND)) for group in ("one", "two")]
    await asyncio.sleep(0)
    await node.groups.delete(Q, "one")
    with pytest.raises(GroupNotFound):
        await polls[0]
    await node.queues.delete(Q)
    with pytest.raises(QueueNotFound):
        await polls[1]
    assert node.queues.in_namespace("default") == []


@pytest.mark.parametrize("fields", [{}, {"extra": Extra(key="k")}])
async def test_an_atomic_enqueue_stores_each_message_once(node: Node, fields: dict[str, object]) -> None:
    receipt = await node.messages.enqueue(Q, drafts("a", "b", **fields), atomic=True)
    assert [message.id for _, message, _ in (await node.inspection.browse(Q)).messages] == receipt.ids
    assert (await node.inspection.stats(Q)).enqueued == 2
