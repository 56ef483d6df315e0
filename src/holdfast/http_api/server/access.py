"""Authentication and authorization of a request: its credentials, and the right that its endpoint asks for."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

from holdfast.auth.gate import Gate
from holdfast.auth.principal import Action, Principal
from holdfast.auth.signatures import SCHEME, SignedRequest
from holdfast.errors import CrossOrigin, Unauthenticated
from holdfast.http_api.server.routes import Endpoint, Right

if TYPE_CHECKING:
    from holdfast.http_api.server.request import Request

_BROWSER = b"Mozilla/"
"""How the name of every browser begins."""

_ACTIONS = {Right.PRODUCE: Action.PRODUCE, Right.CONSUME: Action.CONSUME, Right.ADMIN: Action.ADMIN}
_SOMEWHERE = {
    Right.PRODUCE_SOMEWHERE: Action.PRODUCE,
    Right.CONSUME_SOMEWHERE: Action.CONSUME,
    Right.ADMIN_SOMEWHERE: Action.ADMIN,
}


def recognize(gate: Gate, subject: str | None, headers: dict[bytes, bytes]) -> Principal | None:
    """The caller, if it is known without waiting; None: `identify` has to check the credential."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        return _uncredentialed(gate, subject)
    scheme, _, value = authorization.partition(b" ")
    try:
        match scheme.lower():
            case b"bearer":
                return gate.recall(value.strip().decode("ascii"))
            case b"basic":
                return gate.recall_password(*_user_and_password(value))
            case scheme if scheme == SCHEME and not gate.required:
                return gate.anonymous()
    except ValueError:
        pass  # `identify` says what is wrong with it
    return None


def check_browser(gate: Gate, principal: Principal, headers: dict[bytes, bytes]) -> None:
    """Refuses a web page of another site that calls through a user's browser."""
    gate.check_browser(principal, _text(headers.get(b"host")), _text(headers.get(b"origin")))


def check_program(headers: dict[bytes, bytes]) -> None:
    """Refuses a browser, unless it calls for a page of this server: for a GET that changes something, which any page of
    any site can make a browser send, with the credentials it has. An old browser that says nothing about the page is
    known by its name."""
    host = (_text(headers.get(b"host")) or "").lower()
    origin, referer, site = (_text(headers.get(name)) for name in (b"origin", b"referer", b"sec-fetch-site"))
    pages = [page.lower().partition("://")[2].partition("/")[0] for page in (origin, referer) if page is not None]
    foreign = any(page != host for page in pages) or (site is not None and site != "same-origin")
    unknown = not pages and site is None and headers.get(b"user-agent", b"").startswith(_BROWSER)
    if foreign or unknown:
        page = origin or referer or (f"a site ({site})" if site else "an unknown site")
        raise CrossOrigin(origin=page[:255], host=host[:255])


def _uncredentialed(gate: Gate, subject: str | None) -> Principal:
    """The caller whom its certificate names, or an anonymous one."""
    known = gate.certificate(subject) if subject is not None else None
    return known if known is not None else gate.anonymous()


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")


def _user_and_password(value: bytes) -> tuple[str, bytes]:
    """Raises ValueError if it is none."""
    user, colon, password = b64decode(value.strip(), validate=True).partition(b":")
    if not colon:
        raise ValueError("there is no colon")
    return user.decode(), password


async def identify(gate: Gate, authorization: bytes, peer: str) -> Principal:
    """The caller, by a token or a password in `Authorization`."""
    scheme, _, value = authorization.partition(b" ")
    try:
        if scheme.lower() == b"bearer":
            return await gate.token(value.strip().decode("ascii"), peer)
        if scheme.lower() == b"basic":
            return await gate.password(*_user_and_password(value), peer)
    except ValueError:
        pass
    raise Unauthenticated(problem="the Authorization header is neither Bearer and a token nor Basic and user:password")


def is_signed(request: Request) -> bool:
    """Whether it comes with a signature, to an endpoint that takes them."""
    return request.endpoint.signed and request.headers[b"authorization"].lower().startswith(SCHEME)


async def identify_signed(gate: Gate, request: Request) -> Principal:
    """The caller, by its signature, which covers the body: that is read before the caller is known, if the head is that
    of a request which somebody known may have signed."""
    head = request.head
    signature = gate.signer(head.headers, request.peer)
    body = await request.body()
    return gate.signed(signature, SignedRequest(head.method, head.path, head.query, head.headers, body), request.peer)


def authorize(endpoint: Endpoint, principal: Principal, name: str) -> None:
    """Refuses a caller that has not the right which the endpoint asks for on the queue of that name. It is called with
    what the head says: who is refused need not send a body, and none is read."""
    action = _ACTIONS.get(endpoint.right)
    if action is not None:
        principal.require(action, name)
    elif (somewhere := _SOMEWHERE.get(endpoint.right)) is not None:
        principal.require_somewhere(somewhere)
    elif endpoint.right is Right.SOMEWHERE:
        if not any(principal.may_somewhere(action) for action in _ACTIONS.values()):
            principal.require_somewhere(Action.CONSUME)
    elif endpoint.right is Right.ANY:
        principal.require_sight(name)
    elif endpoint.right is Right.NODE:
        principal.require_node()
