"""The requests of Spark's tasks to a server: HTTP, with Arrow in both directions.

Standard library and pyarrow only: tasks start often, and executors have few packages. Every request except `enqueue` is
idempotent, so one whose response was lost is sent again.
"""

from __future__ import annotations

import http
import http.client
import json
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_holdfast.ranges import Range

ARROW = "application/vnd.apache.arrow.stream"
TIMEOUT_SECONDS = 60.0
PUBLISH_SECONDS = 900.0  # publishing ten million messages takes minutes
PAUSE_SECONDS = (0.1, 0.3, 1.0, 3.0)  # between attempts; the last one repeats
AGAIN = frozenset({429, 502, 503, 504, 507})
READ_ROWS = 10_000  # as many as a server returns in one response


class Refused(Exception):
    """An error response: its code and detail."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        self.status, self.code, self.detail = status, code, detail
        super().__init__(f"{detail} [{code}]")

    def __reduce__(self) -> tuple[object, ...]:
        return (Refused, (self.status, self.code, self.detail))


class Server:
    """A server's HTTP API, as far as the data source needs it. Its connection is kept open between requests, and is not
    pickled. For one thread."""

    def __init__(self, url: str, token: str | None, retry_seconds: float, token_file: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._token_file = token_file  # read for every request: a stream outlives its first token
        self._retry_seconds = retry_seconds
        self._connection: http.client.HTTPConnection | None = None

    def __del__(self) -> None:
        self._close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_connection": None}

    # --- queues -----------------------------------------------------------------------------------------------------

    def namespace(self, queue: str) -> str | None:
        """The namespace of a queue, as the credential has it; None if there is no such queue yet."""
        try:
            found: str = self._json("GET", _queue(queue))["namespace"]
        except Refused as refusal:
            if refusal.code != "queue_not_found":
                raise
            return None
        return found

    def dead_queue(self, queue: str) -> str:
        """The dead queue of a queue; it may not exist yet."""
        settings = self._json("GET", _queue(queue))["config"]["dlq"]
        return settings["queue"] or f"dlq/{queue}"

    def bounds(self, queue: str, since: datetime | None = None) -> list[Range]:
        """By partition, the sequences it has, or has since an instant."""
        query = f"?{urllib.parse.urlencode({'since': since.isoformat()})}" if since is not None else ""
        found = self._json("GET", f"{_queue(queue)}/partitions{query}")
        return [Range(one["partition"], one["first"], one["end"]) for one in found["partitions"]]

    def browse(
        self,
        queue: str,
        partition: int,
        *,
        view: str,
        first: int,
        until: int,
        limit: int,
        columns: Sequence[str],
        where: Sequence[tuple[str, str, Any]],
    ) -> tuple[pa.Table, int]:
        """The waiting messages in a range of sequences, and where to continue (0: there are no more); nothing is
        leased."""
        request = {"view": view, "first": first, "until": until, "limit": limit, "columns": ",".join(columns)}
        if where:
            request["where"] = json.dumps(where)
        path = f"{_queue(queue)}/partitions/{partition}/messages?{urllib.parse.urlencode(request)}"
        body, headers = self._call("GET", path, accept=ARROW)
        return pa.ipc.open_stream(body).read_all(), int(headers["holdfast-next"])

    # --- cursor groups ----------------------------------------------------------------------------------------------

    def make_cursor(self, queue: str, group: str, start: str) -> None:
        """Create a cursor group, unless it exists."""
        try:
            self._json("PUT", _group(queue, group), {"kind": "cursor", "start": start})
        except Refused as refusal:
            # The group exists with a max_lag of its own; or the queue is created, with the group, by the request for
            # `ends`.
            if refusal.code not in ("group_exists", "queue_not_found"):
                raise

    def ends(self, queue: str, group: str) -> dict[int, dict[str, int]]:
        """By partition, what a cursor group can read now. The group is created if it is new."""
        found = self._json("POST", f"{_group(queue, group)}/ends")
        return {end["partition"]: end for end in found["partitions"]}

    def read(self, queue: str, group: str, request: Mapping[str, Any]) -> tuple[pa.Table, dict[str, int]]:
        """Read a range of a cursor group. Returns also where to continue."""
        body, headers = self._call("POST", f"{_group(queue, group)}/read", json.dumps(request).encode(), accept=ARROW)
        return pa.ipc.open_stream(body).read_all(), {"next": int(headers["holdfast-next"])}

    def commit(self, queue: str, group: str, positions: Mapping[int, int]) -> None:
        """Commit a cursor group up to and including these sequences."""
        request = [{"partition": partition, "sequence": sequence} for partition, sequence in sorted(positions.items())]
        self._json("POST", f"{_group(queue, group)}/commit", {"positions": request})

    # --- writing ----------------------------------------------------------------------------------------------------

    def enqueue(self, queue: str, table: pa.Table) -> None:
        """Enqueue rows, all or none."""
        self._call("POST", f"{_queue(queue)}/messages?atomic=true", _stream(table), content_type=ARROW)

    def stage(self, transaction: str, queue: str, table: pa.Table, part: str, attempt: str, chunk: int) -> bool:
        """Stage rows. False: nothing is staged, the transaction was published before. Transactions belong to the
        identity of the token, so that was somebody with the same."""
        query = urllib.parse.urlencode({"queue": queue, "part": part, "attempt": attempt, "chunk": chunk})
        path = f"/api/v1/transactions/{_part(transaction)}/stage?{query}"
        try:
            self._call("POST", path, _stream(table), content_type=ARROW)
        except Refused as refusal:
            if refusal.code != "transaction_published":
                raise
            return False
        return True

    def publish(self, transaction: str, parts: Mapping[str, str]) -> dict[str, Any]:
        """Publish what these attempts staged, all together and once."""
        path = f"/api/v1/transactions/{_part(transaction)}/publish"
        found: dict[str, Any] = self._json("POST", path, {"parts": dict(parts)}, PUBLISH_SECONDS)
        return found

    def abort(self, transaction: str) -> None:
        """Abort: delete what was staged. A published transaction stays published."""
        try:
            self._json("POST", f"/api/v1/transactions/{_part(transaction)}/abort", {})
        except Refused as refusal:
            if refusal.code != "transaction_published":
                raise

    # --- requests ---------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, request: object = None, timeout: float = TIMEOUT_SECONDS) -> Any:
        body = json.dumps(request).encode() if request is not None else None
        return json.loads(self._call(method, path, body, timeout=timeout)[0] or b"null")

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | pa.Buffer | None = None,
        *,
        accept: str = "application/json",
        content_type: str = "application/json",
        timeout: float = TIMEOUT_SECONDS,
    ) -> tuple[bytes, Mapping[str, str]]:
        """One request, retried while the server is unavailable or busy, up to `retryTimeout`."""
        headers = {"Accept": accept, "Content-Type": content_type}
        until = time.monotonic() + self._retry_seconds
        attempt = 0
        while True:
            stale = self._connection is not None  # the server may have closed an idle connection: retry immediately
            token = self._current_token()
            try:
                return self._once(method, path, body, headers | _authorization(token), timeout)
            except Refused as refusal:
                renewed = refusal.status == http.HTTPStatus.UNAUTHORIZED and self._current_token() != token
                if (refusal.status not in AGAIN and not renewed) or time.monotonic() > until:
                    raise
            except (OSError, http.client.HTTPException) as error:
                self._close()
                if stale and not isinstance(error, TimeoutError):
                    continue
                if time.monotonic() > until:
                    raise Refused(0, "server_unreachable", f"{self._url} did not respond: {error}") from error
            time.sleep(PAUSE_SECONDS[min(attempt, len(PAUSE_SECONDS) - 1)])
            attempt += 1

    def _current_token(self) -> str | None:
        if self._token_file is None:
            return self._token
        try:
            return Path(self._token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"holdfast: tokenFile {self._token_file} cannot be read here: {error}"
            raise ValueError(f"{problem}. It must be at this path on the driver and on every executor") from error

    def _once(
        self, method: str, path: str, body: bytes | pa.Buffer | None, headers: Mapping[str, str], timeout: float
    ) -> tuple[bytes, Mapping[str, str]]:
        if self._connection is None:
            self._connection = self._open()
        connection = self._connection
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        target = urllib.parse.urlsplit(self._url).path + path
        length = {} if body is None else {"Content-Length": str(len(memoryview(body)))}
        connection.request(method, target, None if body is None else memoryview(body), {**headers, **length})
        response = connection.getresponse()
        content = response.read()
        if response.will_close:
            self._close()
        if response.status >= 400:
            raise _refusal(response.status, content)
        return content, {name.lower(): value for name, value in response.headers.items()}

    def _open(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _authorization(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _refusal(status: int, content: bytes) -> Refused:
    try:
        problem = json.loads(content)
        return Refused(status, str(problem["code"]), str(problem.get("detail", problem.get("title", ""))))
    except (ValueError, KeyError, TypeError):
        return Refused(status, "http", f"answered {status}: {content[:200]!r}")


def _part(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _queue(queue: str) -> str:
    return f"/api/v1/queues/{_part(queue)}"


def _group(queue: str, group: str) -> str:
    return f"{_queue(queue)}/groups/{_part(group)}"
