"""ReceiveMessage, and what settles what was received: DeleteMessage, ChangeMessageVisibility, and their batches.

A visibility timeout is a lease. A message that is visible again has spent an attempt, also if a receiver has made it so
by a timeout of 0.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Final

from holdfast.auth.principal import Action
from holdfast.broker.dispatch.dispatcher import releases
from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.core.queue import QueueRecord
from holdfast.errors import HoldfastError, LeaseLost, MessageNotFound, MessageNotWaiting
from holdfast.http_api.dialects.sqs import message_attributes, shapes
from holdfast.http_api.dialects.sqs.batches import check_entries, entry_error
from holdfast.http_api.dialects.sqs.caller import PROTOCOL, Caller
from holdfast.http_api.dialects.sqs.identifiers import GROUP, LeaseHandle, message_uuid, read_handle, sequence_number
from holdfast.http_api.dialects.sqs.queue_attributes import is_fifo, note_of, visibility
from holdfast.http_api.dialects.sqs.queues import name_of
from holdfast.http_api.dialects.sqs.refusals import Refusal, invalid, refusal_of
from holdfast.units import MILLISECOND, SECOND

RECEIVED_MAX: Final = 10
WAIT_SECONDS_MAX: Final = 20
VISIBILITY_SECONDS_MAX: Final = 43_200
CONSUMER: Final = "sqs"
"""What all receivers of one caller are called: SQS has no name for them."""

SYSTEM_ATTRIBUTES: Final = frozenset(
    {
        *("All", "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"),
        *("SequenceNumber", "MessageDeduplicationId", "MessageGroupId", "AWSTraceHeader", "DeadLetterQueueSourceArn"),
    }
)

# --- receive --------------------------------------------------------------------------------------------------------


async def receive_message(caller: Caller, given: shapes.ReceiveMessage) -> shapes.Messages:
    record = caller.queue(given.queue_url, Action.CONSUME)
    timeout, wait = _check(caller, record, given)
    attempts = caller.request.api.receive_attempts
    attempt = (name_of(record), caller.principal.identity, given.receive_request_attempt_id)
    repeatable = bool(given.receive_request_attempt_id) and is_fifo(record.name)
    found = await attempts.again(caller.node, attempt, timeout) if repeatable else None
    if found is None:
        found = await _lease(caller, record, given.max_number_of_messages, timeout, wait)
        if repeatable and found:
            attempts.remember(attempt, found, caller.node.clock())
    return shapes.Messages(messages=[_received(caller, record, given, leased) for leased in found])


def _check(caller: Caller, record: QueueRecord, given: shapes.ReceiveMessage) -> tuple[int, int]:
    """How long the leases last (-1: as long as the queue says), and how long to wait, in microseconds."""
    if not 1 <= given.max_number_of_messages <= RECEIVED_MAX:
        raise invalid("MaxNumberOfMessages", given.max_number_of_messages, "Must be between 1 and 10, if provided.")
    for name in (*given.attribute_names, *given.message_system_attribute_names):
        if name not in SYSTEM_ATTRIBUTES:
            raise Refusal("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
    wait = given.wait_time_seconds
    if wait is None:
        wait = note_of(caller.node, name_of(record)).wait_seconds
    if not 0 <= wait <= WAIT_SECONDS_MAX:
        raise invalid("WaitTimeSeconds", wait, f"Must be >= 0 and <= {WAIT_SECONDS_MAX}, if provided.")
    timeout = -1 if given.visibility_timeout is None else visibility(_visibility(given.visibility_timeout))
    return timeout, min(wait * SECOND, caller.request.api.config.limits.max_wait)


def _visibility(seconds: int) -> int:
    if not 0 <= seconds <= VISIBILITY_SECONDS_MAX:
        raise invalid("VisibilityTimeout", seconds, f"Must be >= 0 and <= {VISIBILITY_SECONDS_MAX}, if provided.")
    return seconds


async def _lease(caller: Caller, record: QueueRecord, limit: int, timeout: int, wait: int) -> list[Leased]:  # noqa: ASYNC109
    name, node = name_of(record), caller.node
    work = node.messages.lease(
        name,
        GROUP,
        limit,
        timeout=timeout,
        wait=wait,
        consumer=caller.principal.consumer(CONSUMER),
        protocol=PROTOCOL,
    )

    async def release(found: list[Leased]) -> None:
        if found:
            await node.messages.settle(name, GROUP, releases(found))

    return await caller.request.api.until_disconnect(caller.request, work, release) if wait else await work


def _received(caller: Caller, record: QueueRecord, given: shapes.ReceiveMessage, leased: Leased) -> shapes.Message:
    message = leased.message
    properties = dict(message.extra.properties)
    body, encoding = _body(message.payload)
    attributes = message_attributes.from_properties(properties) | encoding
    chosen = message_attributes.chosen(attributes, given.message_attribute_names) | encoding
    wanted = {*given.attribute_names, *given.message_system_attribute_names}
    system = _system_attributes(caller, record, leased, properties) if wanted else {}
    origin = message.extra.origin
    return shapes.Message(
        message_id=message_uuid(origin.source_id if origin is not None else message.id),
        receipt_handle=LeaseHandle.of(leased).handle(name_of(record), record.created_at),
        body_md5=hashlib.md5(body.encode(), usedforsecurity=False).hexdigest(),
        body=body,
        attributes=system if "All" in wanted else {name: value for name, value in system.items() if name in wanted},
        attributes_md5=message_attributes.md5(chosen),
        message_attributes=chosen,
    )


def _body(payload: bytes) -> tuple[str, shapes.Attributes]:
    """A payload as a text, which all are that were sent by SQS; others are in base64, and an attribute says so."""
    try:
        text = payload.decode()
        if message_attributes.is_text(text):
            return text, {}
    except UnicodeDecodeError:
        pass
    encoding = shapes.AttributeValue(data_type="String", string_value="base64")
    return b64encode(payload).decode(), {message_attributes.ENCODING: encoding}


def _system_attributes(
    caller: Caller, record: QueueRecord, leased: Leased, properties: dict[str, str]
) -> dict[str, str]:
    message, extra = leased.message, leased.message.extra
    found = {
        "SenderId": properties.get(message_attributes.SENDER, "anonymous"),
        "SentTimestamp": str(message.enqueued_at // MILLISECOND),
        "ApproximateReceiveCount": str(leased.attempt),
    }
    if leased.attempt == 1:
        found["ApproximateFirstReceiveTimestamp"] = str(caller.node.clock() // MILLISECOND)
    if extra.key is not None:
        found["MessageGroupId"] = extra.key
    if extra.message_id is not None:
        found["MessageDeduplicationId"] = extra.message_id.removeprefix(f"{extra.key}\n")
    if is_fifo(record.name):
        found["SequenceNumber"] = sequence_number(message.id)
    if message_attributes.TRACE_HEADER in properties:
        found["AWSTraceHeader"] = properties[message_attributes.TRACE_HEADER]
    if extra.origin is not None and extra.origin.source_queue:
        found["DeadLetterQueueSourceArn"] = caller.arn(extra.origin.source_queue)
    return found


# --- settle ---------------------------------------------------------------------------------------------------------


def _changed(receipt: LeaseHandle, seconds: int) -> Settlement:
    """A visibility timeout of 0 ends the attempt, as if the timeout had passed."""
    if _visibility(seconds):
        return receipt.extension(seconds * SECOND)
    return Settlement(receipt.id, receipt.token, Verb.NACK, delay=0, partition=receipt.partition)


def _deletion(receipt: LeaseHandle) -> Settlement:
    return Settlement(receipt.id, receipt.token, Verb.ACK, partition=receipt.partition)


async def _settle(caller: Caller, record: QueueRecord, settlements: list[Settlement]) -> list[Refusal | None]:
    results = await caller.node.messages.settle(name_of(record), GROUP, settlements)
    return [
        await _refusal(caller, record, settlement, result) if isinstance(result, HoldfastError) else None
        for settlement, result in zip(settlements, results, strict=True)
    ]


async def _refusal(caller: Caller, record: QueueRecord, settlement: Settlement, error: HoldfastError) -> Refusal | None:
    if settlement.verb is not Verb.ACK or not isinstance(error, LeaseLost):
        return refusal_of(error)
    return await _delete_late(caller, record, settlement)


async def _delete_late(caller: Caller, record: QueueRecord, settlement: Settlement) -> Refusal | None:
    """Delete a message whose visibility timeout has passed, as SQS does: what is not there any more is deleted, what
    waits is deleted now, what another has received stays. In a FIFO queue the handle has expired."""
    name, node = name_of(record), caller.node
    try:
        await node.inspection.find(name, settlement.id)
    except MessageNotFound:
        return None
    if is_fifo(record.name):
        return invalid("ReceiptHandle", "given", "The receipt handle has expired.")
    if len(record.groups) == 1:  # others have yet to see it
        try:
            await node.messages.delete(name, settlement.id)
        except (MessageNotFound, MessageNotWaiting):
            return None
    return None


async def delete_message(caller: Caller, given: shapes.DeleteMessage) -> shapes.Nothing:
    record = caller.queue(given.queue_url, Action.CONSUME)
    receipt = read_handle(given.receipt_handle, name_of(record), record.created_at)
    [refusal] = await _settle(caller, record, [_deletion(receipt)])
    if refusal is not None:
        raise refusal
    return shapes.Nothing()


async def change_message_visibility(caller: Caller, given: shapes.ChangeMessageVisibility) -> shapes.Nothing:
    record = caller.queue(given.queue_url, Action.CONSUME)
    receipt = read_handle(given.receipt_handle, name_of(record), record.created_at)
    [refusal] = await _settle(caller, record, [_changed(receipt, given.visibility_timeout)])
    if refusal is not None:
        raise refusal
    return shapes.Nothing()


async def delete_message_batch(caller: Caller, given: shapes.DeleteMessageBatch) -> shapes.SettledBatch:
    return await _settle_batch(caller, given)


async def change_message_visibility_batch(
    caller: Caller, given: shapes.ChangeMessageVisibilityBatch
) -> shapes.SettledBatch:
    return await _settle_batch(caller, given)


async def _settle_batch(
    caller: Caller, given: shapes.DeleteMessageBatch | shapes.ChangeMessageVisibilityBatch
) -> shapes.SettledBatch:
    """All entries are one commit; what is refused is reported."""
    record = caller.queue(given.queue_url, Action.CONSUME)
    check_entries([entry.id for entry in given.entries])
    failed: list[shapes.EntryError] = []
    settlements: dict[str, Settlement] = {}
    for entry in given.entries:
        try:
            receipt = read_handle(entry.receipt_handle, name_of(record), record.created_at)
            settlements[entry.id] = (
                _changed(receipt, entry.visibility_timeout)
                if isinstance(entry, shapes.VisibilityEntry)
                else _deletion(receipt)
            )
        except Refusal as refusal:
            failed.append(entry_error(entry.id, refusal))
    refusals = await _settle(caller, record, list(settlements.values()))
    successful: list[shapes.SettledEntry] = []
    for entry_id, refused in zip(settlements, refusals, strict=True):
        if refused is None:
            successful.append(shapes.SettledEntry(id=entry_id))
        else:
            failed.append(entry_error(entry_id, refused))
    return shapes.SettledBatch(successful=successful, failed=failed)
