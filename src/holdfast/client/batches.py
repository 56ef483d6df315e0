"""What became of messages that were sent."""

from __future__ import annotations

import msgspec

from holdfast.errors import BatchIncomplete, HoldfastError


class Sent(msgspec.Struct, frozen=True):
    """A message that is stored. A duplicate was stored before, under this id."""

    id: str
    duplicate: bool = False


class SentMany(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each message, by its place in what was given."""

    ids: list[str | None]
    """An id for each; None where it was refused."""
    duplicates: list[int] = []
    errors: dict[int, HoldfastError] = {}

    @property
    def stored(self) -> int:
        """How many are stored, with those that were stored before."""
        return len(self.ids) - len(self.errors)

    def check(self) -> None:
        """Raises BatchIncomplete if a message was refused."""
        if self.errors:
            index = min(self.errors)
            raise BatchIncomplete(
                failed=len(self.errors),
                total=len(self.ids),
                index=index,
                problem=str(self.errors[index]),
                result=self,
            )
