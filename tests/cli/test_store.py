"""`holdfast store`: what can be said about the store of a stopped server, and what can be saved of a damaged one."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.store.rocks_log import logs_of
from tests.test_server import serving

QUEUE = "shop/orders"
MESSAGES = 30


def payload(number: int) -> bytes:
    return b"%d " % number + bytes(range(256)) * 32  # 8 KiB: the log gets many blocks


def numbers(client: SyncClient) -> list[int]:
    """The messages that a server has."""
    found = client.lease(QUEUE, group="billing", limit=1_000)
    assert all((each.priority, each.properties) == (3, {"shop": "7"}) for each in found)
    contents = [each.base64 for each in found]
    result = [int(content.partition(b" ")[0]) for content in contents if isinstance(content, bytes)]
    assert contents == [payload(number) for number in result]
    return sorted(result)


def holdfast(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"NO_COLOR": "1"})


@contextmanager
def client_of(data: Path, *, stop: signal.Signals) -> Iterator[SyncClient]:
    """A client of a server on a data directory, which ends by that signal."""
    with serving(data) as server:
        url = server.wait_for("HTTP API is listening")["url"]
        server.wait_for("holdfast is running")
        with SyncClient(str(url)) as client:
            yield client
        server.signal(stop)
        server.exit_code()


def send(client: SyncClient, which: range) -> None:
    for number in which:
        client.send(QUEUE, payload(number), key=f"k{number}", priority=3, properties={"shop": "7"})


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The data directory of a killed server, and the size of its log when it had half of the messages. At the end the
    first two were acked."""
    data = tmp_path_factory.mktemp("killed") / "data"
    with client_of(data, stop=signal.SIGKILL) as client:
        client.create_queue(QUEUE)
        client.create_group(QUEUE, "billing")
        send(client, range(MESSAGES // 2))
        half = log_of(data).stat().st_size
        send(client, range(MESSAGES // 2, MESSAGES))
        for message in client.receive(QUEUE, group="billing", limit=2):
            message.ack()
    return data, half


def log_of(data: Path) -> Path:
    (log,) = logs_of(data / "store" / "db")
    return log


def damaged(killed: Path, tmp_path: Path, at: int) -> Path:
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    content = bytearray(log_of(data).read_bytes())
    content[at] ^= 1
    log_of(data).write_bytes(content)
    return data


def found(data: Path, *, code: int) -> dict[str, dict[str, Any]]:
    result = holdfast("store", "check", "--data-dir", data, "-o", "json")
    assert result.exit_code == code, result.output
    return {each["part"]: each for each in json.loads(result.stdout)}


def test_a_whole_store_is_found_whole(killed: tuple[Path, int], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed[0], data)
    before = {file: file.read_bytes() for file in (data / "store" / "db").iterdir()}
    assert found(data, code=0)["log"]["found"].endswith("whole")
    assert {file: file.read_bytes() for file in (data / "store" / "db").iterdir()} == before
    with client_of(data, stop=signal.SIGTERM) as client:
        assert numbers(client) == list(range(2, MESSAGES))
    parts = found(data, code=0)
    assert parts["files"]["found"] == "all there"
    assert int(parts["messages"]["found"].split()[0]) >= MESSAGES - 2


def test_without_a_store_there_is_nothing_to_check(tmp_path: Path) -> None:
    for command in (["check"], ["salvage", "--to", tmp_path / "new"]):
        result = holdfast("store", *command, "--data-dir", tmp_path)
        assert result.exit_code == 1
        assert "has no store" in result.stderr


def test_the_store_of_a_running_server_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with client_of(data, stop=signal.SIGTERM):
        for command in (["check"], ["salvage", "--to", tmp_path / "new"]):
            result = holdfast("store", *command, "--data-dir", data)
            assert result.exit_code == 1
            assert "[store_locked]" in result.stderr


def test_of_a_damaged_log_all_is_saved_but_what_shared_its_block(killed: tuple[Path, int], tmp_path: Path) -> None:
    whole, half = killed
    data, new = damaged(whole, tmp_path, half + 20), tmp_path / "new"
    before = {file: file.read_bytes() for file in (data / "store" / "db").iterdir()}
    assert f"at byte {half} " in found(data, code=1)["log"]["found"]

    saved = holdfast("store", "salvage", "--data-dir", data, "--to", new, "-o", "json")
    assert saved.exit_code == 0, saved.output
    assert {file: file.read_bytes() for file in (data / "store" / "db").iterdir()} == before
    assert f"a store with {MESSAGES // 2} messages" in saved.stderr
    assert "2 messages of these had been settled later" in saved.stderr
    (file,) = json.loads(saved.stdout)
    assert (file["namespace"], file["queue"]) == ("default", QUEUE)
    assert MESSAGES // 2 - 32 // 8 - 1 <= file["messages"] < MESSAGES // 2

    with client_of(new, stop=signal.SIGTERM) as client:
        sent = holdfast("send", QUEUE, "--as", "message", "--lines", file["path"], "--url", client.url)
        assert sent.exit_code == 0, sent.output
        again = numbers(client)
    assert again == [*range(MESSAGES // 2), *range(MESSAGES - file["messages"], MESSAGES)]
    assert found(new, code=0)


def test_of_a_damaged_table_all_messages_are_saved_that_can_be_read(killed: tuple[Path, int], tmp_path: Path) -> None:
    data, new = tmp_path / "data", tmp_path / "new"
    shutil.copytree(killed[0], data)
    with client_of(data, stop=signal.SIGTERM):
        pass  # what was in the log is in tables now
    blob = max((data / "store" / "db").glob("*.blob"), key=lambda each: each.stat().st_size)
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)
    assert "Corruption" in found(data, code=1)["messages"]["found"]

    saved = holdfast("store", "salvage", "--data-dir", data, "--to", new, "-o", "json")
    assert saved.exit_code == 0, saved.output
    assert "there is no store" in saved.stderr
    assert "1 place could not be read" in saved.stderr
    assert not (new / "store").exists()
    (file,) = json.loads(saved.stdout)
    assert file["messages"] == MESSAGES - 2 - 1


def test_salvage_needs_a_directory_of_its_own(killed: tuple[Path, int], tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    result = holdfast("store", "salvage", "--data-dir", killed[0], "--to", tmp_path / "new")
    assert result.exit_code == 1
    assert "is not empty" in result.stderr
