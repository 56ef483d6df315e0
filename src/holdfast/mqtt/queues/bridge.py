"""The bridge between the plain MQTT broker and the queues.

The bridge collects what arrives from all connections between two turns: one enqueue for each queue, one settle for each
group. `apply_batches` submits them at the beginning of the next turn and rejects what the node refuses. The answers are
sent when the turn's batch is durable, because they share one ordered stream with everything else that the connection is
sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import structlog

from holdfast.broker.commit.group_commit import COMMIT_ACKS_MIN, COMMIT_MESSAGES_MIN
from holdfast.broker.node import Node
from holdfast.core.commands import ERROR_LENGTH_MAX, Draft, Settlement, Verb, payload_bytes
from holdfast.engine.catalog import QueueName
from holdfast.error_text import shown
from holdfast.errors import GroupNotFound, HoldfastError, InvalidArgument, LeaseLost
from holdfast.mqtt.codec import NO_PROPERTIES, V5, Properties, PubAck, Publish, Subscription, Will, reasons
from holdfast.mqtt.queues import names
from holdfast.mqtt.queues.captures import Captures
from holdfast.mqtt.queues.consumers import Consumer, Feed, SentDelivery
from holdfast.mqtt.queues.drafts import to_draft
from holdfast.mqtt.queues.names import Operation, Route
from holdfast.mqtt.queues.settling import SettleRequest, read_settle_requests
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.hub import Hub
from holdfast.mqtt.sessions.ports import Granted, PublishBatch, Refusal
from holdfast.mqtt.sessions.session import Session, Subscriber, Terms
from holdfast.trace_context import find, log_fields

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

PROTOCOL: Final = "mqtt"
ROUTES_CACHED_MAX: Final = 10_000
"""Parsed topics that are cached, over all clients: at 300 bytes each 3 MB. A full cache is cleared."""

_ANONYMOUS_GROUP: Final = "default"


Audited = Callable[[Connection, str, str, Mapping[str, object]], AbstractContextManager[object]]


class Rates(Protocol):
    """How fast clients may publish. `count` counts PUBLISHes of a read against the quotas of a client and of its
    namespace, `admit` messages against the namespace's rate; both raise if that is too fast. Neither needs to be asked
    unless they are `limited`."""

    @property
    def limited(self) -> bool: ...

    def count(self, connection: Connection, publishes: int, size_bytes: int) -> None: ...
    def admit(self, namespace: str, messages: int, size_bytes: int) -> None: ...


class PublishRef(msgspec.Struct, frozen=True):
    """The PUBLISH that is answered if a draft or settlement is refused: its batch and its index in it. A will has no
    connection."""

    connection: Connection | None
    publishes: PublishBatch
    at: int


class EnqueueBatch:
    """Drafts for one queue. `starts` has the index of the first draft of each run, `owners` its PUBLISH."""

    __slots__ = ("drafts", "owners", "starts")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.starts: list[int] = []
        self.owners: list[PublishRef] = []

    def add(self, connection: Connection | None, publishes: PublishBatch, index: int, drafts: list[Draft]) -> None:
        """Drafts of the PUBLISHes of a run from `index` on."""
        self.starts.append(len(self.drafts))
        self.owners.append(PublishRef(connection, publishes, index))
        self.drafts += drafts

    def owner(self, index: int) -> PublishRef:
        """The PUBLISH that a draft came from."""
        at = bisect_right(self.starts, index) - 1
        owner = self.owners[at]
        return PublishRef(owner.connection, owner.publishes, owner.at + index - self.starts[at])


class SettleBatch:
    """Settlements for one group. `owners` has, by index, the PUBLISH to reject if one is refused; an ack by PUBACK has
    none."""

    __slots__ = ("owners", "settlements")

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []
        self.owners: dict[int, PublishRef] = {}


class Watch(NamedTuple):
    """A subscription to the stats of a queue; `ids` is the subscription's identifier."""

    queue: QueueName
    ids: tuple[int, ...]


class QueueBridge:
    """`hub` is set by the front once it has one. `audited` is the context of an administrative act: it takes the
    connection, the act's name, the queue and the configuration, and raises if that is not allowed."""

    prefixes: tuple[str, ...] = (names.QUEUE, names.ADMIN)

    def __init__(
        self,
        node: Node,
        prefetch: int,
        rates: Rates,
        audited: Audited,
    ) -> None:
        self._audited = audited
        self._node = node
        self._prefetch = prefetch
        self._rates = rates
        self.hub: Hub | None = None
        self.stopping = False
        self.urgent = False  # a consumer waits for the turn in which what was collected is submitted
        self.watchers: dict[tuple[Connection, str], Watch] = {}
        self._dispatcher = node.cell.dispatcher
        self._captures = Captures(node.queues)
        self._routes: dict[str, Route] = {}
        self._batches: defaultdict[QueueName, EnqueueBatch] = defaultdict(EnqueueBatch)
        self._refused: dict[PublishBatch, Connection] = {}
        self._settling: defaultdict[tuple[QueueName, str], SettleBatch] = defaultdict(SettleBatch)

    @property
    def _live_hub(self) -> Hub:
        assert self.hub is not None
        return self.hub

    def now(self) -> int:
        return self._node.clock()

    # --- from clients -----------------------------------------------------------------------------------------------

    def publish(self, connection: Connection, batches: Sequence[PublishBatch], now: int) -> None:
        """See `ports.Bridge`."""
        for publishes in batches:
            packets = publishes.packets
            try:
                if self._rates.limited:
                    self._rates.count(connection, len(packets), sum([len(packet.payload) for packet in packets]))
                route = self._route(packets[0].topic)
            except HoldfastError as error:
                for index in range(len(packets)):
                    self._refuse(PublishRef(connection, publishes, index), error)
                continue
            if route.operation is Operation.ENQUEUE:
                queue = (connection.namespace, route.queue)
                batch = self._batches[queue]
                drafts = [Draft(packet.payload) for packet in packets if packet.properties is NO_PROPERTIES]
                if len(drafts) == len(packets):
                    batch.add(connection, publishes, 0, drafts)
                else:
                    self._draft_each(connection, publishes, batch, now)
                if len(batch.drafts) >= COMMIT_MESSAGES_MIN or self._dispatcher.has_consumers(queue):
                    self.urgent = True
                continue
            for index in range(len(packets)):
                try:
                    self._other(PublishRef(connection, publishes, index), route)
                except HoldfastError as error:
                    self._refuse(PublishRef(connection, publishes, index), error)

    def _draft_each(self, connection: Connection, publishes: PublishBatch, batch: EnqueueBatch, now: int) -> None:
        """Drafts of messages with properties, which may be invalid."""
        for index, packet in enumerate(publishes.packets):
            try:
                batch.add(connection, publishes, index, [to_draft(packet, now)])
            except HoldfastError as error:
                self._refuse(PublishRef(connection, publishes, index), error)

    def _route(self, topic: str) -> Route:
        route = self._routes.get(topic)
        if route is None:
            route = names.of_publish(topic)
            if len(self._routes) >= ROUTES_CACHED_MAX:
                self._routes.clear()
            self._routes[topic] = route
        return route

    def _other(self, owner: PublishRef, route: Route) -> None:
        """Anything but an enqueue."""
        connection = owner.connection
        assert connection is not None
        packet = owner.publishes.packets[owner.at]
        if route.operation is Operation.SETTLE:
            for request in read_settle_requests(packet):
                try:
                    self._settle_as(connection, owner, route, request)
                except HoldfastError as error:  # the others of a list are settled all the same
                    self._refuse(owner, error)
            return
        self.apply_batches()  # what came before must have happened before
        fields = _fields(packet)
        if route.operation is Operation.CREATE:
            name = fields.pop("name", None)
            if not isinstance(name, str):
                raise InvalidArgument(field="name", problem="is missing: name the queue to create")
            with self._audited(connection, "queue.create", name, fields):
                self._node.queues.submit_create((connection.namespace, name), fields)
        else:
            with self._audited(connection, "queue.update", route.queue, fields):
                self._node.queues.update((connection.namespace, route.queue), fields)

    def _settle_as(self, connection: Connection, owner: PublishRef, route: Route, request: SettleRequest) -> None:
        queue = (connection.namespace, route.queue)
        feed = _feed(connection)
        consumers = [] if feed is None else [one for one in feed.consumers.values() if one.queue == queue]
        if request.group:
            consumers = [one for one in consumers if one.group == request.group]
        for consumer in consumers:
            sent = consumer.find(request.message_id, request.token, oldest=connection.version != V5)
            if sent is not None:
                if route.verb is not Verb.EXTEND:
                    consumer.mark_settled(sent)
                settlement = _settlement(sent, route.verb, request.delay, request.error, request.timeout)
                group = consumer.group
                break
        else:
            group = request.group or (consumers[0].group if consumers else _default_group(connection))
            settlement = self._settle_by_token(queue, group, request, route.verb, connection)
        self.urgent = True
        settling = self._settling[queue, group]
        settling.owners[len(settling.settlements)] = owner
        settling.settlements.append(settlement)

    def _settle_by_token(
        self, queue: QueueName, group: str, request: SettleRequest, verb: Verb, connection: Connection
    ) -> Settlement:
        """A delivery that was not sent to this connection: leased over HTTP, say, or on the connection before."""
        error = request.error[:ERROR_LENGTH_MAX]
        if not request.message_id:
            raise InvalidArgument(field="message-id", problem="is missing: give it as it came with the delivery")
        if names.is_number(request.message_id):
            consumer = "" if request.token or connection.session is None else connection.session.consumer
            return Settlement(
                int(request.message_id), request.token, verb, request.delay, error, request.timeout, consumer
            )
        found = self._node.subscriptions.delivery_of_token(queue, group, request.token) if request.token else None
        if found is None:
            raise LeaseLost(message_id=request.message_id)
        return Settlement(found[0], request.token, verb, request.delay, error, request.timeout, partition=found[1])

    def acknowledged(self, acks: Sequence[tuple[PubAck, object]]) -> None:
        """See `ports.Bridge`."""
        if self.hub is None:  # the store failed while the read was processed
            return
        consumer: Consumer | None = None
        settlements: list[Settlement] = []
        for ack, sent in acks:
            if type(sent) is not SentDelivery or not sent.consumer.native:
                continue
            if sent.consumer is not consumer:
                consumer = sent.consumer
                settlements = self._settling[consumer.queue, consumer.group].settlements
                if not self.urgent:
                    self.urgent = self._node.messages.waits_for_settlements(consumer.queue, consumer.group)
            if ack.reason_code < reasons.UNSPECIFIED_ERROR:
                settlements.append(Settlement(sent.message_id, sent.token, partition=sent.partition))
            else:
                settlements.append(_refusal(ack, sent))
                self.urgent = True
        if len(settlements) >= COMMIT_ACKS_MIN:
            self.urgent = True

    def captures(self, namespace: str, topic: str) -> bool:
        return bool(self._captures.of(namespace, topic))

    def capture(self, connection: Connection | None, namespace: str, publishes: PublishBatch, now: int) -> None:
        """See `ports.Bridge`."""
        [packet] = publishes.packets
        draft = to_draft(packet, now, captured=True)
        for queue in self._captures.of(namespace, packet.topic):
            self._batches[queue].add(connection, publishes, 0, [draft])

    def will(self, namespace: str, client_id: str, will: Will, now: int) -> None:
        """A will for a queue is enqueued like any other message."""
        packet = Publish(
            will.topic, will.payload, properties=msgspec.structs.replace(will.properties, will_delay_s=None)
        )
        try:
            route = self._route(will.topic)
            if route.operation is not Operation.ENQUEUE:
                raise InvalidArgument(field="the will topic", problem="is not a queue")
            self._batches[namespace, route.queue].add(None, PublishBatch([packet]), 0, [to_draft(packet, now)])
        except HoldfastError as error:
            log.warning(
                "a will was not enqueued", client=client_id, topic=will.topic, code=error.code, error=str(error)
            )

    # --- the turn ---------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether there is something to submit in the next turn."""
        return bool(self._batches or self._settling or self._refused)

    def apply_batches(self) -> None:
        """Submit what was collected: at the beginning of a turn, before its answers are taken."""
        self.urgent = False
        batches, settling = self._batches, self._settling
        if batches:
            self._batches = defaultdict(EnqueueBatch)
            for queue, batch in batches.items():
                self._enqueue(queue, batch)
        if self._refused:
            self._send_refusals()  # which closes a connection of 3.1.1, before what it settled behind a lost message
        if settling:
            self._settling = defaultdict(SettleBatch)
            for (queue, group), one in settling.items():
                self._settle_all(queue, group, one)
            if self._refused:
                self._send_refusals()

    def _send_refusals(self) -> None:
        refused, self._refused = self._refused, {}
        if self.hub is not None:
            now = self.now()
            for publishes, connection in refused.items():
                self.hub.reject_publishes(connection, publishes, now)

    def reset(self) -> None:
        """The store failed: drop what was collected, which was not confirmed, and the consumers."""
        hub, self.hub = self.hub, None
        for connection in hub.connections if hub is not None else ():
            feed = _feed(connection)
            if feed is not None:
                feed.waiting.clear()
                feed.leave(None)
        self.watchers.clear()
        self._batches.clear()
        self._settling.clear()
        self._refused.clear()

    def _enqueue(self, queue: QueueName, batch: EnqueueBatch) -> None:
        drafts = batch.drafts
        try:
            if self._rates.limited:
                self._rates.admit(queue[0], len(drafts), payload_bytes(drafts))
            receipt = self._node.messages.enqueue(queue, drafts, PROTOCOL, combined=True).result
        except HoldfastError as error:
            for index in range(len(drafts)):
                self._refuse(batch.owner(index), error)
            return
        for index, refusal in receipt.errors.items():
            self._refuse(batch.owner(index), refusal)

    def _settle_all(self, queue: QueueName, group: str, settling: SettleBatch) -> None:
        results: Sequence[int | HoldfastError | None]
        try:
            results = self._node.messages.settle(queue, group, settling.settlements, combined=True).result
        except HoldfastError as error:
            results = [error] * len(settling.settlements)
        for index, owner in settling.owners.items():
            result = results[index]
            if isinstance(result, HoldfastError):
                self._refuse(owner, result)

    def _refuse(self, owner: PublishRef, error: HoldfastError) -> None:
        """Note a refusal; `apply_batches` sends it, with all others of its batch."""
        connection, publishes, index = owner.connection, owner.publishes, owner.at
        packet = publishes.packets[index]
        trace = log_fields(find(packet.properties.user_properties))
        if connection is None:
            log.warning("a message was not enqueued", topic=packet.topic, code=error.code, error=str(error), **trace)
            return
        publishes.refusals[index] = Refusal(_puback_code(error), str(error))
        self._refused[publishes] = connection
        if connection.version != V5 or not packet.qos:  # the protocol has no way to say so
            log.info("message refused", client=connection.client_id, topic=packet.topic, code=error.code, **trace)

    # --- consuming --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        connection: Connection,
        session: Session,
        subscription: Subscription,
        properties: Properties,
        now: int,  # noqa: ARG002 - the port's signature
    ) -> Granted:
        """See `ports.Bridge`."""
        try:
            route = names.of_subscribe(subscription.filter)
            self.apply_batches()  # what was published before must have happened before
            if route.operation is Operation.WATCH:
                self._node.queues.get((connection.namespace, route.queue))
                watch = Watch((connection.namespace, route.queue), properties.subscription_ids)
                self.watchers[connection, subscription.filter] = watch
                return Granted(0, Terms())
            terms = self._terms(connection, subscription, properties, route)
            qos = min(subscription.qos, 1)
            subscriber = Subscriber(session, subscription.filter, qos, ids=properties.subscription_ids, terms=terms)
            self._join(connection, session, subscriber, terms, route)
        except HoldfastError as error:
            return Granted(_suback_code(error), None, str(error))
        return Granted(qos, terms)

    def _terms(self, connection: Connection, subscription: Subscription, properties: Properties, route: Route) -> Terms:
        options = dict(properties.user_properties)
        group = route.group or options.get("consumer-group") or _default_group(connection)
        prefetch = options.get("prefetch", str(self._prefetch))
        most = self._node.config.members.max_prefetch
        if not names.is_number(prefetch) or not 1 <= int(prefetch) <= most:
            raise InvalidArgument(field="prefetch", problem=f"is 1 to {most}, not {shown(prefetch)!r}")
        mode = options.get("ack-mode", "explicit" if connection.version == V5 else "puback")
        if mode not in ("explicit", "puback"):
            raise InvalidArgument(field="ack-mode", problem=f"is explicit or puback, not {shown(mode)!r}")
        if mode == "puback" and connection.version == V5 and not subscription.qos:
            raise InvalidArgument(field="ack-mode", problem="puback needs a subscription of QoS 1: QoS 0 has no PUBACK")
        return Terms(group, int(prefetch), mode == "puback")

    def _join(
        self, connection: Connection, session: Session, subscriber: Subscriber, terms: Terms, route: Route
    ) -> None:
        feed = _feed(connection)
        if feed is None:
            feed = connection.feed = Feed(self, self._live_hub, connection, session)
        queue = (connection.namespace, route.queue)
        for other in feed.consumers.values():
            if other.filter != subscriber.filter and (other.queue, other.group) == (queue, terms.group):
                raise InvalidArgument(
                    field=f"filter {subscriber.filter!r}",
                    problem=f"consumes in group {terms.group!r}, as {other.filter!r} does already: use one of them",
                )
        before = feed.consumers.get(subscriber.filter)
        consumer = Consumer(feed, subscriber, queue, terms)
        joining = self._node.subscriptions.join(
            queue,
            terms.group,
            session.consumer,
            consumer.deliver,
            credit=min(terms.prefetch, connection.receive_maximum),
            protocol=PROTOCOL,
            removed=partial(self._removed, consumer, connection),
            end=partial(self._end, connection),
        )
        consumer.membership = joining.result
        feed.consumers[subscriber.filter] = consumer
        if before is not None:
            if before.group == terms.group:
                consumer.take_over(before)
            else:
                feed.remove(before)

    def _removed(self, consumer: Consumer, connection: Connection) -> None:
        """The consumer's group was deleted. The client is disconnected, so that it subscribes again."""
        error = GroupNotFound(group=consumer.group, queue=consumer.queue[1])
        self._live_hub.revoke_subscription(connection, consumer.filter, str(error), self.now())
        self._node.cell.commit.schedule()

    def _end(self, connection: Connection, reason: str) -> None:
        """An administrator ends the client's connection; its session stays."""
        self._live_hub.close(connection, reasons.ADMINISTRATIVE_ACTION, reason, self.now())
        self._node.cell.commit.schedule()

    def unsubscribed(self, connection: Connection, subscriber: Subscriber, now: int) -> None:  # noqa: ARG002 - the port's signature
        """See `ports.Bridge`."""
        self.watchers.pop((connection, subscriber.filter), None)
        self.apply_batches()  # what was settled before must have happened before
        feed = _feed(connection)
        if feed is not None and subscriber.filter in feed.consumers:
            feed.remove(feed.consumers[subscriber.filter])

    def resumed(self, connection: Connection, session: Session, now: int) -> None:
        """See `ports.Bridge`."""
        for subscriber in session.subscriptions.values():
            if subscriber.terms is None:
                continue
            try:
                route = names.of_subscribe(subscriber.filter)
                if route.operation is Operation.WATCH:
                    watch = Watch((connection.namespace, route.queue), subscriber.ids)
                    self.watchers[connection, subscriber.filter] = watch
                else:
                    self._join(connection, session, subscriber, subscriber.terms, route)
            except HoldfastError as error:
                log.warning(
                    "a subscription could not be resumed",
                    client=connection.client_id,
                    filter=subscriber.filter,
                    code=error.code,
                    error=str(error),
                )
        self._send_again(connection, session, now)

    def _send_again(self, connection: Connection, session: Session, now: int) -> None:
        """Send again what the client still holds leases on: first what it has not acknowledged, in the same order and
        under the same packet identifiers, then the rest. After a restart everything is "the rest", because packet
        identifiers are not stored."""
        feed = _feed(connection)
        sent_deliveries, session.leases = session.leases, {}
        if feed is None:
            return
        packet_ids = {sent.token: number for number, sent in sent_deliveries.items() if isinstance(sent, SentDelivery)}
        places = {token: place for place, token in enumerate(packet_ids)}
        again = [
            (places.get(leased.token, len(places)), consumer, leased)
            for consumer in feed.consumers.values()
            for leased in self._node.subscriptions.leases_of(consumer.queue, consumer.group, session.consumer, PROTOCOL)
        ]
        again.sort(key=itemgetter(0))
        for _, consumer, leased in again:
            consumer.membership.adopt(leased)
            packet_id = (packet_ids.get(leased.token) or session.next_packet_id()) if consumer.qos else 0
            feed.send_again(consumer, packet_id, leased, now)

    def closed(self, connection: Connection, session: Session, graceful: bool, now: int) -> None:  # noqa: ARG002 - the port's signature
        """See `ports.Bridge`."""
        for key in [key for key in self.watchers if key[0] is connection]:
            del self.watchers[key]
        feed = _feed(connection)
        if feed is not None:
            connection.feed = None
            feed.release_waiting()
        # What was settled before must have happened before, and what is refused must be forgotten before the client
        # comes back and sends it again.
        self.apply_batches()
        if feed is None:
            return
        if graceful or self.stopping:
            feed.leave(Verb.RELEASE)
            session.leases.clear()
        elif session.persistent:
            feed.leave(None)
        else:
            feed.leave(Verb.DISCONNECT)

    def ended(self, session: Session, now: int) -> None:  # noqa: ARG002 - the port's signature
        """See `ports.Bridge`. Fails the leases that the client still held, which it can no longer settle."""
        for subscriber in session.subscriptions.values():
            terms = subscriber.terms
            if terms is None or not terms.group:
                continue
            queue = (session.namespace, names.of_subscribe(subscriber.filter).queue)
            try:
                for leased in self._node.subscriptions.leases_of(queue, terms.group, session.consumer, PROTOCOL):
                    vanish = Settlement(leased.message.id, leased.token, Verb.DISCONNECT, partition=leased.partition)
                    self.settle(queue, terms.group, vanish)
            except HoldfastError as error:  # they end at their deadlines
                log.warning("leases of a session that ended stay", client=session.client_id, code=error.code)

    # --- for the feeds ----------------------------------------------------------------------------------------------

    def settle(self, queue: QueueName, group: str, settlement: Settlement) -> None:
        self.urgent = True
        self._settling[queue, group].settlements.append(settlement)


def _refusal(ack: PubAck, sent: SentDelivery) -> Settlement:
    """The settlement for a PUBACK with an error code."""
    code = ack.reason_code
    verb = Verb.REJECT if code == reasons.PAYLOAD_FORMAT_INVALID else Verb.NACK
    return _settlement(sent, verb, error=ack.properties.reason_string or f"PUBACK with reason code 0x{code:02X}")


def _feed(connection: Connection) -> Feed | None:
    feed = connection.feed
    assert feed is None or isinstance(feed, Feed)
    return feed


def _default_group(connection: Connection) -> str:
    """The client identifier up to its first `-`, so that `billing-1` and `billing-2` share; clients that brought none
    share the group `default`."""
    if connection.assigned:
        return _ANONYMOUS_GROUP
    return connection.client_id.partition("-")[0] or _ANONYMOUS_GROUP


def _settlement(sent: SentDelivery, verb: Verb, delay: int = -1, error: str = "", timeout: int = -1) -> Settlement:
    error = error[:ERROR_LENGTH_MAX]
    return Settlement(sent.message_id, sent.token, verb, delay, error, timeout, partition=sent.partition)


def _fields(packet: Publish) -> dict[str, Any]:
    try:
        return msgspec.json.decode(packet.payload, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgument(field="the payload", problem=f"must be a JSON object: {shown(error)}") from None


_PUBACK_CODES: Final = {
    reasons.TOPIC_FILTER_INVALID: reasons.TOPIC_NAME_INVALID,
    reasons.PACKET_TOO_LARGE: reasons.QUOTA_EXCEEDED,
    reasons.MESSAGE_RATE_TOO_HIGH: reasons.QUOTA_EXCEEDED,
    reasons.SERVER_BUSY: reasons.QUOTA_EXCEEDED,
}


def _puback_code(error: HoldfastError) -> int:
    """PUBACK and PUBREC may carry only nine codes [MQTT-3.4.2-1]; the reason string has the details."""
    code = error.mqtt
    return code if code in reasons.PUBACK else _PUBACK_CODES.get(code, reasons.UNSPECIFIED_ERROR)


def _suback_code(error: HoldfastError) -> int:
    """The same for SUBACK [MQTT-3.9.3-2]."""
    code = reasons.TOPIC_FILTER_INVALID if error.mqtt == reasons.TOPIC_NAME_INVALID else error.mqtt
    return code if code in reasons.SUBACK else reasons.UNSPECIFIED_ERROR
