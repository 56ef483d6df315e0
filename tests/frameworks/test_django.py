"""An application of Django with the outbox and workers, in processes of its own."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.client import SyncClient
from holdfast.testing import Broker
from tests import postgres
from tests.waiting import PATIENCE_SECONDS, until_sync

ROOT = Path(__file__).parents[2]


class Shop:
    """The application, with its database and its server."""

    def __init__(self, environment: dict[str, str], client: SyncClient) -> None:
        self.environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.frameworks.shop.settings", **environment}
        self.client = client

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "django", *arguments]

    def manage(self, *arguments: str) -> str:
        return self._run(self.command(*arguments))

    def place_orders(self) -> None:
        self._run([sys.executable, "-m", "tests.frameworks.shop.place_orders"])

    def query(self, text: str) -> list[tuple[object, ...]]:
        if self.environment["SHOP_ENGINE"].endswith("sqlite3"):
            connection = sqlite3.connect(self.environment["SHOP_DATABASE"])
            found = connection.execute(text).fetchall()
            connection.close()
            return found
        with psycopg.connect(postgres.url(self.environment["SHOP_DATABASE"])) as opened:
            return opened.execute(text.encode()).fetchall()

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        database = {"SHOP_ENGINE": "django.db.backends.sqlite3", "SHOP_DATABASE": str(tmp_path / "shop.db")}
    else:
        sockets = postgres.url().partition("host=")[2]
        database = {
            "SHOP_ENGINE": "django.db.backends.postgresql",
            "SHOP_DATABASE": postgres.new_database(),
            "SHOP_HOST": sockets,
            "SHOP_USER": "postgres",
        }
    with Broker(http=True) as broker, SyncClient(broker.url) as client:
        shop = Shop({**database, "SHOP_HOLDFAST": broker.url}, client)
        shop.manage("migrate", "--run-syncdb", "--verbosity", "0")
        yield shop


def test_what_was_committed_is_relayed_and_worked_on(shop: Shop) -> None:
    shop.place_orders()
    assert shop.manage("holdfast_relay", "--once") == "relayed 2 messages\n"
    assert shop.manage("holdfast_relay", "--once") == "relayed 0 messages\n"
    shop.manage("holdfast_worker", "tests.frameworks.shop.jobs", "--burst")
    packed = shop.query("SELECT item FROM shop_order WHERE packed ORDER BY id")
    assert packed == [("tea",), ("cup",)]
    assert shop.client.stats("parcels").depth == 0


def test_the_relay_goes_on_until_it_is_stopped(shop: Shop) -> None:
    with subprocess.Popen(shop.command("holdfast_relay"), env=shop.environment, cwd=ROOT) as relay:
        shop.place_orders()
        until_sync(lambda: shop.query("SELECT count(*) FROM holdfast_outbox") == [(0,)])
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(PATIENCE_SECONDS) == 0
    assert shop.client.stats("parcels").depth == 2


def test_the_migrations_make_the_table_of_the_model(shop: Shop) -> None:
    assert (
        shop.manage("makemigrations", "--check", "--dry-run", "holdfast") == "No changes detected in app 'holdfast'\n"
    )
