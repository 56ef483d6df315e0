"""The table of pages: a module of pages has one, and the application joins them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.http_api.server.response import Response

if TYPE_CHECKING:
    from holdfast.console.caller import Caller

PageHandler = Callable[["Caller"], Coroutine[Any, Any, Response]]


class Page(NamedTuple):
    """What answers one method of one path."""

    method: str
    path: str
    handler: PageHandler
    waits: bool


class Pages:
    """The pages of one module."""

    def __init__(self) -> None:
        self.pages: list[Page] = []

    def get(self, path: str, *, waits: bool = False) -> Callable[[PageHandler], PageHandler]:
        """Register what shows something."""
        return self._register("GET", path, waits)

    def post(self, path: str, *, waits: bool = False) -> Callable[[PageHandler], PageHandler]:
        """Register what changes something: it is called with a form of this site only."""
        return self._register("POST", path, waits)

    def _register(self, method: str, path: str, waits: bool) -> Callable[[PageHandler], PageHandler]:
        def register(handler: PageHandler) -> PageHandler:
            self.pages.append(Page(method, path, handler, waits))
            return handler

        return register
