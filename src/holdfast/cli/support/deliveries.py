"""The output of a delivery: for people, for programs, and as variables for a shell or a command."""

from __future__ import annotations

import shlex
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast import wire
from holdfast.cli.support.numbers import age, body_text

PAYLOAD_WIDTH = 60  # characters of a payload in a table


def variables(delivery: wire.Delivery) -> dict[str, str]:
    """The environment variables of a delivery. `holdfast ack` and the others read the same ones."""
    found = {
        "HOLDFAST_QUEUE": delivery.queue,
        "HOLDFAST_GROUP": delivery.group,
        "HOLDFAST_ID": delivery.id,
        "HOLDFAST_LEASE_TOKEN": delivery.lease_token,
        "HOLDFAST_LEASE_DEADLINE": delivery.lease_deadline,
        "HOLDFAST_ATTEMPT": str(delivery.attempt),
        "HOLDFAST_ENQUEUED_AT": delivery.enqueued_at,
        "HOLDFAST_PRIORITY": str(delivery.priority),
        "HOLDFAST_KEY": delivery.key,
        "HOLDFAST_MESSAGE_ID": delivery.message_id,
        "HOLDFAST_CONTENT_TYPE": delivery.content_type,
        "HOLDFAST_CORRELATION_ID": delivery.correlation_id,
        "HOLDFAST_REPLY_TO": delivery.reply_to,
    }
    return {name: value for name, value in found.items() if value is not None}


def exports(delivery: wire.Delivery) -> str:
    """Lines for `eval`. The payload is included if it is text; variables without a value are unset."""
    given = variables(delivery)
    body = delivery.body()
    if b"\0" not in body:
        with suppress(UnicodeDecodeError):
            given["HOLDFAST_PAYLOAD"] = body.decode()
    unset = [
        f"HOLDFAST_{name}"
        for name in ("KEY", "MESSAGE_ID", "CONTENT_TYPE", "CORRELATION_ID", "REPLY_TO", "PAYLOAD")
        if f"HOLDFAST_{name}" not in given
    ]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
    return "\n".join([*([f"unset {' '.join(unset)}"] if unset else []), *lines])


def document(message: wire.Message) -> dict[str, Any]:
    """For programs, with the payload in the field that the HTTP API uses."""
    fields = msgspec.to_builtins(message)
    assert isinstance(fields, dict)
    body = message.body()
    for field in ("payload", "text", "base64"):
        fields.pop(field, None)
    fields |= _payload(body, message.content_type)
    return fields


def _payload(body: bytes, content_type: str | None) -> dict[str, object]:
    kind = (content_type or "").partition(";")[0].strip().lower()
    try:
        if not kind or kind == "application/json" or kind.endswith("+json"):
            return {"payload": msgspec.json.decode(body)}
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": body}


def row(message: wire.Message) -> dict[str, object]:
    """For a table."""
    fields: dict[str, object] = {
        "id": message.id,
        "age": age((datetime.now(UTC) - datetime.fromisoformat(message.enqueued_at)).total_seconds()),
        "prio": str(message.priority),
        "key": message.key,
        "payload": body_text(message.body(), PAYLOAD_WIDTH),
    }
    if isinstance(message, wire.Delivery):
        fields |= {"attempt": str(message.attempt), "token": message.lease_token}
    if isinstance(message, wire.MessageView):
        fields["state"] = ", ".join(f"{each.group}: {_status_text(each)}" for each in message.deliveries)
    if message.origin is not None:
        fields |= {
            "reason": message.origin.reason,
            "error": message.origin.error,
            "attempts": str(message.origin.attempts),
            "source": message.origin.source_id,
            "from": message.origin.source_queue,
        }
    return fields


def _status_text(status: wire.DeliveryStatus) -> str:
    """The state, with the next attempt of a waiting message or the consumer of a leased one."""
    more = [f"attempt {status.attempt}"] if status.attempt else []
    more += [status.consumer] if status.consumer and status.state == "leased" else []
    return f"{status.state} ({', '.join(more)})" if more else status.state
