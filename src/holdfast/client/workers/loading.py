"""Finds the workers of a module by its name, as a command line gives it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.client.workers.runner import Workers
from holdfast.client.workers.worker import Worker
from holdfast.errors import InvalidArgument


def load_workers(target: str, directory: Path | None = None, drain: str | None = None) -> Workers:
    """The workers of `MODULE:NAME`: a Workers, a worker, or a list of workers; `MODULE` alone means all in it. The
    module is looked for in `directory` first."""
    module_name, _, name = target.partition(":")
    directory = (directory or Path()).absolute()
    sys.path.insert(0, str(directory))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise  # a module that this one imports is missing: the traceback shows which
        raise InvalidArgument(
            field=f"Module {module_name!r}", problem=f"is not found in {directory} or the Python path"
        ) from None
    found: Any = vars(module).get(name, None) if name else _all(module)
    options: dict[str, Any] = {} if drain is None else {"drain": drain}
    match found:
        case Workers() if drain is None:
            return found
        case Workers():
            return Workers(*found.workers, middleware=found.middleware, lifespan=found.lifespan, **options)
        case Worker():
            return Workers(found, **options)
        case [*several] if several and all(isinstance(each, Worker) for each in several):
            return Workers(*several, **options)
        case _:
            problem = f"has no {name!r} that is a Workers or a worker" if name else "has no workers"
            raise InvalidArgument(field=f"Module {module_name!r}", problem=problem)


def _all(module: ModuleType) -> object:
    """The only Workers of a module, else all its workers."""
    apps = [value for value in vars(module).values() if isinstance(value, Workers)]
    return apps[0] if len(apps) == 1 else [value for value in vars(module).values() if isinstance(value, Worker)]
