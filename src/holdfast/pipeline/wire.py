"""What Spark's tasks say to a server: a few requests over HTTP, Arrow in both directions.

Standard library and pyarrow only, and nothing else of Holdfast: tasks start often, and on machines that have little.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

ARROW = "application/vnd.apache.arrow.stream"
TIMEOUT_SECONDS = 60.0
PAUSE_SECONDS = (0.1, 0.3, 1.0, 3.0)  # before attempts to come; the last one again and again
AGAIN = frozenset({429, 502, 503, 504, 507})


class Refused(Exception):
    """The server refused: its code, and what it said."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        self.status, self.code, self.detail = status, code, detail
        super().__init__(f"{detail} [{code}]")

    def __reduce__(self) -> tuple[object, ...]:
        return (Refused, (self.status, self.code, self.detail))


class Server:
    """A server's HTTP API, as far as the data source needs it. Holds no connection, so it can be sent about."""

    def __init__(self, url: str, token: str | None, retry_seconds: float) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._retry_seconds = retry_seconds

    # --- reading ----------------------------------------------------------------------------------------------------

    def ends(self, queue: str, group: str) -> dict[int, dict[str, int]]:
        """By partition, what a cursor group can read now."""
        found, _ = self._json("GET", f"{_group(queue, group)}/ends")
        return {end["partition"]: end for end in found["partitions"]}

    def make_cursor(self, queue: str, group: str, start: str) -> None:
        """Make sure that a cursor group is there."""
        self._json("PUT", _group(queue, group), {"kind": "cursor", "start": start})

    def read(self, queue: str, group: str, wish: Mapping[str, int]) -> tuple[pa.Table, dict[str, int]]:
        """A range of a cursor group, and where it stands."""
        body, headers = self._call("POST", f"{_group(queue, group)}/read", json.dumps(wish).encode(), accept=ARROW)
        facts = {name: int(headers.get(f"holdfast-{name}", "0")) for name in ("next", "lost-from", "lost-to")}
        return pa.ipc.open_stream(body).read_all(), facts

    def commit(self, queue: str, group: str, positions: Mapping[int, int]) -> None:
        """A cursor group needs nothing up to and including these sequences."""
        wish = [{"partition": partition, "sequence": sequence} for partition, sequence in sorted(positions.items())]
        self._json("POST", f"{_group(queue, group)}/commit", {"positions": wish})

    def browse(self, queue: str, page: int) -> Iterator[pa.Table]:
        """Everything that waits in a queue; nothing is leased."""
        cursor = ""
        while True:
            query = urllib.parse.urlencode({"limit": page, "cursor": cursor} if cursor else {"limit": page})
            body, headers = self._call("GET", f"{_queue(queue)}/messages?{query}", accept=ARROW)
            table = pa.ipc.open_stream(body).read_all()
            yield table
            metadata = table.schema.metadata or {}
            cursor = headers.get("holdfast-cursor", metadata.get(b"cursor", b"").decode())
            if not cursor:
                return

    # --- writing ----------------------------------------------------------------------------------------------------

    def stage(self, transaction: str, queue: str, table: pa.Table, part: str, attempt: str, chunk: int) -> None:
        """Stage rows. Those of a transaction that was published before are passed over: it is done."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        query = urllib.parse.urlencode({"queue": queue, "part": part, "attempt": attempt, "chunk": chunk})
        path = f"/api/v1/transactions/{_part(transaction)}/stage?{query}"
        try:
            self._call("POST", path, sink.getvalue().to_pybytes(), content_type=ARROW)
        except Refused as refusal:
            if refusal.code != "transaction_published":
                raise

    def publish(self, transaction: str, parts: Mapping[str, str]) -> dict[str, Any]:
        """Make what these attempts staged visible, all at once and once."""
        path = f"/api/v1/transactions/{_part(transaction)}/publish"
        found: dict[str, Any] = self._json("POST", path, {"parts": dict(parts)})[0]
        return found

    def abort(self, transaction: str) -> None:
        """Forget what was staged. One that was published stays so."""
        try:
            self._json("POST", f"/api/v1/transactions/{_part(transaction)}/abort", {})
        except Refused as refusal:
            if refusal.code != "transaction_published":
                raise

    # --- requests ---------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, wish: object = None) -> tuple[Any, dict[str, str]]:
        body, headers = self._call(method, path, json.dumps(wish).encode() if wish is not None else None)
        return json.loads(body or b"null"), headers

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> tuple[bytes, dict[str, str]]:
        """One request, again while the server is away or busy, for as long as `retryTimeout` says."""
        until = time.monotonic() + self._retry_seconds
        attempt = 0
        while True:
            try:
                return self._once(method, path, body, accept, content_type)
            except Refused as refusal:
                if refusal.status not in AGAIN or time.monotonic() > until:
                    raise
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > until:
                    raise Refused(0, "server_unreachable", f"{self._url} did not answer: {error}") from error
            time.sleep(PAUSE_SECONDS[min(attempt, len(PAUSE_SECONDS) - 1)])
            attempt += 1

    def _once(
        self, method: str, path: str, body: bytes | None, accept: str, content_type: str
    ) -> tuple[bytes, dict[str, str]]:
        headers = {"Accept": accept, "Content-Type": content_type}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url + path, body, headers, method=method)  # noqa: S310 - the user's own URL
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - the same
                return response.read(), {name.lower(): value for name, value in response.headers.items()}
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None


def _refusal(error: urllib.error.HTTPError) -> Refused:
    text = error.read()
    try:
        problem = json.loads(text)
        return Refused(error.code, str(problem["code"]), str(problem.get("detail", problem.get("title", ""))))
    except (ValueError, KeyError, TypeError):
        return Refused(error.code, "http", f"answered {error.code}: {text[:200]!r}")


def _part(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _queue(queue: str) -> str:
    return f"/api/v1/queues/{_part(queue)}"


def _group(queue: str, group: str) -> str:
    return f"{_queue(queue)}/groups/{_part(group)}"
