"""`manage.py holdfast_worker MODULE[:NAME]`: run workers of the application."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from holdfast.client.workers.loading import load_workers
from holdfast.errors import HoldfastError
from holdfast.frameworks.django.outbox import connect, usable_connections


class Command(BaseCommand):
    help = "Run workers until SIGTERM or Ctrl-C. Each job finds a usable database connection."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", metavar="MODULE[:NAME]", help="A Workers, a worker, a list of workers, or all.")
        parser.add_argument("--drain", help="How long handlers may take to finish after a stop, as 30s.")
        parser.add_argument("--burst", action="store_true", help="Work until nothing is ready, then end.")

    def handle(self, *_args: Any, target: str, drain: str | None, burst: bool, **_options: Any) -> None:
        try:
            workers = load_workers(target, drain=drain)
            for worker in workers.workers:
                worker.call_within(usable_connections)
            code = workers.run(connect, burst=burst)
        except HoldfastError as error:
            raise CommandError(str(error)) from None
        if code:
            sys.exit(code)
