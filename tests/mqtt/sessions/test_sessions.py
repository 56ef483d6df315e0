"""Sessions and connections by clause: CONNECT, takeover, expiry, keep alive, wills, and the end of each."""

from __future__ import annotations

import pytest

from holdfast.mqtt.codec import (
    V5,
    V311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    Will,
)
from holdfast.mqtt.sessions.ports import AllowAll, PublishBatch
from holdfast.mqtt.sessions.settings import NEVER, HubLimits
from tests.mqtt.sessions.rig import Rig

BOTH = pytest.mark.parametrize("version", [V311, V5])


@BOTH
def test_a_new_client_is_welcome_and_has_no_session(version: int) -> None:
    client = Rig().connect(version=version)
    assert (client.connack.session_present, client.connack.reason_code) == (False, 0)  # [MQTT-3.2.2-2]
    assert client.send(PingReq()) == [PingResp()]  # [MQTT-3.12.4-1]


def test_connack_says_our_terms_and_where_they_differ_from_the_request() -> None:
    settings = HubLimits(
        keep_alive_max_s=60, session_expiry_max_s=100, qos_max=1, retain_available=False, shared_available=False
    )
    asked = Properties(session_expiry_s=NEVER, request_response_information=1)
    client = Rig(settings).connect("", keep_alive=0, properties=asked)
    assert client.connack.properties == Properties(
        session_expiry_s=100,
        receive_maximum=1000,
        maximum_qos=1,
        retain_available=0,
        maximum_packet_bytes=settings.packet_bytes_max,
        assigned_client_id="assigned-1",  # [MQTT-3.2.2-16]
        topic_alias_maximum=32,
        shared_available=0,
        server_keep_alive_s=60,  # [MQTT-3.1.2-21]
        response_information="response/assigned-1",
    )


def test_keep_alive_is_left_to_clients_that_keep_within_the_limit() -> None:
    rig = Rig(HubLimits(keep_alive_max_s=60))
    assert rig.connect(keep_alive=60).connack.properties.server_keep_alive_s is None
    assert rig.connect(keep_alive=61).connack.properties.server_keep_alive_s == 60
    assert Rig(HubLimits(keep_alive_max_s=0)).connect().connack.properties.server_keep_alive_s is None


@BOTH
def test_a_connection_silent_for_one_and_a_half_keep_alives_is_closed(version: int) -> None:
    rig = Rig()  # [MQTT-3.1.2-22]
    client = rig.connect(version=version, keep_alive=10)
    rig.pass_time(10)
    client.send(PingReq())
    rig.pass_time(14.9)
    assert Disconnect not in map(type, client.take())
    assert rig.hub.connections == {client.connection: None}
    rig.pass_time(0.2)
    assert client.closed
    codes = [packet.reason_code for packet in client.take() if isinstance(packet, Disconnect)]
    assert codes == ([0x8D] if version == V5 else [])


def test_without_keep_alive_a_311_client_may_be_silent_for_ever() -> None:
    rig = Rig()
    client = rig.connect(version=V311)
    rig.pass_time(1_000_000)
    assert not client.closed


def test_a_connection_without_connect_is_closed_in_time() -> None:
    rig = Rig()
    client = rig.client()
    rig.pass_time(9)
    assert rig.hub.connections == {client.connection: None}
    rig.pass_time(2)
    assert client.closed
    assert rig.hub.connections == {}


class NoWills(AllowAll):
    def may_publish(self, connection: object, topic: str) -> int:
        return 0x87 if topic == "secret" else 0


@pytest.mark.parametrize(
    ("connect", "code"),
    [
        (Connect("x" * 2000), 0x85),
        (Connect("c", properties=Properties(authentication_method="SCRAM")), 0x8C),  # [MQTT-4.12.0-1]
        (Connect("c", will=Will("a", b"", qos=2)), 0x9B),
        (Connect("c", will=Will("a", b"", retain=True)), 0x9A),  # [MQTT-3.2.2-13]
        (Connect("c", will=Will("/" * 300, b"")), 0x90),
        (Connect("c", will=Will("secret", b"")), 0x87),
    ],
)
def test_a_refused_connect_is_told_why_and_closed(connect: Connect, code: int) -> None:
    rig = Rig(HubLimits(qos_max=1, retain_available=False), NoWills())
    client = rig.client()
    [answer] = client.send(connect)
    assert isinstance(answer, ConnAck)
    assert (answer.reason_code, answer.session_present, client.closed) == (code, False, True)  # [MQTT-3.2.2-7]
    assert answer.properties.reason_string
    assert rig.hub.connections == {}


def test_a_311_client_is_refused_with_a_return_code_or_in_silence() -> None:
    rig = Rig(HubLimits(qos_max=1))
    client = rig.client(V311)
    assert client.send(Connect("x" * 2000, V311)) == [ConnAck(False, 2)]
    silent = rig.client(V311)
    assert silent.send(Connect("c", V311, will=Will("a", b"", qos=2))) == []
    assert client.closed
    assert silent.closed


def test_too_many_connections_are_turned_away() -> None:
    rig = Rig(HubLimits(connections_max=1))
    rig.connect("a")
    assert rig.client(V311).send(Connect("b", V311)) == [ConnAck(False, 3)]


def test_the_shell_can_refuse_and_close() -> None:
    rig = Rig()
    client = rig.client(V311)
    rig.hub.refuse(client.connection, V311, 0x86, "wrong password")
    rig.settle()
    assert client.take() == [ConnAck(False, 4)]
    other = rig.connect("b")
    rig.hub.close(other.connection, 0x8B, "shutting down", rig.now)
    rig.hub.close(other.connection, 0x8B, "shutting down", rig.now)
    rig.settle()
    assert other.take() == [Disconnect(0x8B, Properties(reason_string="shutting down"))]


def test_violations_are_answered_and_close_the_connection() -> None:
    rig = Rig()
    client = rig.connect()
    raw = b"\xc0\x00" + b"\x00\x00"
    first, second = client.send_raw(raw)  # what came before is still handled
    assert first == PingResp()
    assert isinstance(second, Disconnect)
    assert (second.reason_code, client.closed) == (0x81, True)  # [MQTT-4.13.1-1]
    assert client.send_raw(b"\xc0\x00") == []
    old = rig.connect(version=V311)
    assert old.send_raw(b"\x00\x00") == []
    assert old.closed
    stranger = rig.client()
    [answer] = stranger.send_raw(b"\x10\x07\x00\x04MQTT\x09")
    assert isinstance(answer, ConnAck)
    assert answer.reason_code == 0x84  # [MQTT-3.1.2-2]
    nameless = rig.client()
    assert nameless.send_raw(b"\xc0\x00") != []
    assert nameless.closed


def test_auth_that_nobody_asked_for_is_a_protocol_error() -> None:
    client = Rig().connect()
    [answer] = client.send(Auth(0x19, Properties(authentication_method="m")))
    assert isinstance(answer, Disconnect)
    assert answer.reason_code == 0x82


def test_a_client_that_takes_no_connack_is_closed() -> None:
    rig = Rig()
    client = rig.client()
    assert client.send(Connect("c", properties=Properties(maximum_packet_bytes=3))) == []
    assert client.closed  # [MQTT-3.1.2-24]


# --- sessions -------------------------------------------------------------------------------------------------------


@BOTH
def test_a_session_is_kept_and_taken_up_again(version: int) -> None:
    rig = Rig()
    client = rig.connect("c", version, clean=False, expiry=100)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = rig.connect("p")
    assert publisher.publish("t", b"kept", 1) == [PubAck(7)]
    again = rig.connect("c", version, clean=False, expiry=100)
    assert again.connack.session_present  # [MQTT-3.2.2-3]
    assert [packet.payload for packet in again.publishes()] == [b"kept"]


@BOTH
def test_a_clean_start_discards_the_session(version: int) -> None:
    rig = Rig()
    rig.connect("c", version, clean=False, expiry=100).subscribe("t", qos=1)
    fresh = rig.connect("c", version, clean=True)
    assert not fresh.connack.session_present  # [MQTT-3.1.2-4]
    assert rig.connect("p").publish("t", b"x", 1) == [PubAck(7, 0x10)]
    assert rig.records() == {}


def test_a_session_expires_when_its_time_is_over() -> None:
    rig = Rig()
    rig.connect("c", expiry=100).drop()
    rig.pass_time(99)
    assert set(rig.hub.namespaces["ns"].sessions) == {("", "c")}  # [MQTT-3.1.2-23]
    rig.pass_time(2)
    assert rig.hub.namespaces["ns"].sessions == {}
    assert rig.records() == {}


def test_a_session_that_never_expires_stays() -> None:
    rig = Rig()
    rig.connect("c", expiry=NEVER).drop()
    rig.pass_time(10_000_000)
    assert rig.connect("c", clean=False).connack.session_present


def test_a_transient_session_ends_with_its_connection_even_when_taken_over() -> None:
    rig = Rig()
    old = rig.connect("c")
    old.subscribe("t")
    new = rig.connect("c", clean=False)
    assert not new.connack.session_present
    assert [packet.reason_code for packet in old.take() if isinstance(packet, Disconnect)] == [0x8E]
    assert old.closed  # [MQTT-3.1.4-3]
    assert rig.records() == {}


def test_disconnect_changes_the_expiry() -> None:
    rig = Rig()
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=1)
    client.send(Disconnect(0, Properties(session_expiry_s=10)))
    assert client.closed
    rig.pass_time(11)
    assert rig.records() == {}
    client = rig.connect("c", expiry=100)
    client.subscribe("t", qos=2)
    client.publish("t", b"x", 2)
    client.send(Disconnect(0, Properties(session_expiry_s=0)))
    assert rig.records() == {}
    assert rig.hub.namespaces["ns"].sessions == {}


def test_a_session_that_ends_cannot_be_prolonged_by_disconnect() -> None:
    client = Rig().connect("c")
    [answer] = client.send(Disconnect(0, Properties(session_expiry_s=10)))
    assert isinstance(answer, Disconnect)
    assert answer.reason_code == 0x82


def test_a_session_taken_up_without_expiry_is_stored_no_more() -> None:
    rig = Rig()
    rig.connect("c", expiry=100).subscribe("t", qos=1)
    client = rig.connect("c", clean=False)
    assert client.connack.session_present
    assert rig.records() == {}
    assert rig.connect("p").publish("t", b"x", 1) == [PubAck(7)]
    assert [packet.payload for packet in client.publishes()] == [b"x"]
    client.drop()
    assert set(rig.hub.namespaces["ns"].sessions) == {("", "p")}


# --- wills ----------------------------------------------------------------------------------------------------------


def test_a_will_is_published_when_a_connection_breaks_and_not_after_a_goodbye() -> None:
    rig = Rig()  # [MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.14.4-3]
    watcher = rig.connect("w")
    watcher.subscribe("will")
    will = Will("will", b"gone", properties=Properties(content_type="text/plain"))
    for version in (V311, V5):
        rig.connect("c", version, will=will).drop()
        [seen] = watcher.publishes()
        assert (seen.payload, seen.properties.will_delay_s) == (b"gone", None)
        rig.connect("c", version, will=will).send(Disconnect())
        assert watcher.publishes() == []
    rig.connect("c", will=will).send(Disconnect(0x04))
    assert len(watcher.publishes()) == 1
    rig.connect("c", will=will).send_raw(b"\x00\x00")
    assert len(watcher.publishes()) == 1


def delayed(seconds: int, *, retain: bool = False) -> Will:
    return Will("will", b"gone", 1, retain, Properties(will_delay_s=seconds, message_expiry_s=30))


def test_a_delayed_will_waits_and_is_not_published_if_the_client_is_back() -> None:
    rig = Rig()
    watcher = rig.connect("w")
    watcher.subscribe("will")
    rig.connect("c", expiry=100, will=delayed(10)).drop()
    rig.pass_time(9)
    rig.connect("c", clean=False, expiry=100, will=delayed(10)).drop()  # [MQTT-3.1.3-9]
    rig.pass_time(9)
    assert watcher.publishes() == []
    rig.pass_time(2)
    assert [packet.properties.message_expiry_s for packet in watcher.publishes()] == [30]
    rig.pass_time(200)
    assert watcher.publishes() == []
    assert rig.records() == {}


def test_a_delayed_will_is_published_when_the_session_ends() -> None:
    rig = Rig()
    watcher = rig.connect("w")
    watcher.subscribe("will")
    rig.connect("c", expiry=5, will=delayed(10)).drop()
    rig.pass_time(5)
    assert len(watcher.publishes()) == 1
    rig.connect("c", expiry=50, will=delayed(10)).drop()
    rig.connect("c", clean=True)
    assert len(watcher.publishes()) == 1
    rig.connect("c", will=delayed(10)).drop()
    assert len(watcher.publishes()) == 1


def test_a_takeover_publishes_the_will_unless_it_is_delayed() -> None:
    rig = Rig()
    watcher = rig.connect("w")
    watcher.subscribe("will")
    rig.connect("c", expiry=50, will=delayed(0))
    rig.connect("c", clean=False, expiry=50, will=delayed(10))
    assert len(watcher.publishes()) == 1
    rig.connect("c", clean=False, expiry=50)
    rig.pass_time(100)
    assert watcher.publishes() == []


def test_wills_survive_a_crash() -> None:
    rig = Rig()
    rig.connect("now", expiry=50, will=delayed(0, retain=True))
    rig.crash()
    watcher = rig.connect("w")
    _, retained = watcher.subscribe("will")
    assert isinstance(retained, Publish)
    assert retained.payload == b"gone"
    rig.connect("later", expiry=50, will=delayed(10)).drop()
    rig.restart()
    watcher = rig.connect("w")
    watcher.subscribe("will", handling=2)
    rig.pass_time(11)
    assert len(watcher.publishes()) == 1
    rig.pass_time(100)
    assert rig.records() == {}


def test_what_the_shell_says_late_changes_nothing() -> None:
    rig = Rig()
    client = rig.connect("c")
    client.send(Disconnect())
    rig.hub.lost(client.connection, rig.now)
    rig.hub.receive(client.connection, [PingReq()], rig.now)
    rig.hub.resume(client.connection, rig.now)
    rig.hub.reject_publishes(client.connection, PublishBatch([Publish("t", b"", 1, 1)], 0), rig.now)
    assert rig.settle().now == []
    stranger = rig.client()
    stranger.drop()
    assert rig.hub.connections == {}


def test_deadlines_that_are_moved_often_do_not_pile_up() -> None:
    rig = Rig()
    for _ in range(300):
        rig.connect("c", clean=False, expiry=1000).drop()
    assert len(rig.hub._timers._heap) < 100


def test_suback_that_does_not_fit_closes() -> None:
    rig = Rig()
    client = rig.connect(properties=Properties(maximum_packet_bytes=40))
    answer = client.subscribe(*(f"{number}" for number in range(60)))
    assert [type(packet) for packet in answer] == [Disconnect]
