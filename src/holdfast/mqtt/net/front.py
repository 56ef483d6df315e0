"""The MQTT front: listeners, the hub, and the turn that they share with the node.

A read changes the hub immediately. In the cell's turn the front submits what its bridge has collected, adds its records
to the turn's batch, and sends what need not wait; it sends the rest when the batch is durable. If the store fails, the
hub is ahead of it: the front aborts every connection, and loads a new hub when the store works again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from holdfast import threads
from holdfast.auth import exposure, tls
from holdfast.auth.gate import Gate
from holdfast.auth.listening import Listener, listen
from holdfast.auth.principal import Principal
from holdfast.broker.front_metrics import MetricSample
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.kinds import split_address
from holdfast.core.effects import Op
from holdfast.errors import AddressUnavailable, HoldfastError, InvalidConfig, QueueNotFound, Unauthenticated
from holdfast.mqtt.codec import Connect, Decoder, Packet, Properties, ProtocolError, Publish, encode, reasons
from holdfast.mqtt.net.administration import MqttAdministration
from holdfast.mqtt.net.audit_barrier import AuditBarrier, HeldTurn
from holdfast.mqtt.net.backpressure import Backpressure
from holdfast.mqtt.net.link import Link
from holdfast.mqtt.net.meter import Traffic
from holdfast.mqtt.net.publish_rates import PublishRates
from holdfast.mqtt.net.rate_limited_log import RateLimitedLog
from holdfast.mqtt.net.rights import Rights, audited
from holdfast.mqtt.net.stored_sessions import StoredSessions
from holdfast.mqtt.net.system_readings import SystemReadings
from holdfast.mqtt.net.websocket import WebSocketEndpoint
from holdfast.mqtt.queues.bridge import QueueBridge
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.hub import Hub
from holdfast.mqtt.sessions.outbox import OutboxBatch, Output
from holdfast.mqtt.sessions.settings import HubLimits
from holdfast.mqtt.sessions.system_topics import SystemTopics
from holdfast.patient_timer import PatientTimer
from holdfast.quotas import Quota
from holdfast.units import SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

CHECK_SECONDS: Final = 1.0
"""How often the credentials of open connections are checked. 10,000 connections take some milliseconds."""

REPORT_SECONDS: Final = 60.0
"""How often the log says how many messages did not reach a session."""

_GONE: Final = "your credentials have expired, were changed or removed"

_ACKS_HELD_MAX: Final = 2000
"""Unanswered messages after which nothing more is read from a client: 3.1.1 knows no Receive Maximum."""


class MqttFront:
    """A participant in the turns of the cell, and the owner of every link."""

    def __init__(self, config: Config, node: Node, gate: Gate) -> None:
        self._config = config
        self._settings = config.mqtt
        self._quotas = node.cell.quotas
        self._limits = replace(hub_limits(config), quota=self._quota_problem)
        self._node = node
        self._commit = node.cell.commit
        self._gate = gate
        self._rates = PublishRates(gate, node)
        self._bridge = (
            QueueBridge(node, config.mqtt.prefetch, self._rates, self._audited) if config.mqtt.queues else None
        )
        self._administered = False  # something was, in this turn
        self._audit_barrier = AuditBarrier(gate.audit.synced, self._release)
        self._hub: Hub | None = None
        self._links: dict[Link, None] = {}  # in the order they were made
        self._strangers: dict[Link, None] = {}  # whose CONNECT was not accepted yet, in that order
        self._full: dict[Link, None] = {}  # links that are not read because too much of theirs is unanswered
        self._backpressure: dict[str, Backpressure] = {}  # by namespace
        self._batch: OutboxBatch | None = None
        self._servers: list[Listener] = []
        self._timer: PatientTimer | None = None
        self._timer_at: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops_reported: Counter[str] = Counter()
        self._traffic = Traffic()
        self._system = self._system_topics() if self._settings.system_interval else None
        self._refusals = RateLimitedLog("MQTT client refused")
        self._violations = RateLimitedLog("MQTT protocol error")
        self._stored: StoredSessions | None = None  # what was read, until it is used
        self._stopping = False
        self._empty = asyncio.Event()
        self.addresses: list[tuple[str, int]] = []
        """Where it listens: TCP first, then TLS."""
        self.administration = MqttAdministration(lambda: self._hub, node.clock, node.cell.commit)

    def _system_topics(self) -> SystemTopics:
        """`$SYS/`."""
        readings = SystemReadings(self._traffic, self._node.clock())

        def read(now: int) -> Mapping[str, str]:
            assert self._hub is not None  # it asks
            return readings.read(self._hub, now)

        return SystemTopics(read, self._settings.system_interval)

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the sessions and listen."""
        await threads.run_in_thread("holdfast-open", self.load)
        self.opened()
        self._node.cell.participants.append(self)
        self._node.metric_sources.append(self._readings)
        self._node.quotas.sources.append(self._quota_use)
        await self._listen(self._settings.listen, with_tls=False)
        if self._settings.tls_listen:
            await self._listen(self._settings.tls_listen, with_tls=True)
        self._spawn(self._every(CHECK_SECONDS, self._check_principals))
        self._spawn(self._every(REPORT_SECONDS, self._report_drops))
        if self._bridge is not None:
            self._spawn(self._every(self._settings.stats_interval / SECOND, self._show_stats))
        if self._system is not None:
            self._spawn(self._every(self._settings.system_interval / SECOND, self._publish_system))

    def load(self) -> None:
        """See `broker.cell.TurnParticipant`."""
        self._stored = StoredSessions(self._node.store)

    def opened(self) -> None:
        """See `broker.cell.TurnParticipant`."""
        stored, self._stored = self._stored, None
        assert stored is not None
        rights = Rights(self._gate, self._rates, self._bridge is not None)
        hub = Hub(self._limits, rights, self._bridge, self._system)
        if self._bridge is not None:
            self._bridge.hub = hub
        hub.load(stored.scan, self._node.clock())
        self._hub = hub
        self._drops_reported = Counter()
        self._commit.schedule()

    async def _listen(self, address: str, *, with_tls: bool) -> None:
        host, port = split_address(address)
        context = tls.server_context(self._config.tls) if with_tls else None
        if with_tls and context is None:
            raise InvalidConfig(field="mqtt.tls_listen", value=address, problem="it needs tls.certificate_file")
        exposure.check(self._config.auth, host, front="MQTT", tls=with_tls)
        # The handshake counts towards the time that an unauthenticated peer has.
        timeout_seconds = self._settings.connect_timeout / SECOND
        proxies = self._gate.proxies if self._settings.proxy_protocol else None
        try:
            server = await listen(self.make_link, (host, port), context, timeout_seconds, proxies)
        except OSError as error:
            setting = "mqtt.tls_listen" if with_tls else "mqtt.listen"
            raise AddressUnavailable(address=address, setting=setting, problem=error.strerror or str(error)) from error
        self._servers.append(server)
        bound = server.sockets[0].getsockname()[:2]
        self.addresses.append(bound)
        log.info("MQTT is listening", address=f"{bound[0]}:{bound[1]}", tls=with_tls)

    def make_link(self, peer: str = "") -> Link:
        """`peer` is the client's address, if the connection is not from there itself."""
        limits = self._limits
        decoder = Decoder(max_packet_bytes=limits.packet_bytes_max, max_connect_bytes=self._settings.max_connect_bytes)
        settings = self._settings
        return Link(self, decoder, self._traffic, settings.buffer_bytes, settings.stall_timeout / SECOND, peer)

    def websocket(self) -> WebSocketEndpoint:
        """For the HTTP server: what takes over its connections at `/mqtt`."""
        return WebSocketEndpoint(
            self.make_link,
            partial(self._gate.check_browser, None),
            buffer_bytes=self._settings.buffer_bytes,
            connect_bytes_max=self._settings.max_connect_bytes,  # a stranger can make us keep as much
            message_bytes_max=self._settings.max_packet_bytes,
        )

    async def stop(self) -> None:
        """Disconnect all clients with a reason, release what they hold, and close."""
        self._stopping = True
        if self._bridge is not None:
            self._bridge.stopping = True
        for server in self._servers:
            server.close()
        for job in self._tasks:
            job.cancel()
        hub = self._hub
        if hub is not None:
            now = self._node.clock()
            for connection in list(hub.connections):
                hub.close(connection, reasons.SERVER_SHUTTING_DOWN, "the server is shutting down", now)
            self._commit.schedule()
            await self._commit.durable()
            await self._audit_barrier.finish()
        if self._links:  # each is closed, or cut after a while
            await self._empty.wait()
        if self in self._node.cell.participants:
            self._node.cell.participants.remove(self)
            self._node.metric_sources.remove(self._readings)
            self._node.quotas.sources.remove(self._quota_use)
        if self._timer is not None:
            self._timer.cancel()

    def _quota_problem(self, namespace: str, name: str, used: int) -> str:
        """See `HubLimits.quota`."""
        try:
            self._quotas.check(namespace, Quota(name), used)
        except HoldfastError as error:
            return str(error)
        return ""

    def _quota_use(self, namespace: str) -> dict[Quota, int]:
        """What a namespace has here."""
        found = None if self._hub is None else self._hub.namespaces.get(namespace)
        return {
            Quota.SESSIONS: len(found.sessions) if found is not None else 0,
            Quota.SUBSCRIPTIONS: found.subscriptions if found is not None else 0,
            Quota.RETAINED_MESSAGES: len(found.retained) if found is not None else 0,
            Quota.RETAINED_BYTES: found.retained_bytes if found is not None else 0,
        }

    def _readings(self) -> Iterator[MetricSample]:
        return self._traffic.readings(self._hub)

    def _spawn(self, job: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _every(self, seconds: float, job: Callable[[], Awaitable[None] | None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                result = job()
                if result is not None:
                    await result
            except HoldfastError as error:
                log.warning("an MQTT background job failed", code=error.code, error=str(error))
            except Exception:
                log.exception("an MQTT background job failed")

    # --- links ------------------------------------------------------------------------------------------------------

    def made(self, link: Link) -> Connection | None:
        hub = self._hub
        users = len(self._links) - len(self._strangers)
        if hub is None or self._stopping or users >= 2 * self._limits.connections_max:
            return None
        self._traffic.sockets += 1
        self._links[link] = None
        self._strangers[link] = None
        if len(self._strangers) > self._settings.max_unauthenticated:
            oldest = next(iter(self._strangers))  # it makes room: the new one may be a user
            del self._strangers[oldest]
            oldest.cut()
        connection = hub.open(link, self._node.clock())
        self._commit.schedule()
        return connection

    def connecting(self, link: Link, packet: Connect) -> None:
        """Authenticate a CONNECT."""
        self._traffic.count_received([packet])
        subject = link.subject
        if packet.password is None and subject is None:
            try:
                self._connect(link, packet, self._gate.anonymous())
            except HoldfastError as error:
                self._refuse(link, packet, error)
            return
        self._spawn(self._identify(link, packet))

    async def _identify(self, link: Link, packet: Connect) -> None:
        try:
            principal = await self._principal(link, packet)
        except HoldfastError as error:
            self._refuse(link, packet, error)
            return
        self._connect(link, packet, principal)

    async def _principal(self, link: Link, packet: Connect) -> Principal:
        if link.subject is not None:
            known = self._gate.certificate(link.subject)
            if known is not None:
                return known
        if packet.password is None or not self._gate.required:
            return self._gate.anonymous()
        if not packet.username:
            return await self._gate.token(_text(packet.password), link.peer)
        return await self._gate.password(packet.username, packet.password, link.peer)

    def _connect(self, link: Link, packet: Connect, principal: Principal) -> None:
        hub, connection = self._hub, link.connection
        if hub is None or connection is None or connection.closing:
            return
        if link.host is not None and principal.method == "certificate":  # which a browser sends for any page
            try:
                self._gate.check_browser(principal, link.host, link.origin)
            except HoldfastError as error:
                self._refuse(link, packet, error)
                return
        try:
            self._quotas.check_held(Quota.CONNECTIONS, principal.namespace, principal.owner)
        except HoldfastError as error:
            self._refuse(link, packet, error)
            return
        self._quotas.hold(Quota.CONNECTIONS, principal.namespace, principal.owner)
        self._strangers.pop(link, None)
        link.principal = principal
        self._traffic.connected_max = max(self._traffic.connected_max, len(self._links) - len(self._strangers))
        assigned = "" if packet.client_id else f"auto-{secrets.token_hex(10)}"
        hub.connect(connection, packet, principal.namespace, assigned, self._node.clock(), principal.owner)
        link.on_connack()
        self._commit.schedule()

    def _refuse(self, link: Link, packet: Connect, error: HoldfastError) -> None:
        hub, connection = self._hub, link.connection
        if hub is None or connection is None or connection.closing:
            return
        self._traffic.refused += 1
        self._refusals.emit(self._node.clock(), client=packet.client_id[:64], peer=link.peer, code=error.code)
        hub.refuse(connection, packet.version, error.mqtt, str(error))
        self._commit.schedule()

    def received(self, link: Link, packets: list[Packet]) -> None:
        hub, connection = self._hub, link.connection
        if hub is None or connection is None:
            return
        self._traffic.count_received(packets)
        self._rates.begin_read()
        hub.receive(connection, packets, self._node.clock())
        if connection.publishes:
            self._backpressure_of(connection).publishes(link)
            if hub.outbox.unsent_bytes > self._settings.buffer_bytes // 4:  # so that a connection that is full says so
                self._send(hub.outbox.take_ready())
        if connection.held_acks > _ACKS_HELD_MAX:
            self._full[link] = None
            link.hold("answers")
        if hub.outbox.urgent or hub.outbox.unfinished or (self._bridge is not None and self._bridge.urgent):
            self._commit.schedule()
        elif not hub.outbox.empty:
            self._commit.schedule_after_sync()
        else:  # acks, or messages of QoS 0: nobody is sent an answer
            self._commit.schedule_within()

    def broken(self, link: Link, error: ProtocolError) -> None:
        if self._hub is not None and link.connection is not None:
            now = self._node.clock()
            client = link.connection.client_id[:64]
            self._traffic.violations += 1
            self._violations.emit(now, client=client, peer=link.peer, error=error.message[:255])
            self._hub.broken(link.connection, error, link.decoder.version, now)
            self._commit.schedule()

    def _backpressure_of(self, connection: Connection) -> Backpressure:
        found = self._backpressure.get(connection.namespace)
        if found is None:
            found = self._backpressure[connection.namespace] = Backpressure(asyncio.get_running_loop())
        return found

    def paused(self, link: Link) -> None:
        if self._hub is not None and link.connection is not None:
            self._hub.pause(link.connection)
            self._backpressure_of(link.connection).paused(link)

    def resumed(self, link: Link) -> None:
        if link.connection is not None:
            self._backpressure_of(link.connection).resumed(link)
        if self._hub is not None and link.connection is not None and not link.connection.closing:
            self._hub.resume(link.connection, self._node.clock())
            self._commit.schedule()

    def lost(self, link: Link) -> None:
        if link in self._links and link.principal is not None:
            self._quotas.release(Quota.CONNECTIONS, link.principal.namespace, link.principal.owner)
        self._links.pop(link, None)
        self._strangers.pop(link, None)
        self._full.pop(link, None)
        self._forget_backpressure(link)
        if self._stopping and not self._links:
            self._empty.set()
        if self._hub is not None and link.connection is not None:
            self._hub.lost(link.connection, self._node.clock())
            self._commit.schedule()

    def _forget_backpressure(self, link: Link) -> None:
        namespace = link.connection.namespace if link.connection is not None else ""
        backpressure = self._backpressure.get(namespace)
        if backpressure is not None:
            backpressure.lost(link)
            if backpressure.idle:
                del self._backpressure[namespace]

    @contextmanager
    def _audited(self, connection: Connection, act: str, queue: str, fields: Mapping[str, object]) -> Iterator[None]:
        """The context of an administrative act: the audit log has it on disk before it is answered."""
        with audited(self._gate, connection, act, queue, fields):
            yield
        self._administered = True

    # --- the turn ---------------------------------------------------------------------------------------------------

    def collect_ops(self, now: int) -> list[Op]:  # noqa: ARG002 - the protocol's signature
        """See `broker.cell.TurnParticipant`."""
        hub = self._hub
        if hub is None:
            return []
        if self._bridge is not None:
            self._bridge.apply_batches()
            if self._hub is not hub:  # the store failed meanwhile
                return []
        if hub.outbox.empty:
            return []
        batch = self._batch = hub.outbox.take()
        administered, self._administered = self._administered, False
        if batch.held:
            self._commit.on_durable(partial(self._audit_barrier.durable, HeldTurn(hub, batch, administered)))
        return batch.ops

    def written(self) -> None:
        hub, batch = self._hub, self._batch
        if hub is None:
            return
        if batch is not None:
            self._batch = None
            self._send(batch.now)
        if hub.outbox.unfinished:
            hub.pump_unfinished(self._node.clock())
            self._commit.schedule()
        if hub.due != self._timer_at:
            self._arm(hub.due)

    def delivered(self) -> None:
        """See `broker.cell.TurnParticipant`: what the deliveries made is sent in the same turn."""
        hub, bridge = self._hub, self._bridge
        if hub is None or bridge is None:
            return
        self._send(hub.outbox.take_ready())
        if bridge.pending or hub.outbox.unfinished or not hub.outbox.empty:
            self._commit.schedule()

    def _release(self, turn: HeldTurn) -> None:
        """The turn is durable, and so are its entries in the audit log."""
        if self._hub is not turn.hub:
            return
        self._send(turn.hub.outbox.mark_synced(turn.batch))
        if self._full:
            for link in [link for link in self._full if link.connection is None or not link.connection.held_acks]:
                del self._full[link]
                link.unhold("answers")

    def _send(self, outputs: list[Output]) -> None:
        for output in outputs:
            link: Link = output.connection.tag  # type: ignore[assignment]
            link.send(output.data, output.close)

    def _arm(self, due: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = due
        if due is not None:
            delay = (
                max(due - self._node.clock(), 0) / SECOND + 0.001
            )  # the loop's timers may be early by less than that
            self._timer = PatientTimer(asyncio.get_running_loop(), delay, self._due)

    def _due(self) -> None:
        self._timer = self._timer_at = None
        if self._hub is not None:
            self._hub.tick(self._node.clock())
            self._commit.schedule()

    def failed(self, error: HoldfastError) -> None:
        """See `broker.cell.TurnParticipant`."""
        log.error("MQTT connections are cut: the store failed", code=error.code, connections=len(self._links))
        if self._hub is not None:
            self._traffic.add(self._hub)
        self._hub = self._batch = None
        self._backpressure.clear()
        if self._bridge is not None:
            self._bridge.reset()
        for link in list(self._links):
            link.connection = None  # it was the hub's that is gone
            link.cut()

    # --- background jobs --------------------------------------------------------------------------------------------

    def _check_principals(self) -> None:
        hub = self._hub
        if hub is None:
            return
        now = self._node.clock()
        verdicts: dict[int, bool] = {}  # most share a principal
        for link in list(self._links):
            principal, connection = link.principal, link.connection
            if principal is None or connection is None:
                continue
            valid = verdicts.get(id(principal))
            if valid is None:
                valid = verdicts[id(principal)] = self._gate.valid(principal)
            if not valid:
                log.info(
                    "MQTT client disconnected: credential no longer valid",
                    client=connection.client_id,
                    peer=link.peer,
                    user=principal.name,
                )
                hub.close(connection, reasons.NOT_AUTHORIZED, str(Unauthenticated(problem=_GONE)), now)
                self._commit.schedule()

    def _report_drops(self) -> None:
        """Log how many messages were dropped because subscribers had no room or were too slow."""
        if self._hub is None:
            return
        now = Counter(self._hub.dropped)
        new = now - self._drops_reported
        self._drops_reported = now
        if new:
            log.warning("MQTT messages did not reach a session", **dict(new))

    def _publish_system(self) -> None:
        """Send what has changed below `$SYS/` to who has subscribed to it."""
        if self._hub is not None:
            self._hub.publish_system(self._node.clock())
            self._commit.schedule()

    async def _show_stats(self) -> None:
        """Send the stats of queues to those who watch them, one queue after another with others' turns in between."""
        bridge = self._bridge
        by_queue: dict[tuple[str, str], list[tuple[Connection, str]]] = {}
        if bridge is not None:
            for key, watch in bridge.watchers.items():
                by_queue.setdefault(watch.queue, []).append(key)
        for queue, keys in by_queue.items():
            try:
                stats = msgspec.json.encode(await self._node.inspection.stats(queue))
            except QueueNotFound:
                continue
            self._send_stats(keys, stats)
            await asyncio.sleep(0)

    def _send_stats(self, keys: list[tuple[Connection, str]], stats: bytes) -> None:
        bridge, hub = self._bridge, self._hub
        if bridge is None or hub is None:
            return
        for key in keys:
            watch, (connection, topic) = bridge.watchers.get(key), key
            if watch is not None and not (connection.paused or connection.closing):
                packet = Publish(topic, stats, properties=Properties(subscription_ids=watch.ids))
                data = encode(packet, connection.version)
                if len(data) <= connection.packet_bytes_max:
                    hub.outbox.send(connection, data)
        self._commit.schedule()


def _text(password: bytes) -> str:
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise Unauthenticated(problem="the password is not a token") from None


def hub_limits(config: Config) -> HubLimits:
    """The limits of the plain broker, from the configuration."""
    settings = config.mqtt
    return HubLimits(
        connections_max=settings.max_connections,
        sessions_max=settings.max_sessions,
        connect_timeout_us=settings.connect_timeout,
        keep_alive_max_s=settings.keep_alive_max // SECOND,
        packet_bytes_max=settings.max_packet_bytes,
        receive_maximum=settings.receive_maximum,
        inflight_max=settings.max_inflight,
        topic_alias_max=settings.topic_aliases,
        topic_alias_out_max=settings.topic_aliases,
        subscriptions_max=settings.max_subscriptions,
        queued_messages_max=settings.max_queued_messages,
        queued_bytes_max=settings.max_queued_bytes,
        buffer_bytes=settings.buffer_bytes,
        retained_messages_max=settings.max_retained,
        retained_bytes_max=settings.max_retained_bytes,
        session_expiry_max_s=settings.session_expiry_max // SECOND,
    )
