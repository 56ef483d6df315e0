"""SendMessage and SendMessageBatch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from holdfast.auth.principal import Action
from holdfast.core.commands import Draft
from holdfast.core.queue import QueueRecord
from holdfast.core.records import NO_EXTRA, Extra
from holdfast.http_api.codecs.trace_headers import traced
from holdfast.http_api.dialects.sqs import message_attributes, shapes
from holdfast.http_api.dialects.sqs.batches import check_entries, entry_error
from holdfast.http_api.dialects.sqs.caller import PROTOCOL, Caller
from holdfast.http_api.dialects.sqs.identifiers import message_uuid, sequence_number
from holdfast.http_api.dialects.sqs.queue_attributes import QueueNote, is_fifo, note_of
from holdfast.http_api.dialects.sqs.queues import name_of
from holdfast.http_api.dialects.sqs.refusals import Refusal, invalid, refusal_of
from holdfast.units import MIB, SECOND

BATCH_BYTES_MAX: Final = MIB
DELAY_SECONDS_MAX: Final = 900
TRACE_HEADER_BYTES_MAX: Final = 1_024

_IDENTIFIER = re.compile(r"[!-~]{1,128}")


async def send_message(caller: Caller, given: shapes.SendMessage) -> shapes.Sent:
    record = caller.queue(given.queue_url, Action.PRODUCE)
    draft = _draft(caller, record, note_of(caller.node, name_of(record)), given)
    [sent] = await _enqueue(caller, record, [(given, draft)])
    if isinstance(sent, Refusal):
        raise sent
    return sent


async def send_message_batch(caller: Caller, given: shapes.SendMessageBatch) -> shapes.SentBatch:
    """All entries that are right are one commit; the others are reported."""
    record = caller.queue(given.queue_url, Action.PRODUCE)
    check_entries([entry.id for entry in given.entries])
    if sum(_size_bytes(entry) for entry in given.entries) > BATCH_BYTES_MAX:
        raise Refusal("BatchRequestTooLong", f"Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes.")
    note = note_of(caller.node, name_of(record))
    failed: list[shapes.EntryError] = []
    drafts: list[tuple[shapes.SendEntry, Draft]] = []
    for entry in given.entries:
        try:
            drafts.append((entry, _draft(caller, record, note, entry)))
        except Refusal as refusal:
            failed.append(entry_error(entry.id, refusal))
    successful: list[shapes.SentEntry] = []
    for (entry, _), sent in zip(drafts, await _enqueue(caller, record, drafts), strict=True):
        if isinstance(sent, Refusal):
            failed.append(entry_error(entry.id, sent))
        else:
            successful.append(shapes.SentEntry(id=entry.id, **{name: getattr(sent, name) for name in _SENT}))
    return shapes.SentBatch(successful=successful, failed=failed)


_SENT: Final = shapes.Sent.__struct_fields__


def _size_bytes(given: shapes.MessageFields) -> int:
    return len(given.message_body.encode()) + message_attributes.size_bytes(given.message_attributes)


def _draft(caller: Caller, record: QueueRecord, note: QueueNote, given: shapes.MessageFields) -> Draft:
    """Raises Refusal for a message that is wrong."""
    if not given.message_body:
        raise Refusal("MissingParameter", "The request must contain the parameter MessageBody.")
    if not message_attributes.is_text(given.message_body):
        raise Refusal("InvalidMessageContents", "The message has characters that are not allowed.")
    message_attributes.check_attributes(given.message_attributes)
    limit = record.config.max_message_size
    if _size_bytes(given) > limit:
        raise Refusal(
            "InvalidParameterValue",
            f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes.",
        )
    properties = message_attributes.to_properties(given.message_attributes)
    if (trace := _trace_header(given)) is not None:
        properties.append((message_attributes.TRACE_HEADER, trace))
    if not caller.principal.unlimited:
        properties.append((message_attributes.SENDER, caller.principal.identity))
    key, message_id = _ordering(record.name, note, given)
    extra = NO_EXTRA
    if properties or key is not None or message_id is not None:
        extra = Extra(key=key, message_id=message_id, properties=tuple(properties))
    delay = _delay(record.name, note, given)
    deliver_at = caller.node.clock() + delay * SECOND if delay else 0
    return Draft(given.message_body.encode(), deliver_at=deliver_at, extra=extra)


def _trace_header(given: shapes.MessageFields) -> str | None:
    for name, value in given.message_system_attributes.items():
        text = value.string_value or ""
        if (
            name != "AWSTraceHeader"
            or value.data_type != "String"
            or not 1 <= len(text.encode()) <= TRACE_HEADER_BYTES_MAX
        ):
            raise invalid("MessageSystemAttributes", repr(name[:100]), "It is AWSTraceHeader, a String of up to 1 KiB.")
        return text
    return None


def _ordering(queue: str, note: QueueNote, given: shapes.MessageFields) -> tuple[str | None, str | None]:
    """The key, which is the message group, and the message id, by which a repetition is known."""
    group, deduplication_id = given.message_group_id, given.message_deduplication_id
    for parameter, text in (("MessageGroupId", group), ("MessageDeduplicationId", deduplication_id)):
        if text is not None and not _IDENTIFIER.fullmatch(text):
            raise invalid(parameter, repr(text[:128]), "It has 1 to 128 letters, digits and punctuation marks.")
    if not is_fifo(queue):
        if deduplication_id is not None:
            raise invalid("MessageDeduplicationId", deduplication_id, "It is for FIFO queues only.")
        return group, None
    if group is None:
        raise Refusal("MissingParameter", "The request must contain the parameter MessageGroupId.")
    if deduplication_id is None:
        if not note.content_based:
            raise Refusal(
                "InvalidParameterValue",
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided"
                " explicitly.",
            )
        deduplication_id = hashlib.sha256(given.message_body.encode()).hexdigest()
    if note.deduplication_scope == "messageGroup":
        deduplication_id = f"{group}\n{deduplication_id}"
    return group, deduplication_id


def _delay(queue: str, note: QueueNote, given: shapes.MessageFields) -> int:
    delay = given.delay_seconds
    if delay is None:
        return note.delay_seconds
    if is_fifo(queue) and delay:
        raise invalid("DelaySeconds", delay, "Messages of FIFO queues are delayed by the queue's DelaySeconds only.")
    if not 0 <= delay <= DELAY_SECONDS_MAX:
        raise invalid("DelaySeconds", delay, f"DelaySeconds must be >= 0 and <= {DELAY_SECONDS_MAX}.")
    return delay


async def _enqueue(
    caller: Caller, record: QueueRecord, messages: Sequence[tuple[shapes.MessageFields, Draft]]
) -> list[shapes.Sent | Refusal]:
    drafts = traced(caller.request, [draft for _, draft in messages])
    caller.request.api.gate.admit(record.namespace, len(drafts), sum(len(draft.payload) for draft in drafts))
    receipt = await caller.node.messages.enqueue(name_of(record), drafts, PROTOCOL)
    return [
        refusal_of(receipt.errors[index]) if index in receipt.errors else _sent(record, given, receipt.ids[index])
        for index, (given, _) in enumerate(messages)
    ]


def _sent(record: QueueRecord, given: shapes.MessageFields, message_id: int) -> shapes.Sent:
    return shapes.Sent(
        message_id=message_uuid(message_id),
        body_md5=hashlib.md5(given.message_body.encode(), usedforsecurity=False).hexdigest(),
        attributes_md5=message_attributes.md5(given.message_attributes),
        system_attributes_md5=message_attributes.md5(given.message_system_attributes),
        sequence_number=sequence_number(message_id) if is_fifo(record.name) else None,
    )
