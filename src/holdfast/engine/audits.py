"""The audited redrives that a cell remembers: who started each, and the result of each dead letter.

core/audits.py describes them and their records; audited_redrive.py moves the dead letters. The audits are in memory,
their dead letters in the store. A change is part of the turn's batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.audits import (
    ID_BYTES_MAX,
    NOTE_BYTES_MAX,
    Audit,
    Audited,
    audit_key,
    audited_key,
    read_audit,
    read_audited,
    write_audit,
    write_audited,
)
from holdfast.core.effects import DeleteUntil, Op
from holdfast.core.queue import DEAD_PREFIX
from holdfast.core.records import LAST, Table
from holdfast.engine.catalog import QueueName
from holdfast.errors import AuditNotFound, InvalidArgument
from holdfast.store.contract import Reader
from holdfast.units import DAY, NEVER, SECOND

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


RETRY = SECOND  # before forgetting that failed by a bug is tried again


class AuditLimits(msgspec.Struct, frozen=True, kw_only=True):
    """See RedriveSettings, which says why. Of redrives of a namespace."""

    remember: int = 90 * DAY
    max_remembered: int = 1_000


class Audits:
    """See the module."""

    def __init__(self, engine: Engine, limits: AuditLimits) -> None:
        self._engine = engine
        self.limits = limits
        self._audits: dict[bytes, Audit] = {}
        self.wake_at = NEVER  # no audit expires before

    def open(self, store: Reader) -> None:
        rows = store.scan(Table.AUDITS, b"", b"\xff" * 8, 1 << 30)
        self._audits = {key: read_audit(value) for key, value in rows}
        self._schedule()

    # --- queries ----------------------------------------------------------------------------------------------------

    def of(self, dead: QueueName, source: str = "") -> list[Audit]:
        """The redrives of a dead queue, newest first; of one that queues share, those of dead letters of `source`."""
        place = (*dead, _owner(dead, source))
        found = [audit for audit in self._audits.values() if (audit.namespace, audit.dead_queue, audit.source) == place]
        return sorted(found, key=lambda audit: audit.number, reverse=True)

    def get(self, dead: QueueName, name: str, source: str = "") -> Audit:
        found = self._audits.get(audit_key(*dead, name, _owner(dead, source)))
        if found is None:
            raise AuditNotFound(audit=name)
        return found

    def page(self, audit: Audit, after: int, limit: int) -> list[Audited]:
        """Dead letters that were redriven, in the order of ids after `after`."""
        low, high = audited_key(audit.number, after + 1), audited_key(audit.number, LAST)
        return [read_audited(value) for _, value in self._engine.overlay.scan(Table.AUDITED, low, high, limit)]

    def known(self, audit: Audit, dead_letters: Iterable[int]) -> list[Audited | None]:
        """The records of these dead letters, None where there is none."""
        keys = [audited_key(audit.number, one) for one in dead_letters]
        values = self._engine.overlay.get_many(Table.AUDITED, keys)
        return [read_audited(value) if value is not None else None for value in values]

    # --- changes ----------------------------------------------------------------------------------------------------

    def to_change(self, dead: QueueName, name: str, source: str = "") -> Audit:
        """As `get`, for an operation that is about to change it."""
        audit = self.get(dead, name, source)
        self._keep(audit_key(*dead, name, _owner(dead, source)))
        return audit

    def _keep(self, key: bytes) -> None:
        self._engine.operation.before_change(("audit", key), partial(self._restore, key, self.wake_at))

    def _restore(self, key: bytes, wake_at: int) -> None:
        value = self._engine.overlay.get(Table.AUDITS, key)
        if value is None:
            self._audits.pop(key, None)
        else:
            self._audits[key] = read_audit(value)
        self.wake_at = min(self.wake_at, wake_at)

    def begin(self, dead: QueueName, name: str, to: str, by: str, note: str, now: int, source: str = "") -> Audit:
        """The redrive of that id: a new one, or the existing one to continue."""
        _check_texts(name, note)
        if to == dead[1]:
            raise InvalidArgument(field="to", problem="is the dead queue itself; name another queue")
        owner = _owner(dead, source)
        key = audit_key(*dead, name, owner)
        audit = self._audits.get(key)
        if audit is not None:
            if (audit.to, audit.note) != (to, note):
                raise InvalidArgument(
                    field="audit",
                    problem=f"{name!r} was begun with another destination or note; use another id for another redrive",
                )
            if audit.undone:
                raise InvalidArgument(field="audit", problem=f"{name!r} was undone; use another id to redrive again")
            self._keep(key)
            return audit
        known = sorted(
            [one for one, other in self._audits.items() if other.namespace == dead[0]],
            key=lambda one: self._audits[one].changed_at,
        )
        for oldest in known[: len(known) + 1 - self.limits.max_remembered]:
            self._forget(oldest)
        self._keep(key)
        (number,) = self._engine.ids.take(now)
        audit = self._audits[key] = Audit(number, *dead, name, by, note, to, now, now, source=owner)
        self.record(audit, [], now)
        self._schedule()
        return audit

    def record(self, audit: Audit, dead_letters: Iterable[Audited], now: int) -> None:
        """Add the redrive and the results of these dead letters to the batch."""
        audit.changed_at = max(now, audit.changed_at)
        key = audit_key(audit.namespace, audit.dead_queue, audit.id, audit.source)
        ops: list[Op] = [(Table.AUDITS, key, write_audit(audit))]
        ops += [(Table.AUDITED, audited_key(audit.number, was.dead_letter), write_audited(was)) for was in dead_letters]
        self._engine.add(ops)

    # --- expiry -----------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        if self.wake_at <= now and self._engine.apart("redrives", partial(self._expire, now), now) is None:
            self.wake_at = now + RETRY

    def _expire(self, now: int) -> bool:
        for key in [key for key, audit in self._audits.items() if audit.changed_at + self.limits.remember <= now]:
            self._forget(key)
        self._schedule()
        return True

    def _schedule(self) -> None:
        """Look for the first audit that expires. A change of one only moves its end."""
        first = min((audit.changed_at for audit in self._audits.values()), default=NEVER)
        self.wake_at = min(first + self.limits.remember, NEVER)

    def _forget(self, key: bytes) -> None:
        self._keep(key)
        number = self._audits.pop(key).number
        dead_letters = (Table.AUDITED, audited_key(number, 0), DeleteUntil(audited_key(number + 1, 0)))
        self._engine.add([(Table.AUDITS, key, None), dead_letters])


def _owner(dead: QueueName, source: str) -> str:
    """The queue that redrives of a dead queue belong to. An automatic dead queue has one queue's dead letters, so there
    it makes no difference by which of both names it is called."""
    return "" if dead[1] == DEAD_PREFIX + source else source


def _check_texts(name: str, note: str) -> None:
    if not name or len(name.encode(errors="surrogatepass")) > ID_BYTES_MAX or not name.isprintable():
        raise InvalidArgument(field="audit", problem=f"is 1 to {ID_BYTES_MAX} bytes of printable text")
    if len(note.encode(errors="surrogatepass")) > NOTE_BYTES_MAX:
        raise InvalidArgument(field="note", problem=f"is at most {NOTE_BYTES_MAX} bytes")
