"""Nothing that was confirmed is lost when all is forgotten that was not synced: in the store, and in the lake."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.client import SyncClient
from holdfast.core.records import Table
from holdfast.engine.cell_record import CELL_KEY, read_cell_record
from holdfast.journal.manifest import Manifest, manifest_path
from holdfast.journal.verify import Flaw, verify
from holdfast.store import RocksStore
from tests.power.forgetful import SUPPORTED
from tests.test_server import HOLDFAST, Server, serving
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.skipif(not SUPPORTED, reason="it stops processes by Linux's ptrace and seccomp"),
    pytest.mark.crash,
]

END = b"\xff" * 16


@pytest.fixture(scope="module", autouse=True)
def _tracing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Some containers forbid it."""
    path = tmp_path_factory.mktemp("probe")
    command: list[str | Path] = [sys.executable, "-m", "tests.power.forgetful", path, path / "surviving", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("processes may not be traced here")
    assert done.returncode == 0, done.stderr


@contextmanager
def forgetful(tmp_path: Path, *command: object) -> Iterator[subprocess.Popen[str]]:
    """A command that runs over a disk that forgets: `tmp_path / "disk"` becomes `tmp_path / "surviving"` at the end."""
    (tmp_path / "disk").mkdir()
    tracer = [sys.executable, "-m", "tests.power.forgetful", tmp_path / "disk", tmp_path / "surviving"]
    pipe = subprocess.PIPE
    with subprocess.Popen([str(each) for each in (*tracer, *command)], text=True, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=PATIENCE_SECONDS) == 0
        finally:
            process.kill()


WRITE = """
import sys
from holdfast.core.records import Table
from holdfast.store import RocksStore
store = RocksStore(sys.argv[1], write_buffer_bytes=1 << 16)  # memtables are flushed and logs deleted all the time
epoch = store.acquire()
for number in range(100_000):
    store.write(epoch, [(Table.MESSAGES, (2 * number + half).to_bytes(8, "big"), b"v" * 500) for half in (0, 1)])
    if sys.argv[2] == "synced":
        store.sync()
    print(number + 1, flush=True)
"""


def written(path: Path) -> int:
    """The writes in a store, which must be whole and without a gap."""
    store = RocksStore(path)
    numbers = [int.from_bytes(key, "big") for key, _ in store.scan(Table.MESSAGES, b"", END, 1_000_000)]
    store.close()
    assert numbers == list(range(len(numbers)))
    assert len(numbers) % 2 == 0
    return len(numbers) // 2


@pytest.mark.parametrize("confirmed", [1, 30, 400])
def test_what_a_store_has_synced_survives(tmp_path: Path, confirmed: int) -> None:
    command = (sys.executable, "-c", WRITE, tmp_path / "disk" / "store", "synced")
    with forgetful(tmp_path, *command) as process:
        assert process.stdout is not None
        for _ in range(confirmed):
            assert process.stdout.readline()
    assert written(tmp_path / "surviving" / "store") >= confirmed


def test_what_it_has_not_synced_does_not(tmp_path: Path) -> None:
    """Else the test above proves nothing."""
    command = (sys.executable, "-c", WRITE, tmp_path / "disk" / "store", "unsynced")
    with forgetful(tmp_path, *command) as process:
        assert process.stdout is not None
        for _ in range(30):
            assert process.stdout.readline()
    assert written(tmp_path / "surviving" / "store") < 30


def exported(path: Path) -> int:
    """The last row of the journal that the store has deleted because the lake has it; there must be one."""
    store = RocksStore(path)
    record = store.get(Table.META, CELL_KEY)
    store.close()
    assert record is not None
    found = read_cell_record(record).exported_lsn
    assert found > 0
    return found


def lake_end(journal: Path) -> int:
    """The last row that the lake has."""
    manifest = Manifest(manifest_path(journal, 0))
    manifest.read()
    assert manifest.last is not None
    return manifest.last.last_lsn


def test_what_a_server_has_confirmed_survives_in_its_store_and_in_its_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "disk" / "data"
    command = (HOLDFAST, "serve", "--data-dir", data, "--log-format", "json")
    fronts = ("--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    monkeypatch.setenv("HOLDFAST_JOURNAL_SEGMENT_AGE", "1s")
    with forgetful(tmp_path, *command, *fronts) as process:
        url = str(Server(process).wait_for("HTTP API is listening")["url"])
        with SyncClient(url) as client:
            sent = [client.send("orders", number).id for number in range(40)]
            acked = client.receive("orders", group="billing", limit=10)
            for message in acked:
                message.ack()
            while len(list(data.glob("lake/journal/date=*/*.parquet"))) < 3:
                sent.append(client.send("orders", len(sent)).id)
    surviving = tmp_path / "surviving" / "data"
    unfinished = Flaw.UNNAMED  # a segment that no entry names yet: the next start removes it
    assert [problem for problem in verify(surviving / "lake") if problem.flaw is not unfinished] == []
    assert exported(surviving / "store") <= lake_end(surviving / "lake" / "journal")
    with serving(surviving) as server, SyncClient(str(server.wait_for("HTTP API is listening")["url"])) as client:
        left: set[str] = set()
        while leased := client.lease("orders", group="billing", limit=1_000):
            left |= {message.id for message in leased}
        assert left == set(sent) - {message.id for message in acked}
