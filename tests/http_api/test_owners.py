"""A transaction belongs to the namespace and the identity that began it: to nobody else there is such a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from holdfast.core.commands import Draft
from holdfast.core.transactions import TransactionName
from tests.http_api.tenants import Tenants, tenants

PATH = "/api/v1/transactions/batch-7"
JOBS = {"batches": [{"queue": "jobs", "messages": [{"text": "one"}, {"text": "two"}]}]}
BILLS = {"batches": [{"queue": "bills", "messages": [{"text": "theirs"}]}]}


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path) as found:
        yield found


class Caller:
    """Somebody who may produce to a queue or two."""

    def __init__(self, served: Tenants, subject: str, *scopes: str) -> None:
        self._served, self._subject, self._scopes = served, subject, scopes

    async def post(self, end: str, body: object = None) -> httpx.Response:
        return await self._served.call("POST", f"{PATH}/{end}", *self._scopes, subject=self._subject, json=body or {})

    async def get(self) -> httpx.Response:
        return await self._served.call("GET", PATH, *self._scopes, subject=self._subject)


def depth(served: Tenants, queue: str) -> int:
    found = served.node.cell.engine.queues.get(("default", queue))
    return 0 if found is None else found.depth


async def test_an_id_that_somebody_else_has_published_is_not_taken_from_its_owner(served: Tenants) -> None:
    owner, stranger = Caller(served, "spark", "produce:jobs"), Caller(served, "other", "produce:bills")
    assert (await stranger.post("publish", {"parts": {}})).status_code == 200
    assert (await owner.post("stage", JOBS)).status_code == 200
    published = (await owner.post("publish")).json()
    assert (published["published"], published.get("repeated", False)) == (2, False)
    assert depth(served, "jobs") == 2


async def test_nobody_else_stages_publishes_aborts_or_sees_it(served: Tenants) -> None:
    owner, stranger = Caller(served, "spark", "produce:jobs"), Caller(served, "other", "produce:#")
    assert (await owner.post("stage", JOBS)).status_code == 200
    assert (await stranger.get()).json()["code"] == "transaction_not_found"
    assert (await stranger.post("abort")).json() == {"aborted": False}
    assert (await stranger.post("publish")).json()["code"] == "transaction_not_found"
    assert (await stranger.post("stage", BILLS)).status_code == 200, "that is one of its own"
    found: dict[str, Any] = (await owner.get()).json()
    assert (found["state"], found["messages"]) == ("open", 2)
    assert (await owner.post("publish")).json()["published"] == 2
    assert (depth(served, "jobs"), depth(served, "bills")) == (2, 0)
    assert (await stranger.post("publish")).json()["published"] == 1
    assert (await owner.post("publish")).json()["repeated"] is True


async def test_nor_does_a_user_of_the_same_name_or_somebody_in_another_namespace(served: Tenants) -> None:
    owner = Caller(served, "spark", "produce:jobs")
    assert (await owner.post("stage", JOBS)).status_code == 200
    elsewhere = await served.call("GET", PATH, "produce:#", subject="spark", namespace="acme")
    assert elsewhere.json()["code"] == "transaction_not_found"
    assert {name.identity for name in served.node.cell.engine.transactions.live} == {"token:spark"}


@pytest.mark.parametrize(("method", "end"), [("POST", "/stage"), ("POST", "/publish"), ("POST", "/abort"), ("GET", "")])
async def test_without_a_right_to_produce_there_is_no_transaction_call(served: Tenants, method: str, end: str) -> None:
    refused = await served.call(method, PATH + end, "consume:#", "admin:#", "node", json={"parts": {}})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert served.node.cell.engine.transactions.live == {}


async def test_what_was_staged_before_there_were_owners_belongs_to_those_who_may_produce_it(served: Tenants) -> None:
    await served.node.transactions.stage(TransactionName("default", "batch-7"), [("jobs", [Draft(b"old")])])
    assert (await Caller(served, "other", "produce:bills").post("publish")).status_code == 403
    owner = Caller(served, "spark", "produce:jobs")
    assert (await owner.get()).json()["messages"] == 1
    assert (await owner.post("publish")).json()["published"] == 1
    again = (await owner.post("publish")).json()
    assert (again["published"], again["repeated"]) == (1, True)
    assert (await owner.post("stage", JOBS)).json()["code"] == "transaction_published"
    assert depth(served, "jobs") == 1
