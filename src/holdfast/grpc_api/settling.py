"""Settlements of a call or of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.broker.submission import Submission
from holdfast.core.commands import Settlement
from holdfast.engine.catalog import QueueName
from holdfast.engine.engine import SettleResult
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.grpc_api.call import GrpcCall
from holdfast.grpc_api.codecs import plain_acks, read_settlement, to_timestamp
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.status import item_errors


class Settled(NamedTuple):
    """What became of settlements; to be told when the submission is done."""

    submission: Submission[list[SettleResult]]
    asked: int
    errors: dict[int, HoldfastError]
    deadlines: dict[int, int]

    def response(self) -> pb.SettleResponse:
        return pb.SettleResponse(
            settled=self.asked - len(self.errors),
            errors=item_errors(self.errors) if self.errors else (),
            deadlines={message_id: to_timestamp(at) for message_id, at in self.deadlines.items()},
        )

    @property
    def refusal(self) -> HoldfastError | None:
        """The first error, if all were refused."""
        return self.errors[min(self.errors)] if len(self.errors) == self.asked else None


def settle(call: GrpcCall, name: QueueName, group: str, items: Sequence[pb.Settlement]) -> Settled:
    """Settle a batch. Raises what refuses it as a whole."""
    if not items:
        raise InvalidArgument(field="settlements", problem="is empty; send at least one")
    call.node.messages.check_settle_count(len(items))
    acks = plain_acks(items)
    if acks is None:
        return _settle_any(call, name, group, items)
    submission = call.node.messages.ack(name, group, *acks)
    errors: dict[int, HoldfastError] = {}
    results = submission.result
    if results.count(None) != len(results):
        errors = {place: result for place, result in enumerate(results) if isinstance(result, HoldfastError)}
    return Settled(submission, len(items), errors, {})


def _settle_any(call: GrpcCall, name: QueueName, group: str, items: Sequence[pb.Settlement]) -> Settled:
    errors: dict[int, HoldfastError] = {}
    settlements: list[Settlement] = []
    places: list[int] = []
    for index, item in enumerate(items):
        try:
            settlements.append(read_settlement(item))
            places.append(index)
        except HoldfastError as error:
            errors[index] = error
    submission = call.node.messages.settle(name, group, settlements)
    deadlines: dict[int, int] = {}
    for place, result in zip(places, submission.result, strict=True):
        if isinstance(result, HoldfastError):
            errors[place] = result
        elif result is not None:
            deadlines[items[place].id] = result
    return Settled(submission, len(items), errors, deadlines)
