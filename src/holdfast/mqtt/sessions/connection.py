"""A live network connection, as the hub sees it: what its CONNECT agreed on, and what is to be sent to it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from holdfast.mqtt.codec import PACKET_BYTES_MAX, V5

if TYPE_CHECKING:
    from holdfast.mqtt.sessions.session import RetainedSend, Session


class Feed(Protocol):
    """What a bridge has to send to a connection, as its window allows."""

    def pump(self, now: int) -> None:
        """The window may have room: send what waits."""


class Connection:
    """`tag` belongs to the shell (the transport), `feed` to the bridge. Everything else belongs to the hub; the shell
    and the ports may read it."""

    __slots__ = (
        "alias_max", "aliases_in", "aliases_out", "assigned", "clear", "client_id", "closing", "dirty", "feed",
        "held", "held_acks", "held_turn", "keep_alive_us", "last_seen", "namespace", "out", "packet_bytes_max",
        "paused", "publishes", "quota", "receive_maximum", "receiving", "session", "showing", "shown_bytes",
        "shown_turn", "tag", "untaken_acks", "username", "version", "wants_problems", "written_turn",
    )  # fmt: skip

    def __init__(self, tag: object, now: int) -> None:
        self.tag = tag
        self.version = V5
        self.namespace = ""
        self.client_id = ""
        self.assigned = False  # the client brought no identifier and was given one
        self.username: str | None = None
        self.session: Session | None = None
        self.last_seen = now
        self.keep_alive_us = 0  # how long it may be silent; 0: for ever
        self.closing = False
        self.paused = False  # its transport is full
        self.publishes = False  # it has published to subscribers of plain topics
        self.feed: Feed | None = None
        self.showing: deque[RetainedSend] = deque()  # subscriptions that retained messages are still to be sent to
        self.shown_turn = 0  # the turn in which retained messages were sent last, and how many bytes in that turn
        self.shown_bytes = 0
        # towards the client
        self.receive_maximum = 0  # PUBLISHes of QoS 1 and 2 that may be unacknowledged at a time
        self.quota = 0  # PUBLISHes of QoS 1 and 2 that may still be sent
        self.packet_bytes_max = PACKET_BYTES_MAX
        self.wants_problems = True
        self.alias_max = 0
        self.aliases_out: dict[str, int] = {}
        # from the client
        self.aliases_in: dict[int, str] = {}
        self.clear: str | None = None  # a topic of a bridge's on which the client may publish: see `Hub.receive`
        self.receiving: set[int] = set()  # QoS 2 PUBLISHes of this connection that were not released
        self.held_acks = 0  # QoS 1 PUBLISHes whose PUBACK waits for a sync
        self.untaken_acks = 0  # those of them whose turn has not been taken
        # this turn's output: see `outbox`
        self.out: list[bytes] = []
        self.held: list[bytes] = []
        self.held_turn = 0
        self.written_turn = 0
        self.dirty = False
