"""What every error has. The tree itself is in holdfast.errors."""

from __future__ import annotations

from typing import ClassVar

from holdfast.error_text import bounded, message


class HoldfastError(Exception):
    """Something went wrong inside Holdfast. Look at the server's log for the cause."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    http: ClassVar[int] = 500
    mqtt: ClassVar[int] = 0x80
    grpc: ClassVar[str] = "INTERNAL"

    def __init__(self, **details: object) -> None:
        self.details = {name: bounded(value) for name, value in details.items()}
        super().__init__(message(type(self), self.details))

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.details))


def _rebuild(kind: type[HoldfastError], details: dict[str, object]) -> HoldfastError:
    return kind(**details)
