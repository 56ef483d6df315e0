"""Who may publish and subscribe where, decided by the gate. Rights to queues are by queue name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from holdfast.auth.gate import Gate
from holdfast.auth.principal import Action, Principal
from holdfast.errors import Forbidden, HoldfastError, QuotaExceeded, RateLimited
from holdfast.mqtt.codec import reasons
from holdfast.mqtt.net.publish_rates import PublishRates
from holdfast.mqtt.queues import names
from holdfast.mqtt.queues.names import Operation
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.system_topics import is_system_filter
from holdfast.mqtt.topics import split_share

_ACTIONS: Final = {
    Operation.ENQUEUE: Action.PRODUCE,
    Operation.SETTLE: Action.CONSUME,
    Operation.CONSUME: Action.CONSUME,
    Operation.CREATE: Action.ADMIN,
    Operation.CONFIGURE: Action.ADMIN,
    Operation.WATCH: Action.ADMIN,
}

_ACTS: Final = {Operation.CREATE: "queue.create", Operation.CONFIGURE: "queue.update"}
FRONT: Final = "mqtt"


class Rights:
    """`ports.Access` by the principal of each connection, which its tag knows."""

    def __init__(self, gate: Gate, rates: PublishRates, queues: bool) -> None:
        self._gate = gate
        self._rates = rates
        self._prefixes = (names.QUEUE, names.ADMIN) if queues else ()

    @property
    def limited(self) -> bool:
        return self._rates.limited

    def may_publish(self, connection: Connection, topic: str) -> int:
        principal = _principal(connection)
        if principal.unlimited:
            return 0
        if not topic.startswith(self._prefixes):
            return _code(principal.may(Action.PRODUCE, topic))
        try:
            route = names.of_publish(topic)
        except HoldfastError:
            return 0  # the bridge says what is wrong with it
        if route.operation is Operation.CREATE:
            allowed = principal.may_somewhere(Action.ADMIN)  # `audited` looks at the name
        else:
            allowed = principal.may(_ACTIONS[route.operation], route.queue)
        if not allowed and route.operation in _ACTS:
            self._gate.audit.record(
                principal, _ACTS[route.operation], route.queue, Forbidden.code, front=FRONT, peer=_peer(connection)
            )
        return _code(allowed)

    def may_subscribe(self, connection: Connection, topic_filter: str) -> int:
        principal = _principal(connection)
        if principal.unlimited:
            return 0
        if is_system_filter(topic_filter):  # over all namespaces
            return _code(principal.may_node)
        inner = split_share(topic_filter)[1]
        if not inner.startswith(self._prefixes):
            return _code(principal.may_filter(Action.CONSUME, inner))
        try:
            route = names.of_subscribe(topic_filter)
        except HoldfastError:
            return 0  # the bridge says what is wrong with it
        return _code(principal.may(_ACTIONS[route.operation], route.queue))

    def admit(self, connection: Connection, size_bytes: int) -> str:
        try:
            self._rates.count(connection, 1, size_bytes)
            self._rates.admit(connection.namespace, 1, size_bytes)
        except (QuotaExceeded, RateLimited) as error:
            return str(error)
        return ""


@contextmanager
def audited(gate: Gate, connection: Connection, act: str, queue: str, fields: Mapping[str, object]) -> Iterator[None]:
    """The context of an administrative act: the audit log records who did it, from where, and how it ended. Raises if
    the queue or its configuration is beyond the caller's rights."""
    principal = _principal(connection)
    with gate.audit.act(principal, act, queue, front=FRONT, peer=_peer(connection), config=fields):
        principal.require(Action.ADMIN, queue)
        principal.require_config(fields)
        yield


def _peer(connection: Connection) -> str:
    peer: str = connection.tag.peer  # type: ignore[attr-defined]  # the tag is a Link
    return peer


def _principal(connection: Connection) -> Principal:
    principal: Principal = connection.tag.principal  # type: ignore[attr-defined]  # the tag is a Link
    return principal


def _code(allowed: bool) -> int:
    return 0 if allowed else reasons.NOT_AUTHORIZED
