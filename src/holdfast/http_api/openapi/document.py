"""The API's description (OpenAPI 3.1), and a page for people made from the same table. It loads nothing from other
servers."""

from __future__ import annotations

import html
import re
from functools import cache
from typing import Any

import msgspec

from holdfast import __version__, wire
from holdfast.errors import all_errors
from holdfast.http_api.openapi.descriptions import (
    PARAMETERS,
    REF,
    REQUEST_HEADERS,
    components,
    errors_of,
    field_texts,
    fields_of,
    problem_text,
    schema_of,
    type_of,
)
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import Endpoint, Right, Routes

ROUTES = Routes("Description")
INTRO = (
    "A durable message queue broker. Ids are strings. Durations are `250ms`, `5s`, `2m`, `1h`, `7d` or a number of "
    "seconds; instants RFC 3339 or milliseconds since 1970. Errors are RFC 9457 problems with a stable `code`."
)
PAGE_HEADERS = ((b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),)


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
    content: dict[str, Any] = {"application/json": {"schema": schema_of(endpoint.body)}}
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
    return Response(_encoded(_described(request)))


@cache
def _encoded(endpoints: tuple[Endpoint, ...]) -> bytes:
    return msgspec.json.encode(document(list(endpoints)))


@ROUTES("GET", "/docs", Right.ANONYMOUS, response_types=("text/html",))
async def docs(request: Request) -> Response:
    """Show the API's documentation, as one page."""
    return Response(_page(_described(request)), content_type=b"text/html; charset=utf-8", headers=PAGE_HEADERS)


def _described(request: Request) -> tuple[Endpoint, ...]:
    return tuple(endpoint for endpoint in request.api.router.endpoints if endpoint.described)


_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
code{font:13px/1.4 ui-monospace,monospace}h2{margin-top:3rem}h3{margin:2rem 0 .3rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0}td,th{text-align:left;padding:.25rem .5rem;vertical-align:top;
border-top:1px solid #8884}.m{display:inline-block;min-width:4rem;font-weight:600}nav a{margin-right:1rem}
"""


@cache
def _page(endpoints: tuple[Endpoint, ...]) -> bytes:
    """The documentation as HTML."""
    tags = list(dict.fromkeys(endpoint.tag for endpoint in endpoints))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Holdfast {html.escape(__version__)}</title><style>{_STYLE}</style>",
        f"<h1>Holdfast {html.escape(__version__)}</h1><p>{_prose(INTRO)}</p>",
        "<p>The same for programs: <a href=/openapi.json>/openapi.json</a></p><nav>",
        *[f"<a href='#{_anchor(tag)}'>{html.escape(tag)}</a>" for tag in [*tags, "Shapes", "Errors"]],
        "</nav>",
    ]
    for tag in tags:
        parts.append(f"<h2 id='{_anchor(tag)}'>{html.escape(tag)}</h2>")
        parts += [_endpoint(endpoint) for endpoint in endpoints if endpoint.tag == tag]
    parts.append("<h2 id=shapes>Shapes</h2>")
    parts += [_shape(name, schema) for name, schema in sorted(components(endpoints).items())]
    parts.append("<h2 id=errors>Errors</h2>" + _errors())
    return "".join(parts).encode()


def _endpoint(endpoint: Endpoint) -> str:
    rows = [(name, "path", PARAMETERS[name]) for name in endpoint.parameters]
    if endpoint.query is not None:
        rows += [(field.name, f"query, {type_of(field.schema)}", field.text) for field in fields_of(endpoint.query)]
    rows += [(name, "header", REQUEST_HEADERS[name]) for name in endpoint.headers]
    body, gives = endpoint.body, endpoint.gives
    if body is not None:
        kinds = "".join(f", or {kind}" for kind in endpoint.request_types)
        rows.append(("body", "body", f"{type_of(schema_of(body))} as JSON{kinds}"))
    answer = type_of(schema_of(gives)) if gives is not None else ", ".join(endpoint.response_types) or "nothing"
    codes = ", ".join(f"<a href='#error-{error.code}'>{error.code}</a>" for error in errors_of(endpoint))
    table = "".join(
        f"<tr><td><code>{html.escape(name)}</code><td>{_linked(kind)}<td>{_linked(text)}" for name, kind, text in rows
    )
    return (
        f"<h3><span class=m>{endpoint.method}</span> <code>{html.escape(endpoint.path)}</code></h3>"
        f"{''.join(f'<p>{_prose(text)}' for text in endpoint.text.split(chr(10) * 2))}"
        f"<table>{table}</table><p>Gives {endpoint.status}, {_linked(answer)}. Errors: {codes}.</p>"
    )


def _shape(name: str, schema: dict[str, Any]) -> str:
    rows = []
    for field, definition in schema.get("properties", {}).items():
        text = definition.get("description", "")
        required = " (required)" if field in schema.get("required", []) else ""
        rows.append(f"<tr><td><code>{field}</code><td>{_linked(type_of(definition))}{required}<td>{_prose(text)}")
    return (
        f"<h3 id='shape-{name}'>{name}</h3><p>{_prose(schema.get('description', ''))}</p><table>{''.join(rows)}</table>"
    )


def _errors() -> str:
    rows = "".join(
        f"<tr id='error-{error.code}'><td><code>{error.code}</code><td>{error.http}"
        f"<td>{'retry' if error.retryable else ''}<td>{_prose(problem_text(error))}"
        for error in all_errors()
    )
    return f"<table><tr><th>code<th>status<th>retryable<th>message{rows}</table>"


def _anchor(text: str) -> str:
    return text.lower().replace(" ", "-")


def _prose(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\\1</code>".replace("\\\\", "\\"), html.escape(" ".join(text.split())))


def _linked(text: str) -> str:
    """With names of shapes as links."""
    return re.sub(r"\b([A-Z][A-Za-z]+)\b", _link, _prose(text))


def _link(found: re.Match[str]) -> str:
    name = found[1]
    shape = getattr(wire, name, None)
    known = isinstance(shape, type) and issubclass(shape, msgspec.Struct) and field_texts(shape) is not None
    return f"<a href='#shape-{name}'>{name}</a>" if known else name
