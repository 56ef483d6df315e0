"""Which addresses webhooks may call.

Whoever configures a queue chooses the address of its webhook, and the server calls it from inside its network: so the
operator says whom it may call (`webhooks.allow`). A host name is resolved once for a connection, and the address that
was checked is the address that is connected to; else a name could mean another one the second time.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]
"""The addresses of a host, the best first. It blocks, and raises OSError."""

PUBLIC: Final = "public"
PRIVATE: Final = "private"

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_SHARED: Final = ipaddress.IPv4Network("100.64.0.0/10")


class ReceiverNotAllowed(Exception):
    """The receiver of a webhook may not be called."""


def resolve(host: str, port: int) -> list[str]:
    """Ask the system."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class ReceiverPolicy:
    """Decides by `webhooks.allow`."""

    def __init__(self, allow: Sequence[str]) -> None:
        self._classes = {entry for entry in allow if entry in (PUBLIC, PRIVATE)}
        self._networks = [ipaddress.ip_network(entry) for entry in allow if "/" in entry]
        self._hosts = {entry for entry in allow if "/" not in entry and entry not in self._classes}

    def allowed(self, host: str, addresses: Iterable[str]) -> list[str]:
        """Those of a host's addresses that may be called. Raises ReceiverNotAllowed if there is none."""
        named = self._names(host.lower().rstrip("."))
        found = [address for address in addresses if named or self._allows(_meant(ipaddress.ip_address(address)))]
        if not found:
            raise ReceiverNotAllowed(f"{host} may not be called (webhooks.allow)")
        return found

    def _names(self, host: str) -> bool:
        return host in self._hosts or any(f"*.{parent}" in self._hosts for parent in _parents(host))

    def _allows(self, address: IpAddress) -> bool:
        if any(address in network for network in self._networks if network.version == address.version):
            return True
        if address.is_loopback or address.is_link_local or address.is_multicast or address.is_reserved:
            return False
        if address.is_global:
            return PUBLIC in self._classes
        private = address.is_private or (isinstance(address, ipaddress.IPv4Address) and address in _SHARED)
        return private and not address.is_unspecified and PRIVATE in self._classes


def _parents(host: str) -> Iterable[str]:
    while "." in host:
        host = host.partition(".")[2]
        yield host


def _meant(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 address stands for, if it stands for one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
