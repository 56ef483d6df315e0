"""What each action of SQS takes and gives, field by field, named as in AWS's own description of the service."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import field

Int = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]


class Input(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The base of what actions take. What a newer client sends besides is ignored, as AWS does."""


class Output(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """The base of what actions give. What has no value is left out."""


class AttributeValue(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """The value of a message attribute; one that is binary is in base64."""

    data_type: str = ""
    string_value: str | None = None
    binary_value: str | None = None


Attributes = dict[str, AttributeValue]


# --- queues ---------------------------------------------------------------------------------------------------------


class CreateQueue(Input, frozen=True, kw_only=True):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(default_factory=dict, name="tags")


class QueueRef(Input, frozen=True, kw_only=True):
    """DeleteQueue, PurgeQueue, ListQueueTags."""

    queue_url: str


class GetQueueUrl(Input, frozen=True, kw_only=True):
    queue_name: str
    queue_owner_account: str = field(default="", name="QueueOwnerAWSAccountId")


class QueueUrl(Output, frozen=True, kw_only=True):
    queue_url: str


class ListQueues(Input, frozen=True, kw_only=True):
    queue_name_prefix: str = ""
    next_token: str = ""
    max_results: Int | None = None


class QueueUrls(Output, frozen=True, kw_only=True):
    queue_urls: list[str] = []
    next_token: str | None = None


class ListDeadLetterSourceQueues(Input, frozen=True, kw_only=True):
    queue_url: str
    next_token: str = ""
    max_results: Int | None = None


class SourceQueueUrls(Output, frozen=True, kw_only=True):
    queue_urls: list[str] = field(name="queueUrls")
    next_token: str | None = None


class GetQueueAttributes(Input, frozen=True, kw_only=True):
    queue_url: str
    attribute_names: list[str] = []


class QueueAttributes(Output, frozen=True, kw_only=True):
    attributes: dict[str, str] = {}


class SetQueueAttributes(Input, frozen=True, kw_only=True):
    queue_url: str
    attributes: dict[str, str]


class TagQueue(Input, frozen=True, kw_only=True):
    queue_url: str
    tags: dict[str, str]


class UntagQueue(Input, frozen=True, kw_only=True):
    queue_url: str
    tag_keys: list[str]


class Tags(Output, frozen=True, kw_only=True):
    tags: dict[str, str] = {}


# --- messages -------------------------------------------------------------------------------------------------------


class MessageFields(Input, frozen=True, kw_only=True):
    """A message to send."""

    message_body: str
    delay_seconds: Int | None = None
    message_attributes: Attributes = {}
    message_system_attributes: Attributes = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(MessageFields, frozen=True, kw_only=True):
    queue_url: str


class SendEntry(MessageFields, frozen=True, kw_only=True):
    id: str


class SendMessageBatch(Input, frozen=True, kw_only=True):
    queue_url: str
    entries: list[SendEntry] = []


class Sent(Output, frozen=True, kw_only=True):
    message_id: str
    body_md5: str = field(name="MD5OfMessageBody")
    attributes_md5: str | None = field(default=None, name="MD5OfMessageAttributes")
    system_attributes_md5: str | None = field(default=None, name="MD5OfMessageSystemAttributes")
    sequence_number: str | None = None


class SentEntry(Sent, frozen=True, kw_only=True):
    id: str


class EntryError(Output, frozen=True, kw_only=True):
    """Why one entry of a batch was refused."""

    id: str
    sender_fault: bool
    code: str
    message: str


class SentBatch(Output, frozen=True, kw_only=True):
    successful: list[SentEntry] = []
    failed: list[EntryError] = []


class ReceiveMessage(Input, frozen=True, kw_only=True):
    queue_url: str
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: Int = 1
    visibility_timeout: Int | None = None
    wait_time_seconds: Int | None = None
    receive_request_attempt_id: str = ""


class Message(Output, frozen=True, kw_only=True):
    message_id: str
    receipt_handle: str
    body_md5: str = field(name="MD5OfBody")
    body: str
    attributes: dict[str, str] = {}
    attributes_md5: str | None = field(default=None, name="MD5OfMessageAttributes")
    message_attributes: Attributes = {}


class Messages(Output, frozen=True, kw_only=True):
    messages: list[Message] = []


class DeleteMessage(Input, frozen=True, kw_only=True):
    queue_url: str
    receipt_handle: str


class DeleteEntry(Input, frozen=True, kw_only=True):
    id: str
    receipt_handle: str


class DeleteMessageBatch(Input, frozen=True, kw_only=True):
    queue_url: str
    entries: list[DeleteEntry] = []


class ChangeMessageVisibility(Input, frozen=True, kw_only=True):
    queue_url: str
    receipt_handle: str
    visibility_timeout: Int


class VisibilityEntry(Input, frozen=True, kw_only=True):
    id: str
    receipt_handle: str
    visibility_timeout: Int = 0


class ChangeMessageVisibilityBatch(Input, frozen=True, kw_only=True):
    queue_url: str
    entries: list[VisibilityEntry] = []


class SettledEntry(Output, frozen=True, kw_only=True):
    id: str


class SettledBatch(Output, frozen=True, kw_only=True):
    successful: list[SettledEntry] = []
    failed: list[EntryError] = []


# --- moving dead letters --------------------------------------------------------------------------------------------


class StartMessageMoveTask(Input, frozen=True, kw_only=True):
    source_arn: str
    destination_arn: str = ""
    rate: Int | None = field(default=None, name="MaxNumberOfMessagesPerSecond")


class CancelMessageMoveTask(Input, frozen=True, kw_only=True):
    task_handle: str


class ListMessageMoveTasks(Input, frozen=True, kw_only=True):
    source_arn: str
    max_results: Int | None = None


class TaskHandle(Output, frozen=True, kw_only=True):
    task_handle: str


class Moved(Output, frozen=True, kw_only=True):
    moved: int = field(name="ApproximateNumberOfMessagesMoved")


class MoveTask(Output, frozen=True, kw_only=True):
    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    rate: int | None = field(default=None, name="MaxNumberOfMessagesPerSecond")
    moved: int = field(name="ApproximateNumberOfMessagesMoved")
    to_move: int | None = field(default=None, name="ApproximateNumberOfMessagesToMove")
    failure_reason: str | None = None
    started_timestamp: int


class MoveTasks(Output, frozen=True, kw_only=True):
    results: list[MoveTask] = []


class Nothing(Output, frozen=True, kw_only=True):
    """Of actions that only say that they are done."""


class SqsRequest(msgspec.Struct, frozen=True):
    """What the action that `X-Amz-Target` names takes."""


class SqsResponse(msgspec.Struct, frozen=True):
    """What the action gives."""


class SqsProblem(msgspec.Struct, frozen=True, kw_only=True):
    """An error as AWS's JSON protocol says it."""

    type: str = field(name="__type")
    message: str
    code: str = ""
    """The error's code in this server's own API, where it has one."""
