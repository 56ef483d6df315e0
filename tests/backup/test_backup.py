"""`holdfast backup` of a real server, and `holdfast restore`: what is in a backup, and what a restored server lacks.

One server works under load while it is backed up, twice, and is then killed: most tests look at what is left of it.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from holdfast.backup.repository import Repository
from holdfast.broker.node import Node
from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Draft, Leased
from holdfast.errors import HoldfastError
from holdfast.journal.generations import GENERATION_ROWS
from holdfast.journal.verify import verify
from holdfast.store import Remote, open_store
from tests.test_server import Server, serving

QUEUE = "shop/orders"
BEFORE, BETWEEN, AFTER = 300, 100, 50


def holdfast(*arguments: object, url: str = "") -> Result:
    environment = {"NO_COLOR": "1", **({"HOLDFAST_URL": url} if url else {})}
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=environment)


def done(*arguments: object, url: str = "") -> Any:
    result = holdfast(*arguments, "-o", "json", url=url)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@contextmanager
def running(data: Path, *arguments: str) -> Iterator[tuple[Server, SyncClient, str]]:
    with serving(data, *arguments, HOLDFAST_JOURNAL_SEGMENT_AGE="100ms") as server:
        url = str(server.wait_for("HTTP API is listening")["url"])
        server.wait_for("holdfast is running")
        with SyncClient(url) as client:
            yield server, client, url


def send(client: SyncClient, first: int, count: int) -> None:
    for number in range(first, first + count):
        client.send(QUEUE, b"%d " % number + random.Random(number).randbytes(5_000))


def number_in(payload: bytes) -> int:
    return int(payload.partition(b" ")[0])


def opened(data: Path, *new: int, store: str = "rocks", url: str = "") -> set[int]:
    """What a data directory has, of what was numbered. Then messages with new numbers are sent, and exported."""

    async def work() -> set[int]:
        opened = open_store(store, data / "store", remote=Remote(url))
        with closing(opened):
            node = Node(Config(node=NodeSettings(data_dir=data), journal=JournalSettings(conversion="thread")), opened)
            await node.start()
            leased: list[Leased] = []
            while some := await node.messages.lease(("default", QUEUE), "look", 1_000):
                leased += some
            if new:
                await node.messages.enqueue(("default", QUEUE), [Draft(b"%d " % number) for number in new])
            await node.cell.export()
            await node.stop()
        assert all(len(one.message.payload) > 5_000 for one in leased if number_in(one.message.payload) < 1_000)
        return {number_in(one.message.payload) for one in leased}

    return asyncio.run(work())


class Load:
    """Sends messages all the time; each number is said to be stored."""

    def __init__(self, url: str) -> None:
        self.confirmed: list[int] = []
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        with SyncClient(self._url) as client:
            number = 1_000_000
            while not self._stop.is_set():
                try:
                    client.send(QUEUE, b"%d " % number)
                except HoldfastError:
                    return
                self.confirmed.append(number)
                number += 1

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


class Killed(NamedTuple):
    """What is left of a server."""

    data: Path
    backups: Path
    first: dict[str, Any]  # what the commands said
    second: dict[str, Any]
    during: tuple[int, int]  # numbers of the load that were confirmed before the second backup, and after it
    acked: set[int]  # after the second backup, and in the lake


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    root = tmp_path_factory.mktemp("killed")
    data, backups = root / "data", root / "backups"
    with running(data) as (server, client, url):
        client.create_queue(QUEUE)
        client.create_group(QUEUE, "look")
        send(client, 0, BEFORE)
        wait_until_exported(client, url)
        first = done("backup", backups, url=url)
        send(client, BEFORE, BETWEEN)
        wait_until_exported(client, url)  # tests look at a segment of the second backup
        with Load(url) as load:
            while len(load.confirmed) < 20:
                threading.Event().wait(0.01)
            before = load.confirmed[-1]
            second = done("backup", backups, url=url)
            after = load.confirmed[-1]
        send(client, BEFORE + BETWEEN, AFTER)
        messages = client.receive(QUEUE, group="look", limit=30)
        acked = {number_in(message.body) for message in messages}
        for message in messages:
            message.ack()
        wait_until_exported(client, url)
        server.signal(signal.SIGKILL)
        server.exit_code()
    return Killed(data, backups, first, second, (before, after), acked)


def wait_until_exported(client: SyncClient, url: str) -> None:
    """The lake has everything that was answered until now."""
    import httpx

    while True:
        parts = httpx.get(f"{url}/api/v1/health").json()["parts"]
        if next(part for part in parts if part["name"] == "journal")["facts"]["rows_behind"] == 0:
            return


@pytest.fixture
def copied(killed: Killed, tmp_path: Path) -> Killed:
    """The same in directories of the test's own."""
    data, backups = tmp_path / "data", tmp_path / "backups"
    shutil.copytree(killed.data, data)
    shutil.copytree(killed.backups, backups)
    return killed._replace(data=data, backups=backups)


def rows_of(lake: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((lake / "journal").glob("date=*/*.parquet")):
        found += pq.read_table(path, columns=["lsn", "event", "message_id", "payload"]).to_pylist()
    return found


def test_a_backup_under_load_has_everything_that_was_confirmed_before_it(killed: Killed, tmp_path: Path) -> None:
    done("restore", killed.backups, "--data-dir", tmp_path / "data")
    found = opened(tmp_path / "data")
    before, after = killed.during
    assert set(range(BEFORE + BETWEEN)) <= found
    assert set(range(1_000_000, before + 1)) <= found
    assert not set(range(BEFORE + BETWEEN, BEFORE + BETWEEN + AFTER)) & found
    assert max(found) <= after + 1
    assert found - set(range(BEFORE + BETWEEN)) == set(range(1_000_000, max(found) + 1)), "it is of one moment"


def test_an_earlier_backup_can_be_restored_too(killed: Killed, tmp_path: Path) -> None:
    done("restore", killed.backups, "--backup", killed.first["backup"], "--data-dir", tmp_path / "data")
    assert opened(tmp_path / "data") == set(range(BEFORE))


def test_a_lake_that_survived_says_what_the_restore_lacks(copied: Killed) -> None:
    """The lake has rows of after the backup. They stay, no number of theirs is used again, and the chain holds."""
    old = rows_of(copied.data / "lake")
    shutil.rmtree(copied.data / "store")
    restored = done("restore", copied.backups, "--data-dir", copied.data)
    assert restored["last_lsn"] == copied.second["last_lsn"] < restored["lake_lsn"] == max(row["lsn"] for row in old)
    assert restored["next_lsn"] == GENERATION_ROWS + 1
    found = opened(copied.data, 5_000_000)
    known = {number: row for row in old if (number := number_of(row)) is not None}
    lost = {number for number, row in known.items() if row["lsn"] > restored["last_lsn"]}
    assert set(range(BEFORE + BETWEEN, BEFORE + BETWEEN + AFTER)) <= lost
    assert not lost & found
    assert copied.acked & found, "what was acked after the backup is there again"
    new = rows_of(copied.data / "lake")
    assert verify(copied.data / "lake") == []
    assert new[: len(old)] == old
    lsns = [row["lsn"] for row in new]
    assert len(set(lsns)) == len(lsns)
    assert min(row["lsn"] for row in new[len(old) :]) == GENERATION_ROWS + 1
    fresh = next(row for row in new if number_of(row) == 5_000_000)
    assert fresh["message_id"] > max(row["message_id"] or 0 for row in old)


def number_of(row: dict[str, Any]) -> int | None:
    return number_in(row["payload"]) if row["event"] == "enqueued" else None


def test_a_backup_has_its_lake_and_a_second_restore_begins_another_generation(killed: Killed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = done("restore", killed.backups, "--data-dir", data)
    assert first["lake_lsn"] == first["last_lsn"]
    assert verify(data / "lake") == []
    assert [row["lsn"] for row in rows_of(data / "lake")] == list(range(1, first["last_lsn"] + 1))
    opened(data, 5_000_000)
    later = done("backup", tmp_path / "backups", "--data-dir", data)
    assert later["last_lsn"] > GENERATION_ROWS
    shutil.rmtree(data / "store")
    second = done("restore", tmp_path / "backups", "--data-dir", data)
    assert second["next_lsn"] == 2 * GENERATION_ROWS + 1
    assert 5_000_000 in opened(data, 5_000_001)
    assert verify(data / "lake") == []


def test_nothing_is_overwritten_that_was_not_said(copied: Killed) -> None:
    before = (copied.data / "store" / "db" / "CURRENT").read_bytes()
    refused = holdfast("restore", copied.backups, "--data-dir", copied.data)
    assert refused.exit_code == 1
    assert "--replace" in refused.stderr
    assert (copied.data / "store" / "db" / "CURRENT").read_bytes() == before
    replaced = done("restore", copied.backups, "--data-dir", copied.data, "--replace")
    assert replaced["replaced"] == [str(copied.data / "store.replaced-1")]
    assert (copied.data / "store.replaced-1" / "db" / "CURRENT").read_bytes() == before


def test_a_lake_of_another_history_is_not_continued(killed: Killed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    opened(data, 1, 2, 3)
    shutil.rmtree(data / "store")
    refused = holdfast("restore", killed.backups, "--data-dir", data)
    assert refused.exit_code == 1
    assert "another history" in refused.stderr
    assert not (data / "store").exists()
    (data / "lake").rename(data / "lake.before")
    done("restore", killed.backups, "--data-dir", data)
    assert verify(data / "lake") == []


def test_a_running_server_is_not_restored_over(copied: Killed) -> None:
    with running(copied.data):
        refused = holdfast("restore", copied.backups, "--data-dir", copied.data, "--replace")
        assert refused.exit_code == 1
        assert "in use" in refused.stderr


def test_damage_is_found_and_not_restored(copied: Killed, tmp_path: Path) -> None:
    assert holdfast("backup", "verify", copied.backups).exit_code == 0
    repository = Repository(copied.backups)
    newest = repository.manifest()
    table = max((file for file in newest.files if file.path.endswith((".sst", ".blob"))), key=lambda f: f.size_bytes)
    path = repository.object(table.sha256)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = holdfast("backup", "verify", copied.backups, "--backup", newest.id, "-o", "json")
    assert found.exit_code == 1
    assert [row["path"] for row in json.loads(found.stdout)] == [table.path]
    refused = holdfast("restore", copied.backups, "--data-dir", tmp_path / "restored")
    assert refused.exit_code == 1
    assert "backup_damaged" in refused.stderr
    assert not (tmp_path / "restored" / "store").exists()
    manifest = copied.backups / "backups" / f"{newest.id}.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"node":0', b'"node":1'))
    assert "not as it was written" in holdfast("backup", "verify", copied.backups).stdout


def a_segment(backups: Path) -> tuple[Path, str]:
    """A segment of the newest backup: where it is kept, and its name."""
    repository = Repository(backups)
    _, entry = repository.segments(repository.manifest())[0]
    return repository.object(entry.sha256), entry.segment


def test_a_segment_that_a_backup_must_have_is_not_passed_over(copied: Killed, tmp_path: Path) -> None:
    kept, _ = a_segment(copied.backups)
    kept.write_bytes(kept.read_bytes()[:-1])
    for _ in range(2):  # cut short, and not there
        refused = holdfast("restore", copied.backups, "--data-dir", tmp_path / "restored")
        assert refused.exit_code == 1
        assert "backup_damaged" in refused.stderr
        assert not (tmp_path / "restored" / "store").exists()
        kept.unlink(missing_ok=True)


def test_a_segment_that_was_cut_short_is_put_again(copied: Killed) -> None:
    _, name = a_segment(copied.backups)
    segment = copied.data / "lake" / "journal" / name
    content = segment.read_bytes()
    segment.write_bytes(content[: len(content) // 2])
    shutil.rmtree(copied.data / "store")
    done("restore", copied.backups, "--data-dir", copied.data)
    assert segment.read_bytes() == content
    assert verify(copied.data / "lake") == []


def test_nothing_gives_way_to_a_backup_that_is_damaged(copied: Killed) -> None:
    kept, _ = a_segment(copied.backups)
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(content)
    refused = holdfast("restore", copied.backups, "--data-dir", copied.data, "--replace")
    assert refused.exit_code == 1
    assert "backup_damaged" in refused.stderr
    assert (copied.data / "store" / "db" / "CURRENT").exists()
    assert not (copied.data / "store.replaced-1").exists()
    done("restore", copied.backups, "--data-dir", copied.data, "--replace", "--no-lake")


def test_old_backups_are_pruned_with_what_only_they_had(copied: Killed) -> None:
    pruned = done("backup", "prune", copied.backups, "--keep", "1")
    assert pruned["deleted"] == [copied.first["backup"]]
    assert pruned["freed_bytes"] > 0
    assert [row["backup"] for row in done("backup", "list", copied.backups)] == [copied.second["backup"]]
    quick = [done("backup", copied.backups, "--data-dir", copied.data)["backup"] for _ in range(3)]
    assert [row["backup"] for row in done("backup", "list", copied.backups)] == [copied.second["backup"], *quick]
    assert holdfast("backup", "verify", copied.backups).exit_code == 0


def test_only_what_is_new_is_sent_and_kept(copied: Killed) -> None:
    """At least the journal's segments never change; which of its tables a store writes anew is for the store."""
    assert copied.first["shared_bytes"] == 0
    done("backup", copied.backups, "--data-dir", copied.data)
    kept = sum(path.stat().st_size for path in (copied.backups / "objects").rglob("*"))
    segments = sum(path.stat().st_size for path in (copied.data / "lake" / "journal").glob("date=*/*"))
    again = done("backup", copied.backups, "--data-dir", copied.data)
    assert again["shared_bytes"] >= segments > 1_000_000
    assert sum(path.stat().st_size for path in (copied.backups / "objects").rglob("*")) - kept < segments
    full = done("backup", copied.backups, "--data-dir", copied.data, "--full")
    assert full["shared_bytes"] == 0
    assert full["received_bytes"] > segments


def test_a_stopped_server_is_backed_up_from_its_files(copied: Killed, tmp_path: Path) -> None:
    again = done("backup", copied.backups, "--data-dir", copied.data)
    assert again["last_lsn"] > copied.second["last_lsn"]
    done("restore", copied.backups, "--data-dir", tmp_path / "restored")
    found = opened(tmp_path / "restored")
    assert set(range(BEFORE + BETWEEN + AFTER)) - copied.acked <= found
    assert not copied.acked & found


def test_a_directory_that_has_something_else_is_refused(copied: Killed, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear Ann")
    refused = holdfast("backup", tmp_path / "mine", "--data-dir", copied.data)
    assert refused.exit_code == 1
    assert "something else" in refused.stderr
    missing = holdfast("restore", tmp_path / "nothing", "--data-dir", tmp_path / "restored")
    assert "backup_not_found" in missing.stderr


def _without_old_segments(data: Path) -> None:
    """A server whose journal keeps nothing that is not needed."""

    async def work() -> None:
        settings = JournalSettings(conversion="thread", retention=1, retention_force=True)
        with closing(open_store("rocks", data / "store")) as store:
            node = Node(Config(node=NodeSettings(data_dir=data), journal=settings), store)
            await node.start()
            await node.cell.export_scheduler.look_after_lake()
            await node.stop()

    asyncio.run(work())


def test_segments_that_were_removed_do_not_come_back(copied: Killed, tmp_path: Path) -> None:
    """A backup of after it has the manifest that says so, and one of before leaves the lake that is there as it is."""
    before = len(rows_of(copied.data / "lake"))
    _without_old_segments(copied.data)
    assert rows_of(copied.data / "lake") == []
    done("backup", copied.backups, "--data-dir", copied.data)
    assert holdfast("backup", "verify", copied.backups).exit_code == 0

    restored = tmp_path / "restored"
    done("restore", copied.backups, "--data-dir", restored)
    assert rows_of(restored / "lake") == []
    assert verify(restored / "lake") == []

    shutil.rmtree(copied.data / "store")
    done("restore", copied.backups, "--backup", copied.first["backup"], "--data-dir", copied.data)
    assert len(rows_of(copied.data / "lake")) < before
    assert verify(copied.data / "lake") == []

    alone = tmp_path / "alone"
    done("restore", copied.backups, "--backup", copied.first["backup"], "--data-dir", alone)
    assert len(rows_of(alone / "lake")) > 0
    assert verify(alone / "lake") == []
