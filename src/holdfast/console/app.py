"""The console's application: who asks, may they see a page, and what a page for a failure looks like.

Nothing is shown without a credential, but the login page and the files it needs. A person is known by the session's
cookie, or by the certificate of the connection. Where no credentials are configured everybody who reaches the server
may do everything, here as in the API, and the same checks keep out pages of other sites.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Coroutine
from functools import cached_property, partial
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any, Final

import structlog

from holdfast import __version__
from holdfast.auth.gate import Gate
from holdfast.auth.principal import Principal
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.console.assets import Assets
from holdfast.console.caller import ApiProblem, Caller, html, link, problem_of, read_fields, see_other
from holdfast.console.page import Page
from holdfast.console.pages import PAGES
from holdfast.console.protobuf_types import ProtobufTypes
from holdfast.console.redrives import PacedRedrives
from holdfast.console.refusals import FORGED, READ_ONLY, PageRefused
from holdfast.console.sampler import Sampler
from holdfast.console.sessions import ConsoleSession, Sessions
from holdfast.errors import HoldfastError, RouteNotFound
from holdfast.http_api.server.access import check_browser, check_program
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import Right, Routes

if TYPE_CHECKING:
    from holdfast.console.rendering import Renderer
    from holdfast.mqtt.net import MqttFront

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

COOKIE: Final = "holdfast_session"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = b"x-csrf-token"


class _LoginNeeded(Exception):
    """Nobody is signed in."""


class Console:
    """See the module. `mqtt` is the front whose sessions it shows, if there is one."""

    def __init__(self, config: Config, node: Node, gate: Gate, mqtt: MqttFront | None = None) -> None:
        self.config = config
        self.settings = config.console
        self.node = node
        self.gate = gate
        self.mqtt = mqtt
        self.sessions = Sessions(config.console, gate.valid, node.clock)
        self.sampler = Sampler(node, config.console.sampled_queues)
        self.redrives = PacedRedrives()
        self.protobuf_types = ProtobufTypes(config.console.descriptors)
        self.live = 0  # pages that are being updated
        self._secret = secrets.token_bytes(32)
        self.routes = Routes("Console", described=False)
        self.routes("GET", "/static/{file}", Right.ANONYMOUS)(self._static)
        self.routes("GET", "/login", Right.ANONYMOUS)(self._login_page)
        self.routes("POST", "/login", Right.ANONYMOUS)(self._login)
        for page in PAGES:
            self.routes(page.method, page.path, Right.ANONYMOUS, waits=page.waits)(self._handler(page))

    async def start(self) -> None:
        """Begin to take samples."""
        await self.sampler.start()

    async def stop(self) -> None:
        await self.redrives.stop()
        await self.sampler.stop()

    # --- rendering --------------------------------------------------------------------------------------------------

    @cached_property
    def assets(self) -> Assets:
        return Assets()

    @cached_property
    def _renderer(self) -> Renderer:
        from holdfast.console.rendering import Renderer  # noqa: PLC0415 - Jinja is 4 MiB, for who looks at pages

        return Renderer(self.assets.url)

    def render(self, template: str, **values: object) -> str:
        return self._renderer.render(template, version=__version__, console=self, **values)

    # --- a page -----------------------------------------------------------------------------------------------------

    def _handler(self, page: Page) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            return await self._guarded(request, partial(self._serve, request, page))

        return handle

    async def _serve(self, request: Request, page: Page) -> Response:
        caller = Caller(self, request, self.session_of(request))
        request.principal = caller.principal
        request.claim(caller.principal)
        if page.method == "POST":
            await self._check_form(caller)
        return await page.handler(caller)

    async def _guarded(self, request: Request, work: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        """What `work` gives, or a page that says what is wrong."""
        try:
            return await work()
        except _LoginNeeded:
            return self._to_login(request)
        except PageRefused as refused:
            return self._failure(request, refused.status, refused.title, refused.text)
        except (HoldfastError, ApiProblem) as error:
            status, code, text = problem_of(error)
            return self._failure(request, status, code.replace("_", " ").capitalize(), text)
        except Exception as error:
            log.error("a page failed", path=request.endpoint.path, exc_info=error)
            text = "The server's log says why. Try again; if it happens again, please report it with that log."
            return self._failure(request, 500, "Something went wrong", text)

    def session_of(self, request: Request) -> ConsoleSession:
        """Who asks. Raises if nobody has signed in."""
        if not self.gate.required:
            principal = self.gate.anonymous()
            check_browser(self.gate, principal, request.headers)
            return self._lasting(principal)
        session = self.sessions.find(_token(request))
        if session is not None:
            return session
        known = self.gate.certificate(request.subject) if request.subject is not None else None
        if known is None:
            raise _LoginNeeded
        return self._lasting(known)

    def is_signed_in(self, request: Request) -> bool:
        """Whether who asked still is."""
        try:
            self.session_of(request)
        except (_LoginNeeded, HoldfastError):
            return False
        return True

    def _lasting(self, principal: Principal) -> ConsoleSession:
        """The session of somebody who needs none: who comes with a certificate, or where there are no credentials."""
        csrf = hmac.digest(self._secret, principal.identity.encode(), hashlib.sha256).hex()
        now = self.node.clock()
        return ConsoleSession(principal, csrf, read_only=False, opened_at=now, used_at=now)

    async def _check_form(self, caller: Caller) -> None:
        """Refuses a form that is none of our pages', and any change in a session that is for looking only."""
        request = caller.request
        check_program(request.headers)
        given = request.header(CSRF_HEADER) or (await caller.form()).get(CSRF_FIELD, "")
        if not hmac.compare_digest(given.encode(errors="replace"), caller.session.csrf.encode()):
            raise FORGED
        if caller.read_only and request.endpoint.path != "/logout":
            raise READ_ONLY

    @property
    def head(self) -> str:
        """See `Pages`."""
        styles, icon, theme = map(self.assets.url, ("tokens.css", "icon.svg", "theme.js"))
        return f'<link rel=icon href="{icon}"><link rel=stylesheet href="{styles}"><script src="{theme}"></script>'

    # --- failures ---------------------------------------------------------------------------------------------------

    def not_found(self, request: Request, error: HoldfastError) -> Response | None:
        """See `Pages`."""
        if not isinstance(error, RouteNotFound) or not request.accepts("text/html") or request.head.method != "GET":
            return None
        text = "There is no such page. Follow a link above, or search for a queue."
        return self._failure(request, 404, "Page not found", text)

    def _failure(self, request: Request, status: int, title: str, text: str) -> Response:
        """A page for somebody who may not be signed in: it then has no navigation."""
        try:
            caller: Caller | None = Caller(self, request, self.session_of(request))
        except (_LoginNeeded, HoldfastError):
            caller = None
        values = {"caller": caller, "status": status, "title": title, "text": text}
        part = request.headers.get(b"hx-request") == b"true"
        return html(self.render("_problem.html" if part else "problem.html", **values), status)

    # --- signing in -------------------------------------------------------------------------------------------------

    def _to_login(self, request: Request) -> Response:
        head = request.head
        target = head.path + (f"?{head.query.decode('ascii', errors='replace')}" if head.query else "")
        if head.method == "GET" and request.headers.get(b"sec-fetch-site") == b"cross-site" and not _token(request):
            # A strict cookie does not come along when a link on another site is followed. The page that this shows asks
            # again, and then it does.
            return html(self.render("again.html", target=target))
        to = link("login", next=target if head.method == "GET" and target != "/" else "")
        if request.headers.get(b"hx-request") == b"true":
            return Response(b"", 401, headers=((b"hx-redirect", link("login").encode()),))
        if request.accepts("text/event-stream"):
            return Response(b"", 401)
        return see_other(to)

    async def _login_page(self, request: Request) -> Response:
        """Show the form to sign in."""
        return await self._guarded(request, partial(self._show_login, request))

    async def _show_login(self, request: Request) -> Response:
        if not self.gate.required:
            return see_other("/")
        following = read_fields(request.head.query).get("next", "")
        return html(self.render("login.html", caller=None, next=_local(following), problem="", user=""))

    async def _login(self, request: Request) -> Response:
        """Sign in."""
        return await self._guarded(request, partial(self._sign_in, request))

    async def _sign_in(self, request: Request) -> Response:
        check_program(request.headers)
        form = await Caller(self, request, self._lasting(_STRANGER)).form()
        user, password, token = form.get("user", ""), form.get("password", ""), form.get("token", "").strip()
        following = _local(form.get("next", ""))
        try:
            if token:
                principal = await self.gate.token(token, request.peer)
            else:
                principal = await self.gate.password(user, password, request.peer)
        except HoldfastError as error:
            status, _, text = problem_of(error)
            page = self.render("login.html", caller=None, next=following, problem=text, user=user[:255])
            return html(page, status)
        opened = self.sessions.open(principal, read_only="read_only" in form)
        return see_other(following or "/", (self._cookie(opened),))

    def _cookie(self, token: str, *, ends: bool = False) -> tuple[bytes, bytes]:
        """The cookie's header. It is not sent along from other sites, and no script can read it."""
        secure = "; Secure" if self.config.tls.certificate_file is not None else ""
        age = "; Max-Age=0" if ends else ""
        return b"set-cookie", f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{age}".encode()

    def sign_out(self, request: Request) -> Response:
        self.sessions.close(_token(request))
        return see_other("/login", (self._cookie("", ends=True),))

    async def _static(self, request: Request) -> Response:
        """Serve a style or a script."""
        found = self.assets.response(
            request.parameters[0], takes_gzip="gzip" in (request.header(b"accept-encoding") or "")
        )
        return found or self._failure(request, 404, "Page not found", "There is no such file.")


_STRANGER: Final = Principal(name="", namespace="", method="anonymous")


def _token(request: Request) -> str:
    """The session's token, if the browser has one."""
    try:
        cookie = SimpleCookie(request.header(b"cookie") or "").get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


def _local(target: str) -> str:
    """A path on this server, to go to after signing in; empty if it is anything else."""
    plain = target.isascii() and target.isprintable() and "\\" not in target
    return target if plain and target.startswith("/") and not target.startswith("//") else ""
