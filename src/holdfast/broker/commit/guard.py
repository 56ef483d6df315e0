"""What an error in the middle of an operation means for the engine."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import structlog

from holdfast.broker.commit.group_commit import GroupCommit
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EngineOwner(Protocol):
    """Has the engine, and the group commit that fails if the engine must be discarded."""

    commit: GroupCommit

    @property
    def engine(self) -> Engine: ...


class Guard:
    """Gives the engine for one operation that may change it. If the store fails in the middle of it, the engine's state
    must be discarded. So it must after an error that is no answer to the caller: a bug. It may have come between two
    changes that belong together (a message is out of its window, and its lease is not made), and memory cannot be taken
    back to where the operation began. What callers send must not come so far: it is checked before, and refused.

    It holds nothing of an operation: one guard serves all of them.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: EngineOwner) -> None:
        self._owner = owner

    def __enter__(self) -> Engine:
        return self._owner.engine

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, Exception):
            return
        if isinstance(error, StoreError):
            self._owner.commit.fail(error)
        elif not isinstance(error, HoldfastError):
            log.exception("an operation failed")
            failure = StoreUnavailable(problem=f"internal error: {error!r}")
            self._owner.commit.fail(failure)
            raise failure from error


class ReadGuard(Guard):
    """Gives the engine for one operation that only reads. After a bug in it nothing need be discarded: the error is its
    caller's alone."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreError):
            self._owner.commit.fail(error)


class UnattendedGuard(Guard):
    """For what the cell itself does, also while it takes no calls: the engine must be open."""

    __slots__ = ()

    def __enter__(self) -> Engine:
        engine = self._owner.commit.engine
        assert engine is not None
        return engine
