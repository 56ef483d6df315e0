"""Publishing: messages that were staged as a run take their places, as an enqueue would give them theirs.

What an enqueue checks was checked when they were staged, and their records are packed but for the head. So this goes by
columns: the same in a third of the time.
"""

from __future__ import annotations

from holdfast.core.commands import Enqueue, Enqueued, Publish
from holdfast.core.effects import Effects
from holdfast.core.enqueue import arrive, enqueue
from holdfast.core.ids import UNKEYED
from holdfast.core.journal import Entry
from holdfast.core.queue import PRIORITY_DEFAULT, JournalMode
from holdfast.core.records import (
    NO_KEY_HASH,
    Place,
    Table,
    keyed_key,
    keyed_ready_values,
    keyed_value,
    message_key,
    ready_key,
    write_message_heads,
)
from holdfast.core.shard import Shard, handles


@handles(Publish)
def publish(shard: Shard, command: Publish, now: int, effects: Effects) -> None:
    head, config, run, ids = shard.head, shard.config, command.run, command.ids
    expires_at = now + config.message_ttl if config.message_ttl else 0
    if expires_at:
        if expires_at < head.expiry_high:  # before an older one: each needs a record of when
            enqueue(shard, Enqueue(run.drafts(), -1, command.protocol, ids, promised=True), now, effects)
            return
        head.expiry_high = expires_at
        head.next_expiry = head.next_expiry or expires_at
    priority = PRIORITY_DEFAULT if config.strict else run.priority
    keys = run.keys if config.keyed else [NO_KEY_HASH] * len(ids)
    first, count, size_bytes = head.next_seq, len(ids), sum(run.sizes)
    heads = write_message_heads(ids, now, expires_at, priority, run.extra_sizes)
    values = [one + tail for one, tail in zip(heads, run.tails, strict=True)]
    _write(shard, priority, keys, ids, values, run.sizes, effects)
    for cursor in shard.cursors.values():
        cursor.arrive(now)
    head.next_seq += count
    head.enqueued += count
    head.size_bytes += size_bytes
    if shard.groups:
        _keep(shard, first, values)
        seqs = range(first, first + count)
        arrive(
            shard,
            {
                priority: [
                    Place(stamp, seq, UNKEYED if key == NO_KEY_HASH else key, 0, priority, size)
                    for stamp, seq, key, size in zip(ids, seqs, keys, run.sizes, strict=True)
                ]
            },
        )
    else:
        head.priorities[priority] = head.priorities.get(priority, 0) + count
        head.ready += count
    if config.journal is not JournalMode.OFF:
        effects.entries.append((Entry.ENQUEUED, shard.number, first, count, command.protocol, size_bytes))
        effects.rows += count
    effects.reply = Enqueued(ids, {}, {}, first)


def _write(
    shard: Shard,
    priority: int,
    keys: list[bytes],
    ids: list[int],
    values: list[bytes],
    sizes: list[int],
    effects: Effects,
) -> None:
    """The records of the messages, of their places, and of their keys."""
    ops, number, first = effects.ops, shard.number, shard.head.next_seq
    # The tables as names of this function: to look up a member of an enum costs as much as to pack a key.
    messages, ready, keyed = Table.MESSAGES, Table.READY, Table.KEYED
    ops += [(messages, message_key(number, seq), value) for seq, value in enumerate(values, first)]
    places = keyed_ready_values(first, keys, sizes)
    ops += [(ready, ready_key(number, priority, stamp), place) for stamp, place in zip(ids, places, strict=True)]
    ops += [
        (keyed, keyed_key(number, key, priority, stamp), keyed_value(seq, stamp))
        for seq, (key, stamp) in enumerate(zip(keys, ids, strict=True), first)
        if key != NO_KEY_HASH
    ]


def _keep(shard: Shard, first: int, values: list[bytes]) -> None:
    """Keep message records in memory until they are leased, as far as there is room."""
    hot, size_bytes = shard.hot, sum(map(len, values))
    if hot.used_bytes + size_bytes <= hot.limit_bytes:
        hot.used_bytes += size_bytes
        shard.bodies.update(enumerate(values, first))
