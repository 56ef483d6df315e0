"""Moving the messages of a queue over HTTP takes rights at both ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.core.commands import Draft
from tests.http_api.tenants import Tenants, tenants

MOVES = "/api/v1/queues/jobs/moves"


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path) as found:
        for name in ("jobs", "mine"):
            await found.node.queues.create(("default", name))
        await found.node.messages.enqueue(("default", "jobs"), [Draft(b"secret")])
        yield found


@pytest.mark.parametrize(
    ("scopes", "scope"),
    [
        (("admin:mine", "produce:#", "consume:#"), "admin:jobs"),
        (("admin:jobs", "produce:#", "consume:#"), "admin:mine"),
        (("admin:#", "consume:mine"), "consume:jobs"),
    ],
)
async def test_what_is_needed_at_each_end(served: Tenants, scopes: tuple[str, ...], scope: str) -> None:
    refused = await served.call("POST", MOVES, *scopes, json={"to": "mine"})
    assert (refused.status_code, refused.json()["details"]["scope"]) == (403, scope)
    assert served.node.cell.engine.queues["default", "jobs"].depth == 1
    assert served.node.redrive_jobs.of(("default", "jobs"), moving=True) == []


@pytest.mark.parametrize("scopes", [("admin:#",), ("admin:#", "consume:jobs", "consume:mine")])
async def test_who_has_them_may(served: Tenants, scopes: tuple[str, ...]) -> None:
    response = await served.call("POST", MOVES, *scopes, json={"to": "mine"})
    assert response.status_code == 202
    job = response.json()
    while job["state"] == "running":
        job = (await served.call("GET", f"{MOVES}/{job['id']}", *scopes)).json()
    assert (job["state"], job["moved"]) == ("done", 1)
    assert served.node.cell.engine.queues["default", "mine"].depth == 1


@pytest.mark.parametrize(
    "body", [{}, {"to": ""}, {"to": "jobs"}, {"to": "mine", "rate": -1}, {"to": "mine", "limit": -1}]
)
async def test_bad_requests_are_refused(served: Tenants, body: dict[str, object]) -> None:
    assert (await served.call("POST", MOVES, "admin:#", json=body)).status_code == 400
    assert (await served.call("GET", f"{MOVES}/none", "admin:#")).status_code == 404
