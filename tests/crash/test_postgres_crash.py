"""SIGKILL of the broker, of its database, and of both, under load: as test_crash.py, over PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from tests import postgres
from tests.crash.killing import kill_under_load
from tests.crash.test_crash import Facts, drain
from tools.postgres import Server

LINES = 400


def crash(server: Server) -> None:
    """The database dies, and is started again. Whoever was connected finds out by itself."""
    server.kill()
    server.start()


async def test_killing_the_broker_its_database_or_both_loses_and_resurrects_nothing(tmp_path: Path) -> None:
    facts = Facts()
    with postgres.own_server() as server:
        (tmp_path / "url").write_text(server.url())
        facts.take(kill_under_load(tmp_path, 1, LINES, "tests.crash.load"))
        facts.take(kill_under_load(tmp_path, 2, LINES, "tests.crash.load", lambda: crash(server)))
        facts.take(kill_under_load(tmp_path, 3, LINES, "tests.crash.load"))
        crash(server)
        await drain(tmp_path, facts)
    assert sum(map(len, facts.enqueued.values())) > LINES // 2
