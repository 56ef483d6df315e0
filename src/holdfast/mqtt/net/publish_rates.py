"""How fast clients may publish: by their namespace's rates, and by the quotas that HTTP requests count against too.

A read with PUBLISHes is one request, and each PUBLISH is counted beside it. They are refused by what was sent before
them; their bytes are counted when they are here, so that what the client sends next waits until they are paid for.
"""

from __future__ import annotations

from holdfast.auth.gate import Gate
from holdfast.auth.principal import Principal
from holdfast.broker.node import Node
from holdfast.errors import QuotaExceeded, RateLimited
from holdfast.mqtt.sessions.connection import Connection


class PublishRates:
    """See the module."""

    def __init__(self, gate: Gate, node: Node) -> None:
        self._gate = gate
        self._clock = node.clock
        self._quotas = node.cell.quotas
        self._requests = gate.request_rates(self._quotas)
        self._counted = False  # the read under way
        self._always = gate.limited or gate.required
        self.limited = self._always
        """False: everything is admitted."""

    def begin_read(self) -> None:
        """What is counted from here on was read together."""
        self._counted = False
        self.limited = self._always or self._quotas.any_own

    def count(self, connection: Connection, publishes: int, size_bytes: int) -> None:
        """Count PUBLISHes of the read under way. Raises QuotaExceeded if the client, or its namespace, sends too much;
        then nothing is counted."""
        principal: Principal = connection.tag.principal  # type: ignore[attr-defined]  # the tag is a Link
        namespace, owner, now = principal.namespace, principal.owner, self._clock()
        try:
            self._requests.take(namespace, owner, now, requests=not self._counted, publishes=publishes)
        except RateLimited as error:
            self._gate.counts.rate_limited += 1
            raise QuotaExceeded(
                owner=error.details["owner"],
                namespace=namespace,
                quota=error.details["quota"],
                limit=error.details["limit"],
                advice=f"Send fewer or smaller messages, and retry in {error.details['retry_after_ms']} ms",
            ) from None
        self._counted = True
        self._requests.add_bytes(namespace, owner, size_bytes, now)

    def admit(self, namespace: str, messages: int, size_bytes: int) -> None:
        """Count messages against the rate of their namespace. Raises RateLimited, and then nothing is."""
        self._gate.admit(namespace, messages, size_bytes)
