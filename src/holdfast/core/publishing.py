"""Publishing: messages that were staged take their places, as an enqueue would give them theirs.

What an enqueue checks was checked when they were staged, and their records are packed but for the head. So this goes by
columns: the same in a third of the time.
"""

from __future__ import annotations

from itertools import islice

from holdfast.core.codecs import keyed_value, message_head, ready_value
from holdfast.core.commands import Enqueue, Enqueued, Publish
from holdfast.core.effects import Outcome, puts
from holdfast.core.enqueue import count_in, enqueue, keep_hot, window_room
from holdfast.core.ids import UNKEYED
from holdfast.core.journal import EntryKind
from holdfast.core.queue import PRIORITY_DEFAULT, JournalMode
from holdfast.core.records import NO_KEY_HASH, Place, Table, keyed_key, ready_prefix, shard_key
from holdfast.core.runs import RecordRun
from holdfast.core.shard import Shard, handles
from holdfast.core.windows import WINDOW_MAX


@handles(Publish)
def publish(shard: Shard, command: Publish, now: int, effects: Outcome[Enqueued]) -> None:
    head, config, packed, ids = shard.head, shard.config, command.messages, command.ids
    expires_at = now + config.message_ttl if config.message_ttl else 0
    if expires_at:
        if expires_at < head.expiry_high:  # before an older one: each needs a record of when
            enqueue(shard, Enqueue(packed.drafts(), -1, command.protocol, ids, validated=True), now, effects)
            return
        head.expiry_high = expires_at
        head.next_expiry = head.next_expiry or expires_at
    number, priority = shard.number, PRIORITY_DEFAULT if config.strict else packed.priority
    keys = packed.keys if config.keyed else [NO_KEY_HASH] * len(ids)
    first, count, size_bytes = head.next_seq, len(ids), sum(packed.sizes)
    seqs = range(first, first + count)
    heads = [
        message_head(message_id, now, 0, expires_at, priority, size)
        for message_id, size in zip(ids, packed.extra_sizes, strict=True)
    ]
    ops, keyed = effects.ops, Table.KEYED  # as a name of this function: to look it up costs as much as to pack a key
    ops += puts(Table.MESSAGES, shard_key(number), seqs, heads, packed.tails)
    ops += puts(
        Table.READY,
        ready_prefix(number, priority),
        ids,
        [ready_value(seq, key, 0, size) for seq, key, size in zip(seqs, keys, packed.sizes, strict=True)],
    )
    ops += [
        (keyed, keyed_key(number, key, priority, stamp), keyed_value(seq, stamp))
        for seq, key, stamp in zip(seqs, keys, ids, strict=True)
        if key != NO_KEY_HASH
    ]
    wanted = window_room(shard, priority)
    if shard.groups:
        keep_hot(shard, first, RecordRun.of(heads[:WINDOW_MAX], packed.tails[:WINDOW_MAX]))
    places = [
        Place(stamp, seq, UNKEYED if key == NO_KEY_HASH else key, 0, priority, size)
        for stamp, seq, key, size in islice(zip(ids, seqs, keys, packed.sizes, strict=True), wanted + 1)
    ]
    count_in(shard, count, size_bytes, {priority: (count, places)}, now)
    if config.journal is not JournalMode.OFF:
        effects.entries.append((EntryKind.ENQUEUED, number, first, count, command.protocol, size_bytes))
        effects.rows += count
    effects.reply = Enqueued(ids, {}, {}, first)
