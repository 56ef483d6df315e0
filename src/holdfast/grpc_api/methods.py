"""Which methods there are: by path, what each takes, who may call it, and who serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from holdfast.auth.principal import Action
from holdfast.grpc_api.call import GrpcCall

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)

Unary = Callable[[GrpcCall, Any], Awaitable[Message]]
Stream = Callable[[GrpcCall], Awaitable[None]]
Check = Callable[[GrpcCall, bytes], None]


class Method(NamedTuple):
    """A method. Either `unary` serves it, or `stream`."""

    path: str
    right: Action | None = None
    """What the caller must be allowed somewhere, before its request is read; with which queue, its handler checks.
    None: everybody whose credential is good may call it."""
    request: type[Message] | None = None
    unary: Unary | None = None
    stream: Stream | None = None
    act: str = ""
    """What the audit log calls it, if it is an act of administration. The handler finds the queue by `resource`."""
    resource: str = "name"
    open: bool = False
    """No credential is needed."""
    check: Check | None = None
    """Counts what a request has, before it is decoded, and raises if that is too much. Requests of methods without it
    are small."""


class Methods:
    """The methods of a service, collected by decorators."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.found: list[Method] = []

    def unary(
        self,
        name: str,
        request: type[_Request],
        right: Action | None,
        *,
        act: str = "",
        resource: str = "name",
        check: Check | None = None,
    ) -> Callable[
        [Callable[[GrpcCall, _Request], Awaitable[_Response]]], Callable[[GrpcCall, _Request], Awaitable[_Response]]
    ]:
        """A method with one request and one response."""

        def add(
            handler: Callable[[GrpcCall, _Request], Awaitable[_Response]],
        ) -> Callable[[GrpcCall, _Request], Awaitable[_Response]]:
            self.found.append(
                Method(
                    f"/{self.service}/{name}", right, request, unary=handler, act=act, resource=resource, check=check
                )
            )
            return handler

        return add

    def stream(self, name: str, right: Action | None, *, is_open: bool = False) -> Callable[[Stream], Stream]:
        """A method that reads its requests and sends its responses itself."""

        def add(handler: Stream) -> Stream:
            self.found.append(Method(f"/{self.service}/{name}", right, stream=handler, open=is_open))
            return handler

        return add
