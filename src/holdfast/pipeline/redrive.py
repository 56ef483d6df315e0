"""`redrive`: dead letters chosen by SQL, brought back by the broker.

Spark chooses: over any column of `dead_letters`, and over the payload where it is JSON (`payload.order.amount > 100`).
The broker moves: each letter is stored in its queue and leaves the dead queue in one step. So a redrive that is killed
and run again moves only what is still there, and nothing twice.

A canary goes first, if asked for: some letters, whose fate is watched; if one dies again, the rest stays.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

import msgspec
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast import wire
from holdfast.client import SyncClient
from holdfast.errors import InvalidArgument, MessageNotFound, MessageNotWaiting

IDS_A_REQUEST = 1_000
LOOK_EVERY_SECONDS = 0.2
SAMPLE = 5

_STRING_OR_FIELD = re.compile(r"'(?:[^']|'')*'|\bpayload((?:\.\w+|\[\d+\])+)")


class Moved(msgspec.Struct):
    """What became of the letters."""

    chosen: int = 0
    moved: int = 0
    skipped: int = 0
    """Leased by somebody, refused by their queue, or gone since the lake was built."""
    stopped: str = ""
    """Why the rest was not moved."""


def predicate(where: str) -> str:
    """A condition in which `payload.a.b` stands for that field of a JSON payload."""

    def field(match: re.Match[str]) -> str:
        return f"get_json_object(text, '${match[1]}')" if match[1] else match[0]

    return _STRING_OR_FIELD.sub(field, where)


def choose(dead_letters: DataFrame, queue: str, where: str = "") -> DataFrame:
    """The letters of a dead queue that wait and match, oldest first."""
    waiting = dead_letters.where(
        F.col("outcome").isNull() & (F.col("dead_queue") == queue) & F.col("letter_id").isNotNull()
    )
    readable = waiting.withColumn(
        "text", F.when(F.is_valid_utf8(F.col("payload").cast("string")), F.col("payload").cast("string"))
    )
    try:
        chosen = readable.where(predicate(where)) if where else readable
        chosen.schema  # noqa: B018 - Spark looks at the condition only now
    except (AnalysisException, ParseException) as error:
        raise InvalidArgument(field="--where", problem=f"cannot be understood: {str(error).splitlines()[0]}") from error
    return chosen.orderBy("letter_id")


def move(
    client: SyncClient,
    queue: str,
    letters: Sequence[int],
    done: Moved,
    *,
    to: str = "",
    rate: float = 0.0,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Bring letters back, a request's worth at a time."""
    for first in range(0, len(letters), IDS_A_REQUEST):
        ids = [str(letter) for letter in letters[first : first + IDS_A_REQUEST]]
        job = client.redrive(queue, wire.DeadFilter(ids=ids), to=to, rate=rate)
        before = done.moved + done.skipped
        while job.state == "running":
            time.sleep(LOOK_EVERY_SECONDS)
            job = client.redrive_progress(queue, job.id)
            if progress is not None:
                progress(before + job.moved + job.skipped)
        done.moved += job.moved
        done.skipped += len(ids) - job.moved
        if job.state != "done":
            done.stopped = f"the server ended it: {job.state} {job.problem}".strip()
            return


def canary(
    client: SyncClient, queue: str, letters: Sequence[int], done: Moved, *, to: str = "", wait_seconds: float = 60.0
) -> None:
    """Bring some letters back one by one, and wait until they are done or have died again."""
    back: dict[str, str] = {}
    for letter in letters:
        try:
            moved = client.retry_dead(queue, str(letter), to=to)
        except (MessageNotFound, MessageNotWaiting):
            done.skipped += 1
            continue
        back[moved.id] = moved.queue
        done.moved += 1
    until = time.monotonic() + wait_seconds
    waiting = dict(back)
    while waiting and time.monotonic() < until:
        time.sleep(LOOK_EVERY_SECONDS)
        waiting = {message: name for message, name in waiting.items() if _is_there(client, name, message)}
    died = {letter.origin.source_id for letter in client.dead_letters(queue) if letter.origin is not None} & set(back)
    if died:
        done.stopped = (
            f"of {len(back)} letters of the canary {len(died)} died again: {', '.join(sorted(died)[:SAMPLE])}"
        )
    elif waiting:
        done.stopped = f"of {len(back)} letters of the canary {len(waiting)} were not done in {wait_seconds:g} s"


def _is_there(client: SyncClient, queue: str, message: str) -> bool:
    try:
        client.message(queue, message)
    except MessageNotFound:
        return False
    return True


def redrive(
    client: SyncClient,
    queue: str,
    letters: Sequence[int],
    *,
    to: str = "",
    rate: float = 0.0,
    canaries: int = 0,
    wait_seconds: float = 60.0,
    progress: Callable[[int], None] | None = None,
) -> Moved:
    """Bring letters back, the canaries first."""
    done = Moved(chosen=len(letters))
    first = letters[:canaries]
    if first:
        canary(client, queue, first, done, to=to, wait_seconds=wait_seconds)
    if not done.stopped and len(letters) > len(first):
        move(client, queue, letters[len(first) :], done, to=to, rate=rate, progress=progress)
    return done


def sample(chosen: DataFrame) -> list[dict[str, object]]:
    """A few of the chosen letters, to look at before anything is done."""
    columns = ("letter_id", "source_queue", "source_group", "died_at", "reason", "error", "text")
    rows: list[dict[str, object]] = chosen.select(*columns).limit(SAMPLE).toArrow().to_pylist()
    return rows
