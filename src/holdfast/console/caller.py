"""The person who asks for a page, and what a page does for it: reads its form, calls the API, renders, redirects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action, Principal
from holdfast.broker.node import Node
from holdfast.config.kinds import split_address
from holdfast.console.notices import notice
from holdfast.console.sessions import ConsoleSession
from holdfast.errors import HoldfastError, MalformedRequest, MediaTypeUnsupported
from holdfast.http_api.server.app import Api
from holdfast.http_api.server.calls import call
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Header, Response

if TYPE_CHECKING:
    from holdfast.console.app import Console

FORM: Final = "application/x-www-form-urlencoded"
FIELDS_MAX: Final = 200
"""Fields of a form: the longest has some thirty."""

DIGITS_MAX: Final = 18
RECENT_SAMPLES: Final = 60

HTML: Final = b"text/html; charset=utf-8"
CSP: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY: Final[tuple[Header, ...]] = (
    (b"content-security-policy", CSP),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""In every page: nothing of another origin is loaded, no script or style in the page itself runs, and no other site may
show it in a frame."""

_Shape = TypeVar("_Shape")
_problem = msgspec.json.Decoder(wire.Problem).decode


class ApiProblem(Exception):
    """The API has refused a call."""

    def __init__(self, problem: wire.Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def link(*parts: str, **query: object) -> str:
    """A path of these segments, each encoded, with a query; what is empty in that is left out."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    chosen = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(chosen)}" if chosen else path


class Caller:
    """See the module."""

    def __init__(self, console: Console, request: Request, session: ConsoleSession) -> None:
        self.console = console
        self.request = request
        self.session = session
        self._query: dict[str, str] | None = None

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def namespace(self) -> str:
        return self.session.principal.namespace

    @property
    def node(self) -> Node:
        return self.console.node

    @property
    def parameters(self) -> list[str]:
        """The variable parts of the path."""
        return self.request.parameters

    @property
    def read_only(self) -> bool:
        return self.session.read_only or self.console.settings.read_only

    def may(self, action: str, queue: str) -> bool:
        """Whether it may do this with a queue, by its scopes. For templates, which then show what leads there."""
        return self.principal.may(Action(action), queue)

    def may_change(self, action: str, queue: str) -> bool:
        """The same, for what changes something."""
        return not self.read_only and self.may(action, queue)

    @property
    def may_administer(self) -> bool:
        """Whether there is any queue that it may administer."""
        return self.principal.may_somewhere(Action.ADMIN)

    @property
    def may_administer_all(self) -> bool:
        """Whether it may administer the whole namespace."""
        return self.principal.may_filter(Action.ADMIN, "#")

    @property
    def origin(self) -> str:
        """Where the server is, as the browser knows it."""
        config = self.console.config
        scheme = "https" if config.tls.certificate_file is not None else "http"
        host = self.request.header(b"host") or "{}:{}".format(*split_address(config.http.listen))
        return f"{scheme}://{host}"

    def query(self, name: str, default: str = "") -> str:
        """A field of the query string."""
        if self._query is None:
            self._query = read_fields(self.request.head.query)
        return self._query.get(name, default)

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A number in the query string; one that is none, or out of range, is as if it were not there."""
        found = whole_number(self.query(name))
        return found if found is not None and low <= found <= high else default

    async def form(self) -> dict[str, str]:
        """What a form brought."""
        if self.request.content_type != FORM:
            raise MediaTypeUnsupported(given=self.request.content_type, allowed=FORM)
        return read_fields(await self.request.body())

    @property
    def notice(self) -> str:
        """What the form before this page did, if it was one that did something."""
        return notice(self.query("did"), self.number("count", 0, 0, 1 << 62))

    def recent(self, queue: str) -> list[float]:
        """The depth of a queue in the last quarter of an hour, if it is known."""
        series = self.console.sampler.samples.get((self.namespace, queue))
        return [] if series is None else series.recent("depth", RECENT_SAMPLES, self.node.clock())

    # --- the API ----------------------------------------------------------------------------------------------------

    async def api(self, method: str, target: str, body: object = None) -> bytes:
        """Call the API for this person. Raises ApiProblem."""
        request = self.request
        return await api_call(request.api, self.principal, method, target, body, peer=request.peer)

    async def get(self, shape: type[_Shape], target: str) -> _Shape:
        """What the API gives, as this shape."""
        return msgspec.json.decode(await self.api("GET", target), type=shape)

    # --- the response -----------------------------------------------------------------------------------------------

    def page(self, template: str, *, status: int = 200, **values: object) -> Response:
        """A page. What it needs of the caller it finds under `caller`."""
        return html(self.console.render(template, caller=self, **values), status)

    def part(self, template: str, **values: object) -> str:
        """A part of a page."""
        return self.console.render(template, caller=self, **values)

    @property
    def wants_part(self) -> bool:
        """Whether a script asks, to replace a part of the page."""
        return self.request.headers.get(b"hx-request") == b"true"

    def redirect(self, to: str, did: str = "", count: int | None = None) -> Response:
        """Show another page, with a notice of what was done."""
        if did:
            extra = {"did": did} if count is None else {"did": did, "count": str(count)}
            to += ("&" if "?" in to else "?") + urlencode(extra)
        return see_other(to)


async def api_call(
    api: Api, principal: Principal, method: str, target: str, body: object = None, *, peer: str = ""
) -> bytes:
    """What the API answers to somebody. Raises ApiProblem."""
    content = b"" if body is None else msgspec.json.encode(body)
    response = await call(api, principal, method, target, content, peer=peer)
    assert isinstance(response.body, bytes), "no page calls what streams"
    if response.status >= 400:
        raise ApiProblem(_problem(response.body))
    return response.body


def whole_number(text: str) -> int | None:
    """The number that a text is, if it is one of up to 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def read_fields(raw: bytes) -> dict[str, str]:
    """Fields of a form or a query string; of several with the same name the last."""
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX))
    except ValueError:
        raise MalformedRequest(problem="the form is not name=value pairs in UTF-8") from None


def html(text: str, status: int = 200, headers: tuple[Header, ...] = ()) -> Response:
    return Response(text.encode(errors="replace"), status, HTML, (*SECURITY, *headers))


def see_other(to: str, headers: tuple[Header, ...] = ()) -> Response:
    """A redirect inside this site."""
    return Response(b"", 303, HTML, ((b"location", to.encode("ascii", errors="replace")), *SECURITY, *headers))


def problem_of(error: HoldfastError | ApiProblem) -> tuple[int, str, str]:
    """Status, code and text of what went wrong."""
    if isinstance(error, ApiProblem):
        return error.problem.status, error.problem.code, error.problem.detail
    return error.http, error.code, str(error)
