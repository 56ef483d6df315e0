"""Moving a message takes a right at both ends: where it is and where it goes, for every dead letter by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

from holdfast.core.commands import Draft
from holdfast.core.records import Extra, Origin
from holdfast.http_api.codecs.arrow_request import MEDIA_TYPE
from tests.http_api.tenants import Tenants, tenants

DEAD = ("default", "dlq/jobs")
AT_DEAD = "/api/v1/queues/dlq%2Fjobs"
DEAD_QUEUE_ONLY = ("admin:dlq/#", "produce:dlq/#", "consume:dlq/#")
"""Everything about the dead queue, and nothing about the queues whose letters are in it."""


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path) as found:
        yield found


async def dead_letters(served: Tenants, dead: tuple[str, str], *homes: str) -> list[int]:
    """Dead letters of these queues; their ids."""
    drafts = [
        Draft(home.encode(), extra=Extra(origin=Origin(number, home, "", "rejected")))
        for number, home in enumerate(homes, 1)
    ]
    if not served.node.queues.exists(dead):
        await served.node.queues.create(dead, {"dlq.enabled": False})
    return (await served.node.messages.enqueue(dead, drafts)).ids


async def shared_dead_queue(served: Tenants) -> None:
    await served.node.queues.create(("default", "morgue"), {"dlq.enabled": False})
    for name in ("jobs", "mine"):
        await served.node.queues.create(("default", name), {"dlq.queue": "morgue"})


def payloads(served: Tenants, queue: str) -> list[bytes]:
    """What waits in a queue; nothing if it does not exist."""
    engine = served.node.cell.engine
    found = engine.queues.get(("default", queue))
    return [] if found is None else [b"?"] * found.depth


async def finished(served: Tenants, path: str, job: dict[str, Any], *scopes: str) -> dict[str, Any]:
    while job["state"] == "running":
        job = (await served.call("GET", f"{path}/dlq/redrive/{job['id']}", *scopes)).json()
    return job


# --- where a message says that it comes from ------------------------------------------------------------------------


async def test_a_message_is_not_imported_in_the_name_of_a_queue_that_the_caller_may_not_send_to(
    served: Tenants,
) -> None:
    await dead_letters(served, DEAD)
    item = {"text": "forged", "origin": {"source_id": "7", "source_queue": "jobs", "reason": "rejected"}}
    refused = await served.call("POST", f"{AT_DEAD}/import", *DEAD_QUEUE_ONLY, json={"items": [item]})
    assert (refused.status_code, refused.json()["details"]["scope"]) == (403, "produce:jobs")
    assert payloads(served, "dlq/jobs") == []
    taken = await served.call("POST", f"{AT_DEAD}/import", *DEAD_QUEUE_ONLY, "produce:jobs", json={"items": [item]})
    assert taken.status_code == 200


@pytest.mark.parametrize("arrow", [False, True])
async def test_nor_staged(served: Tenants, arrow: bool) -> None:
    await dead_letters(served, DEAD)
    path = "/api/v1/transactions/t/stage"

    async def stage(*scopes: str) -> Any:
        if arrow:
            table = pa.table({"payload": [b"x", b"y"], "source_id": [7, 8], "source_queue": ["dlq/jobs", "jobs"]})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            return await served.call(
                "POST",
                f"{path}?queue=dlq%2Fjobs",
                *scopes,
                content=sink.getvalue().to_pybytes(),
                content_type=MEDIA_TYPE,
            )
        message = {"text": "x", "source_id": "7", "source_queue": "jobs"}
        body = {"batches": [{"queue": "dlq/jobs", "messages": [message]}]}
        return await served.call("POST", path, *scopes, json=body)

    refused = await stage(*DEAD_QUEUE_ONLY)
    assert (refused.status_code, refused.json()["details"]["scope"]) == (403, "produce:jobs")
    assert served.node.transactions.staged("default").messages == 0
    assert (await stage(*DEAD_QUEUE_ONLY, "produce:jobs")).status_code == 200


# --- where it goes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [False, True])
async def test_a_redrive_moves_the_dead_letters_whose_home_the_caller_may_send_to(
    served: Tenants, exists: bool
) -> None:
    await dead_letters(served, DEAD, "jobs", "bills", "jobs")
    if exists:
        await served.node.queues.create(("default", "jobs"), {})
    may = (*DEAD_QUEUE_ONLY, "produce:bills")
    dry = (await served.call("POST", f"{AT_DEAD}/dlq/redrive", *may, json={"dry_run": True})).json()
    assert (dry["matched"], dry["skipped"]) == (3, 2)
    job = (await served.call("POST", f"{AT_DEAD}/dlq/redrive", *may, json={})).json()
    job = await finished(served, AT_DEAD, job, *may)
    assert (job["state"], job["moved"], job["skipped"]) == ("done", 1, 2)
    assert "produce:jobs" in job["problem"]
    assert (payloads(served, "jobs"), payloads(served, "bills")) == ([], [b"?"])
    assert served.node.queues.exists(("default", "jobs")) is exists
    all_of_them = (await served.call("POST", f"{AT_DEAD}/dlq/redrive", *DEAD_QUEUE_ONLY, "admin:jobs", json={})).json()
    assert (await finished(served, AT_DEAD, all_of_them, *DEAD_QUEUE_ONLY))["moved"] == 2


async def test_so_does_a_retry(served: Tenants) -> None:
    [dead_letter] = await dead_letters(served, DEAD, "jobs")
    refused = await served.call("POST", f"{AT_DEAD}/dlq/{dead_letter}/retry", *DEAD_QUEUE_ONLY)
    assert (refused.status_code, refused.json()["details"]["scope"]) == (403, "produce:jobs")
    assert not served.node.queues.exists(("default", "jobs"))
    assert (
        await served.call("POST", f"{AT_DEAD}/dlq/{dead_letter}/retry", *DEAD_QUEUE_ONLY, "admin:jobs")
    ).status_code == 200


async def test_and_a_redrive_under_an_id(served: Tenants) -> None:
    first, second = await dead_letters(served, DEAD, "jobs", "bills")
    body = {"dead_letters": [{"id": str(first)}, {"id": str(second)}]}
    path = f"{AT_DEAD}/dlq/audits/a"
    outcomes = (await served.call("POST", path, *DEAD_QUEUE_ONLY, "produce:bills", json=body)).json()["dead_letters"]
    assert [(one["outcome"], one.get("code", "")) for one in outcomes] == [("refused", "forbidden"), ("moved", "")]
    assert not served.node.queues.exists(("default", "jobs"))
    admin = (*DEAD_QUEUE_ONLY, "admin:jobs")
    assert (await served.call("POST", path, *admin, json=body)).json()["dead_letters"][0]["outcome"] == "moved"


async def test_to_another_queue_the_dead_letters_home_does_not_matter(served: Tenants) -> None:
    [dead_letter] = await dead_letters(served, DEAD, "jobs")
    await served.node.queues.create(("default", "repair"), {})
    path = f"{AT_DEAD}/dlq/{dead_letter}/retry?to=repair"
    assert (await served.call("POST", path, *DEAD_QUEUE_ONLY)).json()["details"]["scope"] == "admin:repair"
    assert (await served.call("POST", path, *DEAD_QUEUE_ONLY, "admin:repair")).status_code == 200


# --- a dead queue that several queues share -------------------------------------------------------------------------


async def test_a_redrive_under_an_id_takes_the_dead_letters_of_its_own_queue_only(served: Tenants) -> None:
    await shared_dead_queue(served)
    own, other = await dead_letters(served, ("default", "morgue"), "mine", "jobs")
    plain = (await served.node.messages.enqueue(("default", "morgue"), [Draft(b"no dead letter")])).ids[0]
    body = {"dead_letters": [{"id": str(one)} for one in (own, other, plain)]}
    scopes = ("admin:mine", "produce:#")
    outcomes = (await served.call("POST", "/api/v1/queues/mine/dlq/audits/a", *scopes, json=body)).json()[
        "dead_letters"
    ]
    assert [one["outcome"] for one in outcomes] == ["moved", "gone", "gone"]
    assert len(payloads(served, "morgue")) == 2
    assert payloads(served, "jobs") == []


async def test_redrives_of_another_queue_are_not_shown_continued_or_undone(served: Tenants) -> None:
    await shared_dead_queue(served)
    _, dead_letter, later = await dead_letters(served, ("default", "morgue"), "mine", "jobs", "jobs")
    theirs = ("admin:jobs",)
    path = "/api/v1/queues/jobs/dlq/audits/a"
    moved = await served.call("POST", path, *theirs, json={"dead_letters": [{"id": str(dead_letter)}]})
    assert moved.json()["dead_letters"][0]["outcome"] == "moved"
    mine = ("admin:mine", "produce:#")
    here = "/api/v1/queues/mine/dlq/audits"
    assert (await served.call("GET", here, *mine)).json()["audits"] == []
    for method, end in (("GET", "/a"), ("GET", "/a/dead-letters"), ("POST", "/a/undo")):
        refused = await served.call(method, here + end, *mine, json={} if method == "POST" else None)
        assert (refused.status_code, refused.json()["code"]) == (404, "audit_not_found"), end
    own_a = await served.call("POST", f"{here}/a", *mine, json={"dead_letters": [{"id": str(dead_letter)}]})
    assert own_a.json()["dead_letters"][0]["outcome"] == "gone", "an id of one queue is none of another's"
    assert len(payloads(served, "jobs")) == 1
    again = await served.call(
        "POST", path, *theirs, json={"dead_letters": [{"id": str(dead_letter)}, {"id": str(later)}]}
    )
    assert [one["outcome"] for one in again.json()["dead_letters"]] == ["repeated", "moved"]
    assert (await served.call("POST", f"{path}/undo", *theirs, json={})).json()["dead_letters"][0][
        "outcome"
    ] == "undone"


async def test_jobs_of_another_queue_are_not_shown_or_cancelled(served: Tenants) -> None:
    await shared_dead_queue(served)
    await dead_letters(served, ("default", "morgue"), "jobs", "jobs", "jobs")
    path = "/api/v1/queues/jobs"
    job = (await served.call("POST", f"{path}/dlq/redrive", "admin:jobs", json={"rate": 0.1})).json()
    here = "/api/v1/queues/mine/dlq/redrive"
    assert (await served.call("GET", here, "admin:mine")).json()["redrives"] == []
    for method in ("GET", "DELETE"):
        refused = await served.call(method, f"{here}/{job['id']}", "admin:mine")
        assert (refused.status_code, refused.json()["code"]) == (404, "redrive_not_found")
    ended = await served.call("DELETE", f"{path}/dlq/redrive/{job['id']}", "admin:jobs")
    assert ended.json()["state"] == "cancelled"


async def test_an_undo_takes_messages_out_of_queues_that_the_caller_administers(served: Tenants) -> None:
    dead_letter, _ = await dead_letters(served, DEAD, "jobs", "bills")
    path = f"{AT_DEAD}/dlq/audits/a"
    scopes = (*DEAD_QUEUE_ONLY, "produce:jobs")
    body = {"dead_letters": [{"id": str(dead_letter)}]}
    assert (await served.call("POST", path, *scopes, json=body)).json()["dead_letters"][0]["outcome"] == "moved"
    [outcome] = (await served.call("POST", f"{path}/undo", *scopes, json={})).json()["dead_letters"]
    assert (outcome["outcome"], outcome["code"]) == ("refused", "forbidden")
    assert "admin:jobs" in outcome["problem"]
    assert len(payloads(served, "jobs")) == 1
    [outcome] = (await served.call("POST", f"{path}/undo", *DEAD_QUEUE_ONLY, "admin:jobs", json={})).json()[
        "dead_letters"
    ]
    assert outcome["outcome"] == "undone"


async def test_a_queue_becomes_the_dead_queue_of_another_only_by_who_administers_both(served: Tenants) -> None:
    """It can then neither be deleted nor have a dead queue of its own."""
    await served.node.queues.create(("default", "morgue"), {"dlq.enabled": False})
    for config in ({"dlq.queue": "morgue"}, {"dlq": {"queue": "morgue"}}):
        body = {"name": "mine", "config": config}
        refused = await served.call("POST", "/api/v1/queues", "admin:mine", "produce:morgue", json=body)
        assert (refused.status_code, refused.json()["details"]["scope"]) == (403, "admin:morgue")
    right = {"name": "mine", "config": {"dlq.queue": "morgue"}}
    made = await served.call("POST", "/api/v1/queues", "admin:mine", "admin:morgue", json=right)
    assert made.status_code == 201


async def test_a_shared_dead_queue_is_listed_and_redriven_by_its_own_path(served: Tenants) -> None:
    await shared_dead_queue(served)
    await dead_letters(served, ("default", "morgue"), "jobs", "mine")
    scopes = ("admin:morgue", "consume:morgue", "produce:#")
    listed = (await served.call("GET", "/api/v1/queues/morgue/dlq", *scopes)).json()
    assert len(listed["messages"]) == 2
    started = await served.call("POST", "/api/v1/queues/morgue/dlq/redrive", *scopes, json={})
    job = await finished(served, "/api/v1/queues/morgue", started.json(), *scopes)
    assert (job["moved"], payloads(served, "jobs"), payloads(served, "mine")) == (2, [b"?"], [b"?"])


async def test_a_queue_that_is_nobodys_dead_queue_has_no_dead_letters_of_its_own(served: Tenants) -> None:
    await served.node.queues.create(("default", "plain"), {"dlq.enabled": False})
    answer = await served.call("POST", "/api/v1/queues/plain/dlq/purge", "admin:#", "produce:#", json={})
    assert answer.json()["code"] == "no_dead_queue"
