"""One call: its caller, its requests and responses, and how it ends.

Every method is served as a stream of bytes, whatever the contract says: so the caller is known, and its rate and the
limits are checked, before anything of its request is read.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from holdfast.auth.fronts.long_requests import End
from holdfast.auth.principal import Action, Principal
from holdfast.auth.tls import subject_of_pem
from holdfast.broker.node import Node
from holdfast.core.queue import check_name
from holdfast.engine.catalog import QueueName
from holdfast.errors import (
    HoldfastError,
    LimitExceeded,
    MalformedRequest,
    Overloaded,
    RequestTooLarge,
    StreamEnded,
    Unauthenticated,
)
from holdfast.grpc_api.status import DETAILS_KEY, code_of, status_of
from holdfast.trace_context import TRACEPARENT, TRACESTATE, Pairs, pairs_of
from holdfast.units import SECOND

if TYPE_CHECKING:
    from holdfast.grpc_api.front import GrpcFront
    from holdfast.grpc_api.methods import Method

_Request = TypeVar("_Request", bound=Message)

CORRELATION = "x-correlation-id"
CORRELATION_BYTES_MAX = 255
ABORT_SECONDS = 5.0
"""A client that reads nothing cannot be told why its call ends."""

OPEN_BYTES_MAX = 4_096
"""Of a request that needs no credential: it names a service."""

SMALL_BYTES_MAX = 64 << 10
"""Of a request that is no batch. It could be decoded into tens of thousands of objects, which takes some milliseconds;
a redrive can name 7,000 dead letters."""

MARGIN = SECOND // 10
"""How long before a call's deadline it no longer waits: what it has got by then must still reach the client."""


class Context(Protocol):
    """What is used of grpc.aio's."""

    async def read(self) -> Any: ...

    async def write(self, message: bytes) -> None: ...

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, bytes], ...] = ()
    ) -> None: ...

    def invocation_metadata(self) -> Any: ...

    def peer(self) -> str: ...

    def auth_context(self) -> dict[str, list[bytes]]: ...

    def time_remaining(self) -> float | None: ...

    def cancelled(self) -> bool: ...


UNKNOWN = Principal(name="", namespace="", method="unknown")


class GrpcCall:
    """See the module."""

    def __init__(self, front: GrpcFront, method: Method, context: Context) -> None:
        self.front = front
        self.method = method
        self.principal = UNKNOWN
        self.metadata: dict[str, str] = {
            name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)
        }
        self.undo: Callable[[], None] | None = None
        """Called if the response does not reach the client."""
        self.audit_details: dict[str, object] = {}
        self._context = context
        self._buffered_bytes = 0
        self._peer: str | None = None

    # --- the caller -------------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        return self.front.node

    @property
    def peer(self) -> str:
        """The caller's address, behind proxies that are trusted."""
        if self._peer is None:
            forwarded = self.metadata.get("x-forwarded-for")
            direct = _address(self._context.peer())
            self._peer = self.front.gate.proxies.client(direct, None if forwarded is None else forwarded.encode())
        return self._peer

    @property
    def connection(self) -> str:
        """The connection that it came by: address and port of its other end."""
        return self._context.peer()

    @property
    def correlation_id(self) -> str | None:
        """What the caller sent, to be kept with its messages."""
        found = self.metadata.get(CORRELATION)
        return found[:CORRELATION_BYTES_MAX] if found else None

    @property
    def trace_context(self) -> Pairs:
        parent = self.metadata.get(TRACEPARENT)
        return pairs_of(parent, self.metadata.get(TRACESTATE, "")) if parent is not None else ()

    async def identify(self) -> None:
        """Find out who calls. Raises Unauthenticated, or LoginThrottled."""
        gate = self.front.gate
        authorization = self.metadata.get("authorization")
        if authorization is None:
            subject = self._subject() if gate.required else None
            known = gate.certificate(subject) if subject is not None else None
            self.principal = known if known is not None else gate.anonymous()
            return
        scheme, _, value = authorization.partition(" ")
        value = value.strip()
        match scheme.lower():
            case "bearer":
                known = gate.recall(value)
                self.principal = known if known is not None else await gate.token(value, self.peer)
            case "basic":
                user, password = _user_and_password(value)
                known = gate.recall_password(user, password)
                self.principal = known if known is not None else await gate.password(user, password, self.peer)
            case _:
                raise Unauthenticated(problem="authorization is neither Bearer and a token nor Basic and user:password")

    def _subject(self) -> str | None:
        certificates = self._context.auth_context().get("x509_pem_cert")
        return subject_of_pem(certificates[0]) if certificates else None

    def queue(self, name: str, action: Action) -> QueueName:
        """A queue with which the caller may do this, or Forbidden."""
        self.principal.require(action, name)
        return (self.principal.namespace, check_name(name))

    # --- requests and responses -------------------------------------------------------------------------------------

    async def receive(self, *, patient: bool = False) -> bytes | None:
        """The next message of the client, None if it has sent its last. `patient`: it may take its time."""
        if patient:
            raw = await self._context.read()
        else:
            slow = self.front.slow_strangers if self.method.open else self.front.slow_arrivals
            try:
                with slow.awaiting(self.principal):
                    async with asyncio.timeout(self.front.settings.body_timeout / SECOND):
                        raw = await self._context.read()
            except TimeoutError:
                raise MalformedRequest(problem="it has not arrived in time (grpc.body_timeout)") from None
        if not isinstance(raw, bytes):
            return None
        if self.method.open and len(raw) > OPEN_BYTES_MAX:
            raise MalformedRequest(problem=f"one that needs no credential has at most {OPEN_BYTES_MAX} bytes")
        self.front.count_bytes(self.principal, len(raw))
        return raw

    async def request(self, kind: type[_Request]) -> _Request:
        """The request of a call that has one, or the first of a stream."""
        raw = await self.receive()
        if raw is None:
            raise MalformedRequest(problem="the call has no request")
        if self.method.check is not None:
            self.method.check(self, raw)
        elif len(raw) > SMALL_BYTES_MAX:
            raise RequestTooLarge(limit_bytes=SMALL_BYTES_MAX)
        if not self.method.open:  # strangers take no room from callers
            self.buffer(len(raw))
        return decode(kind, raw)

    async def send(self, response: Message) -> None:
        """Send a response; returns when the client has room for another."""
        try:
            async with asyncio.timeout(self.front.settings.write_timeout / SECOND):
                await self._context.write(response.SerializeToString())
        except TimeoutError:
            raise StreamEnded(reason="the client does not read what it is sent") from None

    def buffer(self, size_bytes: int) -> None:
        """Count so much of a request as held in memory until the call is over. Raises Overloaded."""
        front = self.front
        if front.buffered_bytes and front.buffered_bytes + size_bytes > front.settings.max_buffered_bytes:
            raise Overloaded(waiting=front.calls)
        front.buffered_bytes += size_bytes
        self._buffered_bytes += size_bytes

    def hold(self, size_bytes: int) -> None:
        """Count a batch of a stream, which is not refused for it: the stream is not read any further."""
        self.front.buffered_bytes += size_bytes
        self._buffered_bytes += size_bytes

    def free(self, size_bytes: int) -> None:
        """So much of it is no longer held. A call that has ended holds nothing."""
        size_bytes = min(size_bytes, self._buffered_bytes)
        self.front.buffered_bytes -= size_bytes
        self._buffered_bytes -= size_bytes

    def end(self) -> None:
        self.free(self._buffered_bytes)

    def time_left(self) -> int | None:
        """Microseconds that the call may still wait, by its deadline; None: it has none."""
        seconds = self._context.time_remaining()
        return None if seconds is None else max(int(seconds * SECOND) - MARGIN, 0)

    async def abort(self, error: HoldfastError) -> None:
        """End the call with an error."""
        details = status_of(error)
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self._context.abort(
                    code_of(error), details.message, ((DETAILS_KEY, details.SerializeToString()),)
                )
        except TimeoutError:
            return  # it is cut off: the client reads nothing

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._context.cancelled()

    @contextmanager
    def lasting(self) -> Iterator[End]:
        """While a call waits or streams: it is ended when its caller's credential no longer holds, and when the server
        stops. Raises the reason. Gives the function that ends it."""
        front = self.front
        if front.streams >= front.settings.max_streams:
            raise LimitExceeded(
                what="The number of gRPC streams and waiting calls",
                limit=front.settings.max_streams,
                advice="Close some, or ask for more messages at a time",
            )
        front.check_open()
        front.long_requests.check(self.principal)
        task = asyncio.current_task()
        assert task is not None
        reason: HoldfastError | None = None

        def end(why: HoldfastError) -> None:
            nonlocal reason
            if reason is None:
                reason = why
                task.cancel()

        front.streams += 1
        front.leave()  # it does not count as being worked on
        try:
            with front.long_requests.until(self.principal, end):
                yield end
        except asyncio.CancelledError:
            if reason is None:
                raise
            task.uncancel()
            raise reason from None
        finally:
            front.streams -= 1
            front.enter()


def decode(kind: type[_Request], raw: bytes) -> _Request:
    """A message of a client, or MalformedRequest."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise MalformedRequest(problem=f"it is no {kind.DESCRIPTOR.full_name} ({str(error)[:200]})") from None


def _user_and_password(value: str) -> tuple[str, bytes]:
    try:
        user, colon, password = b64decode(value, validate=True).partition(b":")
        if colon:
            return user.decode(), password
    except ValueError:
        pass
    raise Unauthenticated(problem="authorization is not Basic and user:password")


@lru_cache(maxsize=1_024)
def _address(peer: str) -> str:
    """`ipv4:127.0.0.1:4711` and `ipv6:%5B::1%5D:4711` without kind and port."""
    host = unquote(peer.partition(":")[2]).rpartition(":")[0]
    return host.removeprefix("[").removesuffix("]")
