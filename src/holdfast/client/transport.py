"""Performs calls over HTTP: one pool of connections, credentials, timeouts, and retries."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, nullcontext
from typing import TypeVar

import httpx
import msgspec

from holdfast.client.calls import Call
from holdfast.client.problems import error_of, problem_of
from holdfast.client.retries import Retries, may_repeat
from holdfast.errors import AnswerUnreadable, HoldfastError, InvalidArgument, ServerUnreachable, TlsFailed
from holdfast.wire import ItemError

Answer = TypeVar("Answer")
Token = str | Callable[[], str]

POLLS_PERCENT = 90
"""How many of the connections long polls may use."""

URLS_MAX = 256  # that are kept

PERHAPS_DONE = "What was asked for may or may not have been done."

_OTHER_NAME = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

_HEADERS = {"content-type": "application/json", "accept": "application/json"}


def checked_url(url: str) -> httpx.URL:
    """The address of a server. Raises InvalidArgument."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidArgument(field="url", problem=f"cannot be {url!r}: {error}") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise InvalidArgument(field="url", problem=f"is http://HOST:PORT or https://HOST:PORT, not {url!r}")
    return parsed


class Transport:
    """See the module."""

    def __init__(
        self,
        connections: httpx.AsyncBaseTransport,
        url: httpx.URL,
        headers: Mapping[str, str],
        retries: Retries,
        timeout_seconds: float,
        connections_max: int,
        token: Token | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`headers` go with every request."""
        self._connections = connections
        self._url = url
        self._path = url.raw_path.partition(b"?")[0].rstrip(b"/")
        self._urls: dict[str, httpx.URL] = {}
        self._common_headers = {**_HEADERS, **headers}
        self._retries = retries
        self._timeout = timeout_seconds
        self._token = token
        self._chance = chance
        # Calls wait for a connection here. Long polls leave some to other calls, or an ack would wait until a message
        # arrives.
        self._slots = asyncio.Semaphore(connections_max)
        self._polls = asyncio.Semaphore(max(connections_max * POLLS_PERCENT // 100, 1))

    @property
    def url(self) -> str:
        return str(self._url).rstrip("/")

    async def close(self) -> None:
        await self._connections.aclose()

    async def perform(self, call: Call[Answer], retries: Retries | None = None) -> Answer:
        """The result of the call, with retries; raises the error of the last attempt."""
        policy = retries or self._retries
        began = time.monotonic()
        attempt = 0
        unanswered = False
        while True:
            attempt += 1
            answer = await self._attempt(call)
            if not isinstance(answer, _Failure):
                return answer
            unanswered = unanswered or answer.unanswered
            pause = policy.pause(attempt, answer.retry_after, self._chance())
            if not may_repeat(answer.error, call.repeatable or not answer.sent) or not policy.another(
                answer.error, attempt, time.monotonic() - began, pause
            ):
                return _given_up(call, answer, unanswered)
            await asyncio.sleep(pause)

    def _request(self, call: Call[Answer], wait_seconds: float) -> httpx.Request:
        headers = {**self._common_headers, **dict(call.headers)}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token if isinstance(self._token, str) else self._token()}"
        limits = {"connect": self._timeout, "read": self._timeout + wait_seconds}
        return httpx.Request(
            call.method,
            self._url_of(call.path),
            headers=headers,
            content=call.body or None,
            extensions={"timeout": limits},
        )

    def _url_of(self, path: str) -> httpx.URL:
        """To make one takes longer than to send a request; most calls are for the same few."""
        url = self._urls.get(path)
        if url is None:
            if len(self._urls) >= URLS_MAX:
                self._urls.clear()
            url = self._urls[path] = self._url.copy_with(raw_path=self._path + path.encode("ascii"))
        return url

    async def lines(self, call: Call[Answer]) -> AsyncGenerator[Answer, None]:
        """The lines of a streamed response, each decoded as it arrives. The request is sent once; a connection that
        breaks raises an error, and so does the end of the response."""
        request = self._request(call, 0.0)
        try:
            async with (
                self._polls,
                self._slots,
                aclosing(await self._connections.handle_async_request(request)) as response,
            ):
                if not response.is_success:
                    problem = problem_of(response.status_code, await response.aread(), self.url)
                    raise problem if isinstance(problem, AnswerUnreadable) else error_of(problem)
                rest = b""
                async for chunk in response.aiter_bytes():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield self._line(call, line, response)
        except httpx.TransportError as error:
            raise self._failure(error).error from None
        raise ServerUnreachable(url=self.url, problem="the stream was cut off", outcome=PERHAPS_DONE)

    def _line(self, call: Call[Answer], line: bytes, response: httpx.Response) -> Answer:
        try:
            return call.read(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AnswerUnreadable(url=self.url, status=response.status_code, problem=str(error)) from None

    async def _attempt(self, call: Call[Answer]) -> Answer | _Failure:
        request = self._request(call, call.wait_seconds)
        try:
            async with self._polls if call.wait_seconds else nullcontext(), self._slots:
                response = await self._connections.handle_async_request(request)
                await response.aread()
        except httpx.TransportError as error:
            return self._failure(error)
        if response.is_success:
            return self._read(call, response)
        problem = problem_of(response.status_code, response.content, self.url)
        if isinstance(problem, AnswerUnreadable):
            return _Failure(problem)
        return _Failure(error_of(problem), _retry_after(response), problem.errors)

    def _failure(self, error: httpx.TransportError) -> _Failure:
        """A request that was not answered."""
        tls_error = _tls_error(error)
        if tls_error is not None:
            failed = TlsFailed(url=self.url, problem=tls_error.strerror or tls_error, advice=_tls_advice(tls_error))
            return _Failure(failed, sent=False)
        sent = not isinstance(error, _NOTHING_SENT)
        outcome = PERHAPS_DONE if sent else "Nothing was sent."
        unreachable = ServerUnreachable(url=self.url, problem=_reason(error), outcome=outcome)
        return _Failure(unreachable, sent=sent, unanswered=sent)

    def _read(self, call: Call[Answer], response: httpx.Response) -> Answer | _Failure:
        try:
            tag = response.headers.get("etag", "").strip('"')
            return (
                call.tagged(response.content, int(tag))
                if call.tagged and tag.isdigit()
                else call.read(response.content)
            )
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _Failure(AnswerUnreadable(url=self.url, status=response.status_code, problem=str(error)))


class _Failure:
    """An attempt that got no response."""

    __slots__ = ("error", "items", "retry_after", "sent", "unanswered")

    def __init__(
        self,
        error: HoldfastError,
        retry_after: float = 0.0,
        items: list[ItemError] | None = None,
        *,
        sent: bool = True,
        unanswered: bool = False,
    ) -> None:
        self.error = error
        self.retry_after = retry_after
        self.items = items or []
        self.sent = sent  # False: the server cannot have received it
        self.unanswered = unanswered  # the server may have received it, and nobody knows what it did


def _given_up(call: Call[Answer], failure: _Failure, unanswered: bool) -> Answer:
    """Errors of single items are a result; any other error is raised. `unanswered`: of any of the attempts."""
    if call.refused is not None and failure.items:
        return call.refused(failure.items)
    if unanswered and isinstance(failure.error, ServerUnreachable):
        raise ServerUnreachable(**{**failure.error.details, "outcome": PERHAPS_DONE})
    raise failure.error


def _reason(error: httpx.TransportError) -> str:
    """Describe an error of httpx; its timeouts have no text."""
    match error:
        case httpx.ConnectTimeout():
            return "the connection was not made in time"
        case httpx.PoolTimeout():
            return "all connections of the pool are busy"
        case httpx.TimeoutException():
            return "no response in time"
        case _:
            return str(error) or str(_first_cause(error)) or type(error).__name__


def _first_cause(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """The error of TLS behind one of httpx, unless it only says that the connection broke."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return None if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError) else cause
        cause = cause.__cause__ or cause.__context__
    return None


def _tls_advice(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return "Use the name that the certificate has, or have one issued for this name."
        return (
            "If its certificate is signed by an authority of your own, give that by --ca-file, "
            "or by Tls(ca_file=...) in Python."
        )
    if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return "The server seems not to use TLS at this address: try http:// instead of https://."
    return (
        "Check that both sides have a version of TLS in common, and whether the server asks for a certificate of yours."
    )


def _retry_after(response: httpx.Response) -> float:
    """Seconds; a date, which our server never sends, is ignored."""
    text = response.headers.get("retry-after", "")
    try:
        return max(float(text), 0.0)
    except ValueError:
        return 0.0
