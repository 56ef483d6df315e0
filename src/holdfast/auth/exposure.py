"""No listening beyond loopback without credentials, and no calls by web pages from elsewhere.

A server calls `check_fronts` before it makes or opens anything, and a front calls `check` with its address before it
binds. A broker that was tried out on a laptop and then started on a
server must not be open to the world because nobody thought of it.

Loopback alone does not keep a browser out: any page may make it call 127.0.0.1, by a form, a script or a WebSocket, and
a name that an attacker owns may point there (DNS rebinding). Nor do passwords and certificates: a browser sends along
those it has. A front that browsers can speak to calls `check_browser` for each request and each WebSocket.
"""

from __future__ import annotations

import structlog

from holdfast.auth.principal import Principal
from holdfast.config import AuthSettings, Config
from holdfast.config.kinds import split_address
from holdfast.errors import CrossOrigin, ExposureRefused, InvalidConfig
from holdfast.web_address import is_loopback

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

EVERYWHERE = "all interfaces"


def has_credentials(auth: AuthSettings) -> bool:
    """Whether anything is configured by which a caller can show who it is."""
    return bool(auth.users_file or auth.key_file or auth.token_secret or auth.oidc_issuer or auth.jwks_url)


def check_fronts(config: Config) -> None:
    """Raises what will keep a front that is switched on from listening, whatever else there is."""
    addresses = [("HTTP", config.http.listen)] if config.http.enabled else []
    if config.mqtt.enabled:
        addresses.append(("MQTT", config.mqtt.listen))
        if config.mqtt.tls_listen:
            addresses.append(("MQTT", config.mqtt.tls_listen))
            if config.tls.certificate_file is None:
                raise InvalidConfig(
                    field="mqtt.tls_listen", value=config.mqtt.tls_listen, problem="it needs tls.certificate_file"
                )
    if config.grpc.listen:
        addresses.append(("gRPC", config.grpc.listen))
    for front, address in addresses:
        host = split_address(address)[0]
        if _is_refused(config.auth, host):
            raise ExposureRefused(front=front, address=host or EVERYWHERE)


def _is_refused(auth: AuthSettings, host: str) -> bool:
    return not (is_loopback(host) or has_credentials(auth) or auth.insecure)


def check(auth: AuthSettings, host: str, *, front: str, tls: bool) -> None:
    """Raises ExposureRefused if `front` ("HTTP", "MQTT", "gRPC") must not listen on `host`; warns if it may but had
    better not.

    `host` is as it would be given to bind: an address, a name, or empty for all interfaces.
    """
    if is_loopback(host):
        return
    address = host or EVERYWHERE
    if _is_refused(auth, host):
        raise ExposureRefused(front=front, address=address)
    if has_credentials(auth):
        if not tls:
            log.warning(
                "without TLS: passwords, tokens and messages can be read on the way", front=front, address=address
            )
        return
    log.warning("insecure: everybody who reaches this address may do everything", front=front, address=address)


def check_browser(auth: AuthSettings, principal: Principal, host: str | None, origin: str | None) -> None:
    """Raises CrossOrigin unless the call is none of a browser's, or of a page that this server itself served.

    `host` and `origin` are the headers of these names. Only browsers send an origin, and a page cannot change it. A
    token is not sent along by a browser on its own, so who has one was meant to call. Where no credentials are
    configured, pages of any server on this machine may call as well, for people who write such pages.
    """
    if principal.method in ("token", "oidc"):
        return
    called = (host or "").lower()
    page = origin.lower().partition("://")[2] if origin is not None else called
    local = principal.method == "anonymous" and not auth.insecure
    if page != called and not (local and is_loopback(_without_port(page))):
        raise CrossOrigin(origin=str(origin)[:255], host=called[:255])
    if local and called and not is_loopback(_without_port(called)):
        raise CrossOrigin(origin=f"http://{called[:255]}", host=called[:255])


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
