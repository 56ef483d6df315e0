"""Batches of messages on their way into a queue, of a call or of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from holdfast.broker.carried_context import carrying
from holdfast.broker.parts.messages import Receipt
from holdfast.core.commands import Draft
from holdfast.core.queue import Durability
from holdfast.engine.catalog import QueueName
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.grpc_api.call import GrpcCall
from holdfast.grpc_api.codecs import read_draft
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.status import item_errors

PROTOCOL = "grpc"

Done = Callable[[pb.EnqueueResponse | HoldfastError], None]
"""Called once: when the batch is durable, or with the error that refuses all of it."""

_DURABILITY = {Durability.FSYNC: pb.DURABILITY_FSYNC, Durability.BUFFERED: pb.DURABILITY_BUFFERED}


def enqueue(
    call: GrpcCall, name: QueueName, messages: RepeatedCompositeFieldContainer[pb.Draft], atomic: bool, done: Done
) -> None:
    """Enqueue a batch, together with those of other calls. Raises what refuses it before anything is done."""
    front = call.front
    pending = _PendingBatch(call, messages, atomic, done)
    front.gate.admit(call.principal.namespace, len(pending.drafts), sum([len(one.payload) for one in pending.drafts]))
    if pending.drafts and not atomic:
        front.batcher.add(name, pending)
        return
    submission = call.node.messages.enqueue(name, pending.drafts, PROTOCOL, atomic=atomic)
    if pending.enqueued(submission.result):
        submission.on_done(pending.on_done)


class _PendingBatch:
    """`drafts` are the valid messages of a batch, at `places`; `errors` say what is wrong with the others."""

    __slots__ = ("_atomic", "_count", "_done", "_errors", "_places", "_response", "drafts")

    def __init__(
        self, call: GrpcCall, messages: RepeatedCompositeFieldContainer[pb.Draft], atomic: bool, done: Done
    ) -> None:
        if not messages:
            raise InvalidArgument(field="messages", problem="is empty; send at least one")
        call.node.messages.check_enqueue_count(len(messages))
        now, correlation_id = call.node.clock(), call.correlation_id
        self._count = len(messages)
        self._atomic = atomic
        self._done = done
        self._errors: dict[int, HoldfastError] = {}
        self._places: Sequence[int] = range(self._count)
        self._response: pb.EnqueueResponse | None = None
        drafts: list[Draft] = []
        try:
            drafts = [read_draft(item, now, correlation_id) for item in messages]
        except HoldfastError:
            drafts = self._read_each(messages, now, correlation_id)
            if atomic:
                raise self._errors[min(self._errors)] from None
        self.drafts = carrying(drafts, call.trace_context)

    def _read_each(
        self, messages: RepeatedCompositeFieldContainer[pb.Draft], now: int, correlation_id: str | None
    ) -> list[Draft]:
        drafts: list[Draft] = []
        places: list[int] = []
        for index, item in enumerate(messages):
            try:
                drafts.append(read_draft(item, now, correlation_id))
                places.append(index)
            except HoldfastError as error:
                self._errors[index] = error
        self._places = places
        return drafts

    def enqueued(self, receipt: Receipt) -> bool:
        """See `PendingEnqueue`."""
        errors, places = self._errors, self._places
        if receipt.errors:
            errors.update((places[at], refused) for at, refused in receipt.errors.items())
        if errors and (self._atomic or len(errors) == self._count):
            self._done(errors[min(errors)])
            return False
        ids = receipt.ids
        if len(places) != self._count:
            ids = [0] * self._count
            for at, message_id in zip(places, receipt.ids, strict=True):
                ids[at] = message_id
        self._response = pb.EnqueueResponse(
            ids=ids,
            duplicates=[places[at] for at in sorted(receipt.duplicates)] if receipt.duplicates else (),
            errors=item_errors(errors) if errors else (),
            durability=_DURABILITY[receipt.durability],
        )
        return True

    def on_done(self, error: HoldfastError | None) -> None:
        """See `PendingEnqueue`."""
        if error is not None:
            self._done(error)
        else:
            assert self._response is not None
            self._done(self._response)
