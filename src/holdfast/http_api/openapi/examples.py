"""Examples of requests, for the API's description and its page: each is one that the server takes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.http_api.server.routes import Endpoint

ID: Final = "116755468054953984"
LEASE: Final = "7"

PATHS: Final = {
    "name": "orders",
    "id": ID,
    "group": "billing",
    "partition": "0",
    "redrive": "1795061072796-1",
    "move": "1795061072796-1",
    "audit": "ticket-17",
    "transaction": "nightly-17",
    "namespace": "default",
    "account": "000000000000",
    "queue": "orders",
    "consumer": "worker-1",
}
"""Of the variable parts of paths."""

_LEASE: Final = {"message_id": ID, "lease_id": LEASE, "fencing_token": 7, "queue": "orders"}

BODIES: Final[dict[str, Any]] = {
    "Enqueue": {"messages": [{"payload": {"order": 17}, "key": "customer-7", "priority": 100, "delay": "5s"}]},
    "Import": {"items": [{"payload": {"order": 17}, "origin": {"source_id": "1", "source_queue": "orders"}}]},
    "MessageEdit": {"priority": 10},
    "Lease": {"group": "billing", "limit": 10, "wait": "0s"},
    "Settle": {"group": "billing", "settlements": [{"id": ID, "lease_token": LEASE, "action": "ack"}]},
    "Raw": {"step": 2},
    "QueueCreate": {"name": "orders", "config": {"max_depth": 10_000, "retry": {"max_retries": 5}}},
    "QueueConfig": {"delivery_timeout": "1m", "retry": {"max_retries": 5}},
    "ConsumerEnd": {"consumer": "worker-1", "group": "billing"},
    "QuotaChange": {"limits": {"queues": 100}},
    "ScheduleDefinition": {"queue": "reports", "message": {"payload": {"kind": "daily"}}, "cron": "30 2 * * *"},
    "GroupCreate": {"kind": "lease", "start": "earliest"},
    "CursorRead": {"partition": 0, "first": 1, "limit": 100},
    "CursorCommit": {"positions": [{"partition": 0, "sequence": 100}]},
    "Redrive": {"filter": {"reason": "max_retries"}, "rate": 10, "dry_run": True},
    "DeadFilter": {"older_than": "30d"},
    "Move": {"to": "orders-slow", "filter": {"older_than": "1h"}, "dry_run": True},
    "AuditedMove": {"dead_letters": [{"id": ID}], "note": "The price was missing"},
    "UndoPage": {"limit": 100},
    "WorkerAnnouncement": {"host": "web-1", "pid": 4711, "version": "1.0"},
    "list": [{"namespace": "default", "topic": "orders", "payload": "eyJvcmRlciI6MTd9"}],
    "MQueueAck": {"id": int(ID), "namespace": "default", "topic": "orders"},
    "MQueueNack": {"id": int(ID), "namespace": "default", "topic": "orders", "error": "no stock"},
    "LockdDequeue": {"queue": "orders", "page_size": 1, "wait_seconds": 1},
    "LockdLease": _LEASE,
    "LockdNack": {**_LEASE, "delay_seconds": 5},
    "LockdExtend": {**_LEASE, "extend_by_seconds": 30},
    "LockdPlace": {"queue": "orders"},
    "SqsRequest": {"QueueUrl": "/sqs/000000000000/orders", "MessageBody": "hello"},
    "Request": {"payload": {"sku": "A-17"}, "timeout": "5s"},
    "Stage": {"batches": [{"queue": "orders", "messages": [{"payload": {"order": 17}}]}]},
    "Publish": {},
    "BackupRequest": {},
}
"""By the name of the body's shape."""


def body_of(endpoint: Endpoint) -> Any:
    """The example of an endpoint's body; None if it takes none."""
    return None if endpoint.body is None else BODIES.get(getattr(endpoint.body, "__name__", "list"), {})


def path_of(endpoint: Endpoint) -> str:
    """The path with examples of its variable parts."""
    return endpoint.path.format(**PATHS)


def curl_of(endpoint: Endpoint) -> str:
    """The request as a command; `$URL` is where the server is."""
    parts = ["curl"] if endpoint.method == "GET" else ["curl", "-X", endpoint.method]
    parts.append(f'"$URL{path_of(endpoint)}"')
    body = body_of(endpoint)
    if body is not None:
        text = msgspec.json.encode(body).decode().replace("'", "'\\''")
        parts.append(f"-H 'content-type: application/json' -d '{text}'")
    return " ".join(parts)
