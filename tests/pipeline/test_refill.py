"""Loading files into a queue, and replaying its past, through a real broker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.pipeline.lake import Lake
from holdfast.testing import Broker
from tests.pipeline.test_build import build


class Scene:
    def __init__(self, broker: Broker, client: SyncClient, directory: Path) -> None:
        self.broker, self.client, self.directory = broker, client, directory

    def ask(self, *words: str, code: int = 0) -> Result:
        command = [
            "--url",
            self.broker.url,
            "pipeline",
            *words,
            "--lake",
            str(self.directory / "lake"),
            "--quiet",
            "--yes",
        ]
        result = CliRunner().invoke(main, command, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    def stored(self, queue: str) -> Counter[int]:
        return Counter(json.loads(message.body())["n"] for message in self.client.browse(queue))


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Iterator[Scene]:
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        journal=JournalSettings(segment_age=3_600_000_000),
        http=HttpSettings(listen="127.0.0.1:0"),
    )
    with Broker(config=config) as broker, broker.sync_client() as client:
        yield Scene(broker, client, tmp_path)


def test_a_file_is_loaded_once_and_its_messages_can_be_replayed(
    scene: Scene, spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "rows.json"
    source.write_text("".join(json.dumps({"n": n, "who": f"u{n % 3}"}) + "\n" for n in range(20)))
    words = ["load", str(source), "--format", "json", "--queue", "in", "--dedup", "n"]
    assert "Would store 20 messages" in scene.ask(*words, "--dry-run").stderr
    for _ in range(2):
        assert "Stored 20 messages" in scene.ask(*words).stderr
    assert scene.stored("in") == Counter(range(20)), "the same ids are stored once"

    assert scene.broker._portal is not None
    scene.broker._portal.run(scene.broker.node.export())
    build(Lake(tmp_path / "lake"), spark)
    again = ["replay", "--queue", "in", "--to", "again", "--where", "payload.n >= 15", "--transaction", "replay-1"]
    for _ in range(2):
        scene.ask(*again)
    assert scene.stored("again") == Counter(range(15, 20)), "a replay of one name is there once"
    first = {message.id: json.loads(message.body())["n"] for message in scene.client.browse("in")}
    for message in scene.client.browse("again"):
        assert first[str(message.properties["replayed-from"])] == json.loads(message.body())["n"]
    assert "--where" in scene.ask("replay", "--queue", "in", "--where", "no_such = 1", code=1).stderr
    assert "cannot be read" in scene.ask("load", str(tmp_path / "nothing"), "--queue", "in", code=1).stderr
