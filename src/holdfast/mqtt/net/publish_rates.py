"""How fast namespaces may publish: by their rates, and by the quotas that HTTP requests count against too.

PUBLISHes that were read together are one request, as the messages of a batch are over HTTP. Their bytes are counted
when they are here, so that the next request of the namespace waits until they are paid for.
"""

from __future__ import annotations

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.errors import QuotaExceeded, RateLimited


class PublishRates:
    """Without credentials nobody has a quota, as over HTTP."""

    def __init__(self, gate: Gate, node: Node) -> None:
        self._gate = gate
        self._clock = node.clock
        self._requests = gate.request_rates(node.cell.quotas) if gate.required else None
        self._counted = False  # the read under way
        self.limited = gate.limited or gate.required
        """False: everything is admitted."""

    def begin_read(self) -> None:
        """What is counted from here on was read together."""
        self._counted = False

    def count_read(self, namespace: str) -> None:
        """Count the read under way, once. Raises QuotaExceeded if the namespace sends too much."""
        if self._requests is None or self._counted:
            return
        try:
            self._requests.take(namespace, self._clock())
        except RateLimited as error:
            self._gate.counts.rate_limited += 1
            raise QuotaExceeded(
                owner=f"Namespace {namespace!r}",
                namespace=namespace,
                quota=error.details["quota"],
                limit=error.details["limit"],
                advice=f"Send fewer or smaller messages, and retry in {error.details['retry_after_ms']} ms",
            ) from None
        self._counted = True

    def admit(self, namespace: str, messages: int, size_bytes: int) -> None:
        """Count messages of reads that were counted. Raises RateLimited, and then nothing is."""
        self._gate.admit(namespace, messages, size_bytes)
        if self._requests is not None:
            self._requests.add_bytes(namespace, size_bytes, self._clock())
