"""The pure parts, whatever comes: drafts from PUBLISHes, PUBLISHes from deliveries, what a settle topic says, names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.commands import Leased, Verb
from holdfast.core.queue import PRIORITY_DEFAULT, check_name
from holdfast.core.records import NO_EXTRA, Extra, Message, Origin
from holdfast.errors import HoldfastError, InvalidArgument, InvalidName
from holdfast.mqtt.codec import NO_PROPERTIES, V5, V311, Decoder, Properties, Publish
from holdfast.mqtt.queues import names
from holdfast.mqtt.queues.deliveries import RESERVED, DeliveryEncoder
from holdfast.mqtt.queues.drafts import CAPTURED_TOPIC, to_draft
from holdfast.mqtt.queues.names import Operation
from holdfast.mqtt.queues.settling import SettleRequest, read_settle_requests
from holdfast.units import MILLISECOND, SECOND, format_duration
from tests.mqtt.queues.rig import user_properties_of

NOW = 1_800_000_000 * SECOND
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
topics = st.from_regex(r"[a-z$]{1,5}(/[a-z]{1,3}){0,3}", fullmatch=True)
own_names = texts.filter(
    lambda name: (
        name
        not in RESERVED
        | {"partition-key", "priority", "delay", "deliver-at", "ttl", "correlation-id", "reply-to", CAPTURED_TOPIC}
    )
)
pairs = st.lists(st.tuples(own_names, texts), max_size=4).map(tuple)
ids = st.integers(1, (1 << 63) - 1)
instants = st.integers(0, NOW)


# --- drafts ---------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    payload=st.binary(max_size=50),
    key=st.none() | texts,
    message_id=st.none() | texts.filter(bool),
    correlation_id=st.none() | texts,
    priority=st.none() | st.integers(0, 255),
    delay=st.none() | st.integers(0, 10**9),
    ttl=st.none() | st.integers(0, 10**9),
    expiry_s=st.none() | st.integers(0, 0xFFFF_FFFF),
    others=pairs,
    fields=st.fixed_dictionaries(
        {},
        optional={
            "content_type": texts,
            "response_topic": topics,
            "correlation_data": st.binary(max_size=9),
            "payload_format": st.integers(0, 1),
        },
    ),
)
def test_a_draft_has_what_the_properties_say(
    payload: bytes,
    key: str | None,
    message_id: str | None,
    correlation_id: str | None,
    priority: int | None,
    delay: int | None,
    ttl: int | None,
    expiry_s: int | None,
    others: tuple[tuple[str, str], ...],
    fields: dict[str, Any],
) -> None:
    told = {
        "partition-key": key,
        "message-id": message_id,
        "correlation-id": correlation_id,
        "priority": None if priority is None else str(priority),
        "delay": None if delay is None else format_duration(delay),
        "ttl": None if ttl is None else format_duration(ttl),
    }
    user = (*[(name, value) for name, value in told.items() if value is not None], *others)
    properties = Properties(user_properties=user, message_expiry_s=expiry_s, **fields)
    draft = to_draft(Publish("$queue/a", payload, properties=properties), NOW)
    assert draft.payload == payload
    assert draft.priority == (PRIORITY_DEFAULT if priority is None else priority)
    assert draft.deliver_at == (0 if delay is None else NOW + delay)
    expiry = -1 if expiry_s is None else expiry_s * SECOND
    assert draft.ttl == (expiry if ttl is None else ttl)
    extra = draft.extra
    assert (extra.key, extra.message_id, extra.correlation_id) == (key, message_id, correlation_id)
    assert extra.properties == others
    assert extra.content_type == fields.get("content_type")
    assert extra.reply_to == fields.get("response_topic")
    assert extra.correlation_data == fields.get("correlation_data")
    assert extra.utf8 == (fields.get("payload_format") == 1)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from(["priority", "delay", "deliver-at", "ttl"]), st.text(max_size=30)), max_size=3)
)
def test_a_draft_is_made_or_refused_and_a_captured_one_is_always_made(user: list[tuple[str, str]]) -> None:
    packet = Publish("t/1", b"x", properties=Properties(user_properties=tuple(user)))
    draft = to_draft(packet, NOW, captured=True)
    assert draft.extra.properties[-1] == (CAPTURED_TOPIC, "t/1")
    try:
        draft = to_draft(packet, NOW)
    except InvalidArgument:
        return
    assert draft.extra.properties == ()


def test_an_id_that_is_empty_is_refused_and_none_if_the_message_was_not_meant_for_a_queue() -> None:
    packet = Publish("t/1", b"x", properties=Properties(user_properties=(("message-id", ""),)))
    with pytest.raises(InvalidArgument, match="user property message-id is empty"):
        to_draft(packet, NOW)
    assert to_draft(packet, NOW, captured=True).extra.message_id is None


def test_a_publish_without_properties_is_a_plain_draft() -> None:
    assert to_draft(Publish("$queue/a", b"x", properties=NO_PROPERTIES), NOW).extra is NO_EXTRA


# --- deliveries -----------------------------------------------------------------------------------------------------

origins = st.builds(
    Origin,
    ids,
    st.just("jobs"),
    st.just("g"),
    st.sampled_from(["rejected", "max_retries"]),
    st.text(max_size=20),
    st.integers(0, 100),
    instants,
    instants,
)
extras = st.just(NO_EXTRA) | st.builds(
    Extra,
    key=st.none() | texts,
    message_id=st.none() | texts.filter(bool),
    properties=pairs,
    correlation_id=st.none() | texts,
    content_type=st.none() | texts,
    reply_to=st.none() | topics | st.just("a/+") | st.just(""),
    correlation_data=st.none() | st.binary(max_size=9),
    origin=st.none() | origins,
    utf8=st.booleans(),
)
messages = st.builds(
    Message,
    ids,
    st.integers(1, 1000),
    st.integers(0, 255),
    instants,
    st.just(0),
    st.just(0) | st.integers(NOW - SECOND, NOW + 10**17),
    extras,
    st.binary(max_size=300),
)
leases = st.builds(Leased, messages, ids, st.integers(1, 99), instants, st.integers(0, 9), st.just("g"))


@settings(max_examples=50)
@given(st.lists(leases, min_size=1, max_size=4), st.sampled_from([0, 1]), st.sampled_from([(), (7,)]), st.booleans())
def test_a_delivery_read_back_says_what_it_was_made_of(
    batch: list[Leased], qos: int, subscription_ids: tuple[int, ...], dup: bool
) -> None:
    form = DeliveryEncoder("jobs/a", "g", qos, V5, subscription_ids)
    numbers = [n + 1 if qos else 0 for n in range(len(batch))]
    packets = Decoder(V5, from_client=False).feed(b"".join(form.encode(batch, numbers, NOW, dup=dup)))
    assert len(packets) == len(batch)
    for packet, number, leased in zip(packets, numbers, batch, strict=True):
        assert isinstance(packet, Publish)
        message, extra, properties = leased.message, leased.message.extra, packet.properties
        assert (packet.topic, packet.payload, packet.qos) == ("$queue/jobs/a", message.payload, qos)
        assert (packet.packet_id, packet.dup, packet.retain) == (number, dup and qos > 0, False)
        expected = {
            "queue": "jobs/a",
            "consumer-group": "g",
            "attempt": str(leased.attempt),
            "lease-token": str(leased.token),
            "lease-deadline": str(leased.deadline // MILLISECOND),
            "enqueued-at": str(message.enqueued_at // MILLISECOND),
            "message-id": str(message.id) if extra.message_id is None else extra.message_id,
            **({} if extra.message_id is None else {"id": str(message.id)}),
            **({} if message.priority == PRIORITY_DEFAULT else {"priority": str(message.priority)}),
            **({} if extra.key is None else {"partition-key": extra.key}),
            **({} if extra.correlation_id is None else {"correlation-id": extra.correlation_id}),
            **({} if extra.reply_to not in ("a/+", "") else {"reply-to": str(extra.reply_to)}),
            **dict(extra.properties),
            **({} if extra.origin is None else _story(extra.origin)),
        }
        assert user_properties_of(packet) == expected
        assert properties.content_type == extra.content_type
        assert properties.response_topic == (None if extra.reply_to in ("a/+", "") else extra.reply_to)
        assert properties.correlation_data == extra.correlation_data
        assert properties.payload_format == (1 if extra.utf8 else None)
        assert properties.subscription_ids == subscription_ids
        left = min(max(0, -((NOW - message.expires_at) // SECOND)), 0xFFFF_FFFF)
        assert properties.message_expiry_s == (left if message.expires_at else None)


def _story(origin: Origin) -> dict[str, str]:
    return {
        "source-id": str(origin.source_id),
        "source-queue": origin.source_queue,
        "source-group": origin.source_group,
        "dead-reason": origin.reason,
        "dead-error": origin.error.replace("\0", "?"),
        "dead-attempts": str(origin.attempts),
        "first-attempt-at": str(origin.first_attempt_at // MILLISECOND),
        "last-attempt-at": str(origin.last_attempt_at // MILLISECOND),
    }


def test_deliveries_of_one_moment_say_the_same_of_it() -> None:
    batch = [Leased(Message(n, n, 128, NOW, 0, 0, NO_EXTRA, b"x"), 5 + n, 1, NOW + SECOND, 0, "g") for n in (1, 2)]
    packets = Decoder(V5, from_client=False).feed(
        b"".join(DeliveryEncoder("q", "g", 0, V5, ()).encode(batch, [0, 0], NOW))
    )
    told = [user_properties_of(packet) for packet in packets if isinstance(packet, Publish)]
    assert [(one["message-id"], one["lease-token"]) for one in told] == [("1", "6"), ("2", "7")]
    assert {one["lease-deadline"] for one in told} == {str((NOW + SECOND) // MILLISECOND)}


@settings(max_examples=50)
@given(leases, st.sampled_from([0, 1]))
def test_a_delivery_to_a_3_1_1_client_is_its_payload(leased: Leased, qos: int) -> None:
    [raw] = DeliveryEncoder("jobs", "g", qos, V311, ()).encode([leased], [9 if qos else 0], NOW)
    assert Decoder(V311, from_client=False).feed(raw) == [
        Publish("$queue/jobs", leased.message.payload, qos, 9 if qos else 0)
    ]


def test_what_came_over_http_and_mqtt_cannot_carry_is_carried_all_the_same() -> None:
    extra = Extra("k\0", "m\0", (("a\0", "b\0"), ("lease-token", "1")), "c\0", "text\0", "r\0")
    leased = Leased(Message(1, 1, 128, NOW, 0, 0, extra, b""), 5, 1, NOW, 0, "g")
    [packet] = Decoder(V5, from_client=False).feed(
        b"".join(DeliveryEncoder("q", "g", 0, V5, ()).encode([leased], [0], NOW))
    )
    assert isinstance(packet, Publish)
    told = user_properties_of(packet)
    assert (told["partition-key"], told["message-id"], told["a?"], told["correlation-id"]) == ("k?", "m?", "b?", "c?")
    assert (told["lease-token"], told["reply-to"]) == ("5", "r?")
    assert packet.properties.content_type == "text?"


# --- settling -------------------------------------------------------------------------------------------------------

settle_fields = st.fixed_dictionaries(
    {},
    optional={
        "message-id": texts.filter(bool),
        "lease-token": ids.map(str),
        "delay": st.integers(0, 10**9).map(format_duration),
        "error": texts,
        "timeout": st.integers(0, 10**9).map(format_duration),
        "consumer-group": texts,
    },
)


@settings(max_examples=50)
@given(st.lists(settle_fields.filter(bool), min_size=1, max_size=3))
def test_a_settle_request_is_the_same_by_properties_and_by_json(told: list[dict[str, str]]) -> None:
    by_properties = [
        request
        for one in told
        for request in read_settle_requests(
            Publish("t", b"ignored", properties=Properties(user_properties=(*one.items(), ("x", "y"))))
        )
    ]
    assert read_settle_requests(Publish("t", json.dumps(told).encode())) == by_properties
    assert read_settle_requests(Publish("t", json.dumps(told[0]).encode())) == by_properties[:1]


@settings(max_examples=50)
@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(
        lambda value: json.dumps(value).encode()
    )
    | st.dictionaries(
        st.sampled_from(["message-id", "lease-token", "delay", "error", "timeout"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_is_published_on_a_settle_topic_is_understood_or_refused(payload: bytes) -> None:
    try:
        found = read_settle_requests(Publish("t", payload))
    except InvalidArgument:
        return
    assert 1 <= len(found) <= 1000


def test_nothing_said_is_a_settle_request_for_the_oldest() -> None:
    assert read_settle_requests(Publish("t", b"")) == [SettleRequest()]


# --- names ----------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.text(max_size=30))
def test_a_name_is_found_again_in_every_topic_of_its_queue(name: str) -> None:
    try:
        check_name(name)
    except InvalidName:
        with pytest.raises(HoldfastError):
            names.of_publish(f"$queue/{name}/$ack")
        return
    assert names.of_publish(f"$queue/{name}")[:2] == (Operation.ENQUEUE, name)
    for verb in (Verb.ACK, Verb.NACK, Verb.REJECT, Verb.RELEASE, Verb.EXTEND):
        assert names.of_publish(f"$queue/{name}/${verb}")[:3] == (Operation.SETTLE, name, verb)
    assert names.of_publish(f"$admin/queue/{name}/config")[:2] == (Operation.CONFIGURE, name)
    assert names.of_subscribe(f"$queue/{name}")[:2] == (Operation.CONSUME, name)
    assert names.of_subscribe(f"$share/g/$queue/{name}") == (Operation.CONSUME, name, Verb.ACK, "g")
    assert names.of_subscribe(f"$admin/queue/{name}/stats")[:2] == (Operation.WATCH, name)


@settings(max_examples=50)
@given(st.sampled_from(["$queue/", "$admin/", "$admin/queue/", "$share/g/$queue/", "$share/g/$admin/"]), st.text())
def test_any_topic_means_something_or_is_refused(prefix: str, rest: str) -> None:
    for read in (names.of_publish, names.of_subscribe):
        try:
            route = read(prefix + rest)
        except HoldfastError:
            continue
        assert isinstance(route.operation, Operation)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "²", "1" * 20, " 1"])
def test_what_is_no_number(text: str) -> None:
    assert not names.is_number(text)
    assert names.is_number("1" * 19)
