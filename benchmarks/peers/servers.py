"""Other servers, each fresh in a process of its own, set up so that what they confirm is synced: as Holdfast does.

They are used if they are installed: `apt install redis-server rabbitmq-server postgresql`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.load.servers import Served, free_port, running, server, wait_for
from benchmarks.load.wires import ConsumerWire, HttpConsumer, HttpPublisher, MqttWire, PublisherWire
from benchmarks.peers.wires import AmqpWire, PostgresWire, RedisWire

QUEUE = "bench"
PREFETCH = 100


class NotInstalledError(Exception):
    """A peer that cannot be measured here."""


class Broker(NamedTuple):
    """A server with an empty queue: its process, its address, and connections to it, so many."""

    pid: int
    url: str
    publishers: Callable[[int], Sequence[PublisherWire]]
    consumers: Callable[[int], Sequence[ConsumerWire]]


def program(name: str, *places: str) -> str:
    """Where a program is: in one of the places, or on the path."""
    found = [str(path) for place in places for path in sorted(Path("/").glob(f"{place}/{name}"))]
    known = found[-1] if found else shutil.which(name)
    if known is None:
        raise NotInstalledError(f"{name} is not installed")
    return known


@contextmanager
def fresh_directory() -> Iterator[Path]:
    """On the disk that `TMPDIR` names, readable by the users that servers run as."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR"), ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


# --- Holdfast ---------------------------------------------------------------------------------------------------------


def _holdfast(served: Served, over_http: bool = False, drained_over_http: bool = False) -> Broker:
    def publishers(count: int) -> Sequence[PublisherWire]:
        if over_http:
            return [HttpPublisher(served.http, QUEUE) for _ in range(count)]
        return [MqttWire(served.mqtt, f"p-{number}", QUEUE) for number in range(count)]

    def consumers(count: int) -> Sequence[ConsumerWire]:
        if drained_over_http:
            return [HttpConsumer(served.http, QUEUE, PREFETCH) for _ in range(count)]
        return [MqttWire(served.mqtt, f"c-{number}", QUEUE).consume(PREFETCH) for number in range(count)]

    return Broker(served.pid, f"http://127.0.0.1:{served.http}", publishers, consumers)


@contextmanager
def holdfast() -> Iterator[Broker]:
    with server() as served:
        yield _holdfast(served)


@contextmanager
def holdfast_over_http() -> Iterator[Broker]:
    with server() as served:
        yield _holdfast(served, over_http=True)


@contextmanager
def holdfast_drained_over_http() -> Iterator[Broker]:
    with server() as served:
        yield _holdfast(served, drained_over_http=True)


# --- peers ------------------------------------------------------------------------------------------------------------


@contextmanager
def redis() -> Iterator[Broker]:
    """A stream; the append-only file is synced before the answers of a pass of its loop."""
    port = free_port()
    with fresh_directory() as directory:
        command = [program("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory)]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning"]
        with running(command, log=directory / "log") as process:
            wait_for(port, process)
            wire = RedisWire(port)
            wire.create_group()
            wire.close()
            yield Broker(
                process.pid,
                f"redis://127.0.0.1:{port}",
                lambda count: [RedisWire(port) for _ in range(count)],
                lambda count: [RedisWire(port).consume(f"c-{number}", PREFETCH) for number in range(count)],
            )


@contextmanager
def _rabbitmq(kind: str) -> Iterator[Broker]:
    port, names_port, cluster_port = free_port(), free_port(), free_port()
    with fresh_directory() as directory:
        config, plugins = directory / "rabbitmq.conf", directory / "plugins"
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
        plugins.write_text("[].\n")
        environment = {
            "HOME": str(directory),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_DIST_PORT": str(cluster_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        names_command = [program("epmd"), "-address", "127.0.0.1", "-port", str(names_port)]
        command = [program("rabbitmq-server", "usr/lib/rabbitmq/bin")]
        log = directory / "output"
        with running(names_command, log=log) as names, running(command, environment, log=log) as process:
            wait_for(names_port, names)
            wait_for(port, process)
            wire = AmqpWire(port, QUEUE)
            wire.declare(kind)
            wire.close()
            yield Broker(
                process.pid,
                f"amqp://guest:guest@127.0.0.1:{port}/%2F",
                lambda count: [AmqpWire(port, QUEUE).confirm() for _ in range(count)],
                lambda count: [AmqpWire(port, QUEUE).consume(PREFETCH) for _ in range(count)],
            )


@contextmanager
def rabbitmq_quorum() -> Iterator[Broker]:
    """A quorum queue of a single node: the Raft log is synced before a confirm."""
    with _rabbitmq("quorum") as broker:
        yield broker


@contextmanager
def rabbitmq_classic() -> Iterator[Broker]:
    with _rabbitmq("classic") as broker:
        yield broker


@contextmanager
def postgres() -> Iterator[Broker]:
    """A table; one row a transaction. It refuses to run as root, so root runs it as the user `postgres`."""
    port, user = free_port(), "postgres" if os.geteuid() == 0 else None
    with fresh_directory() as directory:
        if user is not None:
            shutil.chown(directory, user)
        data, log, binaries = str(directory / "data"), directory / "log", "usr/lib/postgresql/*/bin"
        create = [program("initdb", binaries), "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"]
        with running(create, user=user, log=log) as process:
            if process.wait() != 0:
                raise RuntimeError(f"initdb ended with {process.returncode}")
        command = [program("postgres", binaries), "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", ""]
        command += ["-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB"]
        with running(command, user=user, log=log) as process:
            wait_for(port, process)
            ready = [program("pg_isready", binaries), "-q", "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.run(ready, check=False).returncode:  # it listens before it takes connections
                if process.poll() is not None:
                    raise RuntimeError(f"postgres ended with {process.returncode}")
                time.sleep(0.05)
            wire = PostgresWire(port)
            wire.create_table()
            wire.close()
            yield Broker(
                process.pid,
                f"postgresql://postgres@127.0.0.1:{port}/postgres",
                lambda count: [PostgresWire(port).prepare() for _ in range(count)],
                lambda _: [],
            )
