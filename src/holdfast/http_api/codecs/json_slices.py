"""Long JSON bodies: judged before they are decoded, and decoded in slices, so that others are served in between.

Decoding is one call, in which nothing else runs, and what it costs is the number of values more than the number of
bytes: 45 MB of `{}` would be 15 million messages and a minute. So a body that is not obviously cheap is first cut at
the elements of its array (messages, settlements, …), by a scan that stops at the first element too many, and then
decoded some elements at a time. Scan and decoding are generators: each step of them takes some milliseconds at most.

The scan finds out where elements begin and end, nothing more. Whether they are JSON is for the decoder to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple, TypeVar

from holdfast.errors import HoldfastError, InvalidArgument, LimitExceeded, MalformedRequest

_Result = TypeVar("_Result")

Steps = Generator[None, None, _Result]
"""Work in steps, between which others may run."""

WHOLE_BYTES: Final = 16 << 10
"""A body up to this is decoded whatever it holds: 5,000 times `{}` take 7 ms."""

WHOLE_COST_US: Final = 30_000
"""A longer one is decoded in one call if that takes about this long at most: 10,000 usual messages take 15 to 20 ms."""

_OBJECT_NS: Final = 1_300  # to make an object of a struct, the garbage collector's share included
_VALUE_NS: Final = 100  # a field, or an element of a list
_BYTE_NS: Final = 2  # at the worst: a text in which every character is escaped

CHUNK_ELEMENTS: Final = 1_000
CHUNK_BYTES: Final = 128 << 10
"""How much is decoded in one step; a single element may be longer, by its payload."""

FIELDS_BYTES_MAX: Final = 256 << 10
"""What an element, or a body, may have besides payloads: properties are at most 64 KiB, in JSON a few times that."""

REST_BYTES_MAX: Final = 64 << 10
"""What a body may have besides its array. It is decoded in one call."""

ESCAPED: Final = 6
"""How many bytes of JSON one byte of a payload can take (`\\u0000`)."""

NESTING_MAX: Final = 512

_STEP_TOKENS: Final = 5_000
_STEP_BYTES: Final = 64 << 10

_structure = re.compile(rb'["\[\]{}]').search
_characters = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL).match
_colon = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*").match
_SPACE: Final = b" \t\r\n"
_QUOTE, _OPEN_ARRAY, _OPEN_OBJECT = b'"[{'
_CLOSE: Final = 0
_STEP: Final = -1  # no token: time for others


def is_cheap(body: bytes) -> bool:
    """Whether it can be decoded in one call, by a count of what it may hold at most."""
    size = len(body)
    if size <= WHOLE_BYTES:
        return True
    if size * _BYTE_NS > WHOLE_COST_US * 1_000:
        return False
    values = size - len(body.translate(None, b",:["))
    return body.count(b"{") * _OBJECT_NS + values * _VALUE_NS + size * _BYTE_NS <= WHOLE_COST_US * 1_000


def check_cheap(body: bytes) -> None:
    """Refuses a body with so many values that nothing which is sent here could have them."""
    if not is_cheap(body):
        raise LimitExceeded(what="The body", limit="some ten thousand values", advice="Send less in one request")


class BulkArray(NamedTuple):
    """An array whose elements are read in slices."""

    field: bytes | None
    """Its name in the body; None: it is the body."""
    payloads: tuple[bytes, ...]
    """Fields of an element that may be long."""
    what: str
    noun: str
    """For the error if there are too many: `One enqueue`, `messages`."""

    def too_many(self, limit: int) -> HoldfastError:
        return LimitExceeded(what=self.what, limit=f"{limit} {self.noun}", advice="Send several")


class Cut(NamedTuple):
    """Where the elements of an array are, and the body with that array empty."""

    elements: list[tuple[int, int]]
    rest: bytes


class _Cutter:
    """Follows the tokens of a body and notes the elements of one array."""

    def __init__(self, body: bytes, array: BulkArray, count_max: int) -> None:
        self.body = body
        self.array = array
        self.count_max = count_max
        self.elements: list[tuple[int, int]] = []
        self.depth = 0
        self.within = 0  # the depth inside the array; 0: we are not there
        self.opened = self.closed = -1
        self.begin = -1  # of an element

    def text(self, start: int, end: int) -> None:
        field = self.array.field
        if self.depth != 1 or field is None or not _is_name(self.body, start, end, (field,)):
            return
        value = _colon(self.body, end + 1)
        if value is None or self.body[value.end() : value.end() + 1] != b"[":
            return
        if self.opened >= 0:
            raise MalformedRequest(problem=f"{field.decode()} is given twice")
        self.opened, self.within = value.end() + 1, 2

    def open(self, token: int, start: int) -> None:
        if self.depth == 0 and self.array.field is None and token == _OPEN_ARRAY and self.opened < 0:
            self.opened, self.within = start + 1, 1
        elif self.within and self.depth == self.within:
            self.begin = start
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise MalformedRequest(problem="the body is nested too deeply")

    def close(self, start: int) -> None:
        self.depth -= 1
        if self.depth < 0:
            raise MalformedRequest(problem="the body is not JSON (it closes more than it opens)")
        if self.within and self.depth == self.within:
            self.elements.append((self.begin, start + 1))
            if len(self.elements) > self.count_max:
                raise self.array.too_many(self.count_max)
        elif self.within and self.depth < self.within:
            self.closed, self.within = start, 0

    def finish(self) -> Cut:
        body = self.body
        if self.depth:
            raise MalformedRequest(problem="the body is not JSON (it ends early)")
        rest = body[: self.opened] + body[self.closed :] if self.opened >= 0 else body
        if len(rest) > REST_BYTES_MAX:
            problem = f"has more than {REST_BYTES_MAX} bytes besides its {self.array.noun}"
            raise InvalidArgument(field="The body", problem=problem)
        if self.opened >= 0:
            _check_gaps(body, self.array, self.opened, self.elements, self.closed)
        return Cut(self.elements, rest)


def cut(body: bytes, array: BulkArray, count_max: int) -> Steps[Cut]:
    """Find the elements of an array. Raises at the first that is too many."""
    cutter = _Cutter(body, array, count_max)
    for token, start, end in _tokens(body, 0):
        if token == _STEP:
            yield
        elif token == _QUOTE:
            cutter.text(start, end)
        elif token == _CLOSE:
            cutter.close(start)
        else:
            cutter.open(token, start)
    return cutter.finish()


def _check_gaps(body: bytes, array: BulkArray, opened: int, elements: list[tuple[int, int]], closed: int) -> None:
    """Between elements there is a comma and nothing else, and outside of them nothing."""
    before, wanted = opened, b""
    for start, end in elements:
        if body[before:start].strip(_SPACE) != wanted:
            raise MalformedRequest(problem=f"the {array.noun} are not objects with commas between them")
        before, wanted = end, b","
    if body[before:closed].strip(_SPACE):
        raise MalformedRequest(problem=f"the {array.noun} are not objects with commas between them")


def read_bulk(
    body: bytes, array: BulkArray, count_max: int, payload_bytes_max: int, take: Callable[[bytes], object]
) -> Steps[bytes]:
    """Call `take` with the elements, some at a time, as JSON lists, in order. Returns the body with the array empty."""
    found = yield from cut(body, array, count_max)
    for start, end in _chunks(found.elements):
        if end - start > CHUNK_BYTES:
            yield from check_fields(body, start, array.payloads, payload_bytes_max)
        take(b"[%b]" % body[start:end])
        yield
    return found.rest


def _chunks(elements: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Elements that are decoded in one step: from where to where."""
    first = 0
    for at, (start, end) in enumerate(elements):
        if at > first and (end - elements[first][0] > CHUNK_BYTES or at - first >= CHUNK_ELEMENTS):
            yield elements[first][0], elements[at - 1][1]
            first = at
        if end - start > CHUNK_BYTES:
            yield start, end
            first = at + 1
    if first < len(elements):
        yield elements[first][0], elements[-1][1]


def check_fields(body: bytes, at: int, payloads: tuple[bytes, ...], payload_bytes_max: int) -> Steps[None]:
    """Refuse the object that begins there if it has too much besides its payload, or too large a payload."""
    depth = payload = 0
    begin = -1  # of the payload
    for token, start, end in _tokens(body, at):
        if token == _STEP:
            yield
        elif token == _QUOTE:
            if depth == 1 and begin == start - 1:
                payload = end - start
            elif depth == 1 and begin < 0 and _is_name(body, start, end, payloads):
                value = _colon(body, end + 1)
                begin = value.end() if value is not None else -1
        elif token == _CLOSE:
            depth -= 1
            if depth == 1 and begin >= 0 and not payload and _opens(body, begin):
                payload = end - begin
            if depth == 0:
                if payload > payload_bytes_max * ESCAPED:
                    problem = f"has more than {payload_bytes_max} bytes"
                    raise InvalidArgument(field="A payload", problem=problem)
                if end - at - payload > FIELDS_BYTES_MAX:
                    problem = f"has more than {FIELDS_BYTES_MAX} bytes besides its payload"
                    raise InvalidArgument(field="An element of the body", problem=problem)
                return
        else:
            depth += 1


def _opens(body: bytes, at: int) -> bool:
    return body[at] in (_OPEN_ARRAY, _OPEN_OBJECT)


def _is_name(body: bytes, start: int, end: int, names: tuple[bytes, ...]) -> bool:
    return any(end - start == len(name) and body[start:end] == name for name in names)


def _tokens(body: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Texts (from the first character to the quote behind the last), what opens an array or object, and what closes
    one. In between, every few milliseconds, a step."""
    size = len(body)
    left = _STEP_TOKENS
    while at < size:
        found = _structure(body, at, at + _STEP_BYTES)
        left -= 1
        if found is None:
            at += _STEP_BYTES
            left = 0
        elif (token := body[found.start()]) == _QUOTE:
            start = end = found.end()
            while (end := _end_of_characters(body, end)) < size and body[end] != _QUOTE:
                yield _STEP, end, end
            if end >= size:
                raise MalformedRequest(problem="the body is not JSON (it ends within a text)")
            yield token, start, end
            at = end + 1
            left -= (end - start) >> 6
        else:
            at = found.end()
            yield token if token in (_OPEN_ARRAY, _OPEN_OBJECT) else _CLOSE, at - 1, at
        if left <= 0:
            yield _STEP, at, at
            left = _STEP_TOKENS


def _end_of_characters(body: bytes, at: int) -> int:
    """How far a text goes, at most a step."""
    found = _characters(body, at, at + _STEP_BYTES)
    assert found is not None, "it matches nothing at all too"
    end = found.end()
    return end if end > at else len(body) if body[at : at + 1] != b'"' else at
