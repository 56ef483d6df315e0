"""What a handler raises to say what becomes of its message. Returning is an ack; any other exception is a nack."""

from __future__ import annotations

from holdfast.client.times import Duration


class Outcome(Exception):
    """Says what becomes of the message. Not an error: nothing is logged as one."""


class Retry(Outcome):
    """Failed, try again: after `delay`, or as the queue's retry policy says. The attempt counts."""

    def __init__(self, error: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(error)
        self.delay = delay


class Reject(Outcome):
    """Hopeless: to the dead queue at once."""

    def __init__(self, error: str = "") -> None:
        super().__init__(error)


class Release(Outcome):
    """Not now: back to the others; the attempt does not count."""
