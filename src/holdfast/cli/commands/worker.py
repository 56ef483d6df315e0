"""`holdfast worker`: run workers written in Python."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.support.connection import connected, settings
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.output import show_note
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.client import Workers
    from holdfast.client.metrics import WorkerMetrics


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
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve the workers' metrics for Prometheus here, as 127.0.0.1:9109. It asks for no credentials.",
)
@click.option("--burst", is_flag=True, help="Work until nothing is ready, then end.")
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
    metrics: str | None,
    burst: bool,
    log_level: str,
) -> None:
    """Run workers: MODULE:NAME is a Workers, a worker, or a list of workers; MODULE alone means all workers in it.

    SIGTERM or Ctrl-C stops gracefully: handlers finish, messages that no handler has started are released. A second one
    ends immediately. Exit code 1 if handlers did not finish in time.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s [%(levelname)s] %(name)s: %(message)s"
    )
    app = _load(target, app_dir, drain)
    if settings().namespace is not None:
        with connected():
            pass  # checks the namespace
    for each in app.workers:
        if concurrency is not None:
            each.concurrency = concurrency
            each.prefetch = None if each.prefetch is None else max(each.prefetch, concurrency)
    if metrics is not None:
        app.middleware = (_serve_metrics(metrics), *app.middleware)
    if burst:
        import asyncio  # noqa: PLC0415

        show_note(f"Worked on {plural(asyncio.run(_work_off(app)), 'message')}.")
        return
    code = app.run(settings().open_async)
    if code:
        # A handler that hangs in a thread must not keep the process alive: its message has been released.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    context.exit(code)


def _serve_metrics(at: str) -> WorkerMetrics:
    host, _, port = at.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidArgument(field="--metrics", problem=f"is an address and a port, as 127.0.0.1:9109, not {at!r}")
    try:
        from prometheus_client import start_http_server  # noqa: PLC0415

        from holdfast.client.metrics import WorkerMetrics  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidArgument(field="--metrics", problem='needs: pip install "holdfast[metrics]"') from None
    measuring = WorkerMetrics()
    try:
        server, _thread = start_http_server(int(port), host.strip("[]"))
    except OSError as error:
        raise InvalidArgument(field="--metrics", problem=f"cannot listen on {at}: {error.strerror or error}") from None
    show_note(f"Metrics are at http://{host}:{server.server_port}/metrics")
    return measuring


async def _work_off(app: Workers) -> int:
    async with settings().open_async() as client:
        return await app.work_off(client)


def _load(target: str, directory: Path, drain: str | None) -> Workers:
    from holdfast.client import Worker, Workers  # noqa: PLC0415

    module_name, _, name = target.partition(":")
    sys.path.insert(0, str(directory.absolute()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise  # a module that this one imports is missing: the traceback shows which
        raise InvalidArgument(
            field=f"Module {module_name!r}", problem=f"is not found in {directory.absolute()} or the Python path"
        ) from None
    found: Any = vars(module).get(name, None) if name else _all(module)
    options: dict[str, Any] = {} if drain is None else {"drain": drain}
    match found:
        case Workers() if drain is None:
            return found
        case Workers():
            return Workers(*found.workers, middleware=found.middleware, **options)
        case Worker():
            return Workers(found, **options)
        case [*several] if several and all(isinstance(each, Worker) for each in several):
            return Workers(*several, **options)
        case _:
            problem = f"has no {name!r} that is a Workers or a worker" if name else "has no workers"
            raise InvalidArgument(field=f"Module {module_name!r}", problem=problem)


def _all(module: Any) -> object:
    """The only Workers of a module, else all its workers."""
    from holdfast.client import Worker, Workers  # noqa: PLC0415

    apps = [value for value in vars(module).values() if isinstance(value, Workers)]
    return apps[0] if len(apps) == 1 else [value for value in vars(module).values() if isinstance(value, Worker)]
