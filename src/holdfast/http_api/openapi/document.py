"""The API's description (OpenAPI 3.1), made from the table of endpoints."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.http_api.openapi.descriptions import (
    PARAMETERS,
    REF,
    REQUEST_HEADERS,
    components,
    errors_of,
    fields_of,
    problem_text,
    schema_of,
)
from holdfast.http_api.openapi.examples import PATHS, body_of
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import Endpoint, Right, Routes

ROUTES = Routes("Description")
INTRO = (
    "A durable message queue broker. Ids are strings. Durations are `250ms`, `5s`, `2m`, `1h`, `7d` or a number of "
    "seconds; instants RFC 3339 or milliseconds since 1970. Errors are RFC 9457 problems with a stable `code`."
)


def document(endpoints: list[Endpoint]) -> dict[str, Any]:
    """The OpenAPI description of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": INTRO},
        "tags": [{"name": tag} for tag in dict.fromkeys(endpoint.tag for endpoint in endpoints)],
        "paths": paths,
        "components": {
            "schemas": components(endpoints),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{}, {"token": []}, {"password": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.handler.__module__.rpartition('.')[2]}.{endpoint.handler.__name__}",
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": endpoint.text,
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint),
    }
    if endpoint.right is Right.ANONYMOUS:
        operation["security"] = []
    if endpoint.body is not None:
        operation["requestBody"] = _body(endpoint)
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1},
            "example": PATHS[name],
        }
        for name in endpoint.parameters
    ]
    if endpoint.query is not None:
        found += [
            {"name": field.name, "in": "query", "required": field.required, "description": field.text}
            | {"schema": field.schema}
            for field in fields_of(endpoint.query)
        ]
    headers = ["X-Correlation-Id", *endpoint.headers] if endpoint.path.startswith("/api/") else []
    found += [
        {"name": name, "in": "header", "required": False, "description": REQUEST_HEADERS[name]}
        | {"schema": {"type": "string"}}
        for name in headers
    ]
    return found


def _body(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema_of(endpoint.body), "example": body_of(endpoint)}}
    for kind in endpoint.request_types:
        content[kind] = {"schema": _FORM if kind == "multipart/form-data" else {"type": "string", "format": "binary"}}
    return {"content": content, "required": True}


_FORM = {
    "type": "object",
    "required": ["payload"],
    "properties": {
        "meta": {"description": "The message's other fields, as JSON.", "$ref": REF.format(name="Draft")},
        "payload": {"type": "string", "format": "binary"},
    },
}


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {}
    schema = schema_of(endpoint.gives) if endpoint.gives is not None else None
    if (schema is not None and not endpoint.response_types) or (
        schema is not None and ARROW_TYPE in endpoint.response_types
    ):
        content["application/json"] = {"schema": schema}
    for kind in endpoint.response_types:
        content[kind] = {"schema": {} if kind == "application/json" else {"type": "string"}}
    done: dict[str, Any] = {"description": "Done."}
    if content:
        done["content"] = content
    responses: dict[str, Any] = {str(endpoint.status): done}
    if endpoint.always_served:
        responses["503"] = {"description": "It is not.", "content": content}
    faults = _PROBLEM
    if endpoint.error_format is not None:
        faults = {endpoint.error_format.content_type: {"schema": schema_of(endpoint.error_format.shape)}}
    for error in errors_of(endpoint):
        status = str(error.http)
        line = f"`{error.code}`: {problem_text(error)}"
        known = responses.get(status)
        if known is not None and status != str(endpoint.status):
            known["description"] += f"\n\n{line}"
            known["content"] = known["content"] | faults
        elif known is None:
            responses[status] = {"description": line, "content": faults}
    return responses


ARROW_TYPE = "application/vnd.apache.arrow.stream"
_PROBLEM = {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}}


@ROUTES("GET", "/openapi.json", Right.ANONYMOUS, response_types=("application/json",))
async def openapi(request: Request) -> Response:
    """Describe the API as OpenAPI 3.1."""
    return Response(_encoded(described(request)))


@cache
def _encoded(endpoints: tuple[Endpoint, ...]) -> bytes:
    return msgspec.json.encode(document(list(endpoints)))


def described(request: Request) -> tuple[Endpoint, ...]:
    return tuple(endpoint for endpoint in request.api.router.endpoints if endpoint.described)
