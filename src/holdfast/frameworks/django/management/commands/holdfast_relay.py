"""`manage.py holdfast_relay`: enqueue what the application's transactions have committed to the outbox."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DEFAULT_DB_ALIAS

from holdfast.client import Retries
from holdfast.frameworks.django.outbox import OutboxTable, connect_sync
from holdfast.outbox.relay import Relay


class Command(BaseCommand):
    help = "Enqueue what waits in the outbox, and go on until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="The database whose outbox it is.")
        parser.add_argument("--once", action="store_true", help="Relay what waits, then end.")

    def handle(self, *_args: Any, database: str, once: bool, **_options: Any) -> None:
        with connect_sync(Retries(attempts=1)) as client:
            relay = Relay(OutboxTable(database), client)
            if once:
                self.stdout.write(f"relayed {relay.relay()} messages")
                return
            stop = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda _number, _frame: stop.set())
            relay.run(stop)
