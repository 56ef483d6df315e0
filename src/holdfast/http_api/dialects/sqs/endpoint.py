"""The table of SQS's actions, and the endpoints at which they are asked for.

SDKs send every action to one address. The JSON protocol names the action in a header, the query protocol in the form;
the query protocol also sends to the queue's own URL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from holdfast.errors import Forbidden, HoldfastError, MessageTooLarge, QueueNotFound, RequestTooLarge
from holdfast.http_api.dialects.sqs import move_tasks, queues, receiving, sending, shapes
from holdfast.http_api.dialects.sqs.caller import Caller
from holdfast.http_api.dialects.sqs.protocols import FORM, JSON, XML, ActionRequest, read_call, refusal_response
from holdfast.http_api.dialects.sqs.refusals import Refusal, refusal_of
from holdfast.http_api.dialects.sqs.shapes import SqsProblem, SqsRequest, SqsResponse
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import ErrorFormat, Right, Routes


class _Action(NamedTuple):
    takes: type[shapes.Input]
    run: Callable[[Caller, Any], Awaitable[shapes.Output]]


ACTIONS: Final = {
    "CreateQueue": _Action(shapes.CreateQueue, queues.create_queue),
    "GetQueueUrl": _Action(shapes.GetQueueUrl, queues.get_queue_url),
    "ListQueues": _Action(shapes.ListQueues, queues.list_queues),
    "ListDeadLetterSourceQueues": _Action(shapes.ListDeadLetterSourceQueues, queues.list_dead_letter_source_queues),
    "GetQueueAttributes": _Action(shapes.GetQueueAttributes, queues.get_queue_attributes),
    "SetQueueAttributes": _Action(shapes.SetQueueAttributes, queues.set_queue_attributes),
    "TagQueue": _Action(shapes.TagQueue, queues.tag_queue),
    "UntagQueue": _Action(shapes.UntagQueue, queues.untag_queue),
    "ListQueueTags": _Action(shapes.QueueRef, queues.list_queue_tags),
    "PurgeQueue": _Action(shapes.QueueRef, queues.purge_queue),
    "DeleteQueue": _Action(shapes.QueueRef, queues.delete_queue),
    "SendMessage": _Action(shapes.SendMessage, sending.send_message),
    "SendMessageBatch": _Action(shapes.SendMessageBatch, sending.send_message_batch),
    "ReceiveMessage": _Action(shapes.ReceiveMessage, receiving.receive_message),
    "DeleteMessage": _Action(shapes.DeleteMessage, receiving.delete_message),
    "DeleteMessageBatch": _Action(shapes.DeleteMessageBatch, receiving.delete_message_batch),
    "ChangeMessageVisibility": _Action(shapes.ChangeMessageVisibility, receiving.change_message_visibility),
    "ChangeMessageVisibilityBatch": _Action(
        shapes.ChangeMessageVisibilityBatch, receiving.change_message_visibility_batch
    ),
    "StartMessageMoveTask": _Action(shapes.StartMessageMoveTask, move_tasks.start_message_move_task),
    "CancelMessageMoveTask": _Action(shapes.CancelMessageMoveTask, move_tasks.cancel_message_move_task),
    "ListMessageMoveTasks": _Action(shapes.ListMessageMoveTasks, move_tasks.list_message_move_tasks),
}
NOT_SUPPORTED: Final = ("AddPermission", "RemovePermission")
"""What a caller may do is what its user's scopes say."""


def _error_response(error: HoldfastError, content_type: str) -> Response:
    return refusal_response(refusal_of(error), content_type)


ROUTES = Routes("SQS", ErrorFormat(_error_response, SqsProblem, JSON))


def _action(path: str) -> Callable[[Callable[[Request], Any]], Callable[[Request], Any]]:
    return ROUTES(
        "POST",
        path,
        Right.SOMEWHERE,
        body=SqsRequest,
        gives=SqsResponse,
        errors=(QueueNotFound, MessageTooLarge, RequestTooLarge, Forbidden),
        request_types=(JSON, FORM),
        response_types=(JSON, XML),
        bulk=True,
        waits=True,
        signed=True,
    )


@_action("/sqs")
async def action(request: Request) -> Response:
    """Do what an SDK of Amazon SQS asks for. The endpoint URL of a client is the server's address and `/sqs`.

    The action is named by `X-Amz-Target` (JSON protocol) or by the field `Action` of a form (query protocol). Requests
    are signed with an access key (`holdfast user access-key`), or come with a token or a password as elsewhere.
    """
    return await _answer(request)


@_action("/sqs/")
async def action_with_slash(request: Request) -> Response:
    """The same as `/sqs`, for SDKs that end the address with a slash."""
    return await _answer(request)


@_action("/sqs/{account}/{queue}")
async def action_of_queue(request: Request) -> Response:
    """The same as `/sqs`, at a queue's own URL, where clients of the query protocol send what concerns the queue."""
    return await _answer(request)


@_action("/")
async def action_at_root(request: Request) -> Response:
    """The same as `/sqs`, for clients whose address cannot have a path, as Celery's `sqs://key:secret@host:port`."""
    return await _answer(request)


async def _answer(request: Request) -> Response:
    target = request.header(b"x-amz-target") or ""
    body = await request.body()
    try:
        call = await request.api.in_slices(read_call(request.content_type, target, body))
        return call.response(await _run(request, call), request.correlation_id)
    except Refusal as refusal:
        return refusal_response(refusal, request.content_type, request.correlation_id)


async def _run(request: Request, call: ActionRequest) -> shapes.Output:
    known = ACTIONS.get(call.action)
    if known is None:
        if call.action in NOT_SUPPORTED:
            raise Refusal("UnsupportedOperation", f"{call.action}: rights are the scopes of users here.")
        name = "InvalidAction" if request.content_type == FORM else "UnknownOperation"
        raise Refusal(name, f"There is no action {call.action[:100]!r}.")
    if call.action != "ReceiveMessage":
        request.start_work()
    given = call.read(known.takes)
    return await known.run(Caller(request), given)
