"""Takes the stream of a backup into a directory of backups."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import httpx
import msgspec

from holdfast import wire
from holdfast.backup.frames import FrameReader
from holdfast.backup.manifest import FORMAT, LAKE, BackupManifest, Description, FileEntry, check_path
from holdfast.backup.repository import Repository
from holdfast.client.problems import error_of, problem_of
from holdfast.client.tls import Tls
from holdfast.errors import AnswerUnreadable, BackupDamaged, BackupFailed, HoldfastError, ServerUnreachable
from holdfast.journal.manifest import parse
from holdfast.journal.manifest import seal as seal_line

FIRST_BYTE_SECONDS = 600.0
"""How long a server may take between parts of its response: it copies its store first."""

_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")

Progress = Callable[[Description, int], None]
"""Called with how many bytes have arrived."""


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that was made."""

    manifest: BackupManifest
    received_bytes: int
    shared_bytes: int
    """Of files that earlier backups had already."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest backup has, of which all files are there."""

    files: dict[str, FileEntry] = {}
    segments: int = 0
    segments_hash: str = ""


def known_of(repository: Repository, *, full: bool = False) -> Known:
    """What need not be sent again."""
    backups = repository.ids()
    if full or not backups:
        return Known()
    try:
        newest = repository.manifest(backups[-1])
        lines = repository.segments(newest)
    except BackupDamaged:
        return Known()  # nothing is relied on, and everything is sent
    files = {
        file.path: file for file in newest.files if file.fingerprint and repository.has(file.sha256, file.size_bytes)
    }
    count, head = 0, ""
    for text, entry in lines:
        if not newest.lacks(count + 1) and not repository.has(entry.file.sha256, entry.file.size_bytes):
            break
        count, head = count + 1, seal_line(text)
    return Known(files=files, segments=count, segments_hash=head)


def request_of(known: Known, *, lake: bool) -> wire.BackupRequest:
    """What to ask a server for."""
    return wire.BackupRequest(
        have={path: file.fingerprint for path, file in known.files.items()},
        segments=known.segments,
        segments_hash=known.segments_hash,
        lake=lake,
    )


def take(repository: Repository, known: Known, parts: Iterable[bytes], progress: Progress) -> Fetched:
    """Write the stream of a backup. ValueError: it is incomplete; then there is no backup of it."""
    taking = _Taking(repository, known, parts, progress)
    return taking.run()


class _Taking:
    def __init__(self, repository: Repository, known: Known, parts: Iterable[bytes], progress: Progress) -> None:
        self._repository = repository
        self._known = known
        self._progress = progress
        self._reader = FrameReader(parts, self._arrived)
        self._received = 0
        self._shared = 0
        self._description: Description | None = None
        self._files: list[FileEntry] = []
        self._lake_text: bytes | None = None
        self._segments: set[str] = set()  # that were sent

    def _arrived(self, size_bytes: int) -> None:
        self._received += size_bytes
        if self._description is not None:
            self._progress(self._description, self._received)

    def run(self) -> Fetched:
        for frame in self._reader.frames():
            if frame.begin is not None:
                if not _INSTANT.fullmatch(frame.begin.taken_at):  # it becomes the name of a file
                    raise ValueError(f"it is of {frame.begin.taken_at!r}, which is no instant")
                self._description = frame.begin
            elif frame.same:
                file = self._known.files.get(frame.same)
                if file is None or file.fingerprint != frame.fingerprint:
                    raise ValueError(f"it leaves out {frame.same}, which is not here")
                self._files.append(file)
                self._shared += file.size_bytes
            elif frame.file:
                self._take(frame.file, frame.fingerprint)
        description = self._description
        if description is None:
            raise ValueError("it does not say what it is")
        manifest = BackupManifest(
            format=FORMAT,
            id=_id(description),
            description=description,
            files=self._files,
            lake=self._lake_text is not None,
            missing_segments=self._missing(),
        )
        self._repository.complete(manifest)
        return Fetched(manifest=manifest, received_bytes=self._received, shared_bytes=self._shared)

    def _take(self, path: str, fingerprint: str) -> None:
        check_path(path, "what the server sends")
        if path.startswith(f"{LAKE}/") and fingerprint:  # a segment: the lake's manifest names it
            added = self._repository.add(self._reader.content())
            if added.sha256 != fingerprint:
                problem = f"the segment {path.removeprefix(f'{LAKE}/')} in the lake is not as it was written"
                raise BackupFailed(problem=f"{problem}; holdfast pipeline reconcile says more, --no-lake leaves it out")
            self._segments.add(fingerprint)
            return
        added = self._repository.add(self._reader.content())
        self._files.append(
            FileEntry(path=path, size_bytes=added.size_bytes, sha256=added.sha256, fingerprint=fingerprint)
        )
        if path.startswith(f"{LAKE}/"):
            self._lake_text = b"".join(self._repository.parts(added.sha256))

    def _missing(self) -> list[tuple[int, int]]:
        """Entries whose segments are not here, as ranges of their numbers."""
        found: list[tuple[int, int]] = []
        for number, text in enumerate((self._lake_text or b"").split(b"\n")[:-1], 1):
            file = parse(text).file
            check_path(f"{LAKE}/journal/{file.segment}", "what the server sends")
            if self._repository.has(file.sha256, file.size_bytes):
                self._shared += file.size_bytes if file.sha256 not in self._segments else 0
                continue
            if found and found[-1][1] == number - 1:
                found[-1] = (found[-1][0], number)
            else:
                found.append((number, number))
        return found


def _id(description: Description) -> str:
    """Sorts by time, to the microsecond."""
    second, _, fraction = description.taken_at.removesuffix("Z").partition(".")
    at = second.replace("-", "").replace(":", "")
    return f"{at}.{fraction.ljust(6, '0')}Z-{description.node:04d}-{uuid4().hex[:6]}"


def fetch(
    url: str,
    repository: Repository,
    *,
    full: bool = False,
    lake: bool = True,
    progress: Progress = lambda _description, _received: None,
    token: str | None = None,
    login: tuple[str, str] | None = None,
    tls: Tls | None = None,
) -> Fetched:
    """Make a backup of the server at `url`."""
    known = known_of(repository, full=full)
    with _response(url, request_of(known, lake=lake), token, login, tls or Tls()) as parts:
        try:
            return take(repository, known, parts, progress)
        except ValueError as error:
            raise AnswerUnreadable(url=url, status=200, problem=f"the backup is incomplete: {error}") from error


@contextmanager
def _response(
    url: str, request: wire.BackupRequest, token: str | None, login: tuple[str, str] | None, tls: Tls
) -> Iterator[Iterator[bytes]]:
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    context = tls.context() if url.startswith("https") else True
    timeout = httpx.Timeout(30.0, read=FIRST_BYTE_SECONDS)
    try:
        with (
            httpx.Client(base_url=url, headers=headers, auth=login, verify=context, timeout=timeout) as client,
            client.stream("POST", "/api/v1/backup", content=msgspec.json.encode(request)) as response,
        ):
            if response.status_code != httpx.codes.OK:
                found = problem_of(response.status_code, response.read(), url)
                raise found if isinstance(found, HoldfastError) else error_of(found)
            yield response.iter_bytes()
    except httpx.HTTPError as error:
        problem = str(error) or type(error).__name__
        raise ServerUnreachable(url=url, problem=problem, outcome="There is no new backup.") from error


def take_stopped(repository: Repository, parts: Iterable[bytes], known: Known, progress: Progress) -> Fetched:
    """Make a backup of a store that this process has open."""
    try:
        return take(repository, known, parts, progress)
    except ValueError as error:
        raise BackupFailed(problem=str(error)) from error
