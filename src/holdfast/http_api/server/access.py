"""Who asks, and whether they may: credentials from the request, rights from the endpoint's table."""

from __future__ import annotations

from base64 import b64decode

from starlette.types import Scope

from holdfast.auth.gate import Gate
from holdfast.auth.principal import Action, Principal
from holdfast.errors import Forbidden, Unauthenticated
from holdfast.http_api.openapi.routes import Endpoint, Right

_ACTIONS = {Right.PRODUCE: Action.PRODUCE, Right.CONSUME: Action.CONSUME, Right.ADMIN: Action.ADMIN}


async def identify(gate: Gate, scope: Scope, headers: dict[bytes, bytes]) -> Principal:
    """Who calls. Not a web page from elsewhere, by way of somebody's browser."""
    principal = await _credentials(gate, scope, headers)
    check_browser(gate, principal, headers)
    return principal


def recognize(gate: Gate, scope: Scope, headers: dict[bytes, bytes]) -> Principal | None:
    """Who calls, if that can be told without waiting; None: `identify` must find out. Web pages are not looked for."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        return _uncredentialed(gate, scope)
    scheme, _, value = authorization.partition(b" ")
    try:
        match scheme.lower():
            case b"bearer":
                return gate.recall(value.strip().decode("ascii"))
            case b"basic":
                return gate.recall_password(*_user_and_password(value))
    except ValueError:
        pass  # `identify` says what is wrong with it
    return None


def check_browser(gate: Gate, principal: Principal, headers: dict[bytes, bytes]) -> None:
    """Refuses a web page from elsewhere, by way of somebody's browser."""
    gate.check_browser(principal, _text(headers.get(b"host")), _text(headers.get(b"origin")))


def _uncredentialed(gate: Gate, scope: Scope) -> Principal:
    """A client certificate says who calls, or nothing does."""
    subject = scope.get("extensions", {}).get("tls", {}).get("client_cert_name")
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


async def _credentials(gate: Gate, scope: Scope, headers: dict[bytes, bytes]) -> Principal:
    """A token or a password in `Authorization`, else a client certificate, else nobody in particular."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        return _uncredentialed(gate, scope)
    client = scope.get("client")
    peer = client[0] if client else ""
    scheme, _, value = authorization.partition(b" ")
    try:
        if scheme.lower() == b"bearer":
            return await gate.token(value.strip().decode("ascii"), peer)
        if scheme.lower() == b"basic":
            return await gate.password(*_user_and_password(value), peer)
    except ValueError:
        pass
    raise Unauthenticated(problem="the Authorization header is neither Bearer and a token nor Basic and user:password")


def authorize(endpoint: Endpoint, principal: Principal, name: str) -> None:
    """Whether the caller may do this with the queue of that name, as far as the table can tell."""
    action = _ACTIONS.get(endpoint.right)
    if action is not None:
        principal.require(action, name)
    elif endpoint.right is Right.ANY and not principal.can_see(name):
        raise Forbidden(action="see", resource=name)
    elif endpoint.right is Right.NODE:
        principal.require_filter(Action.ADMIN, "#")
