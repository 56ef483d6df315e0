"""What a node gives to those parts of its API that have files of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from holdfast.broker.commit.group_commit import GroupCommit
from holdfast.config import Config
from holdfast.core.queue import Durability
from holdfast.engine.engine import Engine
from holdfast.errors import StoreUnavailable


class Calls(ABC):
    """The seam: the engine for one operation, and waiting until what was done is safe."""

    config: Config
    clock: Callable[[], int]

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine, if the node can take calls."""

    @property
    @abstractmethod
    def commit(self) -> GroupCommit:
        """Where batches are written and synced."""

    @abstractmethod
    def _guard(self) -> AbstractContextManager[Engine]:
        """The engine, for one operation."""

    @abstractmethod
    async def _durable(self, durability: Durability = Durability.FSYNC) -> None:
        """Wait until what was just done is as safe as it must be."""

    async def _in_steps(self, work: Iterator[int]) -> int:
        """Do a long piece of work bit by bit, each bit durable before the next, with others in between."""
        total = 0
        first = self.engine
        while True:
            with self._guard() as engine:
                if engine is not first:
                    raise StoreUnavailable(problem="it was opened anew before this was done")
                count = next(work, None)
            if engine.pending:
                await self._durable()
            if count is None:
                return total
            total += count

    async def _await_clean(self) -> None:
        """Wait until everything that a reader could have seen by now is durable.

        Sequences are a promise: what was read under one may not be another message after a crash.
        """
        if not self.commit.clean:
            await self._durable()
