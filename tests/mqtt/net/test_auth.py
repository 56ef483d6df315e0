"""Who may come in over MQTT, and what they may do then: passwords, tokens, scopes, rates, and the end of a right."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.auth import keys
from holdfast.auth.users import User
from holdfast.config import Config
from holdfast.config.audit_settings import AuditSettings
from holdfast.config.settings import RateSettings
from holdfast.mqtt.codec import V5, V311, Connect, Properties, PubAck, Publish, PubRec, Will
from holdfast.mqtt.net import front
from holdfast.units import SECOND
from tests.auth import rig
from tests.auth.conftest import Clock
from tests.mqtt.net.broker import Broker, config_for, memory_broker
from tests.mqtt.net.clauses import covers
from tests.mqtt.net.conftest import Run

BOTH = pytest.mark.parametrize("version", [V311, V5])
PASSWORD = b"correct horse"
KEY = keys.generate("HS256")
SHOP = ("produce:orders/#", "consume:bills/+", "consume:orders/new")


def config(tmp_path: Path, *users: User, **auth: object) -> Config:
    files: dict[str, object] = {"users_file": rig.write_users(tmp_path / "users.json", *users)} if users else {}
    return replace(config_for(tmp_path), auth=rig.settings(**files, **auth), audit=AuditSettings(enabled=False))


@pytest.fixture
async def broker(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """With the users `shop` and `other` of one namespace, `stranger` of another, and a key for tokens."""
    monkeypatch.setattr(front, "CHECK_SECONDS", 0.01)
    users = [
        rig.user("shop", PASSWORD.decode(), *SHOP),
        rig.user("other", PASSWORD.decode(), "consume:#", "produce:#"),
        rig.user("stranger", PASSWORD.decode(), "consume:#", "produce:#", namespace="elsewhere"),
    ]
    key_file = rig.write_keys(tmp_path / "keys.json", KEY.private())
    return await run(memory_broker(config(tmp_path, *users, key_file=key_file)))


def token(broker: Broker, seconds: int = 600, **claims: object) -> bytes:
    clock = Clock(broker.clock())
    about = {"sub": "shop", "ns": "default", "scope": " ".join(SHOP), "exp": clock() // SECOND + seconds, **claims}
    return rig.token(clock, KEY, **about).encode()


async def refused(broker: Broker, packet: Connect) -> int:
    client = await broker.open(packet.version)
    answer = await client.connect(packet)
    assert answer.reason_code
    assert await client.ended() == []
    return answer.reason_code


# --- who ------------------------------------------------------------------------------------------------------------


@BOTH
@covers("3.1.4-2 3.2.2-7", v311="3.2.2-5")
async def test_only_the_right_password_lets_in(broker: Broker, version: int) -> None:
    await broker.connect("c", version, username="shop", password=PASSWORD)
    wrong = 0x86 if version == V5 else 4
    for username, password in (("shop", b"wrong"), ("nobody", PASSWORD), ("shop", None), (None, None)):
        assert await refused(broker, Connect("d", version, username=username, password=password)) == wrong
    assert set(broker.sessions()) == {"c"}


@BOTH
async def test_a_token_is_a_password(broker: Broker, version: int) -> None:
    await broker.connect("c", version, username="whatever", password=token(broker))
    wrong = 0x86 if version == V5 else 4
    stale = token(broker, -60)
    forged = rig.token(Clock(broker.clock()), keys.generate("HS256"), ns="default").encode()
    for password in (stale, forged, token(broker)[:-3], b"\xff\xfe"):
        assert await refused(broker, Connect("d", version, username="x", password=password)) == wrong


async def test_a_v5_client_may_send_a_token_without_a_user_name(broker: Broker) -> None:
    await broker.connect("c", password=token(broker))
    assert await refused(broker, Connect("d", password=b"no token")) == 0x86


@BOTH
async def test_who_guesses_too_often_is_slowed_down(broker: Broker, version: int) -> None:
    codes = [
        await refused(broker, Connect("c", version, username="shop", password=b"guess %d" % number))
        for number in range(11)
    ]
    assert codes == [0x86] * 10 + [0x9F] if version == V5 else [4] * 10 + [3]


# --- what -----------------------------------------------------------------------------------------------------------


@BOTH
@covers("3.3.4-1", v311="3.3.5-2 3.8.4-5")
async def test_scopes_say_what_may_be_published_and_subscribed(broker: Broker, version: int) -> None:
    witness = await broker.connect("w", username="other", password=PASSWORD)
    await witness.subscribe("#")
    shop = await broker.connect("c", version, username="shop", password=PASSWORD)
    no = 0x87 if version == V5 else 0x80
    filters = ("orders/new", "orders/#", "bills/+", "bills/#", "#", "$share/g/bills/1", "$share/g/#")
    assert await shop.subscribe(*filters) == (0, no, 0, no, no, 0, no)
    await shop.send(
        Publish("orders/1", b"", 1, 1),
        Publish("bills/1", b"", 1, 2),
        Publish("bills/1", b"", 2, 3),
        Publish("bills/1", b""),
        Publish("$SYS/x", b"", 1, 4),
    )
    if version == V5:
        answers = [await shop.next() for _ in range(4)]
        codes = [one.reason_code for one in answers if isinstance(one, (PubAck, PubRec))]
        assert codes == [0, 0x87, 0x87, 0x87]
    else:  # it must be acknowledged all the same, or be cut off
        await shop.expect(PubAck(1), PubAck(2), PubRec(3), PubAck(4))
    assert (await witness.next_publish()).topic == "orders/1"
    await witness.silent()


async def test_scopes_speak_of_queues_by_their_names(broker: Broker) -> None:
    shop = await broker.connect("c", username="shop", password=PASSWORD)
    assert await shop.publish("$queue/orders/new", b"x", 1) == 0
    assert await shop.publish("$queue/bills/1", b"x", 1) == 0x87
    assert await shop.publish("$admin/queue/create", b'{"name": "q"}', 1) == 0x87
    assert await shop.subscribe("$queue/orders/secret", "$admin/queue/orders/new/stats") == (0x87, 0x87)
    assert await shop.subscribe("$queue/orders/new", qos=1) == (1,)
    assert (await shop.next_publish()).payload == b"x"


@BOTH
async def test_a_will_needs_the_right_to_publish_it(broker: Broker, version: int) -> None:
    login = {"username": "shop", "password": PASSWORD}
    await broker.connect("c", version, will=Will("orders/bye", b""), username="shop", password=PASSWORD)
    packet = Connect("d", version, will=Will("bills/bye", b""), **login)  # type: ignore[arg-type]
    assert await refused(broker, packet) == (0x87 if version == V5 else 5)


async def test_namespaces_do_not_meet(broker: Broker) -> None:
    here = await broker.connect("same", username="other", password=PASSWORD)
    there = await broker.connect("same", username="stranger", password=PASSWORD)
    for client in (here, there):
        await client.subscribe("#")
    await here.send(Publish("t", b"here", retain=True))
    assert await here.payloads(1) == [b"here"]
    await there.silent()
    await there.subscribe("#")
    await there.silent()


# --- sessions belong to somebody ------------------------------------------------------------------------------------


async def test_a_session_can_be_resumed_by_its_owner_only(broker: Broker) -> None:
    shop = await broker.connect("c", expiry=100, username="shop", password=PASSWORD)
    await shop.subscribe("bills/+", qos=1)
    for clean in (True, False):
        other = await broker.connect("c", V5, clean=clean, username="other", password=PASSWORD)
        impostor = await broker.connect("c", clean=clean, password=token(broker))  # for `shop`, by a token
        assert not other.connack.session_present
        assert not impostor.connack.session_present
    await shop.ping()  # it was not thrown out
    await shop.disconnect()
    again = await broker.connect("c", clean=False, expiry=100, username="shop", password=PASSWORD)
    assert again.connack.session_present


async def test_nobody_can_hold_a_client_identifier_against_its_owner(broker: Broker) -> None:
    squatter = await broker.connect("c", V311, clean=False, username="other", password=PASSWORD)  # for ever
    await squatter.disconnect()
    shop = await broker.connect("c", expiry=100, username="shop", password=PASSWORD)
    assert not shop.connack.session_present
    await shop.subscribe("bills/+", qos=1)


async def test_deliveries_of_a_client_are_not_those_of_another_under_the_same_identifier(broker: Broker) -> None:
    scopes = "consume:orders/new produce:orders/new"
    login = {"username": "shop", "password": PASSWORD}
    shop = await broker.connect("c", expiry=100, **login)  # type: ignore[arg-type]
    assert await shop.publish("$queue/orders/new", b"x", 1) == 0
    assert await shop.subscribe("$queue/orders/new", qos=1) == (1,)
    delivery = await shop.next_publish()
    message_id = dict(delivery.properties.user_properties)["message-id"]
    shop.cut()  # the session and its lease stay
    impostor = await broker.connect("c", expiry=100, password=token(broker, scope=scopes))
    assert await impostor.subscribe("$queue/orders/new", qos=1) == (1,)
    await impostor.silent()
    named = Properties(user_properties=(("message-id", message_id),))
    assert await impostor.publish("$queue/orders/new/$ack", b"", 1, properties=named) != 0
    again = await broker.connect("c", clean=False, expiry=100, **login)  # type: ignore[arg-type]
    assert (await again.next_publish()).dup
    assert await again.publish("$queue/orders/new/$ack", b"", 1, properties=named) == 0


async def test_a_session_whose_rights_are_gone_is_begun_again(broker: Broker) -> None:
    more = token(broker)
    shop = await broker.connect("c", expiry=100, password=more)
    await shop.subscribe("bills/+", qos=1)
    await shop.disconnect()
    other = await broker.connect("o", username="other", password=PASSWORD)
    await other.publish("bills/1", b"secret", 1)
    less = token(broker, scope="consume:orders/#")
    again = await broker.connect("c", clean=False, expiry=100, password=less)
    assert not again.connack.session_present
    await again.silent()
    await other.publish("bills/1", b"secret", 1)
    await again.silent()


# --- for how long ---------------------------------------------------------------------------------------------------


@BOTH
async def test_a_connection_ends_with_its_token(broker: Broker, version: int) -> None:
    brief = await broker.connect("brief", version, username="x", password=token(broker, 60))
    lasting = await broker.connect("lasting", username="x", password=token(broker, 600))
    broker.pass_time(50)
    await brief.ping()
    broker.pass_time(30)
    assert await brief.refused() == (0x87 if version == V5 else 0)
    await lasting.ping()


async def test_a_connection_ends_with_its_user(broker: Broker, tmp_path: Path) -> None:
    shop = await broker.connect("shop", username="shop", password=PASSWORD)
    other = await broker.connect("other", username="other", password=PASSWORD)
    rig.write_users(tmp_path / "users.json", rig.user("shop", None, subject="CN=shop"), rig.user("new", "new"))
    assert [await one.refused() for one in (shop, other)] == [0x87, 0x87]
    assert await refused(broker, Connect("c", username="shop", password=PASSWORD)) == 0x86
    await broker.connect("c", username="new", password=b"new")


# --- how fast -------------------------------------------------------------------------------------------------------


async def test_a_namespace_that_sends_too_fast_is_told(run: Run, tmp_path: Path) -> None:
    rates = RateSettings(messages_per_second=10, burst=SECOND)
    broker = await run(memory_broker(replace(config_for(tmp_path), rates=rates)))
    listener = await broker.connect("l")
    await listener.subscribe("t", qos=2)
    client = await broker.connect("c")
    old = await broker.connect("old", V311)
    # One write: the clock hardly moves meanwhile.
    await client.send(*(Publish("t", b"x", 1, number) for number in range(1, 21)), Publish("t", b"x", 2, 21))
    answers = [await client.next() for _ in range(21)]
    codes = [one.reason_code for one in answers if isinstance(one, (PubAck, PubRec))]
    taken = codes.count(0)
    assert 10 <= taken < 21
    assert codes == [0] * taken + [0x97] * (21 - taken)
    last = answers[-1]
    assert isinstance(last, PubRec)
    assert "retry in" in (last.properties.reason_string or "")
    assert len(await listener.publishes(taken)) == taken
    await old.send(*(Publish("t", b"dropped") for _ in range(5)))
    await old.ping()
    assert broker.hub.dropped["rate"] == 5
    await old.send(*(Publish("t", b"x", 1, number + 1) for number in range(3)))
    assert await old.ended() == []
    await listener.silent()
    broker.pass_time(2)
    assert await client.publish("t", b"later", 1) == 0


async def test_queues_count_against_the_same_rate(run: Run, tmp_path: Path) -> None:
    rates = RateSettings(bytes_per_second=1000, burst=SECOND)
    broker = await run(memory_broker(replace(config_for(tmp_path), rates=rates)))
    client = await broker.connect("c")
    assert await client.publish("t", b"x" * 5000, 1) == 0x10
    assert await client.publish("$queue/q", b"x", 1) == 0x97
    await client.send(Publish("$queue/q", b"x", 2, 1))
    received = await client.next()
    assert isinstance(received, PubRec)
    assert received.reason_code == 0x97


# --- where no credentials are configured ----------------------------------------------------------------------------


@BOTH
async def test_without_credentials_whatever_is_given_lets_in(run: Run, tmp_path: Path, version: int) -> None:
    broker = await run(memory_broker(config_for(tmp_path)))
    for username, password in (("u", b"p"), (None, None)):
        client = await broker.connect("c", version, username=username, password=password)
        assert await client.subscribe("#") == (0,)


async def test_connections_that_end_while_a_password_is_checked_leave_nothing(broker: Broker) -> None:
    chores = len(broker.front._tasks)
    for number in range(20):
        client = await broker.open()
        await client.send(Connect("c", username="shop", password=b"%d" % (number % 3)))
        client.cut()
    await broker.until(lambda: not broker.front._links and len(broker.front._tasks) == chores)
    assert (broker.sessions(), broker.hub.connections) == ({}, {})
