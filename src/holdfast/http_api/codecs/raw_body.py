"""One message whose payload is the body itself, or a part of a form: its other fields are in headers, or in `meta`."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from holdfast import wire
from holdfast.core.queue import QueueConfig
from holdfast.error_text import shown
from holdfast.errors import InvalidArgument, MalformedRequest, MessageTooLarge, QueueNotFound, RequestTooLarge
from holdfast.http_api.codecs.multipart import Limits, boundary_of, read_parts
from holdfast.http_api.codecs.values import decode
from holdfast.http_api.server.request import Request

META_BYTES_MAX = 256 << 10  # properties are at most 64 KiB, with their JSON a few times that at worst
OCTETS = "application/octet-stream"

HEADERS = {
    "Holdfast-Key": "key",
    "Holdfast-Message-Id": "message_id",
    "Holdfast-Priority": "priority",
    "Holdfast-Delay": "delay",
    "Holdfast-Deliver-At": "deliver_at",
    "Holdfast-TTL": "ttl",
    "Holdfast-Reply-To": "reply_to",
    "Holdfast-Properties": "properties",
}
"""A message's fields as headers, for a body that is its payload."""

_NAMES = {header.lower().encode(): field for header, field in HEADERS.items()}
_properties = msgspec.json.Decoder(wire.Properties).decode
_meta = msgspec.json.Decoder(wire.Draft).decode


async def read_raw(request: Request) -> wire.Draft:
    """The body is the payload, the headers say the rest. The content type is kept unless it says nothing."""
    fields: dict[str, object] = {}
    for name in request.headers:
        if name.startswith(b"holdfast-") and name not in _NAMES:
            problem = f"is no header of a message; known are {', '.join(HEADERS)}"
            raise InvalidArgument(field=name.decode("latin-1"), problem=problem)
    for name, field in _NAMES.items():
        value = request.header(name)
        if value is None:
            continue
        fields[field] = decode(_properties, value.encode()) if field == "properties" else value
    try:
        draft = msgspec.convert(fields, wire.Draft, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(field="The headers", problem=f"are wrong: {shown(error)}") from None
    kind = request.header(b"content-type")
    content_type = None if kind is None or request.content_type in {OCTETS, "application/json"} else kind
    return replace(draft, base64=await request.body(), content_type=content_type)


async def read_form(request: Request) -> wire.Draft:
    """A form with `payload`, and `meta` that says the rest as JSON. The payload is not copied about as it arrives."""
    limit = message_bytes_max(request)
    limits = Limits(
        {
            "meta": (META_BYTES_MAX, RequestTooLarge(limit_bytes=META_BYTES_MAX)),
            "payload": (limit, MessageTooLarge(size_bytes=f"over {limit}", limit_bytes=limit, queue=request.queue[1])),
        }
    )
    parts = await read_parts(request.chunks(), boundary_of(request.header(b"content-type") or ""), limits)
    payload = parts.get("payload")
    if payload is None:
        raise MalformedRequest(problem="the form has no part named payload")
    meta = parts.get("meta")
    draft = decode(_meta, bytes(meta.content)) if meta is not None else wire.Draft()
    if not (draft.payload is draft.text is draft.base64 is msgspec.UNSET):
        raise InvalidArgument(field="meta", problem="has a payload; it belongs into the part of that name")
    content_type = draft.content_type or (payload.content_type if payload.content_type != OCTETS else "") or None
    return replace(draft, base64=bytes(payload.content), content_type=content_type)


def message_bytes_max(request: Request) -> int:
    """The largest payload that the queue of the path takes."""
    try:
        return request.node.queues.get(request.queue).config.max_message_size
    except QueueNotFound:
        return QueueConfig().max_message_size
