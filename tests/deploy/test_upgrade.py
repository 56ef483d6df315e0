"""A server of this version starts on what older ones left, as docs/how-to/upgrade.md says."""

from __future__ import annotations

import signal
import tarfile
from pathlib import Path

import pytest

from holdfast.client import SyncClient
from holdfast.store.formats import FORMAT
from tests.test_server import refused, serving

FORMATS = Path(__file__).parents[1] / "formats"
LAST = [f"v{number}" for number in range(1, FORMAT + 1)]


def unpack(name: str, into: Path) -> Path:
    with tarfile.open(FORMATS / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    (into / "data").rename(into / "store")
    return into


@pytest.mark.parametrize("name", LAST)
def test_it_starts_on_every_format_and_serves_what_is_there(name: str, tmp_path: Path) -> None:
    data = unpack(name, tmp_path)
    with serving(data, "--node-id", "1") as server:
        url = str(server.wait_for("HTTP API is listening")["url"])
        server.wait_for("holdfast is running")
        with SyncClient(url) as client:
            depths = {queue.name: queue.depth for queue in client.queues()}
            assert depths["tasks"] > 0
            assert depths["dlq/tasks"] > 0
            for message in client.receive("tasks", group="work", limit=5):
                message.ack()
                depths["tasks"] -= 1
            assert client.send("tasks", "new").id
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert (data / "store" / "FORMAT").read_text().strip() == str(FORMAT)


def test_an_older_server_refuses_what_a_newer_one_wrote(tmp_path: Path) -> None:
    data = unpack(LAST[-1], tmp_path)
    (data / "store" / "FORMAT").write_text(f"{FORMAT + 1}\n")
    code, said = refused(data)
    assert code != 0
    assert "format_unknown" in said
