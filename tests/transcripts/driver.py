"""Runs a transcript: commands a person can read, each followed by what the engine answered and did.

A transcript is blocks separated by blank lines: comments (#), one or more commands, `----`, and the trace. In a trace

    m1, t1           the first message, the first lease token (numbered as they appear, so that traces are stable)
    +5s              an instant, as the time since the transcript began
    | ...            a journal row: lsn, event, message, queue#partition, and the columns that are set
    ~ wakes at ...   when the engine wants to be woken next, where a command has changed it

Every command is committed and synced before the next one, unless `sync off` was said; `crash` then loses it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from holdfast.core.admin import IMMEDIATELY
from holdfast.core.codecs import read_message
from holdfast.core.commands import (
    DeliveryStatus,
    Draft,
    GetStates,
    Leased,
    Purge,
    Purged,
    PutState,
    Settlement,
    Verb,
)
from holdfast.core.effects import Op
from holdfast.core.journal import Row, read_block, removable, rows
from holdfast.core.queue import GROUP_DEFAULT, PRIORITY_DEFAULT, GroupKind
from holdfast.core.records import NO_EXTRA, Extra, Message, Origin, Table, journal_key, message_key
from holdfast.core.states import DeliveryState, Event
from holdfast.core.transactions import Transaction, TransactionName, TransactionState
from holdfast.core.workflow import visible_state
from holdfast.engine.browse import browse_messages
from holdfast.engine.catalog import Queue
from holdfast.engine.cursors import cursor_commit, cursor_ends, cursor_read
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.engine import Engine, Limits
from holdfast.engine.groups import create_group, delete_group
from holdfast.engine.leases import DeliveryLocator
from holdfast.engine.messages import delete_message, edit_message, find_message
from holdfast.engine.queues import create_queue, delete_queue, purge_queue, update_queue
from holdfast.engine.redrive import Destination, redrive
from holdfast.errors import HoldfastError
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.store.rocks import RocksStore
from holdfast.units import NEVER, format_duration, parse_duration
from tests.transcripts import schedules
from tests.transcripts.lives import Lives

START = 1_772_323_200_000_000  # 2026-03-01T00:00:00Z
SEPARATOR = "----"
VERBS = {verb.value: verb for verb in Verb}

Options = dict[str, str]


class Block:
    """Commands with what is expected of them."""

    def __init__(self, commands: list[str], expected: list[str]) -> None:
        self.commands = commands
        self.expected = expected


def parse(text: str) -> list[Block]:
    """The blocks of a transcript. Comments belong to the commands they stand before."""
    blocks: list[Block] = []
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = part.splitlines()
        if SEPARATOR in lines:
            at = lines.index(SEPARATOR)
            blocks.append(Block(lines[:at], lines[at + 1 :]))
        else:
            blocks.append(Block(lines, []))
    return blocks


def replay(path: Path) -> tuple[str, str, set[tuple[DeliveryState, Event]]]:
    """The transcript as it stands, as it would be written now, and the transitions it shows."""
    stands = path.read_text()
    blocks = parse(stands)
    scene = Scene()
    parts: list[str] = []
    for block in blocks:
        commands = [line for line in block.commands if not line.startswith("#")]
        lines = list(block.commands)
        if commands:
            lines.append(SEPARATOR)
            for command in commands:
                lines += scene.run(command)
        parts.append("\n".join(lines))
    scene.check_journal()
    scene.close()
    return stands, "\n\n".join(parts) + "\n", scene.lives.seen


class Scene:
    """An engine on a memory disk under a simulated clock."""

    def __init__(self) -> None:
        self.now = START
        self.disk = MemoryDisk()
        self.directory: TemporaryDirectory[str] | None = None
        self.limits = Limits()
        self.engine = self._open()
        self.syncing = True
        self.names: dict[int, str] = {}
        self.ids: dict[str, int] = {}
        self.tokens: dict[int, str] = {}
        self.leases: dict[tuple[int, str], Leased] = {}
        self.homes: dict[int, str] = {}
        self._next_block = 1
        self._next_lsn = 1
        self._wake = NEVER
        self.lives = Lives()

    def _open(self) -> Engine:
        store = MemoryStore(self.disk) if self.directory is None else RocksStore(self.directory.name)
        engine = Engine(store, cell=1, limits=self.limits)
        engine.open(self.now)
        return engine

    def run(self, line: str) -> list[str]:
        """Do a command; returns its trace."""
        name, *words = shlex.split(line)
        arguments = [word for word in words if not _is_option(word)]
        options = dict(word.split("=", 1) for word in words if _is_option(word))
        command: Callable[[list[str], Options], Iterator[str]] = (
            partial(self._settle, VERBS[name]) if name in VERBS else getattr(self, "do_" + name.replace("-", "_"))
        )
        trace: list[str] = []
        dead_letter_candidates = self._dead_letter_candidates()
        try:
            trace += command(arguments, options)
        except HoldfastError as error:
            trace.append(self._error(error))
        self._commit()
        trace += self._new_rows(dead_letter_candidates)
        for alert in self.engine.alerts:
            trace.append(f"alert {alert.url}: {self.name(alert.message_id)} of {alert.queue} {alert.reason}")
        self.engine.alerts.clear()
        trace += [f"warning: {self.name(d.message.id)} is lost, {d.reason}" for d in self.engine.dropped]
        self.engine.dropped.clear()
        trace += [f"paused by its circuit breaker: {one.queue}, {one.reason}" for one in self.engine.tripped]
        self.engine.tripped.clear()
        wake = self.engine.wake_at()
        if wake != self._wake:
            self._wake = wake
            trace.append(f"~ wakes {'at ' + self.at(wake) if wake != NEVER else 'never'}")
        return trace or ["(nothing)"]

    def _commit(self) -> None:
        must_sync = self.engine.write()
        if self.syncing or must_sync:
            self.engine.store.sync()

    # --- names ------------------------------------------------------------------------------------------------------

    def name(self, message_id: int, queue: str = "") -> str:
        if message_id not in self.names:
            self.names[message_id] = f"m{len(self.names) + 1}"
            self.ids[self.names[message_id]] = message_id
        if queue:
            self.homes[message_id] = queue
        return self.names[message_id]

    def token(self, token: int) -> str:
        return self.tokens.setdefault(token, f"t{len(self.tokens) + 1}")

    def at(self, instant: int) -> str:
        if instant <= IMMEDIATELY:
            return "once"
        since = instant - START
        return f"{'+' if since >= 0 else '-'}{format_duration(abs(since))}"

    def _error(self, error: HoldfastError) -> str:
        text = re.sub(r"\b\d{12,}\b", lambda found: self.names.get(int(found[0]), found[0]), str(error))
        return f"refused, {error.code}: {text}"

    def _queue(self, name: str) -> Queue:
        return self.engine.queue(("default", name), self.now)

    def _clock(self) -> int:
        return self.now

    # --- the journal ------------------------------------------------------------------------------------------------

    def _fetch(self, shard: int, first: int, count: int) -> list[Message]:
        found = self.engine.store.scan(
            Table.MESSAGES, message_key(shard, first), message_key(shard, first + count), count
        )
        return [read_message(int.from_bytes(key[4:12], "big"), value) for key, value in found]

    def _rows_from(self, block: int) -> list[Row]:
        blocks = self.engine.store.scan(Table.JOURNAL, journal_key(block), journal_key(1 << 60), 1 << 20)
        return [row for _, value in blocks for row in rows(read_block(value), 1, self._fetch)]

    def _new_rows(self, dead_letter_candidates: set[tuple[int, str]]) -> list[str]:
        fresh = self._rows_from(self._next_block)
        self._next_block = self.engine.record.next_block
        for row in fresh:
            self.lives.observe(row, dead_letter_candidates)
        return ["| " + self._row(row) for row in fresh]

    def _dead_letter_candidates(self) -> set[tuple[int, str]]:
        """Deliveries that wait for a dead queue: the journal does not know that they are no longer leased."""
        return {
            (delivery.id, group.name)
            for queue in self.engine.queues.values()
            for shard in queue.shards
            for group in shard.groups.values()
            for delivery in group.deliveries.values()
            if delivery.dead_reason
        }

    def _row(self, row: Row) -> str:
        at = f" {self.at(row.at)}" if row.at != self.now else ""
        assert row.lsn == self._next_lsn, "the journal has a gap"
        self._next_lsn += 1
        name = self.name(row.message_id, row.queue if row.event == "enqueued" else "") if row.message_id else "-"
        columns = {
            "group": row.group,
            "attempt": row.attempt,
            "reason": row.reason,
            "error": row.error,
            "consumer": row.consumer,
            "id": row.client_message_id,
            "priority": row.priority if row.priority != PRIORITY_DEFAULT else None,
            "key": row.key,
            "deliver_at": self.at(row.deliver_at) if row.deliver_at else None,
            "source": self.names.get(row.source_id, str(row.source_id)) if row.source_id else None,
            "source_queue": row.source_queue,
            "correlation_id": row.correlation_id,
            "properties": row.properties,
            "payload": _display(row.payload) if row.payload is not None else None,
            "kind": row.group_kind,
            "after": self.names.get(row.start_after, "the last") if row.start_after else row.start_after,
        }
        details = [f"{name}={value}" for name, value in columns.items() if value is not None]
        return " ".join([f"{row.lsn}{at}", str(row.event), name, f"{row.queue}#{row.partition}", *details])

    def check_journal(self) -> None:
        """At the end, every row that the node has counted is in the store."""
        assert self._next_lsn == self.engine.record.next_lsn

    # --- queues and groups ------------------------------------------------------------------------------------------

    def do_queue(self, arguments: list[str], options: Options) -> Iterator[str]:
        options.setdefault("partitions", "1")
        record = create_queue(self.engine, ("default", arguments[0]), _fields(options), self.now)
        yield f"queue {record.name}"

    def do_update(self, arguments: list[str], options: Options) -> Iterator[str]:
        record = update_queue(self.engine, ("default", arguments[0]), _fields(options), self.now)
        yield f"queue {record.name}"

    def do_pause(self, arguments: list[str], options: Options) -> Iterator[str]:
        yield from self.do_update(arguments, {"paused": "true"})

    def do_resume(self, arguments: list[str], options: Options) -> Iterator[str]:
        yield from self.do_update(arguments, {"paused": "false"})

    def do_queues(self, arguments: list[str], options: Options) -> Iterator[str]:
        for _, name in sorted(self.engine.queues):
            yield f"{name}: {self._queue(name).depth} messages"

    def do_delete_queue(self, arguments: list[str], options: Options) -> Iterator[str]:
        purged = sum(delete_queue(self.engine, ("default", arguments[0]), self._clock))
        yield f"deleted with {purged} messages"

    def do_purge(self, arguments: list[str], options: Options) -> Iterator[str]:
        yield f"purged {sum(purge_queue(self.engine, ('default', arguments[0]), self._clock))}"

    def do_purge_below(self, arguments: list[str], options: Options) -> Iterator[str]:
        """A purge that began when the next sequence was the one given: what came since stays."""
        queue = self._queue(arguments[0])
        command = Purge(int(arguments[1]))
        reply = Purged(0, done=False, after=command.after)
        count = 0
        while not reply.done:
            found = self.engine.step(queue, queue.shards[0], Purge(command.below, reply.after), self.now)
            reply = found
            count += reply.count
        yield f"purged {count}"

    def do_group(self, arguments: list[str], options: Options) -> Iterator[str]:
        queue, name, *kind = arguments
        earliest = {"earliest": True, "latest": False, "": None}[options.get("from", "")]
        record = create_group(
            self.engine,
            ("default", queue),
            name,
            GroupKind(kind[0] if kind else "lease"),
            self.now,
            earliest,
            int(options.get("max_lag", "0")),
            parse_duration(options.get("max_age", "0")),
        )
        yield f"{record.kind} group {record.name}"

    def do_delete_group(self, arguments: list[str], options: Options) -> Iterator[str]:
        for _ in delete_group(self.engine, ("default", arguments[0]), arguments[1], self._clock):
            self._commit()
            if "half" in options:
                break
        yield f"no group {arguments[1]}"

    # --- messages ---------------------------------------------------------------------------------------------------

    def do_enqueue(self, arguments: list[str], options: Options) -> Iterator[str]:
        queue, *payloads = arguments
        drafts = [self._draft(payload, _nth(options, index)) for index, payload in enumerate(payloads)]
        yield from self._enqueue(queue, drafts)

    def do_import(self, arguments: list[str], options: Options) -> Iterator[str]:
        queue, *payloads = arguments
        drafts: list[Draft] = []
        for index, payload in enumerate(payloads):
            own = _nth(options, index)
            origin = Origin(int(own["source"]), own.get("source_queue", "old"), own.get("source_group", ""))
            drafts.append(self._draft(payload, own, origin))
        yield from self._enqueue(queue, drafts)

    def _draft(self, payload: str, options: Options, origin: Origin | None = None) -> Draft:
        extra = Extra(
            key=options.get("key"),
            message_id=options.get("id"),
            properties=tuple((k, v) for k, _, v in [p.partition(":") for p in options.get("props", "").split()]),
            correlation_id=options.get("correlation"),
            origin=origin,
        )
        return Draft(
            payload.encode() * int(options.get("times", "1")),
            int(options.get("priority", PRIORITY_DEFAULT)),
            self.now + parse_duration(options["delay"]) if "delay" in options else 0,
            parse_duration(options["ttl"]) if "ttl" in options else -1,
            extra if extra != NO_EXTRA else NO_EXTRA,
        )

    def _enqueue(self, queue: str, drafts: list[Draft]) -> Iterator[str]:
        reply = self.engine.enqueue(("default", queue), drafts, "test", self.now)
        for index, message_id in enumerate(reply.ids):
            payload = _display(drafts[index].payload)
            if index in reply.errors:
                yield f"{payload}: {self._error(reply.errors[index])}"
            elif index in reply.duplicates:
                yield f"{payload}: duplicate of {self.name(message_id)}"
            else:
                yield f"{payload}: {self.name(message_id, queue)}"

    def do_lease(self, arguments: list[str], options: Options) -> Iterator[str]:
        group = options.get("group", GROUP_DEFAULT)
        found = self.engine.lease(
            ("default", arguments[0]),
            group,
            int(options.get("limit", "1")),
            parse_duration(options["timeout"]) if "timeout" in options else -1,
            options.get("consumer", ""),
            "test",
            self.now,
            max_bytes=int(options.get("max_bytes", "0")),
        )
        for leased in found:
            message = leased.message
            self.leases[message.id, group] = leased
            origin = message.extra.origin
            details = [
                self.name(message.id),
                _display(message.payload),
                self.token(leased.token),
                f"attempt={leased.attempt}",
                f"until={self.at(leased.deadline)}",
            ]
            yield " ".join(details)
            if origin is not None:
                yield "  " + self._origin(origin)
        if not found:
            yield "nothing to lease"

    def _origin(self, origin: Origin) -> str:
        source = self.names.get(origin.source_id, str(origin.source_id))
        times = f"{self.at(origin.first_attempt_at)}..{self.at(origin.last_attempt_at)}" if origin.attempts else "never"
        return (
            f"from {source} of {origin.source_queue}, group {origin.source_group or '-'}: {origin.reason or '-'}"
            f", error={origin.error!r}, attempts={origin.attempts} {times}"
        )

    def _settle(self, verb: Verb, messages: list[str], options: Options) -> Iterator[str]:
        """`ack m1 m2 group=g token=t1`, and so on for every verb."""
        group = options.get("group", GROUP_DEFAULT)
        settlements = [self._settlement(verb, self.ids[name], group, options) for name in messages]
        yield from self._settle_trace(self.homes[self.ids[messages[0]]], group, settlements)

    def _settle_trace(self, queue: str, group: str, settlements: list[Settlement]) -> Iterator[str]:
        yield from self._results(settlements, self.engine.settle(("default", queue), group, settlements, self.now))

    def _results(self, settlements: list[Settlement], results: list[int | HoldfastError | None]) -> Iterator[str]:
        for settlement, result in zip(settlements, results, strict=True):
            name = self.name(settlement.id)
            if isinstance(result, HoldfastError):
                yield f"{settlement.verb} {name}: {self._error(result)}"
            elif result is not None:
                yield f"{settlement.verb} {name}: until {self.at(result)}"
            else:
                yield f"{settlement.verb} {name}: ok"

    def _settlement(self, verb: Verb, message_id: int, group: str, options: Options) -> Settlement:
        leased = self.leases.get((message_id, group))
        token = leased.token if leased is not None else 1
        if "token" in options:
            named = {name: value for value, name in self.tokens.items()}
            token = named.get(options["token"], 0)
        return Settlement(
            message_id,
            token,
            verb,
            parse_duration(options["delay"]) if "delay" in options else -1,
            options.get("error", ""),
            parse_duration(options["timeout"]) if "timeout" in options else -1,
            options.get("consumer", ""),
        )

    def do_acks(self, arguments: list[str], options: Options) -> Iterator[str]:
        """Columnar acks: `acks m1 m2 m3:t9 group=g`, each by the last token of its message, or by the one named."""
        group = options.get("group", GROUP_DEFAULT)
        pairs = [argument.partition(":") for argument in arguments]
        found = [self._settlement(Verb.ACK, self.ids[m], group, {"token": t} if t else {}) for m, _, t in pairs]
        ids, tokens = [one.id for one in found], [one.token for one in found]
        results = self.engine.ack(("default", self.homes[ids[0]]), group, ids, tokens, self.now)
        yield from self._results(found, results)

    def do_settle(self, arguments: list[str], options: Options) -> Iterator[str]:
        """Several verbs in one batch: `settle "extend m1" "ack m1"`."""
        group = options.get("group", GROUP_DEFAULT)
        settlements: list[Settlement] = []
        for argument in arguments:
            verb, name = argument.split()
            settlements.append(self._settlement(VERBS[verb], self.ids[name], group, {}))
        yield from self._settle_trace(self.homes[settlements[0].id], group, settlements)

    def do_edit(self, arguments: list[str], options: Options) -> Iterator[str]:
        message_id = self.ids[arguments[0]]
        priority = int(options["priority"]) if "priority" in options else None
        deliver_at = self.now + parse_duration(options["delay"]) if "delay" in options else None
        home = ("default", self.homes[message_id])
        message = edit_message(self.engine, home, message_id, priority, deliver_at, self.now)
        delivers = f" deliver_at={self.at(message.deliver_at)}" if message.deliver_at else ""
        yield f"{self.name(message.id)} priority={message.priority}{delivers}"

    def do_delete(self, arguments: list[str], options: Options) -> Iterator[str]:
        message_id = self.ids[arguments[0]]
        name = ("default", self.homes[message_id])
        delete_message(self.engine, name, message_id, self.now, leased="leased" in options)
        yield f"deleted {arguments[0]}"

    def do_redrive(self, arguments: list[str], options: Options) -> Iterator[str]:
        """`redrive dlq/tasks reason=rejected target=other`, or letters by name: `redrive dlq/tasks m3`."""
        queue, *names = arguments
        which = DeadLetterFilter(
            ids=frozenset(self.ids[name] for name in names),
            reasons=frozenset(options["reason"].split(",")) if "reason" in options else frozenset(),
            error=options.get("error", ""),
            source_queue=options.get("source_queue", ""),
            source_group=options.get("source_group", ""),
        )
        for done in redrive(
            self.engine,
            ("default", queue),
            which,
            self._clock,
            to=Destination(
                queue=options.get("target", ""), group=options.get("group", ""), all_groups="all" in options
            ),
            limit=int(options.get("limit", "0")),
            dry_run="dry" in options,
            discard="discard" in options,
        ):
            self._commit()
            yield f"looked at {done.looked}, {done.leased} leased"
            for dead_letter, message in done.moved:
                yield f"{self.name(dead_letter)} -> {self.name(message) if message else 'nowhere'}"
            for dead_letter, error in done.refused.items():
                yield f"{self.name(dead_letter)}: {self._error(error)}"

    # --- workflow state ---------------------------------------------------------------------------------------------

    def do_put(self, arguments: list[str], options: Options) -> Iterator[str]:
        """`put m1 data group=g match=0 token=t1`"""
        message_id, group = self.ids[arguments[0]], options.get("group", GROUP_DEFAULT)
        queue = self._queue(self.homes[message_id])
        token = self._settlement(Verb.EXTEND, message_id, group, options).token
        if_match = int(options["match"]) if "match" in options else None
        partition = max(DeliveryLocator(queue, group).find(message_id), 0)
        command = PutState(group, message_id, token, arguments[1].encode(), if_match)
        state = self.engine.step(queue, queue.shards[partition], command, self.now)
        yield f"etag {state.etag}"

    def do_state(self, arguments: list[str], options: Options) -> Iterator[str]:
        message_id, group = self.ids[arguments[0]], options.get("group", GROUP_DEFAULT)
        queue = self._queue(self.homes[message_id])
        token = 0
        if "token" in options:
            token = next((value for value, name in self.tokens.items() if name == options["token"]), 1)
        partition, _, _ = find_message(self.engine, queue.name, message_id, self.now)
        reply = self.engine.step(queue, queue.shards[partition], GetStates(group, [(message_id, token)]), self.now)
        state = visible_state(reply[0])
        yield f"etag {state.etag}: {(state.data or b'').decode()}" if state is not None else "no state"

    # --- transactions -----------------------------------------------------------------------------------------------

    def do_stage(self, arguments: list[str], options: Options) -> Iterator[str]:
        """`stage t1 tasks a b / images c part=p attempt=1 chunk=0`"""
        name, *rest = arguments
        batches: list[tuple[str, list[Draft]]] = []
        for batch in " ".join(rest).split("/") if rest else []:
            queue, *payloads = batch.split()
            batches.append((queue, [self._draft(p, _nth(options, i)) for i, p in enumerate(payloads)]))
        receipt = self.engine.transactions.stage(
            TransactionName("default", name),
            batches,
            options.get("part", ""),
            options.get("attempt", ""),
            int(options.get("chunk", "0")),
            self.now,
        )
        for (batch_at, index), error in receipt.errors.items():
            yield f"{batches[batch_at][0]}, {index}: {self._error(error)}"
        again = ", staged before" if receipt.repeated else ""
        yield f"{receipt.messages} messages, {receipt.size_bytes} bytes, until {self.at(receipt.expires_at)}{again}"

    def do_publish(self, arguments: list[str], options: Options) -> Iterator[str]:
        """`publish t1 parts=p:1,q:2 steps=1`: only the first steps."""
        name = TransactionName("default", arguments[0])
        parts = None
        if "parts" in options:
            parts = dict(pair.split(":") for pair in options["parts"].split(",") if pair)
        record, decided = self.engine.transactions.publish(name, parts, "test", self.now)
        yield from self._published(record, "" if decided else ", decided before")
        steps = int(options.get("steps", "1000")) - 1
        yield from self._move(name, record, steps if decided else 0)

    def do_move(self, arguments: list[str], options: Options) -> Iterator[str]:
        """Go on with what is decided, as a node does when it starts."""
        for name in self.engine.transactions.unfinished_moves():
            record, _ = self.engine.transactions.describe(name)
            yield from self._move(name, record, int(options.get("steps", "1000")))

    def _move(self, name: TransactionName, record: Transaction, steps: int) -> Iterator[str]:
        while record.state is TransactionState.PUBLISHING and steps > 0:
            self._commit()
            self.engine.transactions.move(name, self.now)
            yield from self._published(record, "")
            steps -= 1

    def _published(self, record: Transaction, note: str) -> Iterator[str]:
        more = [f"{name}={getattr(record, name)}" for name in ("duplicates", "dropped") if getattr(record, name)]
        yield " ".join([f"{record.state} {record.published} of {record.messages}", *more]) + note

    def do_abort(self, arguments: list[str], options: Options) -> Iterator[str]:
        gone = self.engine.transactions.abort(TransactionName("default", arguments[0]))
        yield "removed" if gone else "there is none"

    def do_transaction(self, arguments: list[str], options: Options) -> Iterator[str]:
        record, staged_parts = self.engine.transactions.describe(TransactionName("default", arguments[0]))
        yield f"{record.state} {record.messages} messages, ends {self.at(record.ends_at)}"
        for staged_part in staged_parts:
            name = f"part {staged_part.part!r} attempt {staged_part.attempt!r}"
            yield f"{name}: {staged_part.chunks} chunks, {staged_part.messages} messages"

    # --- looking ----------------------------------------------------------------------------------------------------

    def do_browse(self, arguments: list[str], options: Options) -> Iterator[str]:
        cursor = ""
        empty = True
        while True:
            page = browse_messages(
                self.engine, ("default", arguments[0]), int(options.get("limit", "100")), cursor, "", "", self.now
            )
            for partition, message, delivery_statuses in page.messages:
                yield self._message(partition, message, delivery_statuses)
                empty = False
            cursor = page.cursor
            if not cursor:
                break
        if empty:
            yield "empty"

    def _message(self, partition: int, message: Message, delivery_statuses: list[DeliveryStatus]) -> str:
        details = [self.name(message.id), f"#{partition}.{message.seq}", _display(message.payload)]
        if message.priority != PRIORITY_DEFAULT:
            details.append(f"priority={message.priority}")
        if message.extra.key is not None:
            details.append(f"key={message.extra.key}")
        return " ".join(details) + "".join(
            " · " + self._status_text(delivery_status) for delivery_status in delivery_statuses
        )

    def _status_text(self, delivery_status: DeliveryStatus) -> str:
        details = [delivery_status.group, delivery_status.state]
        if delivery_status.attempt > 1:
            details.append(f"attempt={delivery_status.attempt}")
        if delivery_status.state == DeliveryState.LEASED:
            details.append(f"until={self.at(delivery_status.deadline)}")
        elif delivery_status.ready_at:
            details.append(f"from={self.at(delivery_status.ready_at)}")
        if delivery_status.error:
            details.append(f"error={delivery_status.error!r}")
        return " ".join(details)

    def do_find(self, arguments: list[str], options: Options) -> Iterator[str]:
        message_id = self.ids.get(arguments[0]) or int(arguments[0])
        queue = options.get("queue") or self.homes[message_id]
        yield self._message(*find_message(self.engine, ("default", queue), message_id, self.now))

    def do_depth(self, arguments: list[str], options: Options) -> Iterator[str]:
        queue = self._queue(arguments[0])
        ready = sum(shard.head.ready for shard in queue.shards)
        scheduled = sum(shard.head.scheduled for shard in queue.shards)
        size = sum(shard.head.size_bytes for shard in queue.shards)
        yield f"{queue.depth}: ready={ready} scheduled={scheduled} bytes={size}"
        for record in queue.record.groups:
            if record.kind is GroupKind.CURSOR:
                details = [f"committed={shard.cursors[record.name].head.committed}" for shard in queue.shards]
            else:
                groups = [shard.groups[record.name] for shard in queue.shards]
                again = sum(len(group.ready) for group in groups)
                leased = sum(group.leased for group in groups)
                details = [
                    f"untouched={sum(group.fresh for group in groups)}",
                    f"again={again}",
                    f"leased={leased}",
                    f"waiting={sum(group.retrying for group in groups) - again}",
                ]
            yield f"{record.name}: {' '.join(details)}"

    def do_counters(self, arguments: list[str], options: Options) -> Iterator[str]:
        for shard in self._queue(arguments[0]).shards:
            head = shard.head
            yield f"#{shard.partition} enqueued={head.enqueued} duplicates={head.duplicates} refused={head.refused}"
            counters = {name: group.head.counters for name, group in shard.groups.items()}
            counters |= {name: cursor.head.counters for name, cursor in shard.cursors.items()}
            for group, counts in counters.items():
                details = [f"{name}={value}" for name, value in sorted(counts.items()) if value]
                yield f"#{shard.partition} {group}: {' '.join(details)}"

    def do_records(self, arguments: list[str], options: Options) -> Iterator[str]:
        """How many records of messages there are, by table: nothing may be left behind."""
        for table in Table:
            if table in (Table.META, Table.QUEUES, Table.SHARDS, Table.GROUPS, Table.JOURNAL):
                continue
            count = len(self.engine.store.scan(table, b"", b"\xff" * 32, 1 << 20))
            if count:
                yield f"{table.name.lower()}: {count}"

    # --- cursor groups ----------------------------------------------------------------------------------------------

    def do_read(self, arguments: list[str], options: Options) -> Iterator[str]:
        queue, group = arguments
        found = cursor_read(
            self.engine,
            ("default", queue),
            group,
            int(options.get("partition", "0")),
            int(options.get("from", "0")),
            int(options.get("limit", "100")),
            int(options.get("max_bytes", str(1 << 20))),
            self.now,
            int(options.get("until", "0")),
        )
        if found.lost_from:
            yield f"lost {found.lost_from}..{found.lost_to}"
        for message in found.messages:
            yield f"{message.seq} {self.name(message.id)} {_display(message.payload)}"
        yield f"next={found.next_seq} committed={found.committed} end={found.high}"

    def do_ends(self, arguments: list[str], options: Options) -> Iterator[str]:
        for end in cursor_ends(self.engine, ("default", arguments[0]), arguments[1], self.now):
            lost = f" lost {end.lost_from}..{end.lost_to}" if end.lost_from else ""
            yield f"#{end.partition} {end.first}..{end.end - 1}{lost}"

    def do_commit(self, arguments: list[str], options: Options) -> Iterator[str]:
        queue, group, seq = arguments
        partition = int(options.get("partition", "0"))
        count = sum(cursor_commit(self.engine, ("default", queue), group, partition, int(seq), self._clock))
        yield f"committed {count} messages"

    # --- time and trouble -------------------------------------------------------------------------------------------

    def do_advance(self, arguments: list[str], options: Options) -> Iterator[str]:
        """Let time pass, waking the engine whenever it asked for it."""
        target = self.now + parse_duration(arguments[0])
        while self.engine.wake_at() <= target:
            self.now = max(self.now, self.engine.wake_at())
            self.engine.tick(self.now)
            self._commit()
            if self.engine.wake_at() <= self.now:
                raise AssertionError("the engine wants to be woken again and again")
        self.now = target
        yield from ()

    def do_jump(self, arguments: list[str], options: Options) -> Iterator[str]:
        """Set the clock without waking anybody: `jump +1h`, `jump -1h`."""
        self.now += parse_duration(arguments[0][1:]) * (-1 if arguments[0].startswith("-") else 1)
        yield f"the clock shows {self.at(self.now)}"

    def do_tick(self, arguments: list[str], options: Options) -> Iterator[str]:
        self.engine.tick(self.now)
        yield from ()

    def do_sync(self, arguments: list[str], options: Options) -> Iterator[str]:
        self.syncing = arguments[0] == "on"
        yield from ()

    def do_crash(self, arguments: list[str], options: Options) -> Iterator[str]:
        """Lose everything that was not synced but the first `keep` writes, and start again."""
        self.disk.crash(int(options.get("keep", "0")))
        self.engine = self._open()
        self._next_block = self.engine.record.next_block
        self._next_lsn = self.engine.record.next_lsn
        self.lives.forget(self._next_lsn)
        yield f"up again, next lsn {self.engine.record.next_lsn}"

    def do_store(self, arguments: list[str], options: Options) -> Iterator[str]:
        """Start again on RocksDB, which keeps the records of a batch in packs."""
        assert arguments == ["rocks"]
        self.directory = TemporaryDirectory(prefix="holdfast-transcript-")
        self.engine = self._open()
        yield "on RocksDB"

    def do_restart(self, arguments: list[str], options: Options) -> Iterator[str]:
        """Stop in order, and start again: what was in memory is read from the store."""
        self.engine.store.close()
        self.engine = self._open()
        yield f"up again, next lsn {self.engine.record.next_lsn}"

    def close(self) -> None:
        self.engine.store.close()
        if self.directory is not None:
            self.directory.cleanup()

    def do_export(self, arguments: list[str], options: Options) -> Iterator[str]:
        """What the exporter does to the store: exported blocks go, and the message records that waited for it."""
        last = self.engine.record.next_block - 1
        blocks = self.engine.store.scan(Table.JOURNAL, journal_key(0), journal_key(last + 1), 1 << 20)
        removed = [(shard, seq) for _, value in blocks for shard, seqs in removable(read_block(value)) for seq in seqs]
        ops: list[Op] = [(Table.MESSAGES, message_key(shard, seq), None) for shard, seq in removed]
        ops += [(Table.JOURNAL, key, None) for key, _ in blocks]
        self.engine.exported(last, self.engine.record.next_lsn - 1, ops, None)
        yield f"exported, {len(removed)} message records removed"

    do_schedule = schedules.put
    do_unschedule = schedules.delete
    do_pause_schedule = schedules.pause
    do_run = schedules.run_now
    do_runs = schedules.runs

    def do_limits(self, arguments: list[str], options: Options) -> Iterator[str]:
        numbers = {name: int(value) for name, value in options.items()}
        queues = numbers.pop("max_queues", self.limits.max_queues)
        transactions = replace(self.limits.transactions, **numbers)
        self.limits = self.engine.limits = Limits(max_queues=queues, transactions=transactions)
        self.engine.transactions.limits = transactions
        yield from ()


def _is_option(word: str) -> bool:
    return re.match(r"[a-z_.]+=", word) is not None


def _fields(options: Options) -> dict[str, object]:
    """Settings as a file would have them: true and false are no texts."""
    words: dict[str, object] = {"true": True, "false": False}
    return {name: words.get(value, value) for name, value in options.items()}


def _nth(options: Options, index: int) -> Options:
    """The options of one message of several: `priority=5,1` gives each its own, `-` none."""
    own: Options = {}
    for name, value in options.items():
        values = value.split(",")
        chosen = values[index] if len(values) > 1 else value
        if chosen != "-":
            own[name] = chosen
    return own


def _display(payload: bytes) -> str:
    text = payload.decode()
    return text if len(text) <= 20 else f"{text[:8]}...({len(text)} bytes)"
