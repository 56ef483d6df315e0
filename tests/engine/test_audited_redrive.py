"""Redrives under an id: each dead letter once, whatever is repeated or killed; and back, where nobody consumed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256

import pytest

from holdfast.core.audits import ORIGINAL_PROPERTY, REDRIVE_PROPERTY, UNDONE_PROPERTY, Audit
from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.effects import Op
from holdfast.core.records import Extra, Table
from holdfast.engine import audited_redrive
from holdfast.engine.audited_redrive import ALL_RIGHTS, Payloads, RedriveResult, RedriveStatus, Rights
from holdfast.engine.audits import AuditLimits
from holdfast.engine.browse import browse_messages
from holdfast.engine.catalog import QueueName
from holdfast.engine.engine import Engine
from holdfast.engine.messages import edit_message
from holdfast.engine.queues import create_queue, delete_queue, update_queue
from holdfast.errors import AuditNotFound, Forbidden, InvalidArgument, MessageTooLarge, QueueNotFound
from holdfast.store import MemoryDisk, MemoryStore
from tests.engine.rig import DEAD, TASKS, Rig

NOW = 1_772_323_200_000_000


def dead_letter(cell: Rig, count: int) -> list[int]:
    """The ids of new dead letters, oldest first."""
    cell.enqueue(*[Draft(b'{"n": %d}' % n, extra=Extra(properties=(("colour", "red"),))) for n in range(count)])
    cell.consume(count, Verb.REJECT)
    return [message.id for message in cell.live(DEAD)]


def redrive(
    cell: Rig,
    name: str,
    dead_letters: Payloads | list[int],
    *,
    to: str = "",
    by: str = "",
    note: str = "",
    source: str = "",
    rights: Rights = ALL_RIGHTS,
    dead: QueueName = DEAD,
) -> list[RedriveResult]:
    payloads = dict.fromkeys(dead_letters) if isinstance(dead_letters, list) else dead_letters
    work = audited_redrive.move(
        cell.engine, dead, name, payloads, to=to, by=by, note=note, clock=cell.clock, source=source, rights=rights
    )
    return [one for step in cell.run(work) for one in step]


def undo(
    cell: Rig, name: str, after: int = 0, source: str = "", rights: Rights = ALL_RIGHTS, dead: QueueName = DEAD
) -> list[RedriveResult]:
    work = audited_redrive.undo(cell.engine, dead, name, after, 100, cell.clock, source=source, rights=rights)
    return [one for step in cell.run(work) for one in step]


def nowhere(queue: str) -> None:
    raise Forbidden(action="produce", resource=queue, scope=f"produce:{queue}")


def audit(cell: Rig, name: str) -> Audit:
    return cell.engine.audits.get(DEAD, name)


def statuses(found: list[RedriveResult]) -> list[str]:
    return [one.status.value for one in found]


def test_a_dead_letter_is_redriven_once_and_says_by_which_redrive(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 3)
    first = redrive(cell, "a-1", dead_letters[:2], by="ops", note="why")
    assert statuses(first) == ["moved", "moved"]
    again = redrive(cell, "a-1", [*dead_letters, 17], by="else", note="why")
    assert statuses(again) == ["repeated", "repeated", "moved", "gone"]
    assert [one.message for one in again[:2]] == [one.message for one in first]
    found = audit(cell, "a-1")
    assert (found.moved, found.undone, found.by, found.note) == (3, 0, "ops", "why")
    back = cell.live()
    assert [dict(message.extra.properties) for message in back] == [{"colour": "red", REDRIVE_PROPERTY: "a-1"}] * 3
    assert all(message.extra.origin and message.extra.origin.reason == "rejected" for message in back)
    assert cell.live(DEAD) == []
    assert [found.id for found in cell.engine.audits.of(DEAD)] == ["a-1"]
    with pytest.raises(AuditNotFound):
        audit(cell, "a-2")


def test_a_changed_payload_keeps_source_and_hash_and_is_undone_to_what_it_was(cell: Rig) -> None:
    [dead] = dead_letter(cell, 1)
    [source] = [one.extra.origin.source_id for one in cell.live(DEAD) if one.extra.origin]
    redrive(cell, "fix", {dead: b'{"n": 99}'})
    [message] = cell.live()
    assert message.payload == b'{"n": 99}'
    assert message.extra.origin is not None
    assert message.extra.origin.source_id == source
    original = sha256(b'{"n": 0}').hexdigest()
    assert dict(message.extra.properties)[ORIGINAL_PROPERTY] == original
    cell.consume(1, Verb.REJECT)
    [second] = cell.live(DEAD)
    redrive(cell, "fix-2", {second.id: b'{"n": 100}'})
    [message] = cell.live()
    assert dict(message.extra.properties) == {"colour": "red", REDRIVE_PROPERTY: "fix-2", ORIGINAL_PROPERTY: original}
    assert statuses(undo(cell, "fix-2", 0)) == ["undone"]
    [restore_dead_letter] = cell.live(DEAD)
    assert restore_dead_letter.payload == b'{"n": 99}'
    assert dict(restore_dead_letter.extra.properties) == {
        "colour": "red",
        ORIGINAL_PROPERTY: original,
        UNDONE_PROPERTY: str(second.id),
    }


def test_undo_takes_back_what_nobody_consumed_and_names_the_rest(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 5)
    before = {message.payload: message.extra.origin for message in cell.live(DEAD)}
    redrive(cell, "a", dead_letters)
    cell.consume(1, Verb.ACK)
    cell.consume(1, Verb.REJECT)
    [leased] = cell.lease(1)
    results = audited_redrive.redrive_results(cell.engine, DEAD, "a", 0, 100, cell.now)
    assert Counter(statuses(results)) == {"gone": 1, "dead": 1, "leased": 1, "waiting": 2}
    undone = undo(cell, "a", 0)
    assert Counter(statuses(undone)) == {"gone": 1, "dead": 1, "leased": 1, "undone": 2}
    assert undo(cell, "a", dead_letters[-1]) == []
    assert [message.id for message in cell.live()] == [leased.message.id]
    again = [message for message in cell.live(DEAD) if UNDONE_PROPERTY in dict(message.extra.properties)]
    assert [message.extra.origin for message in again] == [before[message.payload] for message in again]
    assert sorted(message.id for message in again) == sorted(
        one.again for one in undone if one.status is RedriveStatus.UNDONE
    )
    assert audit(cell, "a").undone == 2
    assert Counter(statuses(undo(cell, "a", 0))) == Counter(statuses(undone)), "it says so again"
    with pytest.raises(InvalidArgument, match="was undone"):
        redrive(cell, "a", dead_letters)


def test_a_message_that_one_of_two_groups_has_done_is_not_taken_back(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 2)
    other = ("default", "other")
    for group in ("g", "h"):
        cell.create_group(group, other)
    redrive(cell, "a", dead_letters, to="other")
    cell.consume(1, name=other)
    assert sorted(statuses(undo(cell, "a", 0))) == ["partly", "undone"]


def test_a_dead_letter_goes_to_the_group_it_died_in_and_is_taken_back_from_there(cell: Rig) -> None:
    cell.create_group("h")
    cell.create_group("g")
    dead_letters = dead_letter(cell, 2)
    held = len(cell.lease(10, "h"))
    assert statuses(redrive(cell, "a", dead_letters)) == [
        "moved",
        "moved",
    ]
    assert (held, cell.lease(10, "h")) == (2, [])
    cell.consume(1, Verb.ACK)
    assert sorted(statuses(undo(cell, "a", 0))) == ["gone", "undone"]
    assert cell.lease(10) == []


def test_what_cannot_go_stays_and_says_why(cell: Rig) -> None:
    cell.create_queue(max_message_size="1KiB")
    dead_letters = dead_letter(cell, 3)
    [leased] = cell.lease(1, "operators", DEAD)
    wanted: dict[int, bytes | None] = {dead_letters[0]: None, dead_letters[1]: b"x" * 2000, dead_letters[2]: b"mine"}
    results = redrive(cell, "a", {dead_letters[1]: wanted[dead_letters[1]]})
    assert isinstance(results[0].error, MessageTooLarge)
    results = redrive(cell, "a", wanted, rights=ALL_RIGHTS._replace(produce=nowhere))
    assert statuses(results) == ["leased", "refused", "refused"]
    assert isinstance(results[2].error, Forbidden)
    assert len(cell.live(DEAD)) == 3
    assert leased.message.id == dead_letters[0]
    with pytest.raises(InvalidArgument, match="another destination or note"):
        redrive(cell, "a", wanted, note="else")
    with pytest.raises(InvalidArgument, match="the dead queue itself"):
        redrive(cell, "b", wanted, to="dlq/tasks")
    for name, note in (("", ""), ("x" * 300, ""), ("a\n", ""), ("ok", "n" * 20_000)):
        with pytest.raises(InvalidArgument):
            redrive(cell, name, wanted, note=note)


def test_a_dead_letter_goes_where_the_caller_may_send_and_comes_back_from_where_it_may_take(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 2)
    results = redrive(cell, "a", dead_letters, rights=ALL_RIGHTS._replace(put=nowhere))
    assert statuses(results) == ["refused", "refused"]
    assert isinstance(results[0].error, Forbidden)
    assert statuses(redrive(cell, "a", dead_letters, rights=ALL_RIGHTS._replace(produce=nowhere))) == ["moved"] * 2
    refused = undo(cell, "a", rights=ALL_RIGHTS._replace(take=nowhere))
    assert statuses(refused) == ["refused", "refused"]
    assert len(cell.live()) == 2
    assert statuses(undo(cell, "a")) == ["undone", "undone"]


def test_queues_that_share_a_dead_queue_have_their_own_dead_letters_and_ids(cell: Rig) -> None:
    morgue = ("default", "morgue")
    cell.create_queue(morgue, dlq={"enabled": False})
    for name in ("tasks", "mine"):
        cell.create_queue(("default", name), dlq={"queue": "morgue"})
    cell.enqueue(b"theirs")
    cell.consume(1, Verb.REJECT)
    cell.enqueue(b"mine", name=("default", "mine"))
    cell.consume(1, Verb.REJECT, name=("default", "mine"))
    ids = [message.id for message in cell.live(morgue)] + cell.enqueue(b"no dead letter", name=morgue).ids
    assert statuses(redrive(cell, "a", ids, source="mine", dead=morgue)) == ["gone", "moved", "gone"]
    assert statuses(redrive(cell, "a", ids, source="tasks", dead=morgue, note="why")) == ["moved", "gone", "gone"]
    audits = cell.engine.audits
    assert [(one.note, one.moved) for one in audits.of(morgue, "tasks")] == [("why", 1)]
    assert [(one.note, one.moved) for one in audits.of(morgue, "mine")] == [("", 1)]
    cell.restart()
    audits = cell.engine.audits
    assert (audits.get(morgue, "a", "tasks").note, audits.of(morgue), audits.of(morgue, "other")) == ("why", [], [])
    with pytest.raises(AuditNotFound):
        undo(cell, "a", source="other", dead=morgue)
    assert statuses(undo(cell, "a", source="mine", dead=morgue)) == ["undone"]
    assert [message.payload for message in cell.live()] == [b"theirs"]


def test_a_queue_and_its_automatic_dead_queue_name_the_same_redrives(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 2)
    assert statuses(redrive(cell, "a", dead_letters[:1])) == ["moved"]
    assert statuses(redrive(cell, "a", dead_letters, source="tasks")) == ["repeated", "moved"]
    assert audit(cell, "a").moved == 2


def test_what_a_dead_letter_does_not_say_must_be_said(cell: Rig) -> None:
    cell.create_queue(DEAD, dlq={"enabled": False})
    ids = cell.enqueue(b"sent here by hand", name=DEAD).ids
    [refused] = redrive(cell, "a", ids, rights=ALL_RIGHTS._replace(put=nowhere))
    assert (refused.status, refused.dead_letter) == (RedriveStatus.REFUSED, ids[0])
    assert "must be named" in str(refused.error)
    assert statuses(redrive(cell, "a", ids)) == ["refused"], "nothing was recorded of it"
    assert statuses(redrive(cell, "b", ids, to="other")) == ["moved"]


def test_a_message_that_was_done_without_a_dead_queue_is_gone(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 1)
    redrive(cell, "a", dead_letters, to="other")
    cell.consume(1, name=("default", "other"))
    assert statuses(undo(cell, "a")) == ["gone"]


def test_an_undo_that_the_dead_queue_cannot_take_leaves_the_message(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 2)
    redrive(cell, "a", {dead_letters[0]: None, dead_letters[1]: None})
    before = cell.live()
    update_queue(cell.engine, DEAD, {"max_message_size": 1}, cell.now)
    refused = undo(cell, "a")
    assert statuses(refused) == ["refused", "refused"]
    assert all(isinstance(one.error, MessageTooLarge) for one in refused)
    assert (cell.live(), cell.live(DEAD), audit(cell, "a").undone) == (before, [], 0)


def test_an_undo_ends_with_its_limit(cell: Rig) -> None:
    redrive(cell, "a", dead_letter(cell, 4))
    (step,) = cell.run(audited_redrive.undo(cell.engine, DEAD, "a", 0, 3, cell.clock))
    assert statuses(step) == ["undone"] * 3
    assert (len(cell.live()), len(cell.live(DEAD))) == (1, 3)


def test_an_undo_ends_when_the_dead_queue_is_deleted_between_two_steps(
    cell: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else messages would go to a queue that is no more, and the turn of everybody would end with it."""
    monkeypatch.setattr(audited_redrive, "STEP", 2)
    dead_letters = dead_letter(cell, 4)
    redrive(cell, "a", dead_letters)
    work = audited_redrive.undo(cell.engine, DEAD, "a", 0, 100, cell.clock)
    assert statuses(next(work)) == ["undone"] * 2
    cell.engine.write()
    update_queue(cell.engine, TASKS, {"dlq": {"enabled": False}}, cell.now)
    for _ in delete_queue(cell.engine, DEAD, cell.clock):
        cell.engine.write()
    with pytest.raises(QueueNotFound):
        next(work)
    cell.engine.write()
    assert len(cell.live()) == 2


def test_a_redrive_that_is_undone_between_two_steps_goes_no_further(cell: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited_redrive, "STEP", 2)
    dead_letters = dead_letter(cell, 4)
    work = audited_redrive.move(
        cell.engine, DEAD, "a", dict.fromkeys(dead_letters), to="", by="", note="", clock=cell.clock
    )
    assert statuses(next(work)) == ["moved"] * 2
    cell.engine.write()
    assert statuses(undo(cell, "a")) == ["undone"] * 2
    with pytest.raises(InvalidArgument, match="was undone"):
        next(work)


def test_redrives_are_remembered_over_a_restart_and_forgotten_in_time(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 2)
    redrive(cell, "a", dead_letters)
    cell.restart()
    assert audit(cell, "a").moved == 2
    assert statuses(redrive(cell, "a", dead_letters)) == ["repeated"] * 2
    audits = cell.engine.audits
    wake = audits.wake_at
    assert wake == audit(cell, "a").changed_at + AuditLimits().remember
    audits.tick(wake)
    cell.engine.write()
    assert cell.engine.audits.of(DEAD) == []
    assert cell.engine.store.scan(Table.AUDITS, b"", b"\xff" * 99, 9) == []
    assert cell.engine.store.scan(Table.AUDITED, b"", b"\xff" * 99, 9) == []


def test_the_oldest_redrive_is_forgotten_for_a_new_one(cell: Rig) -> None:
    dead_letters = dead_letter(cell, 3)
    cell.engine.audits.limits = type(cell.engine.audits.limits)(max_remembered=2)
    for index, dead in enumerate(dead_letters):
        redrive(cell, f"a{index}", {dead: None})
    assert [audit.id for audit in cell.engine.audits.of(DEAD)] == ["a2", "a1"]


def test_a_redrive_of_another_namespace_is_not_forgotten_for_it(cell: Rig) -> None:
    elsewhere = ("acme", "dlq/tasks")
    cell.create_queue(elsewhere, dlq={"enabled": False})
    redrive(cell, "theirs", [], dead=elsewhere)
    cell.engine.audits.limits = type(cell.engine.audits.limits)(max_remembered=1)
    for name in ("a", "b"):
        cell.now += 1
        redrive(cell, name, dead_letter(cell, 1))
    assert [audit.id for audit in cell.engine.audits.of(elsewhere)] == ["theirs"]
    assert [audit.id for audit in cell.engine.audits.of(DEAD)] == ["b"]


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
    """Eight dead letters in two partitions, of messages of two queues."""
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
    return audited_redrive.move(engine, MORGUE, "x", payloads, to="", by="", note="", clock=lambda: NOW)


def run(engine: Engine, work: Iterator[list[RedriveResult]]) -> list[RedriveResult]:
    """All of it, each step written before the next."""
    found: list[RedriveResult] = []
    for step in work:
        found += step
        engine.write()
    return found


def changed(engine: Engine) -> dict[int, bytes | None]:
    """Every dead letter of the morgue, with another payload."""
    page = browse_messages(engine, MORGUE, 100, "", "", "", NOW).messages
    return {message.id: message.payload + b"!" for _, message, _ in page}


@pytest.mark.parametrize("undoing", [False, True])
def test_a_kill_before_any_write_neither_loses_nor_doubles_a_dead_letter(
    undoing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audited_redrive, "STEP", 3)
    for writes in range(100):
        disk, dead_letters = dead_scene()
        store, engine = opened(disk)
        payloads = changed(engine)
        if undoing:
            run(engine, moving(engine, payloads))
        store, engine = opened(disk)
        store.writes_left = writes

        def work(engine: Engine, payloads: dict[int, bytes | None] = payloads) -> Iterator[list[RedriveResult]]:
            return (
                audited_redrive.undo(engine, MORGUE, "x", 0, 100, lambda: NOW) if undoing else moving(engine, payloads)
            )

        try:
            run(engine, work(engine))
            break
        except Killed:
            store, engine = opened(disk)
        assert contents(engine) == ALL
        moved = sum(audit.moved - audit.undone for audit in engine.audits.of(MORGUE))
        left = changed(engine)
        assert moved == len(dead_letters) - len(left), "the record tells what happened"
        counts = Counter(one.status for one in run(engine, work(engine)))
        if undoing:
            assert counts == {RedriveStatus.UNDONE: 8}
        else:
            expected = {RedriveStatus.REPEATED: 8 - len(left), RedriveStatus.MOVED: len(left)}
            assert counts == Counter(expected) - Counter()
        assert contents(engine) == ALL
        assert len(changed(engine)) == (8 if undoing else 0)
    assert writes > 2, "it was killed at several places"


def test_what_is_undone_is_enqueued_as_it_was_edited(memory: Rig) -> None:
    memory.create_queue()
    [moved] = dead_letter(memory, 1)
    redrive(memory, "a", [moved])
    [message] = memory.live()
    edit_message(memory.engine, TASKS, message.id, 7, None, memory.now)
    memory.engine.write()
    undo(memory, "a")
    assert [row.priority for row in memory.journal() if row.event == "enqueued"] == [128, 128, 128, 7]
