"""Exceptions by which a handler settles its message. Returning is an ack; any other exception is a nack."""

from __future__ import annotations

from holdfast.client.times import Duration


class JobOutcome(Exception):
    """Settles the message. It is not logged as an error."""


class Retry(JobOutcome):
    """Nack: deliver again after `delay`, or as the queue's retry policy says. The attempt counts."""

    def __init__(self, error: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(error)
        self.delay = delay


class Reject(JobOutcome):
    """Never processable: move it to the dead queue now."""

    def __init__(self, error: str = "") -> None:
        super().__init__(error)


class Release(JobOutcome):
    """Return it to the queue for other consumers; the attempt does not count.

    It is delivered again after `delay`. Without one that is a second, and twice as long each time the same worker
    releases the same message, up to a minute: if nobody can take it now, asking without a pause would not help.
    """

    def __init__(self, *, delay: Duration | None = None) -> None:
        super().__init__()
        self.delay = delay


class ReleaseDelays:
    """How long messages that a worker releases without a delay wait."""

    FIRST_SECONDS = 1.0
    LONGEST_SECONDS = 60.0
    REMEMBERED_MAX = 1_000  # messages; the oldest are forgotten, and begin again

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def next_seconds(self, message_id: str) -> float:
        delay = min(self._seconds.pop(message_id, self.FIRST_SECONDS / 2) * 2, self.LONGEST_SECONDS)
        self._seconds[message_id] = delay
        if len(self._seconds) > self.REMEMBERED_MAX:
            self._seconds.pop(next(iter(self._seconds)))
        return delay

    def forget(self, message_id: str) -> None:
        """It was settled in another way."""
        self._seconds.pop(message_id, None)
