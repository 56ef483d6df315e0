"""What an error in the middle of an operation means for the engine."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import structlog

from holdfast.broker.commit.group_commit import GroupCommit
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, InternalError, StoreAway, StoreError, StoreUnavailable

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EngineOwner(Protocol):
    """Has the engine, and the group commit that fails if the engine must be discarded."""

    commit: GroupCommit
    clock: Callable[[], int]

    @property
    def engine(self) -> Engine: ...


class Guard:
    """Gives the engine for one operation that may change it. If the store fails in the middle of it, the engine's state
    must be discarded; not so if it only does not answer a read, and nothing was changed before: that concerns the
    caller alone. After an error that is no answer to the caller, a bug, the operation is undone: its caller gets
    `InternalError`, and nobody else notices.

    It holds nothing of an operation: one guard serves all of them. Operations are not nested.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: EngineOwner) -> None:
        self._owner = owner

    def __enter__(self) -> Engine:
        engine = self._owner.engine
        engine.begin()
        return engine

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, Exception):
            return
        if isinstance(error, StoreError):
            engine = self._owner.commit.engine
            if not isinstance(error, StoreAway) or engine is None or not engine.unchanged:
                self._owner.commit.fail(error)
        elif not isinstance(error, HoldfastError):
            raise self._undo(error) from error

    def _undo(self, error: Exception) -> HoldfastError:
        """Have the engine as it was before an operation that failed by a bug. Returns what its caller is answered."""
        commit = self._owner.commit
        log.error("an operation failed; it is undone", exc_info=error)
        try:
            if commit.engine is not None:
                commit.engine.undo(self._owner.clock())
                commit.schedule()
        except Exception as failure:  # what is stored cannot be read: then it must be opened again
            log.exception("an operation could not be undone")
            problem = StoreUnavailable(problem=f"internal error: {failure!r}")
            commit.fail(failure if isinstance(failure, StoreError) else problem)
        return InternalError(problem=repr(error))


class ReadGuard(Guard):
    """Gives the engine for one operation that only reads. After a bug in it nothing need be undone: the error is its
    caller's alone."""

    __slots__ = ()

    def __enter__(self) -> Engine:
        return self._owner.engine

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreError) and not isinstance(error, StoreAway):
            self._owner.commit.fail(error)


class UnattendedGuard(Guard):
    """For what the cell itself does, also while it takes no calls: the engine must be open."""

    __slots__ = ()

    def __enter__(self) -> Engine:
        engine = self._owner.commit.engine
        assert engine is not None
        engine.begin()
        return engine
