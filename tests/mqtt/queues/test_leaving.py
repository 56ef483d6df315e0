"""Consumers that leave, vanish, come back or are sent away, and servers that restart under them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.broker.dispatch import members
from holdfast.config.settings import QueueSettings
from holdfast.engine.engine import Engine
from holdfast.errors import StoreUnavailable
from holdfast.mqtt.codec import V5, V311, PubAck, Publish
from holdfast.store import open_store
from holdfast.store.memory import MemoryDisk, MemoryStore
from tests.mqtt.queues.rig import SPACE, Raw, Server, config_for, until, user_properties_of

JOBS = (SPACE, "jobs")


async def enqueue(server: Server, *payloads: bytes, queue: str = "jobs") -> None:
    producer = await server.client("producer")
    for payload in payloads:
        assert (await producer.publish(f"$queue/{queue}", payload)).reason_code == 0
    await producer.disconnect()


async def consumer(server: Server, client_id: str = "g-1", **options: object) -> Raw:
    client = await server.client(client_id, **options)  # type: ignore[arg-type]
    assert (await client.subscribe("$queue/jobs")).reason_codes == (1,)
    return client


# --- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize("clean", [True, False])
async def test_who_says_goodbye_releases_immediately_and_spends_no_attempt(
    server: Server, version: int, clean: bool
) -> None:
    client = await consumer(server, version=version, clean=clean, expiry_s=None if clean else 600)
    await enqueue(server, b"one")
    await client.delivery()
    await client.disconnect()
    other = await consumer(server, "g-2")
    again = await other.delivery()
    assert (again.payload, user_properties_of(again)["attempt"]) == (b"one", "1")


async def test_who_vanishes_with_its_session_has_failed(server: Server) -> None:
    await server.create("jobs", retry__initial_backoff="10s")
    client = await consumer(server)
    await enqueue(server, b"one")
    await client.delivery()
    client.vanish()
    await until(lambda: server.group("jobs", "g").scheduled == 1)
    other = await consumer(server, "g-2")
    await other.nothing_more()
    server.pass_time(11)
    assert user_properties_of(await other.delivery())["attempt"] == "2"
    assert server.group("jobs", "g").failures == {"disconnect": 1}


async def test_whom_an_administrator_ends_is_told_and_may_come_again(server: Server) -> None:
    client = await consumer(server, clean=False, expiry_s=600)
    assert server.node.subscriptions.disconnect(JOBS, "g-1", "g", "for maintenance") == 1
    told = await client.closed()
    assert told is not None
    assert (told.reason_code, told.properties.reason_string) == (0x98, "for maintenance")
    again = await consumer(server)
    await enqueue(server, b"one")
    assert (await again.delivery()).payload == b"one"


async def test_what_was_never_sent_has_not_failed(server: Server) -> None:
    await server.create("other")
    client = await server.client("g-1", window=1)
    await client.subscribe("$queue/jobs", prefetch="1")
    await client.subscribe("$queue/other", prefetch="1")
    await enqueue(server, b"one")
    assert (await client.delivery()).payload == b"one"
    await enqueue(server, b"two", queue="other")
    await until(lambda: server.group("other", "g").leased == 1)  # it waits for the window
    client.vanish()
    await until(lambda: server.group("jobs", "g").failures == {"disconnect": 1})
    assert server.group("other", "g").failures == {}
    assert server.group("other", "g").released == 1


async def test_who_vanishes_with_a_session_that_lives_on_keeps_its_leases_until_their_deadline(server: Server) -> None:
    await server.create("jobs", retry__initial_backoff="0s")
    client = await consumer(server, expiry_s=600)
    await enqueue(server, b"one")
    await client.delivery()
    client.vanish()
    await until(lambda: not server.mqtt._links)
    other = await consumer(server, "g-2")
    await other.nothing_more()
    server.pass_time(31)
    assert user_properties_of(await other.delivery())["attempt"] == "2"


@pytest.mark.parametrize("native", [True, False])
async def test_who_comes_back_before_the_deadline_is_sent_it_again(server: Server, native: bool) -> None:
    client = await server.client("g-1", expiry_s=600)
    await client.subscribe("$queue/jobs", ack_mode="puback" if native else "explicit")
    await enqueue(server, b"one", b"two")
    first = [await client.delivery() for _ in range(2)]
    client.vanish()
    await until(lambda: not server.mqtt._links)
    back = await server.client("g-1", clean=False, expiry_s=600)
    assert back.connack.session_present
    again = [await back.delivery() for _ in range(2)]
    for before, after in zip(first, again, strict=True):
        assert after.dup
        assert after.packet_id == before.packet_id
        assert after.payload == before.payload
        assert user_properties_of(after) == user_properties_of(before)
    for delivery in again:
        back.accept(delivery)
        if not native:
            assert (await back.settle(delivery)).reason_code == 0
    await until(lambda: server.depth("jobs") == 0)
    await enqueue(server, b"three")
    assert (await back.delivery()).payload == b"three"


async def test_what_was_received_but_not_settled_is_sent_again_too(server: Server) -> None:
    client = await consumer(server, expiry_s=600)
    await enqueue(server, b"one")
    delivery = await client.delivery()
    client.accept(delivery)
    await client.ping()
    client.vanish()
    await until(lambda: not server.mqtt._links)
    back = await server.client("g-1", clean=False, expiry_s=600)
    again = await back.delivery()
    assert user_properties_of(again) == user_properties_of(delivery)
    assert (await back.settle(delivery)).reason_code == 0
    assert server.depth("jobs") == 0


async def test_leases_that_are_kept_count_against_the_prefetch_on_return(server: Server) -> None:
    client = await server.client("g-1", expiry_s=600)
    await client.subscribe("$queue/jobs", prefetch="2")
    await enqueue(server, b"1", b"2", b"3")
    await client.delivery()
    await client.delivery()
    client.vanish()
    await until(lambda: not server.mqtt._links)
    back = await server.client("g-1", clean=False, expiry_s=600)
    first = await back.delivery()
    await back.delivery()
    await back.nothing_more()
    back.accept(first)
    await back.settle(first)
    assert (await back.delivery()).payload == b"3"


async def test_a_smaller_window_on_return_is_honoured(server: Server) -> None:
    client = await consumer(server, expiry_s=600)
    await enqueue(server, b"1", b"2")
    await client.delivery()
    await client.delivery()
    client.vanish()
    await until(lambda: not server.mqtt._links)
    back = await server.client("g-1", clean=False, expiry_s=600, window=1)
    first = await back.delivery()
    await back.nothing_more()
    back.accept(first)
    assert (await back.delivery()).payload == b"2"


async def test_leases_fail_when_the_session_ends(server: Server) -> None:
    await server.create("jobs", retry__initial_backoff="0s")
    client = await consumer(server, expiry_s=5)
    await client.subscribe("$admin/queue/jobs/stats")
    await enqueue(server, b"one")
    await client.delivery()
    client.vanish()
    await until(lambda: not server.mqtt._links)
    server.pass_time(6)
    await until(lambda: server.group("jobs", "g").failures == {"disconnect": 1})


async def test_a_clean_start_ends_the_session_and_its_leases(server: Server) -> None:
    await server.create("jobs", retry__initial_backoff="0s")
    client = await consumer(server, expiry_s=600)
    await enqueue(server, b"one")
    await client.delivery()
    client.vanish()
    await until(lambda: not server.mqtt._links)
    fresh = await consumer(server)
    assert user_properties_of(await fresh.delivery())["attempt"] == "2"


async def test_a_takeover_hands_the_deliveries_over(server: Server) -> None:
    client = await consumer(server, expiry_s=600)
    await enqueue(server, b"one")
    first = await client.delivery()
    new = await server.client("g-1", clean=False, expiry_s=600)
    again = await new.delivery()
    assert (again.dup, user_properties_of(again)) == (True, user_properties_of(first))
    goodbye = await client.closed()
    assert goodbye is not None
    assert goodbye.reason_code == 0x8E
    assert (await new.settle(again)).reason_code == 0


async def test_a_consumer_of_qos_0_is_sent_again_what_it_has_not_settled(server: Server) -> None:
    client = await server.client("g-1", expiry_s=600)
    await client.subscribe("$queue/jobs", 0)
    await enqueue(server, b"one")
    first = await client.delivery()
    client.vanish()
    await until(lambda: not server.mqtt._links)
    back = await server.client("g-1", clean=False, expiry_s=600)
    again = await back.delivery()
    assert (again.dup, again.qos, user_properties_of(again)) == (False, 0, user_properties_of(first))
    assert (await back.settle(again)).reason_code == 0


async def test_a_subscription_that_cannot_be_taken_up_again_harms_no_other(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path / "store")
    server = Server(config_for(tmp_path, queues=QueueSettings(auto_create=False)), store)
    await server.start()
    await server.create("jobs")
    await server.create("gone")
    client = await consumer(server, expiry_s=600)
    await client.subscribe("$queue/gone")
    watcher = await server.client("watcher", expiry_s=600)
    await watcher.subscribe("$admin/queue/jobs/stats")
    client.vanish()
    watcher.vanish()
    await until(lambda: not server.mqtt._links)
    await server.node.queues.delete((SPACE, "gone"))
    back = await server.client("g-1", clean=False, expiry_s=600)
    await enqueue(server, b"one")
    assert (await back.take()).payload == b"one"
    again = await server.client("watcher", clean=False, expiry_s=600)
    assert (await again.delivery()).topic == "$admin/queue/jobs/stats"
    await server.stop()
    store.close()


async def test_unsubscribe_leaves_other_queues_alone(server: Server) -> None:
    client = await consumer(server)
    await client.subscribe("$queue/other")
    await enqueue(server, b"one")
    await client.delivery()
    await enqueue(server, b"two", queue="other")
    two = await client.delivery()
    await client.unsubscribe("$queue/jobs")
    assert server.group("jobs", "g").leased == 0
    assert (await client.settle(two)).reason_code == 0


async def test_unsubscribe_releases_and_ends_deliveries(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, b"one")
    delivery = await client.delivery()
    assert (await client.unsubscribe("$queue/jobs")).reason_codes == (0,)
    assert (await client.settle(delivery)).reason_code == 0x83
    client.accept(delivery)  # its identifier is free again after this
    await client.nothing_more()
    other = await consumer(server, "g-2")
    assert user_properties_of(await other.delivery())["attempt"] == "1"


async def test_subscribing_again_keeps_what_is_held(server: Server) -> None:
    client = await server.client("g-1", window=1)
    await client.subscribe("$queue/jobs", prefetch="1")
    await client.subscribe("$queue/other", prefetch="1")
    await enqueue(server, b"one")
    first = await client.delivery()
    await enqueue(server, b"two", queue="other")
    await until(lambda: server.group("other", "g").leased == 1)
    await client.subscribe("$queue/jobs", prefetch="5")
    await client.subscribe("$queue/other", prefetch="5")  # what waited for the window waits on
    client.accept(first)
    assert (await client.delivery()).payload == b"two"
    assert (await client.settle(first)).reason_code == 0


async def test_subscribing_again_natively_keeps_what_is_held(server: Server) -> None:
    client = await server.client("g-1")
    await client.subscribe("$queue/jobs", ack_mode="puback")
    await enqueue(server, b"one")
    first = await client.delivery()
    await client.subscribe("$queue/jobs", ack_mode="puback", prefetch="5")
    client.accept(first)
    await until(lambda: server.depth("jobs") == 0)


async def test_subscribing_again_in_another_group_leaves_the_first(server: Server) -> None:
    client = await server.client("g-1")
    await client.subscribe("$queue/jobs", consumer_group="one")
    await enqueue(server, b"x")
    await client.delivery()
    await client.subscribe("$queue/jobs", consumer_group="two")
    await until(lambda: server.group("jobs", "one").released == 1)
    assert server.group("jobs", "one").members == {}
    assert list(server.group("jobs", "two").members) == ["g-1"]


async def test_deliveries_that_die_by_their_deadline_leave_nothing_behind(
    quick: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "TIDY_MIN", 5)
    await quick.create("jobs", retry__max_retries=0)
    client = await quick.client("g-1")
    await client.subscribe("$queue/jobs", prefetch="4")
    for number in range(4):
        await enqueue(quick, *[b"%d" % n for n in range(4)])
        for _ in range(4):
            client.accept(await client.delivery())
        quick.pass_time(31)
        await until(lambda: quick.group("jobs", "g").dead == {"max_retries": 4 * (number + 1)})  # noqa: B023
    assert quick.node.cell.dispatcher.members.held((JOBS, "g")) <= 8


# --- under the consumer ---------------------------------------------------------------------------------------------


async def test_a_paused_queue_delivers_nothing_and_goes_on_when_resumed(server: Server) -> None:
    client = await consumer(server)
    await server.node.queues.update(JOBS, {"paused": True})
    producer = await server.client("p")
    await producer.publish("$queue/jobs", b"one")
    await client.nothing_more()
    await server.node.queues.update(JOBS, {"paused": False})
    assert (await client.delivery()).payload == b"one"


async def test_a_queue_that_is_deleted_and_comes_back_smaller_is_consumed_on(server: Server) -> None:
    client = await consumer(server)
    await enqueue(server, *[b"%d" % n for n in range(10)])
    lost = [await client.delivery() for _ in range(10)]
    assert await server.node.queues.delete(JOBS) == 10
    for delivery in lost:
        client.accept(delivery)
    assert (await client.settle(lost[0])).reason_code == 0x90
    await server.create("jobs", partitions=1)
    await enqueue(server, b"new")
    delivery = await client.delivery()
    assert delivery.payload == b"new"
    client.accept(delivery)
    await client.settle(delivery)
    server.pass_time(31)
    await enqueue(server, b"newer")
    assert (await client.delivery()).payload == b"newer"


async def test_a_consumer_whose_group_is_deleted_is_told_and_may_begin_anew(server: Server) -> None:
    client = await consumer(server, expiry_s=600)
    await enqueue(server, b"one")
    await client.delivery()
    await server.node.groups.delete(JOBS, "g")
    goodbye = await client.closed()
    assert goodbye is not None
    assert goodbye.reason_code == 0x98
    assert "'g' of queue 'jobs' does not exist" in str(goodbye.properties.reason_string)
    assert server.node.queues.get(JOBS).groups == ()
    back = await server.client("g-1", clean=False, expiry_s=600)
    await back.nothing_more()
    assert server.node.queues.get(JOBS).groups == ()
    await back.subscribe("$queue/jobs")
    assert (await back.delivery()).payload == b"one"  # the first group has all that is stored


# --- the server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graceful", [True, False])
async def test_subscriptions_of_sessions_go_on_after_a_restart(tmp_path: Path, graceful: bool) -> None:
    disk = MemoryDisk()
    before = Server(config_for(tmp_path), MemoryStore(disk))
    await before.start()
    client = await consumer(before, expiry_s=600)
    await client.subscribe("$admin/queue/jobs/stats")
    await client.subscribe("plain")
    await enqueue(before, b"one")
    first = await client.delivery()
    if graceful:
        await before.stop()
    else:
        before.mqtt._bridge = None  # it is gone before it can say or release anything
        before.mqtt._hub = None
        await before.stop()
    after = Server(config_for(tmp_path), MemoryStore(disk))
    await after.start()
    back = await after.client("g-1", clean=False, expiry_s=600)
    assert back.connack.session_present
    again = await back.expect(type(first), lambda one: one.topic == "$queue/jobs")
    assert again.payload == b"one"
    assert user_properties_of(again)["attempt"] == "1"
    assert (await back.settle(again)).reason_code == 0
    stats = await back.expect(type(first), lambda one: one.topic == "$admin/queue/jobs/stats")
    assert stats.payload.startswith(b"{")
    await after.stop()


async def test_a_store_that_fails_cuts_consumers_off_and_leaves_none_behind(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path / "store")
    server = Server(config_for(tmp_path), store)
    await server.start()
    client = await consumer(server)
    await server.client("idle")
    server.node.cell.commit.fail(StoreUnavailable(problem="a test"))
    await client.closed()
    assert server.node.cell.dispatcher.members.all_members() == []
    await until(lambda: server.node.cell._refusal is None)
    other = await consumer(server, "g-2")
    await enqueue(server, b"one")
    assert (await other.take()).payload == b"one"
    await server.stop()
    store.close()


async def test_what_is_in_a_read_when_the_store_fails_is_not_answered(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path / "store")
    server = Server(config_for(tmp_path), store)
    await server.start()
    client = await server.client("g-1")
    await client.subscribe("$queue/jobs", ack_mode="puback")
    await enqueue(server, b"one")
    delivery = await client.delivery()
    bridge, hub = server.mqtt._bridge, server.mqtt._hub
    assert bridge is not None
    assert hub is not None
    [connection] = hub.connections
    session = connection.session
    assert session is not None
    server.node.cell.commit.fail(StoreUnavailable(problem="a test"))
    bridge.publish(connection, [], 0)
    bridge.acknowledged([])
    bridge.ended(session, 0)
    assert delivery.packet_id in session.leases
    await client.closed()
    await server.stop()
    store.close()


async def test_a_publish_in_whose_turn_the_store_fails_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("memory", tmp_path / "store")
    server = Server(config_for(tmp_path), store)
    await server.start()
    client = await server.client("g-1")

    def fail(*_: object) -> None:
        raise StoreUnavailable(problem="a test")

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "enqueue", fail)
        client.send(Publish("$queue/jobs", b"one", 1, 7))
        await client.closed()
    assert not any(isinstance(packet, PubAck) for packet in client.seen)
    await until(lambda: server.node.cell._refusal is None)
    await server.stop()
    store.close()
