"""Descriptions of the endpoints: fields with their types and texts, and the errors that each can return.

The OpenAPI description, the page at /docs and the reference in the documentation are all made from this.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from holdfast import wire
from holdfast.errors import (
    CrossOrigin,
    DiskFull,
    Forbidden,
    HoldfastError,
    InvalidArgument,
    InvalidName,
    LoginThrottled,
    MalformedRequest,
    MediaTypeUnsupported,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    RequestTooLarge,
    ShuttingDown,
    StoreUnavailable,
    Unauthenticated,
)
from holdfast.http_api.server.routes import Endpoint, Right

REF = "#/components/schemas/{name}"

PARAMETERS = {
    "account": "Any text: the caller's credential says whose the queue is.",
    "queue": "Any text: the request names the queue by its URL.",
    "consumer": "The consumer's name, percent-encoded as one segment.",
    "partition": "A partition, from 0.",
    "name": "The queue's name, percent-encoded as one segment: `tasks%2Fimage`.",
    "id": "A message's id.",
    "group": "The group's name, percent-encoded as one segment.",
    "redrive": "A redrive's id.",
    "move": "A move's id.",
    "audit": "Id of a redrive, chosen by the caller that began it.",
    "transaction": "The transaction's id, chosen by the client that stages: at most 255 bytes of printable text.",
    "namespace": "The namespace, percent-encoded as one segment.",
}

REQUEST_HEADERS = {
    "X-Correlation-Id": "Kept with the messages of this request that bring none of their own. The response has it too.",
    "Idempotency-Key": "Messages without a `message_id` get one made from it, so that the request can be repeated.",
    "If-Match": "The ETag that what is changed must have, or `*`.",
    "If-None-Match": "`*`: there must be nothing yet.",
    "Holdfast-Key": "The message's `key`, where the body is its payload.",
    "Holdfast-Message-Id": "The message's `message_id`, where the body is its payload.",
    "Holdfast-Priority": "The message's `priority`, where the body is its payload.",
    "Holdfast-Delay": "The message's `delay`, where the body is its payload.",
    "Holdfast-Deliver-At": "The message's `deliver_at`, where the body is its payload.",
    "Holdfast-TTL": "The message's `ttl`, where the body is its payload.",
    "Holdfast-Reply-To": "The message's `reply_to`, where the body is its payload.",
    "Holdfast-Properties": "The message's `properties` as a JSON object, where the body is its payload.",
}


class Field(NamedTuple):
    """A field of a shape."""

    name: str
    schema: dict[str, Any]
    text: str
    required: bool


@cache
def field_texts(shape: type[msgspec.Struct]) -> dict[str, str]:
    """The string literals that follow the fields in the source, those of base classes included."""
    texts: dict[str, str] = {}
    for owner in reversed(shape.__mro__):
        if not issubclass(owner, msgspec.Struct) or owner is msgspec.Struct:
            continue
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(owner))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, literal in zip(tree.body, tree.body[1:], strict=False):
            match field, literal:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def shapes_of(endpoints: Iterable[Endpoint]) -> list[object]:
    """Every shape that is sent or given, in the order of the table: structs, and lists of them."""
    found: list[object] = []
    for endpoint in endpoints:
        wrong = None if endpoint.error_format is None else endpoint.error_format.shape
        shapes = (endpoint.body, endpoint.gives, wrong)
        found += [shape for shape in dict.fromkeys(shapes) if shape is not None and shape not in found]
    return [*found, wire.QueueConfig, wire.Problem]


def schema_of(shape: object) -> dict[str, Any]:
    """The schema of a shape, a reference if it has a name."""
    (schema,), _ = msgspec.json.schema_components([shape], ref_template=REF)
    return dict(schema)


def components(endpoints: Iterable[Endpoint]) -> dict[str, dict[str, Any]]:
    """The schemas of all shapes of these endpoints and of what they are made of, with the texts of their fields."""
    endpoints = list(endpoints)
    _, found = msgspec.json.schema_components(shapes_of(endpoints), ref_template=REF)
    schemas: dict[str, dict[str, Any]] = dict(found)
    modules = [wire, *{sys.modules[endpoint.handler.__module__] for endpoint in endpoints}]
    for name, schema in schemas.items():
        shape = next(getattr(module, name) for module in modules if hasattr(module, name))
        for field, text in field_texts(shape).items():
            schema["properties"][field] = {**schema["properties"][field], "description": text}
    create = schemas.get("QueueCreate")
    if create is not None:
        create["properties"]["config"] = {"$ref": REF.format(name="QueueConfig")}
    return schemas


def fields_of(shape: type[msgspec.Struct]) -> list[Field]:
    """The fields of a query."""
    schema: dict[str, Any] = msgspec.json.schema(shape)
    schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    texts = field_texts(shape)
    required = schema.get("required", [])
    return [
        Field(name, definition, texts.get(name, ""), name in required)
        for name, definition in schema.get("properties", {}).items()
    ]


def errors_of(endpoint: Endpoint) -> list[type[HoldfastError]]:
    """Every error that an endpoint can give, each once, by status."""
    found: list[type[HoldfastError]] = [*endpoint.errors, CrossOrigin, Overloaded, HoldfastError]
    if not endpoint.always_served:
        found.append(ShuttingDown)
    if endpoint.right is not Right.ANONYMOUS:
        found += [Unauthenticated, LoginThrottled]
        if endpoint.right is not Right.AUTHENTICATED:
            found.append(Forbidden)
    if endpoint.parameters:
        found.append(InvalidName)
    has_body = endpoint.body is not None or bool(endpoint.request_types)
    if endpoint.parameters or endpoint.query is not None or has_body:
        found += [InvalidArgument, MalformedRequest]
    if endpoint.path.startswith("/api/"):
        found.append(StoreUnavailable)
    if has_body:
        found += [MediaTypeUnsupported, RequestTooLarge, RequestTimeout]
    if endpoint.right in {Right.PRODUCE, Right.ADMIN} and endpoint.method == "POST":
        found += [RateLimited, DiskFull]
    if endpoint.right is not Right.ANONYMOUS:
        found.append(QuotaExceeded)
    if endpoint.act:
        found.append(Forbidden)
    return sorted(set(found), key=lambda error: (error.http, error.code))


def problem_text(error: type[HoldfastError]) -> str:
    """What an error says, on one line."""
    return " ".join((inspect.getdoc(error) or "").split())


def type_of(schema: dict[str, Any]) -> str:
    """A schema's type in a word or two."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_of(option) for option in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any JSON value"))
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_of(schema['additionalProperties'])}"
    if schema.get("contentEncoding") == "base64":
        return "string (base64)"
    return kind
