"""Actions on queues: create, list, look at, change, tag, purge, delete."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from msgspec.structs import replace

from holdfast.auth.principal import Action
from holdfast.core.queue import QueueRecord
from holdfast.engine.catalog import QueueName
from holdfast.errors import QueueExists, QueueInUse
from holdfast.http_api.dialects.sqs import shapes
from holdfast.http_api.dialects.sqs.caller import Caller
from holdfast.http_api.dialects.sqs.identifiers import GROUP
from holdfast.http_api.dialects.sqs.queue_attributes import (
    FRONT,
    NO_NOTE,
    QueueNote,
    changed_note,
    check_allowed,
    differs,
    encode_note,
    is_fifo,
    new_config,
    note_of,
    read_attributes,
    settings_of,
)
from holdfast.http_api.dialects.sqs.refusals import Refusal, invalid

PAGE_MAX: Final = 1_000
TAGS_MAX: Final = 50
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")

ATTRIBUTES: Final = frozenset(
    {
        *("All", "Policy", "VisibilityTimeout", "MaximumMessageSize", "MessageRetentionPeriod"),
        *("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed"),
        *("CreatedTimestamp", "LastModifiedTimestamp", "QueueArn", "DelaySeconds", "ReceiveMessageWaitTimeSeconds"),
        *("RedrivePolicy", "RedriveAllowPolicy", "FifoQueue", "ContentBasedDeduplication", "DeduplicationScope"),
        *("FifoThroughputLimit", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled"),
    }
)


def name_of(record: QueueRecord) -> QueueName:
    return (record.namespace, record.name)


async def create_queue(caller: Caller, given: shapes.CreateQueue) -> shapes.QueueUrl:
    name = given.queue_name
    if not _NAME.fullmatch(name):
        raise invalid(
            "QueueName",
            repr(name[:100]),
            "It has 1 to 80 letters, digits, hyphens and underscores, and .fifo at the end if it is a FIFO queue.",
        )
    if is_fifo(name) and given.attributes.get("FifoQueue") != "true":
        raise invalid("QueueName", repr(name), "The name of a queue ends with .fifo only if FifoQueue is true.")
    _check_tags(given.tags)
    async with caller.act("queue.create", name) as details:
        details["attributes"] = given.attributes
        caller.principal.require(Action.ADMIN, name)
        changes = read_attributes(name, given.attributes)
        caller.principal.require_config(changes.config)
        place = caller.name(name)
        if caller.node.queues.exists(place):
            await caller.node.cell.wait_clean()  # who is answered that it exists relies on it
            if differs(caller.node.queues.get(place), note_of(caller.node, place), changes):
                raise QueueExists(queue=name)
        else:
            check_allowed(caller.node, place, changes.config)
            created = caller.node.queues.submit_create(place, {**new_config(name), **changes.config})
            caller.node.groups.submit_create(place, GROUP)
            note = changed_note(replace(NO_NOTE, tags=given.tags), changes.note, created.result.created_at)
            await caller.node.queue_notes.put(FRONT, place, encode_note(note))
    return shapes.QueueUrl(queue_url=caller.url(name))


async def get_queue_url(caller: Caller, given: shapes.GetQueueUrl) -> shapes.QueueUrl:
    return shapes.QueueUrl(queue_url=caller.url(caller.queue(given.queue_name).name))


async def list_queues(caller: Caller, given: shapes.ListQueues) -> shapes.QueueUrls:
    records = caller.node.queues.in_namespace(caller.principal.namespace, given.queue_name_prefix, given.next_token)
    names, token = _page(caller, [record.name for record in records], given.max_results)
    return shapes.QueueUrls(queue_urls=[caller.url(name) for name in names], next_token=token)


async def list_dead_letter_source_queues(
    caller: Caller, given: shapes.ListDeadLetterSourceQueues
) -> shapes.SourceQueueUrls:
    dead = caller.queue(given.queue_url)
    found = [name for name in caller.node.queues.dead_queue_users(name_of(dead)) if name > given.next_token]
    names, token = _page(caller, found, given.max_results)
    return shapes.SourceQueueUrls(queue_urls=[caller.url(name) for name in names], next_token=token)


def _page(caller: Caller, names: list[str], limit: int | None) -> tuple[list[str], str | None]:
    """The first of the queues that the caller can see, and where the next page begins. AWS gives a page only if it was
    asked for one, and at most a thousand queues otherwise."""
    if limit is not None and not 1 <= limit <= PAGE_MAX:
        raise invalid("MaxResults", limit, f"It must be 1 to {PAGE_MAX}.")
    seen = list(islice((name for name in names if caller.principal.can_see(name)), (limit or PAGE_MAX) + 1))
    page = seen[: limit or PAGE_MAX]
    return page, page[-1] if len(seen) > len(page) and limit else None


async def get_queue_attributes(caller: Caller, given: shapes.GetQueueAttributes) -> shapes.QueueAttributes:
    wanted = set(given.attribute_names)
    if unknown := sorted(wanted - ATTRIBUTES):
        raise Refusal("InvalidAttributeName", f"Unknown Attribute {unknown[0][:100]}.")
    record = caller.queue(given.queue_url)
    found = settings_of(record, note_of(caller.node, name_of(record)), caller.region)
    counts = {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    }
    if wanted & {"All", *counts}:
        found |= await _counts(caller, name_of(record))
    chosen = found if "All" in wanted else {name: found[name] for name in given.attribute_names if name in found}
    return shapes.QueueAttributes(attributes=chosen)


async def _counts(caller: Caller, name: QueueName) -> dict[str, str]:
    stats = await caller.node.inspection.stats(name)
    group = next((group for group in stats.groups if group.name == GROUP), None)
    ready, leased, scheduled = (
        (stats.ready, 0, stats.scheduled) if group is None else (group.ready, group.leased, group.scheduled)
    )
    return {
        "ApproximateNumberOfMessages": str(ready),
        "ApproximateNumberOfMessagesNotVisible": str(leased),
        "ApproximateNumberOfMessagesDelayed": str(scheduled),
    }


async def set_queue_attributes(caller: Caller, given: shapes.SetQueueAttributes) -> shapes.Nothing:
    record = caller.queue(given.queue_url)
    name = name_of(record)
    async with caller.act("queue.update", record.name) as details:
        details["attributes"] = given.attributes
        caller.principal.require(Action.ADMIN, record.name)
        changes = read_attributes(record.name, given.attributes)
        caller.principal.require_config(changes.config)
        check_allowed(caller.node, name, changes.config)
        caller.node.queues.update(name, changes.config)
        await _put(caller, name, changed_note(note_of(caller.node, name), changes.note, caller.node.clock()))
    return shapes.Nothing()


async def _put(caller: Caller, name: QueueName, note: QueueNote) -> None:
    await caller.node.queue_notes.put(FRONT, name, encode_note(note))


# --- tags -----------------------------------------------------------------------------------------------------------


async def tag_queue(caller: Caller, given: shapes.TagQueue) -> shapes.Nothing:
    record = caller.queue(given.queue_url)
    name = name_of(record)
    async with caller.act("queue.tag", record.name) as details:
        details["tags"] = given.tags
        caller.principal.require(Action.ADMIN, record.name)
        note = note_of(caller.node, name)
        tags = note.tags | given.tags
        _check_tags(tags)
        await _put(caller, name, replace(note, tags=tags))
    return shapes.Nothing()


async def untag_queue(caller: Caller, given: shapes.UntagQueue) -> shapes.Nothing:
    record = caller.queue(given.queue_url)
    name = name_of(record)
    async with caller.act("queue.untag", record.name) as details:
        details["tags"] = given.tag_keys
        caller.principal.require(Action.ADMIN, record.name)
        note = note_of(caller.node, name)
        tags = {key: value for key, value in note.tags.items() if key not in given.tag_keys}
        await _put(caller, name, replace(note, tags=tags))
    return shapes.Nothing()


async def list_queue_tags(caller: Caller, given: shapes.QueueRef) -> shapes.Tags:
    record = caller.queue(given.queue_url)
    return shapes.Tags(tags=note_of(caller.node, name_of(record)).tags)


def _check_tags(tags: dict[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise invalid("Tags", len(tags), f"A queue has at most {TAGS_MAX} tags.")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise invalid("Tags", repr(key[:128]), "A key has 1 to 128 characters, a value at most 256.")


# --- the end --------------------------------------------------------------------------------------------------------


async def purge_queue(caller: Caller, given: shapes.QueueRef) -> shapes.Nothing:
    record = caller.queue(given.queue_url)
    async with caller.act("queue.purge", record.name) as details:
        caller.principal.require(Action.ADMIN, record.name)
        details["messages"] = await caller.node.queues.purge(name_of(record))
    return shapes.Nothing()


async def delete_queue(caller: Caller, given: shapes.QueueRef) -> shapes.Nothing:
    record = caller.queue(given.queue_url)
    async with caller.act("queue.delete", record.name) as details:
        caller.principal.require(Action.ADMIN, record.name)
        try:
            details["messages"] = await caller.node.queues.delete(name_of(record))
        except QueueInUse:  # which names queues that the caller may not see
            raise Refusal(
                "UnsupportedOperation", "Other queues have this one as their dead-letter queue: change them first."
            ) from None
    return shapes.Nothing()
