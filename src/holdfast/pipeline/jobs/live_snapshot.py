"""Fetches a snapshot of a running server over HTTP, for the comparison of `reconcile --live`."""

from __future__ import annotations

from pathlib import Path

import httpx

from holdfast.client.problems import error_of, problem_of
from holdfast.client.tls import Tls
from holdfast.errors import AnswerUnreadable, HoldfastError, ServerUnreachable
from holdfast.journal.snapshot import Snapshot, read_stream

FIRST_BYTE_SECONDS = 600.0
"""How long a server may take between parts of its response: it opens a checkpoint of its store first."""


def fetch(
    url: str,
    directory: Path,
    *,
    token: str | None = None,
    login: tuple[str, str] | None = None,
    tls: Tls | None = None,
) -> Snapshot:
    """Write what is live now in the server at `url` to `directory`, as `holdfast pipeline snapshot` does."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = directory / "answer.arrows"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    context = (tls or Tls()).context() if url.startswith("https") else True
    timeout = httpx.Timeout(30.0, read=FIRST_BYTE_SECONDS)
    try:
        with (
            httpx.Client(base_url=url, headers=headers, auth=login, verify=context, timeout=timeout) as client,
            client.stream("GET", "/api/v1/snapshot") as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise _refusal(response.status_code, response.read(), url)
            with kept.open("wb") as file:
                for part in response.iter_bytes():
                    file.write(part)
        with kept.open("rb") as file:
            return read_stream(file, directory)
    except httpx.HTTPError as error:
        problem = str(error) or type(error).__name__
        raise ServerUnreachable(url=url, problem=problem, outcome="Nothing was changed.") from error
    except ValueError as error:
        raise AnswerUnreadable(url=url, status=200, problem=f"the snapshot is incomplete: {error}") from error
    finally:
        kept.unlink(missing_ok=True)


def _refusal(status: int, body: bytes, url: str) -> HoldfastError:
    found = problem_of(status, body, url)
    return found if isinstance(found, HoldfastError) else error_of(found)
