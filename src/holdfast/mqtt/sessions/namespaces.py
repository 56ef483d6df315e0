"""A namespace's sessions, subscriptions and retained messages. Nothing crosses it."""

from __future__ import annotations

from typing import Final

from holdfast.mqtt.sessions.messages import Message
from holdfast.mqtt.sessions.session import Session, Subscriber
from holdfast.mqtt.sessions.shared import Share
from holdfast.mqtt.sessions.system_topics import is_system_filter
from holdfast.mqtt.topics import (
    MATCHES_CACHED_MAX,
    NAME_CACHED_MAX,
    SUBSCRIBERS_CACHED_MAX,
    NameIndex,
    SubscriptionTrie,
    split_share,
)


class Target:
    """One session that a topic goes to, all its matching subscriptions taken together: one copy, at the highest QoS
    among them, with all their identifiers [MQTT-3.3.4-2 and -3]."""

    __slots__ = ("ids", "no_local", "qos", "retain_as_published", "session", "subscribers")

    def __init__(self, subscriber: Subscriber) -> None:
        self.session = subscriber.session
        self.qos = subscriber.qos
        self.retain_as_published = subscriber.retain_as_published
        self.no_local = subscriber.no_local
        self.ids = subscriber.ids
        self.subscribers = [subscriber]

    def join(self, subscriber: Subscriber) -> None:
        self.qos = max(self.qos, subscriber.qos)
        self.retain_as_published |= subscriber.retain_as_published
        self.no_local |= subscriber.no_local
        self.ids += subscriber.ids
        self.subscribers.append(subscriber)

    def without_local(self) -> Target | None:
        """What is left for the publisher itself [MQTT-3.8.3-3]."""
        return _join([one for one in self.subscribers if not one.no_local]).get(self.session)


def _join(subscribers: list[Subscriber]) -> dict[Session, Target]:
    targets: dict[Session, Target] = {}
    for one in subscribers:
        target = targets.get(one.session)
        if target is None:
            targets[one.session] = Target(one)
        else:
            target.join(one)
    return targets


class RoutingPlan:
    """Where a topic goes."""

    __slots__ = ("matched", "shares", "targets")

    def __init__(self, matched: tuple[Subscriber | Share, ...]) -> None:
        self.matched = matched
        self.targets = list(_join([one for one in matched if isinstance(one, Subscriber)]).values())
        self.shares = [one for one in matched if isinstance(one, Share)]


_EMPTY_PLAN: Final = RoutingPlan(())


class Namespace:
    """One namespace."""

    __slots__ = (
        "_planned",
        "_plans",
        "_trie",
        "name",
        "retained",
        "retained_bytes",
        "sessions",
        "shares",
        "subscriptions",
        "system_subscriptions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.sessions: dict[tuple[str, str], Session] = {}  # by owner and client identifier
        self.retained: NameIndex[Message] = NameIndex()
        self.retained_bytes = 0
        self.subscriptions = 0  # of all sessions
        self.system_subscriptions = 0  # of these, to topics of the broker's own
        self.shares: dict[str, Share] = {}
        self._trie: SubscriptionTrie[Session | Share, Subscriber | Share] = SubscriptionTrie()
        self._plans: dict[str, RoutingPlan] = {}
        self._planned = 0  # subscribers in all plans

    def plan(self, topic: str) -> RoutingPlan:
        matched = self._trie.match(topic)
        if not matched:
            return _EMPTY_PLAN
        plan = self._plans.get(topic)
        if plan is None or plan.matched is not matched:  # the trie gives the same tuple until something changes
            plan = RoutingPlan(matched)
            if len(topic) <= NAME_CACHED_MAX:
                self._cache(topic, plan)
        return plan

    def _cache(self, topic: str, plan: RoutingPlan) -> None:
        """Within the same limits as the trie's; one that is out of date counts until all are forgotten."""
        size = len(plan.matched)
        if len(self._plans) >= MATCHES_CACHED_MAX or self._planned + size > SUBSCRIBERS_CACHED_MAX:
            self._plans.clear()
            self._planned = 0
        self._plans[topic] = plan
        self._planned += size

    def subscribe(self, subscriber: Subscriber) -> bool:
        """Returns whether there was no such subscription before. A bridge's is only noted with its session."""
        session = subscriber.session
        group, inner = split_share(subscriber.filter)
        if subscriber.terms is not None:
            pass
        elif group is None:
            self._trie.add(inner, session, subscriber)
        else:
            share = self.shares.get(subscriber.filter)
            if share is None:
                share = self.shares[subscriber.filter] = Share(subscriber.filter)
            share.add(subscriber)
            self._trie.add(inner, share, share)
        before = session.subscriptions.get(subscriber.filter)
        session.subscriptions[subscriber.filter] = subscriber
        if before is None:
            self.subscriptions += 1
            self.system_subscriptions += is_system_filter(subscriber.filter)
        return before is None

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        """Returns whether there was such a subscription."""
        subscriber = session.subscriptions.pop(topic_filter, None)
        if subscriber is None:
            return False
        self.subscriptions -= 1
        self.system_subscriptions -= is_system_filter(topic_filter)
        if subscriber.terms is not None:
            return True
        group, inner = split_share(topic_filter)
        if group is None:
            self._trie.remove(inner, session)
            return True
        share = self.shares[topic_filter]
        share.remove(session)
        if not share:
            del self.shares[topic_filter]
            self._trie.remove(inner, share)
        return True
