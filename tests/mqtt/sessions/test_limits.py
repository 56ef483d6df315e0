"""What bounds a client: sessions, rates, what is in flight, and how retained messages are shown little by little."""

from __future__ import annotations

from collections import deque

import pytest

from holdfast.mqtt.codec import V311, Packet, PubAck, PubComp, Publish, PubRec, SubAck, reasons
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.ports import AllowAll
from holdfast.mqtt.sessions.settings import HubLimits
from tests.mqtt.sessions.rig import Rig


class Slow(AllowAll):
    """Lets through so many messages."""

    limited = True

    def __init__(self, left: int) -> None:
        self.left = left

    def admit(self, connection: Connection, size_bytes: int) -> str:
        self.left -= 1
        return "" if self.left >= 0 else "too fast"


def test_without_a_rate_everything_passes() -> None:
    rig = Rig()
    assert AllowAll().admit(rig.connect("c").connection, 1) == ""


def test_who_is_too_fast_is_told_or_closed_or_dropped() -> None:
    rig = Rig(access=Slow(2))
    client, old = rig.connect("c"), rig.connect("o", V311)
    assert client.publish("t", qos=1) == [PubAck(7, 0x10)]
    assert client.publish("t", qos=0) == []
    [refused] = client.publish("t", qos=2)
    assert isinstance(refused, PubRec)
    assert (refused.reason_code, refused.properties.reason_string) == (0x97, "too fast")
    client.publish("t", qos=0)
    assert rig.hub.dropped["rate"] == 1
    assert old.publish("t", qos=1) == []
    assert old.closed


def test_answers_use_the_codes_that_puback_has() -> None:
    allowed = {code: reasons.as_puback(code) for code in range(256) if code in reasons.DISCONNECT_FROM_SERVER}
    assert set(allowed.values()) <= reasons.PUBACK
    assert (allowed[0x95], allowed[0x96], allowed[0x89], allowed[0x8F], allowed[0x8B], allowed[0x87]) == (
        0x97, 0x97, 0x97, 0x90, 0x83, 0x87,
    )  # fmt: skip


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_broker_of_lower_qos_takes_every_subscription(qos: int) -> None:
    rig = Rig(HubLimits(qos_max=0))  # [MQTT-3.2.2-9] [MQTT-3.2.2-10]
    client = rig.connect("c")
    assert client.connack.properties.maximum_qos == 0
    assert client.subscribe("t", qos=qos) == [SubAck(9, (0,))]


# --- sessions -------------------------------------------------------------------------------------------------------


def test_only_so_many_sessions() -> None:
    rig = Rig(HubLimits(sessions_max=2))
    rig.connect("a", expiry=10).drop()
    rig.connect("b", expiry=10)
    assert rig.connect("c").connack.reason_code == 0x97
    assert rig.connect("a", clean=False).connack.session_present
    rig.connect("b", clean=True)


def of_quota(limited: str, limit: int) -> HubLimits:
    """The limits of a hub whose namespaces may have so many of one thing."""
    return HubLimits(quota=lambda _, name, used: f"too many {name}" if name == limited and used >= limit else "")


def test_a_namespace_has_only_so_many_sessions() -> None:
    rig = Rig(of_quota("sessions", 1))
    rig.connect("a", expiry=10).drop()
    refused = rig.connect("b").connack
    assert (refused.reason_code, refused.properties.reason_string) == (0x97, "too many sessions")
    assert rig.connect("a", clean=False).connack.session_present


def test_a_namespace_has_only_so_many_subscriptions() -> None:
    rig = Rig(of_quota("subscriptions", 2))
    first, second = rig.connect("a"), rig.connect("b")
    assert first.subscribe("t") == [SubAck(9, (0,))]
    assert second.subscribe("t") == [SubAck(9, (0,))]
    assert second.subscribe("u") == [SubAck(9, (0x97,))]
    assert second.subscribe("t") == [SubAck(9, (0,))]  # it has that one
    first.drop()
    assert second.subscribe("u") == [SubAck(9, (0,))]


@pytest.mark.parametrize(("quota", "limit"), [("retained_messages", 1), ("retained_bytes", 10)])
def test_a_namespace_has_only_so_much_retained(quota: str, limit: int) -> None:
    rig = Rig(of_quota(quota, limit))
    client = rig.connect("c")
    client.publish("a", b"1", 1, retain=True)
    client.publish("b", b"123456789", 1, retain=True)
    found = rig.hub.namespaces[rig.session("c").namespace].retained
    assert (found.get("a") is not None, found.get("b")) == (True, None)


def test_who_takes_over_its_own_session_needs_no_room() -> None:
    rig = Rig(HubLimits(connections_max=1))
    old = rig.connect("c", expiry=10)
    assert rig.connect("c", clean=False, expiry=10).connack.session_present
    assert old.closed
    assert rig.connect("other").connack.reason_code == 0x89


# --- in flight ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_bytes_are_in_flight_than_may_be_queued(qos: int) -> None:
    rig = Rig(HubLimits(queued_bytes_max=100))
    client = rig.connect("c", expiry=10)
    client.subscribe("t", qos=2)
    publisher = rig.connect("p")
    for number in range(8):
        publisher.publish("t", b"%d" % number + b"x" * 29, qos, 10 + number)
    session = rig.session("c")
    seen = client.publishes()
    assert [one.payload[:1] for one in seen] == [b"0", b"1", b"2", b"3"]
    assert (session.inflight_bytes, len(session.queue), rig.hub.dropped["full"]) == (124, 3, 1)
    rig.restart()
    session = rig.session("c")
    assert session.inflight_bytes == 124
    client = rig.connect("c", clean=False, expiry=10)
    got = client.publishes()
    assert [one.payload[:1] for one in got] == [b"0", b"1", b"2", b"3"]
    seen = []
    while got:
        answers: list[Packet] = [PubAck(one.packet_id) if qos == 1 else PubRec(one.packet_id) for one in got]
        came = client.send(*answers)
        if qos == 2:
            came += client.send(*(PubComp(one.packet_id) for one in got))
        got = [one for one in came if isinstance(one, Publish)]
        seen += got
    assert [one.payload[:1] for one in seen] == [b"4", b"5", b"6"]
    session = rig.session("c")
    assert (session.inflight_bytes, session.queued_bytes, rig.hub.dropped["full"]) == (0, 0, 0)


# --- showing what is retained ---------------------------------------------------------------------------------------


def retained(rig: Rig, count: int, size: int = 1, qos: int = 0) -> None:
    publisher = rig.connect("p")
    for number in range(count):
        publisher.publish(f"t/{number:04}", b"x" * size, qos, retain=True)


def test_much_is_delivered_in_several_slices() -> None:
    rig = Rig()
    retained(rig, 20, 50_000)
    client = rig.connect("c")
    client.seen = client.subscribe("t/#")
    first = len(client.publishes())
    assert 0 < first < 20
    rig.pass_time(0.001)
    assert first + len(client.publishes()) == 20


def test_what_changed_meanwhile_is_shown_as_it_is() -> None:
    rig = Rig()
    retained(rig, 20, 50_000)
    client = rig.connect("c")
    client.seen = client.subscribe("t/#")
    shown = {one.topic for one in client.publishes()}
    later = sorted({f"t/{number:04}" for number in range(20)} - shown)
    publisher = rig.connect("p")
    publisher.publish(later[0], b"", retain=True)
    publisher.publish(later[1], b"new", retain=True)
    client.take()
    rig.pass_time(0.001)
    rest = {one.topic: one.payload for one in client.publishes()}
    assert sorted(rest) == later[1:]
    assert rest[later[1]] == b"new"


def test_nothing_more_is_shown_to_a_subscription_that_is_gone_or_a_client_that_has_left() -> None:
    rig = Rig()
    retained(rig, 20, 50_000)
    client = rig.connect("c")
    client.subscribe("t/#", "other")
    client.seen = client.subscribe("t/#", handling=2)
    client.take()
    rig.pass_time(0.001)
    assert client.publishes() == []
    client.subscribe("t/+")
    client.drop()
    rig.pass_time(0.001)
    assert not client.connection.showing


def test_a_paused_client_is_shown_the_rest_when_it_reads_again() -> None:
    rig = Rig()
    retained(rig, 3)
    client = rig.connect("c")
    rig.hub.pause(client.connection)
    client.subscribe("t/#")
    rig.settle()
    assert client.publishes() == []
    rig.hub.resume(client.connection, rig.now)
    rig.settle()
    assert len(client.publishes()) == 3


def test_a_paused_client_is_not_silent_until_it_is_read_again() -> None:
    rig = Rig()
    client = rig.connect("c", keep_alive=10)
    rig.hub.pause(client.connection)
    rig.pass_time(60)
    assert not client.closed  # what it may have said was not heard
    rig.hub.resume(client.connection, rig.now)
    rig.pass_time(60)
    assert client.closed


def test_more_than_a_session_can_queue_is_shown_as_its_client_acknowledges() -> None:
    rig = Rig(HubLimits(inflight_max=2, queued_messages_max=3))
    retained(rig, 10, qos=1)
    client = rig.connect("c")
    client.seen = client.subscribe("t/#", qos=1)
    seen: list[str] = []
    while got := client.publishes():
        seen += [one.topic for one in got]
        client.seen = client.send(*(PubAck(one.packet_id) for one in got))
    assert sorted(seen) == [f"t/{number:04}" for number in range(10)]
    assert rig.hub.dropped["full"] == 0


def test_expired_messages_are_not_shown_and_size_is_limited() -> None:
    rig = Rig(HubLimits(retained_bytes_max=10))
    publisher = rig.connect("p")
    assert publisher.publish("a", b"x" * 9, 1, retain=True) == [PubAck(7, 0x10)]
    [refused] = publisher.publish("b", b"x", 1, retain=True)
    assert isinstance(refused, PubAck)
    assert refused.reason_code == 0x97
    publisher.publish("a", b"", 1, retain=True)
    assert publisher.publish("b", b"x" * 9, 1, retain=True) == [PubAck(7, 0x10)]
    rig.restart()
    assert rig.hub.namespaces["ns"].retained_bytes == 10


def test_what_is_remembered_of_topics_is_bounded_by_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mqtt.sessions.namespaces.SUBSCRIBERS_CACHED_MAX", 10)
    rig = Rig()
    clients = [rig.connect(f"c{number}") for number in range(4)]
    for client in clients:
        client.subscribe("#")
    publisher = rig.connect("p")
    for topic in ("a", "b", "c", "d", "x" * 300):
        publisher.publish(topic)
    ns = rig.hub.namespaces["ns"]
    assert sum(len(plan.matched) for plan in ns._plans.values()) <= 10
    assert "x" * 300 not in ns._plans
    assert [len(client.publishes()) for client in clients] == [5, 5, 5, 5]


def test_a_session_that_is_over_holds_no_messages() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=10)
    client.subscribe("t", qos=1)
    session = rig.session("c")
    publisher = rig.connect("p")
    publisher.publish("t", b"in flight", 1)
    client.drop()
    publisher.publish("t", b"queued", 1)
    assert session.inflight
    assert session.queue
    rig.pass_time(11)
    assert (session.inflight, session.queue, session.queued_bytes) == ({}, deque(), 0)


def test_what_is_not_there_need_not_be_removed() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=10)
    assert client.publish("never retained", b"", 1, retain=True) == [PubAck(7, 0x10)]
    session = rig.session("c")
    assert not rig.hub.namespaces["ns"].unsubscribe(session, "never subscribed")


def test_qos_0_is_not_kept_for_who_is_away_beside_others_who_are_there() -> None:
    rig = Rig()
    for name in ("a", "b", "c"):
        rig.connect(name, expiry=10).subscribe("t", qos=1)
    away = rig.session("a")
    assert away.connection is not None
    rig.hub.lost(away.connection, rig.now)
    rig.settle()
    rig.connect("p").publish("t", b"x")
    assert not away.queue


# --- how much is encoded at a time ----------------------------------------------------------------------------------


def test_subscribers_of_the_same_messages_share_their_bytes() -> None:
    rig = Rig()
    same = [rig.connect(f"c{number}") for number in range(3)]
    other = rig.connect("other")
    for client in (*same, other):
        client.subscribe("t")
    other.subscribe("u")
    publisher = rig.connect("p")
    publisher.send(Publish("u", b"more"), *[Publish("t", b"%d" % number) for number in range(5)], settle=False)
    assert publisher.connection.publishes
    turn = rig.turn()
    outputs = {output.connection: output.data for output in turn.now}
    assert len({id(outputs[client.connection]) for client in same}) == 1
    assert outputs[other.connection] != outputs[same[0].connection]
    assert [packet.payload for packet in same[0].publishes()] == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("present", [True, False])
def test_what_waits_is_encoded_as_far_as_a_connection_may_buffer(present: bool) -> None:
    rig = Rig(HubLimits(buffer_bytes=1_000))
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = rig.connect("p")
    for number in range(10):
        publisher.publish("t", b"%d" % number * 400, qos=1)
    back = rig.connect("c", expiry=100, clean=False)
    first = back.publishes()
    assert len(first) == 3  # and it acknowledges nothing
    if not present:
        back.drop()
        rig.settle()
        assert not rig.hub.outbox.unfinished
        return
    numbers = [packet.payload[:1] for packet in first]
    while rig.hub.outbox.unfinished or not rig.hub.outbox.empty:
        rig.settle()
        numbers += [packet.payload[:1] for packet in back.publishes()]
    assert numbers == [b"%d" % number for number in range(10)]
    back.drop()
    again = rig.connect("c", expiry=100, clean=False)
    assert [packet.dup for packet in again.publishes()] == [True] * 3


def test_output_is_counted_until_it_is_taken() -> None:
    rig = Rig()
    client = rig.connect("c")
    client.subscribe("t")
    assert rig.hub.outbox.unsent_bytes == 0
    rig.connect("p").send(Publish("t", b"x" * 1_000), settle=False)
    assert rig.hub.outbox.unsent_bytes > 1_000
    assert [output.connection for output in rig.hub.outbox.take_ready()] == [client.connection]
    assert rig.hub.outbox.unsent_bytes == 0
