"""`holdfast store copy`: between kinds of stores, both ways, and between formats; and restoring a backup of records."""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.broker.node import Node
from holdfast.cli.main import main
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Draft, Leased, Settlement
from holdfast.core.records import Table
from holdfast.engine.cell_record import UNFINISHED_KEY
from holdfast.journal.generations import GENERATION_ROWS
from holdfast.journal.verify import verify
from holdfast.store import Remote, Store, open_store
from holdfast.store.formats import FORMAT
from holdfast.store.pages import RecordPage, pages_of, read_page, write_page
from tests import postgres
from tests.waiting import until_sync

TASKS = ("default", "tasks")
COUNT = 200
NODE = 7


def holdfast(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"NO_COLOR": "1", **environment})


def done(*arguments: object, **environment: str) -> Any:
    result = holdfast(*arguments, "-o", "json", **environment)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class Place:
    """A store by its name on the command line, with the directory of a server that works with it."""

    def __init__(self, data: Path, url: str = "") -> None:
        self.data = data
        self.url = url
        self.name = url or f"rocks:{data}"

    def open(self) -> Store:
        kind = "postgres" if self.url else "rocks"
        return open_store(kind, self.data / "store", remote=Remote(self.url, NODE).patient())

    @contextmanager
    def opened(self) -> Iterator[Store]:
        with closing(self.open()) as store:
            yield store

    def pages(self) -> list[RecordPage]:
        with self.opened() as store, store.view() as view:
            return list(pages_of(view))

    def work(self, send: int = 0) -> list[Leased]:
        """What waits is leased, and every second one acked. Then messages are sent."""

        async def run() -> list[Leased]:
            with self.opened() as store:
                config = Config(
                    node=NodeSettings(data_dir=self.data, node_id=NODE), journal=JournalSettings(conversion="thread")
                )
                node = Node(config, store)
                await node.start()
                leased = await node.messages.lease(TASKS, "workers", 1_000)
                acks = [Settlement(one.message.id, one.token, partition=one.partition) for one in leased[::2]]
                if acks:
                    await node.messages.settle(TASKS, "workers", acks)
                if send:
                    drafts = [Draft(b"%d" % number) for number in range(send)]
                    await node.messages.enqueue(TASKS, drafts)
                await node.stop()
                return list(leased)

        return asyncio.run(run())


def rows(pages: list[RecordPage]) -> dict[tuple[int, bytes], bytes]:
    return {(int(page.table), key): value for page in pages for key, value in page.rows}


def new_url() -> str:
    return postgres.url(postgres.new_database())


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A store with messages that wait, are leased and were acked."""
    place = Place(tmp_path_factory.mktemp("used") / "data")
    place.work(send=COUNT)
    place.work(send=COUNT)
    return place


def test_a_store_goes_to_postgresql_and_back_with_all_it_has(used: Place, tmp_path: Path) -> None:
    before = rows(used.pages())
    there, back = Place(tmp_path / "there", new_url()), Place(tmp_path / "back")
    copied = done("store", "copy", "--from", used.name, "--to", there.name, "--node-id", NODE)
    assert copied["records"] == len(before)
    assert copied["queues"] == 1
    assert rows(there.pages()) == before
    done("store", "copy", "--from", there.name, "--to", back.name, "--node-id", NODE)
    assert rows(back.pages()) == before
    assert rows(used.pages()) == before, "the source is not changed"
    leased = back.work()
    assert {int(one.message.payload) for one in leased} == set(range(COUNT))
    assert len({one.message.id for one in leased}) == len(leased) >= COUNT


def test_what_is_there_stays_unless_it_was_said(used: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    other.work(send=3)
    before = rows(other.pages())
    refused = holdfast("store", "copy", "--from", used.name, "--to", other.name, "--node-id", NODE)
    assert refused.exit_code == 1
    assert "store_not_empty" in refused.stderr
    assert rows(other.pages()) == before
    done("store", "copy", "--from", used.name, "--to", other.name, "--node-id", NODE, "--replace")
    assert rows(other.pages()) == rows(used.pages())


def test_a_store_in_use_is_not_copied(used: Place, tmp_path: Path) -> None:
    with used.opened():
        refused = holdfast("store", "copy", "--from", used.name, "--to", f"rocks:{tmp_path / 'new'}")
        assert "store_locked" in refused.stderr
    there = Place(tmp_path / "there", new_url())
    with there.opened() as store:
        for direction in (("--from", there.name, "--to", used.name), ("--from", used.name, "--to", there.name)):
            until_sync(lambda direction=direction: _is_refused_as_in_use(store, direction))  # type: ignore[misc]


def _is_refused_as_in_use(store: Store, direction: tuple[str, ...]) -> bool:
    """Whether a copy sees the writer. Tests beside this one end sessions of the same server: then it comes again."""
    epoch = store.acquire()
    store.write(epoch, [(Table.META, b"name", b"1")])
    store.sync()
    refused = holdfast("store", "copy", *direction, "--node-id", NODE)
    assert refused.exit_code == 1
    if "store_in_use" not in refused.stderr:
        return False
    store.write(epoch, [(Table.META, b"name", b"2")])
    store.sync()  # nobody has fenced it
    return True


def test_an_unfinished_copy_is_not_worked_with(used: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Place(tmp_path / "target")

    def break_off(*_: object) -> Iterator[RecordPage]:
        yield used.pages()[0]
        raise OSError(5, "Input/output error", "the source")

    monkeypatch.setattr("holdfast.broker.store_copy.pages_of", break_off)
    assert holdfast("store", "copy", "--from", used.name, "--to", target.name, "--node-id", NODE).exit_code != 0
    monkeypatch.undo()
    refused = holdfast("serve", "--data-dir", target.data, "--node-id", NODE, "--http", "127.0.0.1:0")
    assert "store_unfinished" in refused.stderr
    done("store", "copy", "--from", used.name, "--to", target.name, "--node-id", NODE, "--replace")
    assert rows(target.pages()) == rows(used.pages())


def test_a_directory_of_an_older_format_is_copied_and_stays_as_it_is(tmp_path: Path) -> None:
    archives = sorted(Path(__file__).parents[1].glob("formats/*.tar.gz"))
    with tarfile.open(archives[0]) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    [store] = [path.parent for path in (tmp_path / "old").rglob("FORMAT")]
    old = tmp_path / "data"
    old.mkdir()
    shutil.move(store, old / "store")
    before = (old / "store" / "FORMAT").read_text()
    assert int(before) < FORMAT
    done("store", "copy", "--from", f"rocks:{old}", "--to", f"rocks:{tmp_path / 'new'}")
    assert (old / "store" / "FORMAT").read_text() == before
    assert int((tmp_path / "new" / "store" / "FORMAT").read_text()) == FORMAT
    with closing(open_store("rocks", tmp_path / "new" / "store")) as copied:
        new = rows(list(pages_of(copied)))
    assert new
    assert new == rows(Place(old).pages())


def test_a_backup_of_postgresql_is_restored_to_any_store(used: Place, tmp_path: Path) -> None:
    there = Place(tmp_path / "there", new_url())
    done("store", "copy", "--from", used.name, "--to", there.name, "--node-id", NODE)
    shutil.copytree(used.data / "lake", there.data / "lake")
    environment = postgres_environment(there)
    backup = tmp_path / "backups"
    made = done("backup", backup, "--data-dir", there.data, **environment)
    assert made["store"] == "postgres"
    assert holdfast("backup", "verify", backup).exit_code == 0
    again = Place(tmp_path / "again", new_url())
    places = [(Place(tmp_path / "rocks"), {}), (again, {**environment, "HOLDFAST_STORE_URL": again.url})]
    for place, own in places:
        restored = done("restore", backup, "--data-dir", place.data, "--node-id", NODE, **own)
        assert restored["next_lsn"] == GENERATION_ROWS + 1
        assert {int(one.message.payload) for one in place.work(send=5)} == set(range(COUNT))
        place.work()
        assert verify(place.data / "lake") == []
    refused = holdfast("restore", backup, "--data-dir", again.data, **{**environment, "HOLDFAST_STORE_URL": again.url})
    assert refused.exit_code == 1
    assert "store_not_empty" in refused.stderr


def postgres_environment(place: Place) -> dict[str, str]:
    return {
        "HOLDFAST_STORE_KIND": "postgres",
        "HOLDFAST_STORE_URL": place.url,
        "HOLDFAST_NODE_NODE_ID": str(NODE),
    }


def test_a_store_is_not_copied_into_itself(used: Place, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    place.work(send=3)
    (tmp_path / "link").symlink_to(place.data)
    there = Place(tmp_path / "there", new_url())
    done("store", "copy", "--from", place.name, "--to", there.name, "--node-id", NODE)
    for store, alias in ((place, f"rocks:{tmp_path / 'link'}"), (there, f"{there.url}&application_name=other")):
        before = rows(store.pages())
        refused = holdfast("store", "copy", "--from", store.name, "--to", alias, "--node-id", NODE, "--replace")
        assert refused.exit_code == 1
        assert "names the store of --from" in refused.stderr
        assert rows(store.pages()) == before


def test_a_restore_into_postgresql_counts_when_its_numbers_are_new(
    used: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = Place(tmp_path / "source", new_url()), Place(tmp_path / "target", new_url())
    done("store", "copy", "--from", used.name, "--to", source.name, "--node-id", NODE)
    done("backup", tmp_path / "backups", "--data-dir", source.data, **postgres_environment(source))
    restore = ("restore", tmp_path / "backups", "--data-dir", target.data)
    environment = postgres_environment(target)

    def break_off(_lsn: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.broker.restoring.next_generation", break_off)
    assert holdfast(*restore, **environment).exit_code != 0
    monkeypatch.undo()
    with target.opened() as store:
        assert store.get(Table.META, UNFINISHED_KEY) is not None
    refused = holdfast("serve", "--data-dir", target.data, "--http", "127.0.0.1:0", **environment)
    assert "store_unfinished" in refused.stderr
    done(*restore, "--replace", **environment)
    assert {int(one.message.payload) for one in target.work()} == set(range(COUNT))


def test_a_page_is_read_as_it_was_written(used: Place) -> None:
    pages = used.pages()
    assert [read_page(write_page(page)) for page in pages] == pages
    with pytest.raises(ValueError, match="no page"):
        read_page(b"something else")


def test_names_of_stores_that_cannot_be(tmp_path: Path, used: Place) -> None:
    for name, wanted in (("redis://there", "write rocks:"), (f"rocks:{tmp_path}", "has no store")):
        refused = holdfast("store", "copy", "--from", name, "--to", used.name)
        assert refused.exit_code == 1
        assert wanted in refused.stderr
