"""Metrics for Prometheus: the node's counters, collected at a scrape.

Times are seconds, sizes are bytes. A queue's series carry its namespace and name. With more queues than
`http.metrics_queues` there are only sums over all of them, under the same names without those labels, unless the scrape
asks for `?queues=all`.

A scrape of the whole server needs the scope `node`. Other callers are shown the series of the queues that they may do
something with, and how much they have staged (who administers the whole namespace: how much is staged in it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast import __version__
from holdfast.broker import caches
from holdfast.broker.commit.group_commit import Distribution
from holdfast.broker.front_metrics import MetricSample, MetricSpec
from holdfast.broker.node import Node
from holdfast.broker.parts.quotas import QuotaUse
from holdfast.build_info import commit
from holdfast.core.queue import GroupKind
from holdfast.engine.stats import GroupStats, Histogram, QueueStats
from holdfast.errors import HoldfastError
from holdfast.http_api.endpoints.health import visible_staged, visible_stats
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import SECOND

ROUTES = Routes("Health and stats")
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


OF_QUEUES = {
    "depth": MetricSpec("queue_depth", "gauge", "Messages that some group may still need."),
    "max_depth": MetricSpec("queue_max_depth", "gauge", "How deep the queue may be; 0: no limit."),
    "paused": MetricSpec("queue_paused", "gauge", "1 while the queue delivers nothing."),
    "ready": MetricSpec("queue_ready", "gauge", "Messages that are not delayed."),
    "scheduled": MetricSpec("queue_scheduled", "gauge", "Messages delayed by their producers."),
    "size_bytes": MetricSpec("queue_size_bytes", "gauge", "Payload bytes of live messages."),
    "oldest_age": MetricSpec("queue_oldest_message_age_seconds", "gauge", "Age of the oldest message not settled."),
    "enqueued": MetricSpec("queue_enqueue", "counter", "Messages stored."),
    "duplicates": MetricSpec("queue_duplicate", "counter", "Messages not stored because they were there already."),
    "refused": MetricSpec("queue_refused", "counter", "Messages refused: too large, wrong, or the queue was full."),
}
OF_GROUPS = {
    "ready": MetricSpec("group_ready", "gauge", "Deliveries a group could lease now."),
    "scheduled": MetricSpec("group_scheduled", "gauge", "Deliveries that wait for their time."),
    "leased": MetricSpec("group_inflight", "gauge", "Deliveries that consumers hold."),
    "lag": MetricSpec("group_lag", "gauge", "Cursor groups: messages not committed yet."),
    "oldest_age": MetricSpec("group_oldest_message_age_seconds", "gauge", "Age of the oldest message not settled."),
    "consumers": MetricSpec(
        "group_consumers", "gauge", "Consumers: members, long polls, and those that asked within the last minute."
    ),
    "unattended": MetricSpec(
        "group_unattended_seconds", "gauge", "How long the group has had a backlog and no consumer."
    ),
    "leases": MetricSpec("group_lease", "counter", "Leases given."),
    "acked": MetricSpec("group_ack", "counter", "Deliveries acked."),
    "redelivered": MetricSpec("group_redelivered", "counter", "Leases of deliveries that had failed before."),
    "released": MetricSpec("group_released", "counter", "Leases released without spending an attempt."),
    "extended": MetricSpec("group_extended", "counter", "Leases extended."),
    "expired": MetricSpec("group_expired", "counter", "Deliveries whose time to live passed."),
    "purged": MetricSpec("group_purged", "counter", "Deliveries purged."),
    "failures": MetricSpec("group_failure", "counter", "Attempts that failed.", "reason"),
    "dead": MetricSpec("queue_dlq", "counter", "Deliveries moved to the dead queue.", "reason"),
    "dropped": MetricSpec("group_dropped", "counter", "Deliveries that died without a dead queue.", "reason"),
}
LATENCIES = {
    "delivery_latency": MetricSpec("queue_delivery_latency_seconds", "gauge", "From enqueue to the first lease."),
    "processing_latency": MetricSpec("queue_processing_latency_seconds", "gauge", "From lease to ack."),
}
OF_NODE = {
    "build": MetricSpec("build", "gauge", "Always 1; the version and its commit are labels.", "version, commit"),
    "queues": MetricSpec("queues", "gauge", "Queues there are."),
    "commits": MetricSpec("commit_batch", "counter", "Batches written to the store."),
    "sync_times": MetricSpec("commit_sync_seconds", "gauge", "How long a sync of the store took."),
    "batch_rows": MetricSpec("commit_batch_rows", "gauge", "Journal rows in one batch."),
    "journal": MetricSpec("journal_behind_rows", "gauge", "Journal rows that are not in the lake yet."),
    "lake_free": MetricSpec("lake_free_bytes", "gauge", "Bytes left on the lake's disk."),
    "lake_full": MetricSpec(
        "lake_full_in_seconds", "gauge", "When that disk is full if it goes on filling like this; infinite if not."
    ),
    "lake_removed": MetricSpec("lake_removed_bytes", "counter", "Segments that journal.retention removed."),
    "lake_stays": MetricSpec("lake_retention_waiting", "gauge", "1 while segments stay that are old enough to go."),
    "store": MetricSpec("store_up", "gauge", "1 while the store takes writes."),
    "cache_bytes": MetricSpec("cache_bytes", "gauge", "Memory that a cache or buffer takes.", "cache"),
    "cache_limit": MetricSpec("cache_limit_bytes", "gauge", "Memory that it may take.", "cache"),
    "caches_limit": MetricSpec("caches_limit_bytes", "gauge", "Memory that all of them may take together."),
    "room": MetricSpec("store_free_bytes", "gauge", "Bytes left on the store's disk."),
    "full_in": MetricSpec(
        "store_full_in_seconds",
        "gauge",
        "When the store's disk will have only store.min_free_bytes left, at the rate of the last six hours; +Inf: it is"
        " not filling, or it is too early to say.",
    ),
    "lake_bytes": MetricSpec("lake_size_bytes", "gauge", "Bytes of the lake's files, looked at every few minutes."),
    "lake_segments": MetricSpec("lake_segments", "gauge", "Segments of the journal in the lake."),
    "lag": MetricSpec("loop_lag_seconds", "gauge", "How late the event loop was when it was last looked at."),
    "waiting": MetricSpec("lease_waiting", "gauge", "Lease requests that wait for a message."),
    "requests": MetricSpec("http_requests", "counter", "HTTP requests answered.", "method, route, status"),
    "working": MetricSpec("http_requests_inflight", "gauge", "HTTP requests being worked on."),
    "streams": MetricSpec("http_streams", "gauge", "Streaming consumers."),
    "buffered": MetricSpec("http_buffered_bytes", "gauge", "Bytes of request bodies in memory."),
    "reply_waiting": MetricSpec("reply_waiting", "gauge", "Requests that wait for their reply."),
    "reply_late": MetricSpec("reply_late", "counter", "Replies that came after their request had timed out."),
    "transactions": MetricSpec("transactions_open", "gauge", "Transactions that are not published or aborted."),
    "staged": MetricSpec("transaction_staged", "gauge", "Messages staged in open transactions."),
    "staged_bytes": MetricSpec("transaction_staged_bytes", "gauge", "Payload bytes of staged messages."),
    "schedules": MetricSpec("schedules", "gauge", "Schedules there are."),
    "schedule_runs": MetricSpec("schedule_run", "counter", "Ticks of schedules that were acted on.", "outcome"),
    "breaker_trips": MetricSpec("breaker_trip", "counter", "Queues paused by their circuit breakers."),
    "webhook": MetricSpec("webhook_waiting", "gauge", "Webhook calls that wait."),
    "webhook_dropped": MetricSpec("webhook_dropped", "counter", "Webhook calls given up because too many waited."),
    "tokens_refused": MetricSpec("auth_token_refused", "counter", "Tokens that were not good, over all fronts."),
    "signatures_refused": MetricSpec(
        "auth_signature_refused", "counter", "Signatures of access keys that were not good."
    ),
    "logins_failed": MetricSpec("auth_login_failed", "counter", "Wrong users or passwords."),
    "logins_throttled": MetricSpec(
        "auth_login_throttled", "counter", "Logins refused unchecked, after too many failures."
    ),
    "audit_unshipped": MetricSpec(
        "audit_unshipped", "gauge", "Entries of the audit log that audit.webhook or audit.syslog has yet to get."
    ),
    "quota_limit": MetricSpec("quota_limit", "gauge", "What a namespace may have; 0: no limit.", "namespace, quota"),
    "quota_used": MetricSpec("quota_used", "gauge", "What a namespace has.", "namespace, quota"),
    "quota_refused": MetricSpec("quota_refused", "counter", "Refusals because a quota was reached.", "quota"),
    "rate_limited": MetricSpec("auth_rate_limited", "counter", "Requests and messages refused by a namespace's rate."),
}

AGES = {"oldest_age", "unattended"}
"""Of these the greatest counts, not the sum."""
PREFIX = "holdfast_"
LATENCY_BOUNDS_MS = [(1 << power) - 1 for power in range(31)]
"""The buckets of latencies: one for each power of two, since each is a series for each group."""
NAMESPACES_MAX = 1_000  # whose quotas are shown: each has some thirty series


def all_series() -> Iterator[tuple[str, str, str, str]]:
    """Every metric: name as it is scraped, type, text, labels. The reference page is made from it."""
    for table, labels in ((OF_QUEUES, "namespace, queue"), (OF_GROUPS, "namespace, queue, group")):
        for series in table.values():
            yield (*_described(series), ", ".join(filter(None, (labels, series.label))))
    for series in LATENCIES.values():
        yield PREFIX + series.name, "histogram", series.text, "namespace, queue, group"
    for key, series in OF_NODE.items():
        name, kind, text = _described(series)
        yield name, "histogram" if key in {"sync_times", "batch_rows"} else kind, text, series.label


def described(series: MetricSpec) -> tuple[str, str, str, str]:
    """A metric of another front, in the same way."""
    return (*_described(series), series.label)


def _described(series: MetricSpec) -> tuple[str, str, str]:
    suffix = "_total" if series.kind == "counter" else "_info" if series.name == "build" else ""
    return PREFIX + series.name + suffix, series.kind, series.text


class MetricsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the node said when it was asked."""

    queues: list[QueueStats]
    detailed: bool
    node: dict[str, float]
    quotas: dict[str, dict[str, QuotaUse]]
    quota_refusals: dict[str, int] = {}
    whole: WholeServer | None = None


class WholeServer(msgspec.Struct, frozen=True, kw_only=True):
    """What it said of itself."""

    requests: dict[tuple[str, str, int], int]
    sync_times: tuple[tuple[float, ...], list[int], float]
    batch_rows: tuple[tuple[float, ...], list[int], float]
    schedule_runs: dict[str, int]
    readings: list[MetricSample]


class NodeCollector(Collector):
    """A snapshot as metric families."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        found = self._snapshot
        yield from self._of_node()
        yield from _of_quotas(found)
        if found.whole is not None:
            yield from _of_server(found.whole)
        yield from _families(OF_QUEUES, ["namespace", "queue"], _queue_rows(found.queues), found.detailed)
        groups = [(queue, group) for queue in found.queues for group in queue.groups]
        yield from _families(OF_GROUPS, ["namespace", "queue", "group"], _group_rows(groups), found.detailed)
        for key, series in LATENCIES.items():
            yield _latency(series, key, groups, found.detailed)

    def _of_node(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(PREFIX + "build_info", OF_NODE["build"].text, labels=["version", "commit"])
        build.add_metric([__version__, commit()], 1)
        yield build
        for key, value in self._snapshot.node.items():
            series = OF_NODE[key]
            family = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
            yield family(PREFIX + series.name, series.text, value=value)


def _of_server(found: WholeServer) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        PREFIX + OF_NODE["requests"].name, OF_NODE["requests"].text, labels=["method", "route", "status"]
    )
    for (method, route, status), count in found.requests.items():
        requests.add_metric([method, route, str(status)], count)
    yield requests
    series = OF_NODE["schedule_runs"]
    runs = CounterMetricFamily(PREFIX + series.name, series.text, labels=["outcome"])
    for outcome, count in found.schedule_runs.items():
        runs.add_metric([outcome], count)
    yield runs
    for key, (bounds, counts, total) in (("sync_times", found.sync_times), ("batch_rows", found.batch_rows)):
        histogram = HistogramMetricFamily(PREFIX + OF_NODE[key].name, OF_NODE[key].text)
        histogram.add_metric([], _buckets(bounds, counts), total)
        yield histogram
    yield from map(_family, found.readings)


def _family(reading: MetricSample) -> Metric:
    """What another front counts."""
    series = reading.series
    family = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    found = family(PREFIX + series.name, series.text, labels=[series.label] if series.label else [])
    for label, value in reading.values.items():
        found.add_metric([label] if series.label else [], value)
    return found


Sample = tuple[list[str], str, float, str]
"""Labels, which series, its value, and the value of the series' own label."""


def _queue_rows(queues: list[QueueStats]) -> Iterator[Sample]:
    for queue in queues:
        labels = [queue.namespace, queue.name]
        for key in OF_QUEUES:
            value = getattr(queue, key)
            yield labels, key, value / SECOND if key == "oldest_age" else value, ""


def _group_rows(groups: list[tuple[QueueStats, GroupStats]]) -> Iterator[Sample]:
    for queue, group in groups:
        labels = [queue.namespace, queue.name, group.name]
        for key, series in OF_GROUPS.items():
            value = getattr(group, key)
            if series.label:
                yield from ((labels, key, count, reason) for reason, count in value.items())
            else:
                yield labels, key, value / SECOND if key in AGES else value, ""


def _families(
    table: dict[str, MetricSpec], labels: list[str], rows: Iterator[Sample], detailed: bool
) -> Iterable[Metric]:
    """Rows as families; summed over queues and groups unless `detailed`. Of ages the greatest counts."""
    sums: dict[tuple[tuple[str, ...], str, str], float] = {}
    for names, key, value, own in rows:
        place = (tuple(names) if detailed else (), key, own)
        before = sums.get(place, 0.0)
        sums[place] = max(before, value) if key in AGES else before + value
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for key, series in table.items():
        family = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
        own_labels = ([*labels] if detailed else []) + ([series.label] if series.label else [])
        families[key] = family(PREFIX + series.name, series.text, labels=own_labels)
    for (known, key, own), value in sums.items():
        families[key].add_metric([*known, own] if table[key].label else [*known], value)
    return families.values()


def _of_quotas(found: MetricsSnapshot) -> Iterator[Metric]:
    labels = ["namespace", "quota"]
    limits = GaugeMetricFamily(PREFIX + OF_NODE["quota_limit"].name, OF_NODE["quota_limit"].text, labels=labels)
    used = GaugeMetricFamily(PREFIX + OF_NODE["quota_used"].name, OF_NODE["quota_used"].text, labels=labels)
    for namespace, quotas in found.quotas.items():
        for name, quota in quotas.items():
            limits.add_metric([namespace, name], quota.limit)
            if quota.used is not None:
                used.add_metric([namespace, name], quota.used)
    series = OF_NODE["quota_refused"]
    refusals = CounterMetricFamily(PREFIX + series.name, series.text, labels=["quota"])
    for name, count in found.quota_refusals.items():
        refusals.add_metric([name], count)
    yield from (limits, used, refusals)


def _latency(
    series: MetricSpec, key: str, groups: list[tuple[QueueStats, GroupStats]], detailed: bool
) -> HistogramMetricFamily:
    labels = ["namespace", "queue", "group"] if detailed else []
    family = HistogramMetricFamily(PREFIX + series.name, series.text, labels=labels)
    sums: dict[tuple[str, ...], list[int]] = {}
    totals_ms: dict[tuple[str, ...], int] = {}
    for queue, group in groups:
        if group.kind is not GroupKind.LEASE:
            continue
        histogram: Histogram = getattr(group, key)
        place: tuple[str, ...] = (queue.namespace, queue.name, group.name) if detailed else ()
        counts = sums.setdefault(place, [0] * (len(LATENCY_BOUNDS_MS) + 1))
        # The counters have no sum of times; its upper bound, from the buckets, is what averages are made of here.
        totals_ms.setdefault(place, 0)
        for bound, count in zip(histogram.bounds_ms, histogram.counts, strict=True):
            counts[min(bound.bit_length(), len(LATENCY_BOUNDS_MS))] += count
            totals_ms[place] += bound * count
    for names, counts in sums.items():
        buckets = _buckets([bound / 1000 for bound in LATENCY_BOUNDS_MS], counts)
        family.add_metric(list(names), buckets, totals_ms[names] / 1000)
    return family


def _buckets(bounds: Iterable[float], counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative, with the open one last."""
    limits = [str(float(bound)) for bound in bounds][: max(len(counts) - 1, 0)]
    limits.append("+Inf")
    found: list[tuple[str, float]] = []
    seen = 0
    for limit, count in zip(limits, counts or [0], strict=True):
        seen += count
        found.append((limit, seen))
    return found


class MetricsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much to tell."""

    queues: Literal["auto", "all", "none"] = "auto"
    """Series for each queue: `auto` up to http.metrics_queues of them, `all`, or `none`."""


@ROUTES("GET", "/metrics", Right.AUTHENTICATED, query=MetricsQuery, response_types=("text/plain",))
async def metrics(request: Request) -> Response:
    """Give metrics in Prometheus' text format.

    With the scope `node`: of the server and the queues of all namespaces. Otherwise of the queues that the caller may
    do something with.
    """
    query = request.query(MetricsQuery)
    snapshot = await _snapshot(request, query.queues)
    return Response(await request.api.on_thread(lambda: _render(snapshot)), content_type=CONTENT_TYPE)


def _render(snapshot: MetricsSnapshot) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(snapshot))
    if snapshot.whole is not None:
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
    return generate_latest(registry)


async def _snapshot(request: Request, queues: str) -> MetricsSnapshot:
    node, api, principal = request.node, request.api, request.principal
    namespace = None if principal.may_node else request.namespace
    up = True
    try:
        found = await visible_stats(request, namespace)
    except HoldfastError:
        found, up = [], False  # when the store is away is when metrics are looked at
    staged = visible_staged(request, namespace)
    detailed = queues == "all" or (queues == "auto" and len(found) <= api.config.http.metrics_queues)
    visible: dict[str, float] = {
        "transactions": staged.transactions,
        "staged": staged.messages,
        "staged_bytes": staged.size_bytes,
        "queues": len(found),
    }
    if namespace is not None:
        quotas = await _quotas(request, namespace) if up else {}
        return MetricsSnapshot(queues=found, detailed=detailed, node=visible, quotas=quotas)
    commit, webhooks = node.cell.commit, node.webhooks.counters
    try:
        room = node.store.room()
    except HoldfastError:
        room = None
    node_metrics: dict[str, float] = {
        **visible,
        "commits": commit.batches,
        "schedules": node.schedules.count(),
        "journal": node.cell.export_scheduler.behind,
        "store": up,
        "lag": node.health.lag.seconds,
        "waiting": node.inspection.waiting(),
        "working": api.working,
        "streams": len(api.streams),
        "buffered": api.buffered_bytes,
        "reply_waiting": node.requests.waiting,
        "reply_late": node.requests.late,
        "breaker_trips": node.cell.breaker_trips,
        "webhook": webhooks.waiting,
        "webhook_dropped": webhooks.dropped,
        "audit_unshipped": api.gate.audit.unshipped,
        "caches_limit": sum(caches.limits_bytes(api.config).values()),
        **msgspec.structs.asdict(api.gate.counts),
    }
    if room is not None:
        node_metrics["room"] = room
        node_metrics["full_in"] = node.cell.lookout.forecast.seconds_left(node.config.store.min_free_bytes)
    lake = await node.lake_meter.read()
    if lake is not None:
        node_metrics |= {"lake_bytes": lake.size_bytes, "lake_segments": lake.segments}
    if api.config.journal.enabled:
        state = node.cell.export_scheduler.lake
        node_metrics |= {
            "lake_free": state.free_bytes,
            "lake_full": state.full_seconds,
            "lake_removed": state.removed_bytes,
            "lake_stays": bool(state.waits_for),
        }
    whole = WholeServer(
        requests=dict(api.answered),
        sync_times=_copied(commit.sync_times),
        batch_rows=_copied(commit.batch_rows),
        schedule_runs=node.schedules.outcomes(),
        readings=[*_caches(node), *(reading for meter in node.metric_sources for reading in meter())],
    )
    return MetricsSnapshot(
        queues=found,
        detailed=detailed,
        node=node_metrics,
        quotas=await _quotas(request, None) if up else {},
        quota_refusals={quota.value: count for quota, count in node.cell.quotas.refused.items()},
        whole=whole,
    )


def _caches(node: Node) -> Iterator[MetricSample]:
    for key, values in (
        ("cache_bytes", caches.used_bytes(node.cell)),
        ("cache_limit", caches.limits_bytes(node.config)),
    ):
        yield MetricSample(OF_NODE[key], {name: float(value) for name, value in values.items()})


async def _quotas(request: Request, namespace: str | None) -> dict[str, dict[str, QuotaUse]]:
    """The quotas of a namespace, or of all, one at a time."""
    quotas = request.node.quotas
    found: dict[str, dict[str, QuotaUse]] = {}
    for name in quotas.namespaces()[:NAMESPACES_MAX] if namespace is None else [namespace]:
        found[name] = quotas.show(name)
        await asyncio.sleep(0)
    return found


def _copied(distribution: Distribution) -> tuple[tuple[float, ...], list[int], float]:
    return distribution.bounds, list(distribution.counts), distribution.total
