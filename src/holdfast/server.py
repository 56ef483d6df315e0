"""The composition root: the only place that wires configuration, store, node and fronts together.

    run(config)   opens the store, starts the node, waits for a signal, stops in order, returns the exit code

The first SIGTERM or SIGINT stops gracefully: new work is refused, what is under way is finished, synced and closed. A
second one ends the process immediately; nothing confirmed is lost by that, since confirmed means synced. A stop that
hangs is ended the same way.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import signal
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import Protocol

import structlog
import uvloop

from holdfast import __version__, logs, service_manager
from holdfast.auth import exposure, modes, tls
from holdfast.auth.audit_shipping import AuditShipping
from holdfast.auth.gate import Gate
from holdfast.broker.export.pandas_free import block_pandas_import
from holdfast.broker.node import Node, wall_clock
from holdfast.build_info import commit
from holdfast.config import Config
from holdfast.console import Console
from holdfast.errors import InvalidConfig, StoreReadOnly
from holdfast.files import make_directory
from holdfast.http_api import HttpFront, Upgrade
from holdfast.mqtt.net import MqttFront
from holdfast.store import Remote, open_store
from holdfast.store.contract import Store
from holdfast.units import MIB, SECOND, format_duration

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # in malloc.h
KEPT_BLOCK_BYTES = 8 * MIB  # as large as what 10,000 messages of some hundred bytes need together
KEPT_BYTES = 64 * MIB

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_SIGNAL = 128
"""Added to the signal's number when a second signal ends the process: 130 for SIGINT, 143 for SIGTERM."""

CLOSE_SECONDS = 5.0
"""For what comes after the graceful stop, or after its time: ending what is left on the loop, closing the store. Both
together stay inside the 30 s that Kubernetes waits by default."""


def run(config: Config) -> int:
    """Run a node until a signal stops it. Errors at the start are raised, for the caller to show."""
    logs.configure(config.log)
    _raise_file_limit()
    _tune_malloc()
    tls.server_context(config.tls)  # what is wrong is said before anything is made or opened
    exposure.check_fronts(config)
    modes.check(config)
    _check_grpc(config)
    gate = Gate(config, wall_clock)
    block_pandas_import()
    store = _open(config)
    with (
        _StopWatchdog(config.node.shutdown_timeout / SECOND + CLOSE_SECONDS) as watchdog,
        closing(store),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_serve(config, store, gate, watchdog))


class _StopWatchdog:
    """Ends the process when a stop takes longer than it may, whatever hangs: the loop, a thread, a disk at the store's
    close. It needs none of them."""

    def __init__(self, seconds: float) -> None:
        self._timer = Timer(seconds, self._end)
        self._timer.name = "holdfast-stop-watchdog"
        self._timer.daemon = True

    def __enter__(self) -> _StopWatchdog:
        return self

    def arm(self) -> None:
        """The stop begins; a second time changes nothing."""
        if self._timer.ident is None:
            self._timer.start()

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        log.error("shutdown timed out, exiting")
        os._exit(EXIT_FAILED)


def _raise_file_limit() -> None:
    """As many as the system lets us have: each client is one, and the usual soft limit of 1,024 is for programs that
    use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tune_malloc() -> None:
    """Use memory again that large requests have used. glibc returns blocks from 128 KiB on to the system, which
    then has to map and clear every page of the next one: three quarters of what it takes to receive 2.7 MB. glibc's own
    variables override this."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other libraries have none
    if mallopt is not None and not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def _pause_gc() -> None:
    """Do not search for cycles among what the start creates: with ten thousand queues that takes longer than all the
    rest of the start."""
    gc.collect()
    gc.disable()


def _tune_gc() -> None:
    """Collect garbage less often. Objects that exist now live as long as the process, and the thousands that a batch
    creates are freed by their reference counts: with Python's own thresholds, the search for cycles among them is a
    fifth of what an enqueue costs."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


def _open(config: Config) -> Store:
    path = _make_directory(config.node.data_dir)
    if config.store.kind == "memory":
        log.warning("memory store: all messages are gone when this process ends")
    settings = config.store
    remote = Remote(
        settings.url.reveal(), config.node.node_id, settings.read_timeout / SECOND, settings.patience / SECOND
    )
    return open_store(
        settings.kind,
        path / "store",
        cache_bytes=settings.cache_bytes,
        write_buffer_bytes=settings.write_buffer_bytes,
        reserve_bytes=settings.reserve_bytes,
        remote=remote,
    )


def _make_directory(path: Path) -> Path:
    """Only the server's user may look inside: payloads are private."""
    try:
        make_directory(path, mode=0o700)
    except OSError as error:
        raise StoreReadOnly(path=path, problem=error.strerror or str(error)) from error
    return path


async def _serve(config: Config, store: Store, gate: Gate, watchdog: _StopWatchdog) -> int:
    stop = asyncio.Event()
    _install_signals(stop, watchdog)
    shipping = AuditShipping(config, gate.audit)
    node = Node(config, store)
    _pause_gc()
    await node.start()
    fronts = _fronts(config, node, gate)
    try:
        await shipping.start()
        await gate.start()
        for front in fronts:
            await front.start()
    except BaseException:
        await _stop(fronts, node, shipping)
        raise
    _tune_gc()
    service_manager.notify("READY=1")
    log.info(
        "holdfast is running",
        version=__version__,
        commit=commit(),
        node=config.node.node_id,
        data_dir=str(config.node.data_dir.absolute()),
        store=config.store.kind,
        pid=os.getpid(),
    )
    assert node.cell.broken is not None
    node.cell.broken.add_done_callback(lambda _: stop.set())
    await stop.wait()
    service_manager.notify("STOPPING=1")
    watchdog.arm()
    if node.cell.broken.done():
        log.error("the node cannot continue", code=node.cell.broken.result().code, error=str(node.cell.broken.result()))
        return EXIT_FAILED

    try:
        async with asyncio.timeout(config.node.shutdown_timeout / SECOND):
            await _stop(fronts, node, shipping)
            await gate.close()
    except TimeoutError:
        log.error("not stopped in time, ending now", timeout=format_duration(config.node.shutdown_timeout))
        return EXIT_FAILED
    log.info("holdfast has stopped")
    return EXIT_STOPPED


class Front(Protocol):
    """What speaks to the outside for the node."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def _fronts(config: Config, node: Node, gate: Gate) -> list[Front]:
    """The fronts that are switched on, in the order in which they start. MQTT stops first: its WebSockets are the HTTP
    server's, and its clients get a DISCONNECT with the reason."""
    fronts: list[Front] = []
    upgrades: dict[str, Upgrade] = {}
    mqtt: MqttFront | None = None
    if config.mqtt.enabled:
        mqtt = MqttFront(config, node, gate)
        fronts.append(mqtt)
        if config.mqtt.websocket:
            upgrades["/mqtt"] = mqtt.websocket()
    if config.grpc.listen:
        fronts.append(_grpc_front(config, node, gate))
    if config.http.enabled:
        console = Console(config, node, gate, mqtt) if config.console.enabled else None
        fronts.insert(0, HttpFront(config, node, gate, upgrades, console))
        if console is not None:
            fronts.insert(0, console)
    return fronts


def _check_grpc(config: Config) -> None:
    """Raises InvalidConfig if gRPC is configured and cannot be had."""
    if config.grpc.listen:
        try:
            import holdfast.grpc_api  # noqa: F401, PLC0415 - most servers neither need nor have its libraries
        except ImportError as error:
            problem = f'it needs gRPC, and {error.name} cannot be imported (pip install "holdfast[grpc]")'
            raise InvalidConfig(field="grpc.listen", value=config.grpc.listen, problem=problem) from None


def _grpc_front(config: Config, node: Node, gate: Gate) -> Front:
    from holdfast.grpc_api import GrpcFront  # noqa: PLC0415

    return GrpcFront(config, node, gate)


async def _stop(fronts: list[Front], node: Node, shipping: AuditShipping) -> None:
    """Fronts first, so that what is under way can still be answered; then nobody writes entries to ship."""
    for front in reversed(fronts):
        await front.stop()
    await node.stop()
    await shipping.stop()


def _install_signals(stop: asyncio.Event, watchdog: _StopWatchdog) -> None:
    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("second signal, ending immediately", signal=number.name)
            os._exit(EXIT_SIGNAL + number)
        log.info("stopping; a second signal ends immediately", signal=number.name)
        watchdog.arm()  # also if what hangs is the start
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
