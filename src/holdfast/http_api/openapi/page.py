"""The API's documentation as a page for people: what the description says, examples, and forms that send requests to
this server. It looks like the console, whose colours and sizes it uses, and loads nothing from other servers."""

from __future__ import annotations

import hashlib
import html
import re
from base64 import b64encode
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from holdfast import __version__, wire
from holdfast.errors import all_errors
from holdfast.http_api.openapi.descriptions import (
    PARAMETERS,
    REQUEST_HEADERS,
    components,
    errors_of,
    field_texts,
    fields_of,
    problem_text,
    schema_of,
    type_of,
)
from holdfast.http_api.openapi.document import INTRO, described
from holdfast.http_api.openapi.examples import PATHS, body_of, curl_of
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import Endpoint, Right, Routes

ROUTES = Routes("Description")

_FILES = resources.files("holdfast.http_api.openapi")
_STYLE = _FILES.joinpath("page.css").read_text()
_SCRIPT = _FILES.joinpath("page.js").read_text()
_SCRIPT_HASH = b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self' 'sha256-{_SCRIPT_HASH}'; img-src 'self';"
    " connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = ((b"content-security-policy", _POLICY.encode()),)


@ROUTES("GET", "/docs", Right.ANONYMOUS, response_types=("text/html",))
async def docs(request: Request) -> Response:
    """Show the API's documentation, as one page with examples that can be tried out."""
    head = request.api.pages.head if request.api.pages is not None else ""
    return Response(_page(described(request), head), content_type=b"text/html; charset=utf-8", headers=PAGE_HEADERS)


@cache
def _page(endpoints: tuple[Endpoint, ...], head: str) -> bytes:
    """The documentation as HTML; `head` has the console's styles, if there is a console."""
    tags = list(dict.fromkeys(endpoint.tag for endpoint in endpoints))
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>HTTP API · Holdfast {html.escape(__version__)}</title>{head}<style>{_STYLE}</style></head>",
        "<body><main>",
        f"<h1>HTTP API <span class=soft>Holdfast {html.escape(__version__)}</span></h1><p>{_prose(INTRO)}</p>",
        "<p>The same for programs: <a href=/openapi.json>/openapi.json</a>.",
        f"{' The <a href=/>console</a> shows what is there.' if head else ''}</p>",
        "<div class=card><label class=field><span>A token, or <code>user:password</code>, for the requests that you",
        " try out here. It stays in this page.</span>",
        "<input id=credential type=password autocomplete=off placeholder='none: as the server lets everybody'></label>",
        "</div><nav aria-label=Contents>",
        *[f"<a href='#{_anchor(tag)}'>{html.escape(tag)}</a>" for tag in [*tags, "Shapes", "Errors"]],
        "</nav>",
    ]
    for tag in tags:
        parts.append(f"<h2 id='{_anchor(tag)}'>{html.escape(tag)}</h2>")
        parts += [_endpoint(endpoint) for endpoint in endpoints if endpoint.tag == tag]
    parts.append("<h2 id=shapes>Shapes</h2>")
    parts += [_shape(name, schema) for name, schema in sorted(components(endpoints).items())]
    parts.append("<h2 id=errors>Errors</h2>" + _errors())
    parts.append(f"</main><script>{_SCRIPT}</script></body></html>")
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
        f"<section class=card><h3><span class=method>{endpoint.method}</span> <code>{html.escape(endpoint.path)}</code>"
        f"</h3>{''.join(f'<p>{_prose(text)}' for text in endpoint.text.split(chr(10) * 2))}"
        f"<table>{table}</table><p>Gives {endpoint.status}, {_linked(answer)}. Errors: {codes}.</p>"
        f"<pre class=curl>{html.escape(curl_of(endpoint))}</pre>{_form(endpoint)}</section>"
    )


def _form(endpoint: Endpoint) -> str:
    """What sends a request; nothing for answers without an end, which would show nothing."""
    if endpoint.path.endswith("/stream") or "text/event-stream" in endpoint.response_types:
        return ""
    fields = [_field("path", name, PATHS[name]) for name in endpoint.parameters]
    if endpoint.query is not None:
        fields += [_field("query", field.name, "") for field in fields_of(endpoint.query)]
    fields += [_field("header", name, "") for name in endpoint.headers]
    body = body_of(endpoint)
    if body is not None:
        text = msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
        rows = min(text.count(chr(10)) + 1, 16)
        fields.append(
            f"<label class=field><span>body</span><textarea rows={rows}>{html.escape(text)}</textarea></label>"
        )
    return (
        "<details><summary>Try it</summary>"
        f"<form data-method={endpoint.method} data-path='{html.escape(endpoint.path)}'>"
        f"{''.join(fields)}<button>Send</button> <span class=status role=status></span>"
        "<pre class=response tabindex=0 hidden></pre></form></details>"
    )


def _field(place: str, name: str, value: str) -> str:
    return (
        f"<label class=field><span>{html.escape(name)} <span class=soft>({place})</span></span>"
        f"<input data-in={place} data-name='{html.escape(name)}' value='{html.escape(value)}'></label>"
    )


def _shape(name: str, schema: dict[str, Any]) -> str:
    rows = []
    for field, definition in schema.get("properties", {}).items():
        text = definition.get("description", "")
        required = " (required)" if field in schema.get("required", []) else ""
        rows.append(f"<tr><td><code>{field}</code><td>{_linked(type_of(definition))}{required}<td>{_prose(text)}")
    return (
        f"<section class=card><h3 id='shape-{name}'>{name}</h3><p>{_prose(schema.get('description', ''))}</p>"
        f"<table>{''.join(rows)}</table></section>"
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
