"""`holdfast worker`: run workers written in Python."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.support.connection import connected, settings
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.output import show_note
from holdfast.cli.support.worker_logs import configure
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from holdfast.cli.support.worker_status import Address
    from holdfast.client import Workers

PORT_MAX = 65_535


@click.command()
@click.argument("target", metavar="MODULE[:NAME]")
@click.option(
    "--app-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where the module is looked for first. [default: the current directory]",
)
@click.option("--concurrency", type=click.IntRange(1, 1_000), help="Handlers at the same time, for each worker.")
@click.option("--drain", help="How long handlers may take to finish after a stop, as 30s.")
@click.option("--burst", is_flag=True, help="Work until nothing is ready, then end.")
@click.option(
    "--processes",
    type=click.IntRange(1, 1_000),
    help="How many processes work. One that ends, or whose threads all hang, is replaced.",
)
@click.option("--reload", is_flag=True, help="Drain and start again when a Python file below --app-dir changes.")
@click.option(
    "--health",
    metavar="ADDRESS:PORT",
    help="Answer GET /health here, as 0.0.0.0:8081: 200 while all processes work, else 503.",
)
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve the workers' metrics for Prometheus here, as 127.0.0.1:9109. It asks for no credentials.",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="console",
    show_default=True,
    help="How log lines look. Lines of a job have its id, queue and attempt.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The lowest level that is logged.",
)
@click.pass_context
def worker(
    context: click.Context,
    /,
    target: str,
    app_dir: Path,
    concurrency: int | None,
    drain: str | None,
    burst: bool,
    processes: int | None,
    reload: bool,
    health: str | None,
    metrics: str | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run workers: MODULE:NAME is a Workers, a worker, or a list of workers; MODULE alone means all workers in it.

    SIGTERM or Ctrl-C stops gracefully: handlers finish, messages that no handler has started are released. A second one
    ends immediately. Exit code 1 if handlers did not finish in time.
    """
    from holdfast.cli.support.worker_supervisor import NUMBER_VARIABLE, SOCKET_VARIABLE  # noqa: PLC0415

    number = os.environ.get(NUMBER_VARIABLE)
    configure(log_level, log_format, number)
    listen = [] if number else _addresses({"--health": health, "--metrics": metrics})
    if number is None and (processes is not None or reload):
        if burst:
            raise InvalidArgument(field="--burst", problem="is for one process: leave out --processes and --reload")
        context.exit(_supervise(processes or 1, app_dir if reload else None, listen, measured=metrics is not None))
    from holdfast.client.workers.loading import load_workers  # noqa: PLC0415

    app = load_workers(target, app_dir, drain)
    if settings().namespace is not None:
        with connected():
            pass  # checks the namespace
    for each in app.workers:
        if concurrency is not None:
            each.concurrency = concurrency
            each.prefetch = None if each.prefetch is None else max(each.prefetch, concurrency)
    registry = _measure(app) if metrics is not None else None
    if burst:
        import asyncio  # noqa: PLC0415

        show_note(f"Worked on {plural(asyncio.run(_work_off(app)), 'message')}.")
        return
    app.end_when_stuck = number is not None
    code = app.run(settings().open_async, lambda: _answering(app, registry, listen, os.environ.get(SOCKET_VARIABLE)))
    if code:
        # A handler that hangs in a thread must not keep the process alive: its message has been released.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    context.exit(code)


def _addresses(given: dict[str, str | None]) -> list[Address]:
    """Where to listen, each once."""
    from holdfast.cli.support.worker_status import Address  # noqa: PLC0415

    found: dict[tuple[str, int], Address] = {}
    for option, at in given.items():
        if at is None:
            continue
        host, _, port = at.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
            raise InvalidArgument(field=option, problem=f"is an address and a port, as 127.0.0.1:9109, not {at!r}")
        address = Address(option, host.strip("[]"), int(port))
        found.setdefault((address.host, address.port), address)
    return list(found.values())


def _measure(app: Workers) -> CollectorRegistry:
    """Measure its jobs."""
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415

        from holdfast.client.metrics import WorkerMetrics  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidArgument(field="--metrics", problem='needs: pip install "holdfast[metrics]"') from None
    registry = CollectorRegistry()
    app.middleware = (WorkerMetrics(registry), *app.middleware)
    return registry


def _supervise(processes: int, watched: Path | None, listen: list[Address], *, measured: bool) -> int:
    """Run this command in several processes."""
    import asyncio  # noqa: PLC0415

    from holdfast.cli.support.worker_supervisor import Supervisor  # noqa: PLC0415

    if measured and find_spec("prometheus_client") is None:
        raise InvalidArgument(field="--metrics", problem='needs: pip install "holdfast[metrics]"')
    return asyncio.run(Supervisor(sys.argv[1:], processes, watched).run(listen))


@asynccontextmanager
async def _answering(
    app: Workers, registry: CollectorRegistry | None, listen: list[Address], socket: str | None
) -> AsyncIterator[None]:
    """Answer for the health and the metrics of this process, to everybody or to its supervisor."""
    import asyncio  # noqa: PLC0415

    from holdfast.cli.support.worker_status import Status, StatusServer  # noqa: PLC0415

    async def statuses() -> dict[str, Status]:
        state = "stuck: its threads hang" if app.stuck.is_set() else "draining" if app.draining else "working"
        return {"1": Status(not app.stuck.is_set(), state, _exposition(registry))}

    server = StatusServer(statuses)
    try:
        await server.listen(listen)
        if socket is not None:
            await server.listen_at(socket)
            asyncio.get_running_loop().add_reader(0, _drain_alone)
        yield
    finally:
        await server.close()


def _exposition(registry: CollectorRegistry | None) -> str:
    if registry is None:
        return ""
    from prometheus_client import generate_latest  # noqa: PLC0415

    return generate_latest(registry).decode()


def _drain_alone() -> None:
    """The supervisor has gone without a word: nobody else would stop this process."""
    import asyncio  # noqa: PLC0415

    asyncio.get_running_loop().remove_reader(0)
    os.kill(os.getpid(), signal.SIGTERM)


async def _work_off(app: Workers) -> int:
    async with settings().open_async() as client:
        return await app.work_off(client)
