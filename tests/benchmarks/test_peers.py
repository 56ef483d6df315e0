"""The table of peers: what it says, and that each server that is installed can be measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.load.loop import Load
from benchmarks.peers import servers, table
from benchmarks.peers.servers import Broker, NotInstalledError
from benchmarks.peers.table import Contest, Line, Measured, Options, Serve, row

MORE, LESS, ABSOLUTE = Line("rate", "/s", 0.6), Line("time", "ms", 2, less=True), Line("memory", "MiB", 60, True, True)


@contextmanager
def installed(serve: Serve) -> Iterator[Broker]:
    """The server; without it the test is skipped."""
    try:
        with serve() as broker:
            yield broker
    except NotInstalledError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("line", "ours", "peer", "ratio", "verdict"),
    [
        (MORE, 7.0, 10.0, "0.70 x", "met"),
        (MORE, 5.0, 10.0, "0.50 x", "missed"),
        (LESS, 7.0, 10.0, "0.70 x", "met"),
        (LESS, 30.0, 10.0, "3.00 x", "missed"),
        (ABSOLUTE, 50.0, 10.0, "5.00 x", "met"),
        (ABSOLUTE, 70.0, 10.0, "7.00 x", "missed"),
    ],
)
def test_a_row_compares_the_medians_with_the_target(
    line: Line, ours: float, peer: float, ratio: str, verdict: str
) -> None:
    printed = row(line, [ours, ours, 999.0], [peer, peer, 0.001], "peer")
    assert ratio in printed
    assert printed.split()[-2:] == [verdict, "peer"]


def test_without_its_peer_a_contest_still_measures_ours_and_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: Options) -> Measured:
        raise NotInstalledError("peer-server is not installed")

    contest = Contest(lambda _: Measured((7.0,)), "peer", missing, (MORE,))
    monkeypatch.setattr(table, "CONTESTS", {"fake": contest})
    table.main(["--rounds", "2", "--only", "fake"])
    *_, line, note = capsys.readouterr().out.splitlines()
    assert line.split()[:3] == ["rate", "7.0", "-"]
    assert "met" not in line
    assert note.strip() == "peer-server is not installed"


@pytest.mark.parametrize(
    "serve",
    [
        servers.holdfast_drained_over_http,
        servers.redis,
        servers.rabbitmq_quorum,
        servers.rabbitmq_classic,
    ],
)
def test_what_was_published_to_a_server_is_drained(serve: Serve) -> None:
    with installed(serve) as broker:
        with Load(broker.publishers(2), burst=10, window=10) as load:
            assert load.fill(100).sent == 100
        with Load([], broker.consumers(2)) as load:
            assert load.drain(100).delivered == 100


@pytest.mark.parametrize("serve", [servers.holdfast_over_http, servers.postgres])
def test_single_messages_are_confirmed_one_by_one(serve: Serve) -> None:
    with installed(serve) as broker, Load(broker.publishers(4)) as load:
        report = load.fill(20)
    assert (report.sent, len(report.confirm_times)) == (20, 20)


def test_a_worker_executes_its_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    table.main(["--rounds", "1", "--only", "worker", "--jobs", "20", "--dramatiq", "/bin/false"])
    *_, line, note = capsys.readouterr().out.splitlines()
    assert float(line.split()[6].replace(",", "")) > 0
    assert note.strip() == "/bin/false has no dramatiq[rabbitmq], see --dramatiq"
