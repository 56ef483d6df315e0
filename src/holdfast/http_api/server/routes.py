"""The table of endpoints: what each is for, what it takes and gives, and how a path finds it.

A module with handlers has a `Routes`; the application joins them, and the OpenAPI description and the reference page
are made from the same table, so that neither can say anything else than what is served.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import unquote

import msgspec

from holdfast.errors import HoldfastError, MalformedRequest
from holdfast.http_api.server.response import EndpointResult, Response, TaskResponse

if TYPE_CHECKING:
    from holdfast.http_api.server.request import Request

SMALL_BYTES_MAX: Final = 1 << 20
"""The largest body of an endpoint that takes no messages: a redrive by ids can have 40,000 of them."""

InlineHandler = Callable[["Request"], EndpointResult]
"""Called when the whole body is in `Request.content`, unless that is a form. It waits for nothing."""

CoroutineHandler = Callable[["Request"], Coroutine[Any, Any, Response]]
"""Called when the head is read. It runs in a task of its own."""

Handler = InlineHandler | CoroutineHandler
_Handler = TypeVar("_Handler", bound=Handler)


class Right(Enum):
    """What a caller must be allowed to do with the queue that the path names."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"
    ANY = "any"  # any of these on the queue: looking at it
    NODE = "node"  # the server itself, over all namespaces
    PRODUCE_SOMEWHERE = "produce somewhere"  # on any queue at all: the body names it, and the handler checks that one
    CONSUME_SOMEWHERE = "consume somewhere"
    ADMIN_SOMEWHERE = "admin somewhere"
    SOMEWHERE = "somewhere"  # any of these on any queue at all
    AUTHENTICATED = "known"  # any valid credential; the handler checks further
    ANONYMOUS = "nobody"  # no credential needed


class ErrorFormat(NamedTuple):
    """How a dialect says that something is wrong: as JSON of this shape. `make` is given the content type of the
    request too, since a dialect may have several formats."""

    make: Callable[[HoldfastError, str], Response]
    shape: type[msgspec.Struct]
    content_type: str = "application/json"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    call: InlineHandler
    coroutine: CoroutineHandler | None  # the handler, if it is one; `call` then runs it in a task
    tag: str
    right: Right
    body: type[msgspec.Struct] | object | None = None
    query: type[msgspec.Struct] | None = None
    gives: object | None = None
    status: int = 200
    errors: tuple[type[HoldfastError], ...] = ()
    request_types: tuple[str, ...] = ()  # other content types of the body
    response_types: tuple[str, ...] = ()  # other content types of the response
    headers: tuple[str, ...] = ()  # request headers with a meaning here
    act: str = ""  # its name in the audit log, if it is an act of administration
    error_format: ErrorFormat | None = None  # how errors look, if not as problems
    bulk: bool = False  # takes bodies up to http.max_request_bytes, else up to SMALL_BYTES_MAX
    waits: bool = False  # may wait long: does not count against http.max_concurrency
    always_served: bool = False  # also while the server stops
    changes: bool = False  # of a GET, which should not: no browser is let in, because a page makes one without asking
    signed: bool = False  # takes requests that are signed with an access key, too
    described: bool = True  # in the API's description: pages for people are not

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.handler) or "").partition("\n")[0].rstrip(".")

    @property
    def text(self) -> str:
        return inspect.getdoc(self.handler) or ""

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class Routes:
    """The endpoints of one module, under one heading."""

    def __init__(self, tag: str, error_format: ErrorFormat | None = None, *, described: bool = True) -> None:
        self.tag = tag
        self.described = described
        self.error_format = error_format
        self.endpoints: list[Endpoint] = []

    def __call__(
        self,
        method: str,
        path: str,
        right: Right,
        *,
        body: object | None = None,
        query: type[msgspec.Struct] | None = None,
        gives: object | None = None,
        status: int = 200,
        errors: tuple[type[HoldfastError], ...] = (),
        request_types: tuple[str, ...] = (),
        response_types: tuple[str, ...] = (),
        headers: tuple[str, ...] = (),
        act: str = "",
        bulk: bool = False,
        waits: bool = False,
        always_served: bool = False,
        changes: bool = False,
        signed: bool = False,
    ) -> Callable[[_Handler], _Handler]:
        """Register a handler."""

        def register(handler: _Handler) -> _Handler:
            coroutine = cast("CoroutineHandler", handler) if inspect.iscoroutinefunction(handler) else None
            assert coroutine is not None or not act, "the audit log is waited for"
            endpoint = Endpoint(
                method=method,
                path=path,
                handler=handler,
                call=cast("InlineHandler", handler) if coroutine is None else _in_task(coroutine),
                coroutine=coroutine,
                tag=self.tag,
                right=right,
                body=body,
                query=query,
                gives=gives,
                status=status,
                errors=errors,
                request_types=request_types,
                response_types=response_types,
                headers=headers,
                act=act,
                bulk=bulk,
                waits=waits,
                always_served=always_served,
                changes=changes,
                signed=signed,
                error_format=self.error_format,
                described=self.described,
            )
            self.endpoints.append(endpoint)
            return handler

        return register


def _in_task(handler: CoroutineHandler) -> InlineHandler:
    return lambda request: TaskResponse(handler(request))


class _Branch:
    __slots__ = ("any", "endpoints", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Branch] = {}
        self.any: _Branch | None = None
        self.endpoints: dict[str, Endpoint] = {}


class Router:
    """Finds the endpoints of a path. It uses the path as it was sent, because a queue's name may contain '/' as %2F."""

    def __init__(self, endpoints: Iterator[Endpoint]) -> None:
        self._root = _Branch()
        self.endpoints: list[Endpoint] = []
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        branch = self._root
        for part in endpoint.path.split("/")[1:]:
            if part.startswith("{"):
                branch.any = branch.any or _Branch()
                branch = branch.any
            else:
                branch = branch.names.setdefault(part, _Branch())
        assert endpoint.method not in branch.endpoints, f"{endpoint.method} {endpoint.path} twice"
        branch.endpoints[endpoint.method] = endpoint
        self.endpoints.append(endpoint)

    def find(self, raw_path: str) -> tuple[dict[str, Endpoint], list[str]] | None:
        """The methods of a path, with its parameters in order, still encoded; None if there is nothing."""
        branch = self._root
        values: list[str] = []
        for part in raw_path.split("/")[1:]:
            following = branch.names.get(part)
            if following is None:
                following = branch.any
                if following is None:
                    return None
                values.append(part)
            branch = following
        if not branch.endpoints:
            return None
        return branch.endpoints, values


def decoded(value: str) -> str:
    """A parameter as it was meant."""
    if "%" not in value:
        return value
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise MalformedRequest(problem="the path is not UTF-8") from None
