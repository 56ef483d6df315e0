"""Results of sending."""

from __future__ import annotations

import msgspec

from holdfast.errors import BatchIncomplete, HoldfastError


class Sent(msgspec.Struct, frozen=True):
    """A message that is stored. A duplicate was already stored, under this id."""

    id: str
    duplicate: bool = False


class SentMany(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each message, in the order in which they were given."""

    ids: list[str | None]
    """An id for each; None where it was refused."""
    duplicates: list[int] = []
    errors: dict[int, HoldfastError] = {}

    @property
    def stored(self) -> int:
        """How many are stored, duplicates included."""
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
