"""The lines of the audit log are a chain: each ends with a hash over itself and the hash before it.

    {"number": 17, "at": ..., "result": "ok", "chain": "9f2c..."}

So no line can be changed, removed or put between others without being noticed. What a chain alone cannot tell is
whether its end was cut off: for that, compare its last hash with one that was noted elsewhere, or shipped. The first
line of a file repeats the hash before it (`previous`), so that files can be read without those that were deleted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

FIRST: Final = "0" * 64
"""What stands before the first line of all."""

_SEAL: Final = re.compile(rb',"chain":"([0-9a-f]{64})"\}\Z')


class Link(NamedTuple):
    """The place of a line in the chain."""

    number: int
    chain: str


START: Final = Link(0, FIRST)


def seal(body: bytes, previous: str) -> tuple[bytes, str]:
    """A line of a JSON object, without its end of line, and its hash."""
    chain = _hash(previous, body)
    return b'%b,"chain":"%b"}' % (body[:-1], chain.encode()), chain


def _hash(previous: str, body: bytes) -> str:
    return hashlib.sha256(previous.encode() + b"\n" + body).hexdigest()


class _Numbered(msgspec.Struct):
    number: int
    previous: str = ""


class SealedLine(NamedTuple):
    """A line as it was read. `broken`: why it is none of a chain."""

    link: Link
    body: bytes
    previous: str
    broken: str = ""


_numbered = msgspec.json.Decoder(_Numbered)


def read_line(raw: bytes) -> SealedLine:
    found = _SEAL.search(raw)
    if found is None:
        return SealedLine(START, raw, "", "has no hash at its end")
    body = raw[: found.start()] + b"}"
    try:
        head = _numbered.decode(body)
    except msgspec.MsgspecError:
        return SealedLine(START, raw, "", "is not an entry")
    return SealedLine(Link(head.number, found[1].decode()), body, head.previous)


def last_link(files: Iterable[Path]) -> Link:
    """Where the chain goes on; `files` are the newest first."""
    for path in files:
        for raw in reversed(path.read_bytes().splitlines()):
            line = read_line(raw)
            if not line.broken:
                return line.link
    return START


class Finding(NamedTuple):
    """Something in the log that is not as it was written."""

    file: str
    line: int
    problem: str


class Verification(NamedTuple):
    """What became of checking a log. `torn`: lines that a crash cut off, after which the chain goes on."""

    entries: int
    first: Link
    last: Link
    torn: int
    findings: list[Finding]


FINDINGS_MAX: Final = 100


def verify(files: Iterable[Path]) -> Verification:
    """Check the whole log; `files` are the oldest first."""
    entries = torn = 0
    first = last = START
    findings: list[Finding] = []
    unfinished: Finding | None = None
    for name, number, line in _lines(files):
        if line.broken:
            if unfinished is not None:
                findings.append(unfinished)
            unfinished = Finding(name, number, line.broken)
            continue
        if not entries:
            first = Link(line.link.number, line.previous or FIRST)
            last = Link(line.link.number - 1, first.chain)
        problem = _problem(line, last)
        if problem:
            findings.append(Finding(name, number, problem))
        elif unfinished is not None:
            torn += 1  # nothing is missing between the lines around it
            unfinished = None
        if unfinished is not None:
            findings.append(unfinished)
            unfinished = None
        entries += 1
        last = line.link
        if len(findings) >= FINDINGS_MAX:
            break
    if unfinished is not None:
        findings.append(unfinished._replace(problem=f"{unfinished.problem}; it is the last, as after a crash"))
    return Verification(entries, first, last, torn, findings)


def contains(files: Iterable[Path], chain: str) -> bool:
    """Whether an entry has this hash."""
    return any(line.link.chain == chain for _, _, line in _lines(files))


def _problem(line: SealedLine, last: Link) -> str:
    if line.link.number != last.number + 1:
        return f"is entry {line.link.number}, after entry {last.number}: entries are missing or were put in"
    if line.previous not in ("", last.chain):
        return "does not follow the line before it"
    if _hash(last.chain, line.body) != line.link.chain:
        return "was changed, or the line before it was"
    return ""


def _lines(files: Iterable[Path]) -> Iterator[tuple[str, int, SealedLine]]:
    for path in files:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                content = raw.rstrip(b"\n")
                if content:
                    yield path.name, number, read_line(content)
