"""No listening beyond loopback without credentials.

A front calls `check` with its address before it binds. A broker that was tried out on a laptop and then started on a
server must not be open to the world because nobody thought of it.
"""

from __future__ import annotations

import ipaddress

import structlog

from holdfast.config import AuthSettings
from holdfast.errors import ExposureRefused

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def has_credentials(auth: AuthSettings) -> bool:
    """Whether anything is configured by which a caller can show who it is."""
    return auth.users_file is not None or auth.key_file is not None or bool(auth.token_secret)


def check(auth: AuthSettings, host: str, *, front: str, tls: bool) -> None:
    """Raises ExposureRefused if `front` ("HTTP", "MQTT") must not listen on `host`; warns if it may but had better not.

    `host` is as it would be given to bind: an address, a name, or empty for all interfaces.
    """
    if is_loopback(host):
        return
    address = host or "all interfaces"
    if has_credentials(auth):
        if not tls:
            log.warning(
                "without TLS: passwords, tokens and messages can be read on the way", front=front, address=address
            )
        return
    if not auth.insecure:
        raise ExposureRefused(front=front, address=address)
    log.warning("insecure: everybody who reaches this address may do everything", front=front, address=address)


def is_loopback(host: str) -> bool:
    """A name other than `localhost` is not looked up: what it means can change after the check."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
