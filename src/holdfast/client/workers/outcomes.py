"""Exceptions by which a handler settles its message. Returning is an ack; any other exception is a nack."""

from __future__ import annotations

from holdfast.client.times import Duration


class Outcome(Exception):
    """Settles the message. It is not logged as an error."""


class Retry(Outcome):
    """Nack: deliver again after `delay`, or as the queue's retry policy says. The attempt counts."""

    def __init__(self, error: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(error)
        self.delay = delay


class Reject(Outcome):
    """Never processable: move it to the dead queue now."""

    def __init__(self, error: str = "") -> None:
        super().__init__(error)


class Release(Outcome):
    """Return it to the queue for other consumers; the attempt does not count."""
