"""The reference of the HTTP API and of its metrics, from the table of routes and the list of series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.grpc_api.front import CALLS, STREAMS
from holdfast.http_api.endpoints import metrics as series
from holdfast.http_api.openapi.descriptions import (
    PARAMETERS,
    REQUEST_HEADERS,
    components,
    errors_of,
    fields_of,
    schema_of,
    type_of,
)
from holdfast.http_api.server.app import ROUTES
from holdfast.http_api.server.routes import Endpoint, Right
from holdfast.mqtt.net import meter as mqtt

RIGHTS = {
    Right.PRODUCE: "`produce` on the queue",
    Right.CONSUME: "`consume` on the queue",
    Right.ADMIN: "`admin` on the queue",
    Right.ANY: "any right on the queue",
    Right.NODE: "`node`",
    Right.PRODUCE_SOMEWHERE: "`produce` on the queues that the request names",
    Right.CONSUME_SOMEWHERE: "`consume` on the queue that the request names",
    Right.ADMIN_SOMEWHERE: "`admin` on the queue that the request names",
    Right.SOMEWHERE: "`produce`, `consume` or `admin` on some queue, and what the action needs on the queue it names",
    Right.AUTHENTICATED: "a credential, where credentials are configured",
    Right.ANONYMOUS: "nothing",
}

INTRO = """\
# HTTP API

The server listens on `http.listen` (`--http`, default `127.0.0.1:8080`). Its OpenAPI description is at `/openapi.json`,
and at `/docs` for people.

- A queue's name is one segment of the path: `tasks/image` is written `tasks%2Fimage`.
- Ids are strings, because JavaScript loses 63-bit integers. Durations are `250ms`, `5s`, `2m`, `1h`, `7d` or a number
  of seconds; instants are RFC 3339 or milliseconds since 1970, and RFC 3339 in responses.
- Requests are JSON unless said otherwise, and unknown fields are refused. Absent fields of responses are empty.
- An error is an [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problem with a stable `code`
  (see [errors](errors.md)). If `retryable` is true the same request may succeed later, after `Retry-After` seconds.
- In a batch the error of an item is in `errors` by its index, and the other items are done. Only if every item of a
  batch was refused the response is a problem: that of its first item, with all of them in `errors`.
- Every request may carry `X-Correlation-Id`; without it the server generates one. It is in the response, in problems
  and in the server's log. One that was sent is stored with the messages of the request.
- Where credentials are configured a request carries `Authorization: Bearer <token>` or `Basic <user:password>`, or the
  connection a client certificate.
- A body is at most `http.max_request_bytes`, and more limits are in the [configuration](configuration.md#http).
- While the server stops, new requests get 503 `shutting_down`, long polls end, and the last line of a stream says so.
"""


def http_api() -> str:
    """Every endpoint with its parameters, fields and errors."""
    endpoints = [endpoint for routes in ROUTES for endpoint in routes.endpoints]
    lines = [INTRO]
    for tag in dict.fromkeys(endpoint.tag for endpoint in endpoints):
        lines += [f"## {tag}", ""]
        for endpoint in endpoints:
            if endpoint.tag == tag:
                lines += _endpoint(endpoint)
    lines += ["## Shapes", ""]
    for name, schema in sorted(components(endpoints).items()):
        lines += _shape(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _endpoint(endpoint: Endpoint) -> list[str]:
    lines = [f"### `{endpoint.method} {endpoint.path}`", "", endpoint.text, ""]
    rows = [(name, "path", PARAMETERS[name]) for name in endpoint.parameters]
    if endpoint.query is not None:
        for field in fields_of(endpoint.query):
            default = field.schema.get("default")
            text = field.text + (f" Default `{str(default).lower()}`." if default not in ("", None) else "")
            rows.append((field.name, f"query, {type_of(field.schema)}", text.strip()))
    rows += [(name, "header", REQUEST_HEADERS[name]) for name in endpoint.headers]
    if rows:
        lines += ["| parameter | in | |", "|---|---|---|"]
        lines += [f"| `{name}` | {kind} | {text} |" for name, kind, text in rows] + [""]
    facts = [f"Needs {RIGHTS[endpoint.right]}."]
    if endpoint.body is not None:
        also = "".join(f", or `{kind}`" for kind in endpoint.request_types)
        facts.append(f"Takes {_link(endpoint.body)}{also}.")
    gives = [_link(endpoint.gives)] if endpoint.gives is not None else []
    gives += [f"`{kind}`" for kind in endpoint.response_types]
    facts.append(f"Gives {endpoint.status}" + (f": {' as '.join(gives[:1])}" if gives else "") + _rest(gives) + ".")
    codes = ", ".join(f"`{error.code}` ({error.http})" for error in errors_of(endpoint))
    return [*lines, " ".join(facts), "", f"Errors: {codes}.", ""]


def _rest(gives: list[str]) -> str:
    return f" ({', '.join(gives[1:])})" if len(gives) > 1 else ""


def _shape(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", "", " ".join(schema.get("description", "").split()), ""]
    properties = schema.get("properties", {})
    if not properties:
        return lines
    lines += ["| field | type | |", "|---|---|---|"]
    for field, definition in properties.items():
        text = " ".join(definition.get("description", "").split()).replace("|", "\\|")
        required = "required. " if field in schema.get("required", []) else ""
        lines.append(f"| `{field}` | {type_of(definition)} | {required}{text} |")
    return [*lines, ""]


def _link(shape: object) -> str:
    schema = schema_of(shape)
    name = type_of(schema.get("items", schema))
    return f"{'list of ' if 'items' in schema else ''}[{name}](#{name.lower()})"


def _all_series() -> Iterator[tuple[str, str, str, str]]:
    yield from series.all_series()
    yield from map(series.described, mqtt.SERIES.values())
    yield from map(series.described, (CALLS, STREAMS))


def metrics() -> str:
    """Every series of `/metrics`."""
    prose = (series.__doc__ or "").partition("\n\n")[2].strip()
    lines = [
        "# Metrics",
        "",
        "`GET /metrics` returns the metrics of a node and of its process in Prometheus' text format.",
        "",
        prose,
        "",
        "| metric | type | labels | |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, text, labels in _all_series()]
    return "\n".join(lines) + "\n"
