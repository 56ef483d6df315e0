"""Redrives under an id: each letter once, whatever is repeated or killed; and back, where nobody consumed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256

import pytest

from holdfast.broker.node import Node
from holdfast.config.settings import RedriveSettings
from holdfast.core.audits import ORIGINAL_PROPERTY, REDRIVE_PROPERTY, UNDONE_PROPERTY
from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.effects import Op
from holdfast.core.records import Extra, Message
from holdfast.engine import audited_redrive
from holdfast.engine.audited_redrive import RedriveResult, RedriveStatus
from holdfast.engine.browse import browse_messages
from holdfast.engine.engine import Engine
from holdfast.engine.queues import create_queue
from holdfast.errors import AuditNotFound, Forbidden, InvalidArgument, MessageTooLarge, QueueNotFound
from holdfast.store import MemoryDisk, MemoryStore
from tests.broker.conftest import Restart

TASKS = ("default", "tasks")
DEAD = ("default", "dlq/tasks")
NOW = 1_772_323_200_000_000


async def dead_letter(node: Node, count: int) -> list[int]:
    """Letters of messages that died, oldest first."""
    drafts = [Draft(b'{"n": %d}' % n, extra=Extra(properties=(("colour", "red"),))) for n in range(count)]
    await node.messages.enqueue(TASKS, drafts)
    await settle(node, Verb.REJECT, count)
    return [message.id for _, message, _ in (await node.inspection.browse(DEAD, 1000)).messages]


async def settle(node: Node, verb: Verb, count: int) -> None:
    leased = await node.messages.lease(TASKS, "g", count)
    settlements = [Settlement(one.message.id, one.token, verb, error="boom", partition=one.partition) for one in leased]
    await node.messages.settle(TASKS, "g", settlements)


async def waiting(node: Node, name: tuple[str, str] = TASKS) -> list[Message]:
    try:
        return [message for _, message, _ in (await node.inspection.browse(name, 1000)).messages]
    except QueueNotFound:
        return []


def statuses(found: list[RedriveResult]) -> list[str]:
    return [one.fate.value for one in found]


async def test_a_dead_letter_is_redriven_once_and_says_by_which_redrive(node: Node) -> None:
    dead_letters = await dead_letter(node, 3)
    first = await node.dead_letters.audited_redrive(DEAD, "a-1", dict.fromkeys(dead_letters[:2]), by="ops", note="why")
    assert statuses(first) == ["moved", "moved"]
    again = await node.dead_letters.audited_redrive(
        DEAD, "a-1", dict.fromkeys([*dead_letters, 17]), by="else", note="why"
    )
    assert statuses(again) == ["repeated", "repeated", "moved", "gone"]
    assert [one.message for one in again[:2]] == [one.message for one in first]
    audit = node.dead_letters.audit(DEAD, "a-1")
    assert (audit.moved, audit.undone, audit.by, audit.note) == (3, 0, "ops", "why")
    back = await waiting(node)
    assert [dict(message.extra.properties) for message in back] == [{"colour": "red", REDRIVE_PROPERTY: "a-1"}] * 3
    assert all(message.extra.origin and message.extra.origin.reason == "rejected" for message in back)
    assert await waiting(node, DEAD) == []
    assert [found.id for found in node.dead_letters.audits(DEAD)] == ["a-1"]
    with pytest.raises(AuditNotFound):
        node.dead_letters.audit(DEAD, "a-2")


async def test_a_changed_payload_keeps_source_and_hash_and_is_undone_to_what_it_was(node: Node) -> None:
    [letter] = await dead_letter(node, 1)
    [source] = [one.extra.origin.source_id for one in await waiting(node, DEAD) if one.extra.origin]
    await node.dead_letters.audited_redrive(DEAD, "fix", {letter: b'{"n": 99}'})
    [message] = await waiting(node)
    assert message.payload == b'{"n": 99}'
    assert message.extra.origin is not None
    assert message.extra.origin.source_id == source
    original = sha256(b'{"n": 0}').hexdigest()
    assert dict(message.extra.properties)[ORIGINAL_PROPERTY] == original
    await settle(node, Verb.REJECT, 1)
    [second] = await waiting(node, DEAD)
    await node.dead_letters.audited_redrive(DEAD, "fix-2", {second.id: b'{"n": 100}'})
    [message] = await waiting(node)
    assert dict(message.extra.properties) == {"colour": "red", REDRIVE_PROPERTY: "fix-2", ORIGINAL_PROPERTY: original}
    assert statuses(await node.dead_letters.undo_redrive(DEAD, "fix-2", 0, 100)) == ["undone"]
    [restore_dead_letter] = await waiting(node, DEAD)
    assert restore_dead_letter.payload == b'{"n": 99}'
    assert dict(restore_dead_letter.extra.properties) == {
        "colour": "red",
        ORIGINAL_PROPERTY: original,
        UNDONE_PROPERTY: str(second.id),
    }


async def test_undo_takes_back_what_nobody_consumed_and_names_the_rest(node: Node, restart: Restart) -> None:
    dead_letters = await dead_letter(node, 5)
    before = {message.payload: message.extra.origin for message in await waiting(node, DEAD)}
    await node.dead_letters.audited_redrive(DEAD, "a", dict.fromkeys(dead_letters))
    await settle(node, Verb.ACK, 1)
    await settle(node, Verb.REJECT, 1)
    [leased] = await node.messages.lease(TASKS, "g", 1)
    told = await node.dead_letters.redriven(DEAD, "a", 0, 100)
    assert Counter(statuses(told)) == {"gone": 1, "dead": 1, "leased": 1, "waiting": 2}
    undone = await node.dead_letters.undo_redrive(DEAD, "a", 0, 100)
    assert Counter(statuses(undone)) == {"gone": 1, "dead": 1, "leased": 1, "undone": 2}
    assert await node.dead_letters.undo_redrive(DEAD, "a", dead_letters[-1], 100) == []
    assert [message.id for message in await waiting(node)] == [leased.message.id]
    again = [message for message in await waiting(node, DEAD) if UNDONE_PROPERTY in dict(message.extra.properties)]
    assert [message.extra.origin for message in again] == [before[message.payload] for message in again]
    assert sorted(message.id for message in again) == sorted(
        one.again for one in undone if one.fate is RedriveStatus.UNDONE
    )
    assert node.dead_letters.audit(DEAD, "a").undone == 2
    assert Counter(statuses(await node.dead_letters.undo_redrive(DEAD, "a", 0, 100))) == Counter(statuses(undone)), (
        "it says so again"
    )
    with pytest.raises(InvalidArgument, match="was undone"):
        await node.dead_letters.audited_redrive(DEAD, "a", dict.fromkeys(dead_letters))


async def test_a_message_that_one_of_two_groups_has_done_is_not_taken_back(node: Node) -> None:
    dead_letters = await dead_letter(node, 2)
    other = ("default", "other")
    for group in ("g", "h"):
        await node.groups.create(other, group)
    await node.dead_letters.audited_redrive(DEAD, "a", dict.fromkeys(dead_letters), to="other")
    await node.messages.settle(
        other, "g", [Settlement(i.message.id, i.token) for i in await node.messages.lease(other, "g", 1)]
    )
    assert sorted(statuses(await node.dead_letters.undo_redrive(DEAD, "a", 0, 100))) == ["partly", "undone"]


async def test_a_dead_letter_goes_to_the_group_it_died_in_and_is_taken_back_from_there(node: Node) -> None:
    await node.groups.create(TASKS, "h")
    await node.groups.create(TASKS, "g")
    dead_letters = await dead_letter(node, 2)
    held = len(await node.messages.lease(TASKS, "h", 10))
    assert statuses(await node.dead_letters.audited_redrive(DEAD, "a", dict.fromkeys(dead_letters))) == [
        "moved",
        "moved",
    ]
    assert (held, await node.messages.lease(TASKS, "h", 10)) == (2, [])
    await settle(node, Verb.ACK, 1)
    assert sorted(statuses(await node.dead_letters.undo_redrive(DEAD, "a", 0, 100))) == ["gone", "undone"]
    assert await node.messages.lease(TASKS, "g", 10) == []


async def test_what_cannot_go_stays_and_says_why(node: Node) -> None:
    await node.queues.create(TASKS, {"max_message_size": "1KiB"})
    dead_letters = await dead_letter(node, 3)
    [leased] = await node.messages.lease(DEAD, "operators", 1)
    wanted: dict[int, bytes | None] = {dead_letters[0]: None, dead_letters[1]: b"x" * 2000, dead_letters[2]: b"mine"}

    def require(queue: str) -> None:
        raise Forbidden(action="produce", resource=queue)

    told = await node.dead_letters.audited_redrive(DEAD, "a", {dead_letters[1]: wanted[dead_letters[1]]})
    assert isinstance(told[0].error, MessageTooLarge)
    told = await node.dead_letters.audited_redrive(DEAD, "a", wanted, require=require)
    assert statuses(told) == ["leased", "refused", "refused"]
    assert isinstance(told[2].error, Forbidden)
    assert len(await waiting(node, DEAD)) == 3
    assert leased.message.id == dead_letters[0]
    with pytest.raises(InvalidArgument, match="another destination or note"):
        await node.dead_letters.audited_redrive(DEAD, "a", wanted, note="else")
    with pytest.raises(InvalidArgument, match="the dead queue itself"):
        await node.dead_letters.audited_redrive(DEAD, "b", wanted, to="dlq/tasks")
    for name, note in (("", ""), ("x" * 300, ""), ("a\n", ""), ("ok", "n" * 20_000)):
        with pytest.raises(InvalidArgument):
            await node.dead_letters.audited_redrive(DEAD, name, wanted, note=note)


async def test_redrives_are_remembered_over_a_restart_and_forgotten_in_time(restart: Restart) -> None:
    node = await restart()
    dead_letters = await dead_letter(node, 2)
    await node.dead_letters.audited_redrive(DEAD, "a", dict.fromkeys(dead_letters))
    node = await restart()
    assert node.dead_letters.audit(DEAD, "a").moved == 2
    assert statuses(await node.dead_letters.audited_redrive(DEAD, "a", dict.fromkeys(dead_letters))) == ["repeated"] * 2
    audits = node.cell.engine.audits
    wake = audits.wake_at()
    assert wake == node.dead_letters.audit(DEAD, "a").changed_at + RedriveSettings().remember
    audits.tick(wake)
    node.cell.engine.write()
    assert node.dead_letters.audits(DEAD) == []
    assert node.cell.engine.store.scan(28, b"", b"\xff" * 99, 9) == []  # type: ignore[arg-type]
    assert node.cell.engine.store.scan(29, b"", b"\xff" * 99, 9) == []  # type: ignore[arg-type]


async def test_the_oldest_redrive_is_forgotten_for_a_new_one(node: Node) -> None:
    dead_letters = await dead_letter(node, 3)
    node.cell.engine.audits.limits = type(node.cell.engine.audits.limits)(max_remembered=2)
    for index, letter in enumerate(dead_letters):
        await node.dead_letters.audited_redrive(DEAD, f"a{index}", {letter: None})
    assert [audit.id for audit in node.dead_letters.audits(DEAD)] == ["a2", "a1"]


# --- crashes --------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """The process ends here."""


class Mortal(MemoryStore):
    """A store whose process is killed before the write of that number."""

    writes_left = 1 << 30

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        if self.writes_left == 0:
            raise Killed
        self.writes_left -= 1
        super().write(epoch, ops)
        self.sync()


def opened(disk: MemoryDisk) -> tuple[Mortal, Engine]:
    store = Mortal(disk)
    engine = Engine(store, 1)
    engine.open(NOW)
    return store, engine


def dead_scene() -> tuple[MemoryDisk, list[int]]:
    """Seven dead letters in two partitions, of messages of two queues."""
    disk = MemoryDisk()
    _, engine = opened(disk)
    create_queue(engine, ("default", "morgue"), {"dlq": {"enabled": False}, "partitions": 2}, NOW)
    for name in ("a", "b"):
        create_queue(engine, ("default", name), {"dlq": {"queue": "morgue"}, "partitions": 2}, NOW)
        engine.enqueue(("default", name), [Draft(f"{name}{n}".encode()) for n in range(4)], "http", NOW)
        engine.write()
        leased: list[Leased] = engine.lease(("default", name), "g", 9, -1, "w", "http", NOW)
        engine.write()
        settlements = [Settlement(one.message.id, one.token, Verb.REJECT, partition=one.partition) for one in leased]
        engine.settle(("default", name), "g", settlements, NOW)
        engine.write()
    dead_letters = browse_messages(engine, ("default", "morgue"), 100, "", "", "", NOW).messages
    return disk, sorted(message.id for _, message, _ in dead_letters)


def contents(engine: Engine) -> Counter[bytes]:
    """Payloads of everything live, whichever queue it is in, without what a redrive changed of them."""
    found: Counter[bytes] = Counter()
    for queue in ("a", "b", "morgue"):
        page = browse_messages(engine, ("default", queue), 100, "", "", "", NOW)
        found.update(message.payload.removesuffix(b"!") for _, message, _ in page.messages)
    return found


ALL = Counter(f"{name}{n}".encode() for name in "ab" for n in range(4))


MORGUE = ("default", "morgue")


def moving(engine: Engine, payloads: dict[int, bytes | None]) -> Iterator[list[RedriveResult]]:
    return audited_redrive.move(engine, MORGUE, "x", payloads, to="", by="", note="", require=str, now=NOW)


def run(engine: Engine, work: Iterator[list[RedriveResult]]) -> list[RedriveResult]:
    """All of it, each step written before the next."""
    found: list[RedriveResult] = []
    for step in work:
        found += step
        engine.write()
    return found


def changed(engine: Engine) -> dict[int, bytes | None]:
    """Every letter of the morgue, with another payload."""
    page = browse_messages(engine, MORGUE, 100, "", "", "", NOW).messages
    return {message.id: message.payload + b"!" for _, message, _ in page}


@pytest.mark.parametrize("undoing", [False, True])
def test_a_kill_before_any_write_neither_loses_nor_doubles_a_dead_letter(undoing: bool) -> None:
    for writes in range(100):
        disk, dead_letters = dead_scene()
        store, engine = opened(disk)
        payloads = changed(engine)
        if undoing:
            run(engine, moving(engine, payloads))
        store, engine = opened(disk)
        store.writes_left = writes

        def work(engine: Engine, payloads: dict[int, bytes | None] = payloads) -> Iterator[list[RedriveResult]]:
            return audited_redrive.undo(engine, MORGUE, "x", 0, 100, NOW) if undoing else moving(engine, payloads)

        try:
            run(engine, work(engine))
            break
        except Killed:
            store, engine = opened(disk)
        assert contents(engine) == ALL
        moved = sum(audit.moved - audit.undone for audit in engine.audits.of(MORGUE))
        left = changed(engine)
        assert moved == len(dead_letters) - len(left), "the record tells what happened"
        told = Counter(one.fate for one in run(engine, work(engine)))
        if undoing:
            assert told == {RedriveStatus.UNDONE: 8}
        else:
            assert told == Counter({RedriveStatus.REPEATED: 8 - len(left), RedriveStatus.MOVED: len(left)}) - Counter()
        assert contents(engine) == ALL
        assert len(changed(engine)) == (8 if undoing else 0)
    assert writes > 2, "it was killed at several places"
