"""Whose a session is: everybody has client identifiers of their own."""

from __future__ import annotations

import pytest

from holdfast.core.records import Table
from holdfast.mqtt.codec import V5, V311, Connect, Properties, Publish, PubRec
from holdfast.mqtt.sessions import records
from tests.mqtt.sessions.rig import Client, Rig

ALICE = "user:alice"


def test_nobody_gets_the_session_of_another_or_is_kept_from_its_own() -> None:
    rig = Rig()
    held = rig.connect("c", V311, clean=False, owner="user:mallory")  # which never expires
    mine = rig.connect("c", V311, clean=False, owner=ALICE)
    mine.subscribe("t", qos=1)
    for other in ("token:alice", "certificate:alice", "user:bob"):
        for clean in (True, False):
            assert not rig.connect("c", clean=clean, owner=other).connack.session_present
    assert not held.closed
    assert not mine.closed
    rig.restart()
    assert not rig.connect("c", clean=False, owner="token:alice").connack.session_present
    assert rig.connect("c", clean=False, expiry=10, owner=ALICE).connack.session_present
    assert set(rig.session("c", ALICE).subscriptions) == {"t"}
    assert not rig.session("c", "user:mallory").subscriptions


def test_a_session_is_taken_over_by_its_owner() -> None:
    rig = Rig()
    first = rig.connect("c", V311, clean=False, owner=ALICE)
    assert rig.connect("c", clean=False, owner=ALICE).connack.session_present
    assert first.closed


def fill(rig: Rig, client: Client) -> None:
    """Give a session something of everything that is stored: subscribed, queued, in flight, released, incoming."""
    client.subscribe("t", qos=2)
    publisher = rig.connect("p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 2, 10 + number)
    client.send(PubRec(client.publishes()[0].packet_id))
    client.send(Publish("elsewhere", b"", 2, 77))
    client.drop()
    publisher.publish("t", b"queued", 1, 20)
    publisher.drop()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_session_from_before_there_were_users_goes_to_the_first_who_comes(restarted: bool) -> None:
    rig = Rig()
    fill(rig, rig.connect("c", expiry=100))
    if restarted:
        rig.restart()
    before = rig.records()
    client = rig.client(owner=ALICE)
    client.connection.paused = True  # so that nothing of the queue is sent
    client.send(Connect("c", V5, False, properties=Properties(session_expiry_s=100)))
    client.drop()
    assert rig.records() == before
    rig.restart()
    assert set(rig.hub.namespaces["ns"].sessions) == {(ALICE, "c")}
    adopted = rig.session("c", ALICE)
    assert set(adopted.subscriptions) == {"t"}
    assert adopted.incoming == {77}
    in_flight = [entry.message and entry.message.payload for entry in adopted.inflight.values()]
    assert in_flight == [b"1", b"2", None]
    assert [entry.message and entry.message.payload for entry in adopted.queue] == [b"queued"]
    assert not rig.connect("c", clean=False, owner="user:bob").connack.session_present
    assert rig.connect("c", clean=False, owner=ALICE).connack.session_present


def test_a_session_that_an_older_version_stored_goes_to_who_has_the_name_of_its_owner() -> None:
    rig = Rig()
    stored = records.SessionRecord(V5, 100, rig.now, owner="alice")
    rig.store.write(rig.epoch, [(Table.MQTT_SESSIONS, b"ns\0c", records.write(stored))])
    rig.restart()
    assert not rig.connect("c", clean=False, expiry=10, owner="user:bob").connack.session_present
    rig.restart()
    assert rig.connect("c", clean=False, expiry=10, owner="token:alice").connack.session_present
    assert not rig.connect("c", clean=False, expiry=10, owner=ALICE).connack.session_present


def test_a_session_of_a_user_is_not_everybodys_when_there_are_no_users_any_more() -> None:
    rig = Rig()
    rig.connect("c", V311, clean=False, owner=ALICE)
    for client_id in ("c", "user:alice/c"):
        assert not rig.connect(client_id, clean=False).connack.session_present
    assert rig.connect("c", clean=False, owner=ALICE).connack.session_present
