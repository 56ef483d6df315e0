"""Every limit of the plain MQTT broker, with its reason. CONNACK carries most of them to clients of version 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.units import KIB, MIB, SECOND

NEVER: Final = 0xFFFF_FFFF  # as a session expiry: the session does not expire


Quota = Callable[[str, str, int], str]
"""Asked with a namespace, the name of a quota and how much it has: what is wrong if it may not have one more, or
nothing."""


def no_quota(namespace: str, name: str, used: int) -> str:  # noqa: ARG001 - see Quota
    return ""


class HubLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults fit a node with a few gigabytes of memory.

    What an offline queue cannot take is dropped, newest first: an unbroken sequence of messages is worth more than a
    message behind a gap. Expired ones make room before anything is dropped. QoS 0 is never queued: it goes to clients
    that are connected and keep up. A publisher gets `quota exceeded` when no subscriber could take its message: sending
    it again is then safe.
    """

    connections_max: int = 10_000
    """Each costs a file descriptor and some 10 KiB; beyond it CONNECT is answered with `server busy`."""

    sessions_max: int = 100_000
    """Sessions, those of connected clients and those that are kept. Each costs a few kilobytes, and its queue; beyond
    it a client without a session is refused with `quota exceeded`."""

    connect_timeout_us: int = 10 * SECOND
    """From the opened connection to its CONNECT: a silent peer holds a connection no longer."""

    keep_alive_max_s: int = 1200
    """CONNACK sets this keep alive for a v5 client that asks for more, or for none: a connection whose peer vanished
    must not hold memory for ever. 0 leaves it to the client. A 3.1.1 CONNACK cannot set it."""

    client_id_bytes_max: int = 1024
    """Client identifiers are part of every key of their session; the standard asks for no more than 23."""

    packet_bytes_max: int = MIB + 128 * KIB
    """A message of 1 MiB, a topic of 64 KiB and as much again for properties. The decoder enforces it."""

    receive_maximum: int = 1000
    """How many QoS 1 and 2 messages a v5 client may send before they are answered: at 256 B a quarter of a megabyte,
    and enough to fill a sync of some milliseconds."""

    inflight_max: int = 1000
    """How many are sent to a client before it answers, if its own Receive Maximum is not lower."""

    topic_alias_max: int = 32
    """Aliases a client may set: each holds a topic of up to 64 KiB for as long as the connection lives."""

    topic_alias_out_max: int = 32
    """Aliases we set towards a client that takes as many, first come first served."""

    subscriptions_max: int = 1000
    """Per client; one filter costs about a kilobyte in the trie."""

    queued_messages_max: int = 10_000
    """Per session, QoS 1 and 2 that wait while the client is away or its window is full."""

    queued_bytes_max: int = 16 * MIB
    """The same, by size. Payloads queued to several sessions count for each, but are kept once. As much again may be in
    flight: a client that reads and never acknowledges gets no more then."""

    buffer_bytes: int = 256 * KIB
    """How much is encoded for one connection before it is sent: what waits behind it stays shared with other sessions,
    and the transport can say that it is full."""

    retained_messages_max: int = 100_000
    """Per namespace. They are kept in memory."""

    retained_bytes_max: int = 256 * MIB
    """The same, by size: 100,000 messages of 1 MiB would be 100 GiB."""

    session_expiry_max_s: int = NEVER
    """A longer session expiry is cut to this, and CONNACK says so. 3.1.1 sessions without clean session get it too."""

    quota: Quota = no_quota
    """What one namespace may have of `sessions`, `subscriptions`, `retained_messages` and `retained_bytes`."""

    qos_max: int = 2
    retain_available: bool = True
    shared_available: bool = True

    response_information: str = "response/"
    """Put before the client identifier and given to a v5 client that asks for response information; empty: none."""
