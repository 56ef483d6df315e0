"""What an error in the middle of an operation means for the engine."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import structlog

from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from holdfast.broker.node import Node

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Guard:
    """Gives the engine for one operation. If the store fails in the middle of it, the engine's state must go; so it
    must after any error that is not an answer to the caller.

    It holds nothing of an operation: one guard serves all of them.
    """

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> Engine:
        return self._node.engine

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, Exception):
            return
        if isinstance(error, StoreError):
            self._node.commit.fail(error)
        elif not isinstance(error, HoldfastError):
            log.exception("an operation failed")
            failure = StoreUnavailable(problem=f"internal error: {error!r}")
            self._node.commit.fail(failure)
            raise failure from error
