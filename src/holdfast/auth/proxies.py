"""Whom a connection or request is from, behind proxies that are named in the configuration.

A proxy says it in the header `X-Forwarded-For` of each request, or at the start of a connection in the PROXY protocol
(https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt), version 1 or 2. Whoever else says it is not believed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
"""How version 2 begins. Version 1 begins with `PROXY ` and is longer than this, too."""

LINE_BYTES_MAX: Final = 107
"""The longest line of version 1, by its specification."""

BLOCK_BYTES_MAX: Final = 4_096
"""Of version 2, after its first 16 bytes: addresses take 36 or fewer, the rest is extensions, which are ignored."""

_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}  # TCP over IPv4 and IPv6; other families name no address that counts here

Read = Callable[[int], Awaitable[bytes]]
"""Reads exactly so many bytes."""


class ProxyHeaderInvalid(Exception):
    """A connection from a trusted proxy does not begin as the PROXY protocol says."""


class TrustedProxies:
    """The addresses in `auth.trusted_proxies`."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self._networks = [ip_network(network) for network in networks]

    def __contains__(self, address: str) -> bool:
        found = _parsed(address)
        return found is not None and any(found in network for network in self._networks)

    def client(self, peer: str, forwarded: bytes | None) -> str:
        """Whom a request is from: `forwarded` is its `X-Forwarded-For`, to which each hop has appended whom it got the
        request from. Read from its end, the first address that is no trusted proxy's; what stands before may be
        forged."""
        if forwarded is None or peer not in self:
            return peer
        for hop in reversed(forwarded.decode("latin-1").split(",")):
            address = _parsed(_without_port(hop.strip()))
            if address is None:
                break
            peer = str(address)
            if peer not in self:
                break
        return peer


async def read_header(read: Read) -> str:
    """The client's address, by the header at the start of a connection; empty if the connection is the proxy's own."""
    start = await read(len(SIGNATURE))
    if start == SIGNATURE:
        kind, family, *length = await read(4)
        size = int.from_bytes(bytes(length), "big")
        if kind not in (0x20, 0x21) or size > BLOCK_BYTES_MAX:
            raise ProxyHeaderInvalid(f"version and command {kind:#x} with {size} bytes")
        return _from_block(family if kind == 0x21 else 0, await read(size))
    line = start
    while line.startswith(b"PROXY ") and not line.endswith(b"\r\n") and len(line) < LINE_BYTES_MAX:
        line += await read(1)  # no more than the line: what follows is the client's
    return _from_line(line)


def _from_block(family: int, block: bytes) -> str:
    size = _ADDRESS_BYTES.get(family)
    if size is None:
        return ""
    if len(block) < 2 * size + 4:
        raise ProxyHeaderInvalid(f"{len(block)} bytes are too few for the addresses")
    return str(ip_address(block[:size]))


def _from_line(line: bytes) -> str:
    match line.decode("latin-1").removesuffix("\r\n").split(" "):
        case ["PROXY", "UNKNOWN", *_] if line.endswith(b"\r\n"):
            return ""
        case ["PROXY", "TCP4" | "TCP6", source, _, _, _] if line.endswith(b"\r\n") and (found := _parsed(source)):
            return str(found)
    raise ProxyHeaderInvalid("there is no header of the PROXY protocol that names a client")


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _without_port(hop: str) -> str:
    """`192.0.2.1:4711` and `[2001:db8::1]:4711` are written too."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
