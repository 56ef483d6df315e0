"""Reading everything back when the broker starts.

A session that was connected when the broker stopped counts as disconnected now, without DISCONNECT: its expiry starts,
and its will is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.core.records import Table
from holdfast.mqtt.codec import Will
from holdfast.mqtt.codec.properties import WILL, read_block, read_varint
from holdfast.mqtt.sessions.lifecycle import Lifecycle
from holdfast.mqtt.sessions.messages import Message, read_message
from holdfast.mqtt.sessions.records import (
    SessionKey,
    WillRecord,
    read_outgoing,
    read_session,
    read_subscription,
    split_key,
)
from holdfast.mqtt.sessions.retained import Retainer
from holdfast.mqtt.sessions.session import Outgoing, Session, Subscriber
from holdfast.mqtt.sessions.session_store import SessionStore

Scan = Callable[[Table, bytes, bytes, int], list[tuple[bytes, bytes]]]

_PAGE = 1000
_END = b"\xff" * 16  # no UTF-8 text and no message id is that large


def load(scan: Scan, now: int, lifecycle: Lifecycle, session_store: SessionStore, retainer: Retainer) -> None:
    """Fill an empty hub from the store."""
    messages: dict[int, Message] = {}
    for key, value in _all(scan, Table.MQTT_MESSAGES):
        number = session_store.last_message = int.from_bytes(key, "big")
        message = messages[number] = read_message(value)
        message.id = number
    for key, value in _all(scan, Table.MQTT_RETAINED):
        ns = lifecycle.ns(key.split(b"\0", 1)[0].decode())
        message = messages[int.from_bytes(value, "big")]
        message.refs += 1
        ns.retained.put(message.topic, message)
        ns.retained_bytes += message.size_bytes
        retainer.watch(ns, message)
    sessions = _load_sessions(scan, lifecycle)
    for key, value in _all(scan, Table.MQTT_OUTGOING):
        session_key, rest = split_key(key)
        _add_outgoing(sessions[session_key], rest, value, messages)
    for session in sessions.values():
        if session.ended_at:
            lifecycle.watch(session)
        else:
            lifecycle.leave(session, now)


def _load_sessions(scan: Scan, lifecycle: Lifecycle) -> dict[SessionKey, Session]:
    sessions: dict[SessionKey, Session] = {}
    for key, value in _all(scan, Table.MQTT_SESSIONS):
        session_key, _ = split_key(key + b"\0")
        namespace, owner, client_id = session_key
        stored = read_session(value)
        session = Session(namespace, owner, client_id, stored.protocol, stored.expiry_s)
        session.ended_at = stored.ended_at
        session.will_at = stored.will_at
        session.reserved_for = stored.owner
        session.will = None if stored.will is None else _will(stored.will)
        sessions[session_key] = session
        lifecycle.ns(namespace).sessions[owner, client_id] = session
    for key, value in _all(scan, Table.MQTT_SUBSCRIPTIONS):
        session_key, rest = split_key(key)
        one = read_subscription(value)
        ids = (one.identifier,) if one.identifier else ()
        lifecycle.ns(session_key.namespace).subscribe(
            Subscriber(
                sessions[session_key],
                rest.decode(),
                one.qos,
                one.no_local,
                one.retain_as_published,
                ids,
                one.terms,
            )
        )
    for key, _ in _all(scan, Table.MQTT_INCOMING):
        session_key, rest = split_key(key)
        sessions[session_key].incoming.add(int.from_bytes(rest, "big"))
    return sessions


def _will(stored: WillRecord) -> Will:
    _, at = read_varint(stored.block, 0)
    return Will(stored.topic, stored.payload, stored.qos, stored.retain, read_block(stored.block[at:], WILL))


def _add_outgoing(session: Session, rest: bytes, value: bytes, messages: dict[int, Message]) -> None:
    stored = read_outgoing(value)
    message = messages[stored.message] if stored.message else None
    entry = Outgoing(message, stored.qos, stored.retain, stored.ids, stored.share)
    entry.order = session.order = int.from_bytes(rest, "big")
    entry.packet_id = stored.packet_id
    if message is not None:
        message.refs += 1
        if not entry.packet_id:
            session.push(entry, message)
            return
    session.inflight[entry.packet_id] = entry
    session.inflight_bytes += entry.size_bytes


def _all(scan: Scan, table: Table) -> Iterator[tuple[bytes, bytes]]:
    """All records of a table, a page at a time."""
    start = b""
    while True:
        page = scan(table, start, _END, _PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        start = page[-1][0] + b"\0"
