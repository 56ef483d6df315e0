"""Processes of workers announce themselves, and are listed for who administers their queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.broker.parts.workers import KEPT, OF_ONE_CALLER_MAX, PROCESSES_MAX, AnnouncedProcesses, AnnouncedWorker
from holdfast.errors import LimitExceeded
from tests.http_api.tenants import Tenants, tenants

PATH = "/api/v1/workers/one"
WORKER = {"name": "mails.send", "queue": "mails", "group": "default", "concurrency": 8}
PROCESS = {"host": "box", "pid": 7, "version": "Python 1", "workers": [{**WORKER, "jobs": [{"id": "12"}]}]}


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path) as found:
        yield found


async def test_a_process_is_listed_for_who_administers_its_queues(served: Tenants) -> None:
    other = {**WORKER, "queue": "bills"}
    body = {**PROCESS, "workers": [*PROCESS["workers"], other]}  # type: ignore[misc]
    done = await served.call("PUT", PATH, "consume:mails", "consume:bills", subject="robot", json=body)
    assert done.status_code == 204
    [found] = (await served.call("GET", "/api/v1/workers", "admin:mails")).json()["processes"]
    assert (found["consumer"], found["by"]) == ("token:robot/one", "token:robot")
    assert (found["host"], found["pid"], found["version"], found["draining"]) == ("box", 7, "Python 1", False)
    assert found["workers"] == [{**WORKER, "jobs": [{"id": "12", "since": ""}]}]
    assert (await served.call("GET", "/api/v1/workers", "admin:else")).json() == {"processes": []}
    elsewhere = await served.call("GET", "/api/v1/workers", "admin:#", namespace="acme")
    assert elsewhere.json() == {"processes": []}
    # Somebody else's of the same name is another one.
    await served.call("DELETE", PATH, "consume:mails", subject="other")
    assert len((await served.call("GET", "/api/v1/workers", "admin:#")).json()["processes"]) == 1
    await served.call("DELETE", PATH, "consume:mails", subject="robot")
    assert (await served.call("GET", "/api/v1/workers", "admin:#")).json() == {"processes": []}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"host": "x" * 256}, 400),
        ({"version": "a\x00b"}, 400),
        ({"workers": [{**WORKER, "queue": ""}]}, 400),
        ({"workers": [{**WORKER, "jobs": [{"id": "x"}]}]}, 400),
        ({"workers": [{**WORKER, "jobs": [{"id": "1", "since": "soon"}]}]}, 400),
        ({"workers": [{**WORKER, "queue": "secret"}]}, 403),
        ({"workers": [WORKER] * 300}, 400),
        ({"pid": -1}, 400),
    ],
)
async def test_what_is_wrong_is_refused_and_nothing_is_listed(
    served: Tenants, change: dict[str, object], status: int
) -> None:
    refused = await served.call("PUT", PATH, "consume:mails", json={**PROCESS, **change})
    assert refused.status_code == status
    assert (await served.call("GET", "/api/v1/workers", "admin:#")).json() == {"processes": []}


def test_a_process_that_is_silent_is_forgotten() -> None:
    now = 0
    known = AnnouncedProcesses(lambda: now)
    worker = AnnouncedWorker("w", "q", "g", 1, ())
    known.announce(("ns", "me", "a"), "h", 1, "", False, (worker,))
    now = KEPT - 1
    known.announce(("ns", "me", "b"), "h", 1, "", False, (worker,))
    assert [one.name[2] for one in known.in_namespace("ns")] == ["a", "b"]
    now = KEPT
    assert [one.name[2] for one in known.in_namespace("ns")] == ["b"]
    known.announce(("ns", "me", "b"), "h", 1, "", True, (worker,))
    [one] = known.in_namespace("ns")
    assert (one.since, one.at, one.draining) == (KEPT - 1, KEPT, True)


def test_the_number_of_processes_is_bounded() -> None:
    known = AnnouncedProcesses(lambda: 0)
    for number in range(OF_ONE_CALLER_MAX):
        known.announce(("ns", "me", str(number)), "h", 1, "", False, ())
    with pytest.raises(LimitExceeded):
        known.announce(("ns", "me", "more"), "h", 1, "", False, ())
    known.announce(("ns", "me", "1"), "again", 1, "", False, ())
    for number in range(PROCESSES_MAX - OF_ONE_CALLER_MAX):
        known.announce(("ns", f"somebody {number}", "x"), "h", 1, "", False, ())
    with pytest.raises(LimitExceeded):
        known.announce(("ns", "somebody else", "x"), "h", 1, "", False, ())
    assert len(known.in_namespace("ns")) == PROCESSES_MAX
