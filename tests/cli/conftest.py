"""A running broker, and the command line pointed at it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.testing import Broker


class Shell:
    """Runs commands against a broker."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *arguments: str, stdin: str | bytes | None = None, **environ: str) -> Result:
        clean = {name: None for name in os.environ if name.startswith("HOLDFAST_")}
        environment = {**clean, "HOLDFAST_URL": self.url, "NO_COLOR": "1", **environ}
        return CliRunner().invoke(main, arguments, input=stdin, env=environment)

    def done(self, *arguments: str, stdin: str | bytes | None = None, **environ: str) -> Result:
        """Run a command that must succeed."""
        result = self.run(*arguments, stdin=stdin, **environ)
        assert result.exit_code == 0, result.output
        return result

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        return json.loads(self.done(*arguments, "-o", "json", stdin=stdin).stdout)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def shell(broker: Broker, client: SyncClient) -> Shell:
    for queue in sorted(client.queues(), key=lambda queue: queue.automatic):  # a dead queue after those that use it
        client.delete_queue(queue.name)
    return Shell(broker.url)


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[SyncClient]:
    with broker.sync_client() as opened:
        yield opened
