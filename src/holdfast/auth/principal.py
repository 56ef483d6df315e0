"""Who a caller is, and what it may do.

A scope is an action and a pattern: `produce:orders/#`. The pattern is a topic filter over names of queues and plain
topics; a queue is matched by its name (`orders/new`), not by its MQTT topic (`$queue/orders/new`).

    produce   enqueue; publish
    consume   lease, settle, browse, read as a cursor group; subscribe
    admin     create, change, delete, purge, pause, redrive; see statistics

No action implies another: who may configure a queue need not be able to read what is in it. Nobody has rights outside
their own namespace.

The scope `node` has no pattern. It is the right to what is the server's own and belongs to no namespace: all metrics,
health, quotas, `$SYS/#`, snapshots and backups. It is no right to act on any queue, but a backup has the payloads of
all of them: it is for those who may read everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from holdfast import patterns
from holdfast.core.queue import TOPICS_MAX, qualified_consumer
from holdfast.errors import Forbidden
from holdfast.patterns import Pattern

ANSWERS_CACHED_MAX: Final = 4096
"""Answers each principal remembers for each action; past it all are forgotten. A client that makes up names must not
fill the memory: 4,096 of 40 bytes are half a megabyte."""


class Action(StrEnum):
    """What a scope allows to do."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"
    NODE = "node"


_KINDS: Final = {"password": "user"}
"""What an identity calls a method that has another name there."""
_ON_NAMES: Final = frozenset(Action) - {Action.NODE}


class Scope(msgspec.Struct, frozen=True):
    """An action on everything that the pattern matches; `node` has none."""

    action: Action
    pattern: str = ""

    @staticmethod
    @lru_cache(maxsize=4096)  # credentials of one kind have the same few scopes
    def parse(text: str) -> Scope:
        """Reads `produce:orders/#` or `node`, or raises ValueError with a whole sentence."""
        if text == Action.NODE:
            return NODE
        word, colon, pattern = text.partition(":")
        if not colon or word not in _ON_NAMES:
            raise ValueError(
                f"Scope {text!r} must be produce:, consume: or admin: and a pattern, like produce:orders/#, or node."
            )
        try:
            patterns.parse(pattern)
        except ValueError as error:
            raise ValueError(f"Scope {text!r} is not good: the pattern {error}.") from None
        return Scope(Action(word), pattern)

    @staticmethod
    def covering(action: Action, name: str) -> Scope:
        """The narrowest scope with the action on a name; on all names if no pattern can say that one."""
        try:
            patterns.parse(name)
        except ValueError:
            name = "#"
        return Scope(action, name)

    def __str__(self) -> str:
        return f"{self.action}:{self.pattern}" if self.pattern else str(self.action)


NODE: Final = Scope(Action.NODE)


class Principal(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """A caller that the gate has let in. Ask it for each thing; answers are remembered."""

    name: str
    """As its credential says it; not unique over methods: compare `identity`."""

    namespace: str
    scopes: tuple[Scope, ...] = ()

    method: str
    """`anonymous`, `token`, `oidc` (a token of the identity provider), `password`, `access_key` or `certificate`."""

    unlimited: bool = False
    """Everything is allowed, names that start with `$` as well. Only where no credentials are configured."""

    expires_at: int | None = None
    """Epoch microseconds. Who keeps a connection open longer asks `Gate.valid` now and then."""

    credential: str = ""
    """The credential it was authenticated by, for the gate to check whether that is still valid."""

    token_id: str = ""
    """The `jti` of its token, if it came with one that has one: it can be revoked."""

    @cached_property
    def identity(self) -> str:
        """Who it is, within its namespace: `user:alice`, `token:alice`, `oidc:alice`, `access_key:alice`,
        `certificate:alice` or `anonymous`. The issuer of tokens may call somebody `alice` who is not the user of that
        name, so the kind of credential is part of it.
        What is not printable in a name, and a slash, is encoded as in a URL, so that an identity can be a part of keys
        and of names that are shown."""
        if self.method == "anonymous":
            return self.method
        name = "".join([char if char.isprintable() and char not in "%/" else quote(char, "") for char in self.name])
        return f"{_KINDS.get(self.method, self.method)}:{name}"

    @property
    def owner(self) -> str:
        """The identity that what it makes belongs to; empty where no credentials are configured: then to everybody."""
        return "" if self.unlimited else self.identity

    def consumer(self, name: str) -> str:
        """The name under which it holds leases, if it calls itself `name`."""
        return qualified_consumer(self.owner, name)

    def may(self, action: Action, name: str) -> bool:
        """Whether it may do this with the queue or topic of that name."""
        answers = self._answers[action]
        answer = answers.get(name)
        if answer is None:
            if len(answers) >= ANSWERS_CACHED_MAX:
                answers.clear()
            levels = name.split("/")
            answer = self.unlimited or any(patterns.matches(pattern, levels) for pattern in self._patterns[action])
            answers[name] = answer
        return answer

    def may_filter(self, action: Action, topic_filter: str) -> bool:
        """Whether it may do this with every name that the filter could match."""
        return self.unlimited or patterns.covers(self._patterns[action], topic_filter)

    def may_somewhere(self, action: Action) -> bool:
        """Whether there is any name with which it may do this."""
        return self.unlimited or bool(self._patterns[action])

    def can_see(self, name: str) -> bool:
        """Whether it may do anything at all with that name: what it does not see is left out of lists."""
        return any(self.may(action, name) for action in Action)

    @cached_property
    def may_node(self) -> bool:
        """Whether it may look at the server itself, over all namespaces."""
        return self.unlimited or NODE in self.scopes

    def require(self, action: Action, name: str) -> None:
        """Raises Forbidden unless `may`."""
        if not self.may(action, name):
            raise _forbidden(str(action), name, Scope.covering(action, name))

    def require_somewhere(self, action: Action) -> None:
        """Raises Forbidden unless `may_somewhere`."""
        if not self.may_somewhere(action):
            raise _forbidden(str(action), "#", Scope.covering(action, "#"))

    def require_put(self, name: str) -> None:
        """Raises Forbidden unless it may send messages to that queue, as a producer or as who administers it: one end
        of every move."""
        if not self.may(Action.ADMIN, name):
            self.require(Action.PRODUCE, name)

    def require_source(self, queue: str) -> None:
        """Raises Forbidden if it may not say that a message comes from that queue: a redrive may send it there."""
        if queue:
            self.require_put(queue)

    @property
    def put_filters(self) -> tuple[str, ...] | None:
        """The patterns of the queues for which `require_put` raises nothing; None: of all. For work that goes on when
        the caller has gone."""
        if self.unlimited:
            return None
        return tuple(scope.pattern for scope in self.scopes if scope.action in (Action.PRODUCE, Action.ADMIN))

    def require_filter(self, action: Action, topic_filter: str) -> None:
        """Raises Forbidden unless `may_filter`."""
        if not self.may_filter(action, topic_filter):
            raise _forbidden(str(action), topic_filter, Scope.covering(action, topic_filter))

    def require_sight(self, name: str) -> None:
        """Raises Forbidden unless `can_see`."""
        if not self.can_see(name):
            raise _forbidden("see", name, Scope.covering(Action.CONSUME, name))

    def require_node(self) -> None:
        """Raises Forbidden unless `may_node`."""
        if not self.may_node:
            raise _forbidden("administer", "the server", NODE)

    def require_config(self, fields: Mapping[str, object]) -> None:
        """Raises Forbidden if a queue so configured would reach beyond what this principal may touch: `topics` bring it
        what others publish there, `dlq.queue` is another queue that it fills, and that can then neither be deleted nor
        have a dead queue of its own. What is no configuration at all is not for this to say."""
        topics = fields.get("topics")
        for topic in topics[:TOPICS_MAX] if isinstance(topics, list | tuple) else ():  # more are refused as such
            if isinstance(topic, str) and not self.may_filter(Action.ADMIN, topic):
                self.require_filter(Action.CONSUME, topic)
        nested = fields.get("dlq")
        for queue in (fields.get("dlq.queue"), nested.get("queue") if isinstance(nested, Mapping) else None):
            if isinstance(queue, str) and queue:
                self.require(Action.ADMIN, queue)

    @cached_property
    def _patterns(self) -> dict[Action, tuple[Pattern, ...]]:
        return {action: tuple(_levels(self.scopes, action)) for action in Action}

    @cached_property
    def _answers(self) -> dict[Action, dict[str, bool]]:
        return {action: {} for action in Action}


def _forbidden(action: str, resource: str, scope: Scope) -> Forbidden:
    return Forbidden(action=action, resource=resource, scope=str(scope))


def _levels(scopes: Iterable[Scope], action: Action) -> Iterable[Pattern]:
    return (patterns.parse(scope.pattern) for scope in scopes if scope.action == action and scope.pattern)
