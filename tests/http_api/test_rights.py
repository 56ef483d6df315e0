"""Rights over HTTP: the server belongs to no namespace, what a caller may not see it cannot find out about either, and
every refusal names a scope that would have helped."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from holdfast.auth.principal import Scope
from holdfast.core.commands import Draft
from holdfast.core.transactions import TransactionName
from holdfast.errors import StoreUnavailable
from holdfast.http_api.server.app import ROUTES
from holdfast.http_api.server.routes import Endpoint, Right
from tests.http_api.endpoints.test_health import samples
from tests.http_api.tenants import Tenants, tenants

ENDPOINTS = [endpoint for routes in ROUTES for endpoint in routes.endpoints]
OF_THE_NODE = [endpoint for endpoint in ENDPOINTS if endpoint.right is Right.NODE]
ALL_OF_ACME = ("produce:#", "consume:#", "admin:#")


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path) as found:
        await found.node.messages.enqueue(("default", "secret/plans"), [Draft(b"the payload of another tenant")])
        await found.node.messages.enqueue(("acme", "jobs"), [Draft(b"x")])
        await found.node.messages.enqueue(("acme", "bills"), [Draft(b"x")])
        yield found


def path_of(endpoint: Endpoint, name: str) -> str:
    """With a queue's name, and where there are more parameters, with something that fits."""
    return re.sub(r"{\w+}", "1", re.sub(r"{(name|transaction)}", name, endpoint.path))


# --- the server -----------------------------------------------------------------------------------------------------


def test_there_are_endpoints_of_the_node() -> None:
    assert {"/api/v1/snapshot", "/api/v1/health"} <= {endpoint.path for endpoint in OF_THE_NODE}


@pytest.mark.parametrize("endpoint", OF_THE_NODE, ids=lambda one: one.path)
async def test_no_right_of_a_namespace_is_a_right_to_the_server(served: Tenants, endpoint: Endpoint) -> None:
    refused = await served.call(endpoint.method, endpoint.path, *ALL_OF_ACME, namespace="acme")
    assert (refused.status_code, refused.json()["code"], refused.json()["details"]["scope"]) == (
        403,
        "forbidden",
        "node",
    )
    assert b"another tenant" not in refused.content
    refused = await served.call(endpoint.method, endpoint.path, *ALL_OF_ACME)
    assert refused.status_code == 403, "nor is one of the server's own namespace"
    allowed = await served.call(endpoint.method, endpoint.path, "node", namespace="acme")
    assert allowed.status_code != 403


async def test_the_right_to_the_server_is_none_to_its_queues(served: Tenants) -> None:
    path = "/api/v1/queues/secret%2Fplans"
    assert (await served.call("GET", path, "node")).status_code == 403
    assert (await served.call("GET", f"{path}/messages", "node")).status_code == 403
    assert (await served.call("DELETE", path, "node")).status_code == 403
    assert (await served.call("GET", "/api/v1/queues", "node")).json()["queues"] == []


async def test_metrics_show_a_caller_the_queues_that_it_can_see(served: Tenants) -> None:
    def queues(answer: httpx.Response) -> set[tuple[str, str]]:
        assert answer.status_code == 200
        labels = [dict(one) for one in samples(answer.text).get("holdfast_queue_depth", {})]
        return {(one["namespace"], one["queue"]) for one in labels}

    of_acme = await served.call("GET", "/metrics", *ALL_OF_ACME, namespace="acme")
    assert queues(of_acme) == {("acme", "jobs"), ("acme", "bills")}
    assert samples(of_acme.text)["holdfast_queues"] == {(): 2}
    told = set(samples(of_acme.text))
    assert not any(name.startswith(("process_", "python_", "holdfast_http_", "holdfast_auth_")) for name in told)
    assert queues(await served.call("GET", "/metrics", "consume:jobs", namespace="acme")) == {("acme", "jobs")}
    assert queues(await served.call("GET", "/metrics", namespace="acme")) == set()
    of_all = await served.call("GET", "/metrics", "node", namespace="acme")
    assert queues(of_all) == {("acme", "jobs"), ("acme", "bills"), ("default", "secret/plans")}
    assert "process_open_fds" in samples(of_all.text)


async def test_metrics_in_sums_are_sums_of_what_the_caller_can_see(served: Tenants) -> None:
    of_acme = await served.call("GET", "/metrics?queues=none", "consume:jobs", namespace="acme")
    assert samples(of_acme.text)["holdfast_queue_depth"] == {(): 1}


async def test_the_overview_counts_what_the_caller_can_see(served: Tenants) -> None:
    for name in (TransactionName("default", "t"), TransactionName("acme", "t", "token:else")):
        await served.node.transactions.stage(name, [("secret/plans", [Draft(b"x")])])
    whole = await served.call("GET", "/api/v1/overview", "admin:#", namespace="acme")
    assert whole.json()["staged"] == 1, "who administers the namespace is told of all that is staged in it"
    found = (await served.call("GET", "/api/v1/overview", "consume:jobs", namespace="acme")).json()
    assert {name: found[name] for name in ("namespace", "queues", "depth", "staged", "waiting")} == {
        "namespace": "acme",
        "queues": 1,
        "depth": 1,
        "staged": 0,
        "waiting": 0,
    }


async def test_strangers_learn_that_the_server_is_not_ready_and_not_why(
    served: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.node.cell.export_scheduler, "failed", "/srv/lake/journal: no such directory")
    monkeypatch.setattr(type(served.node.cell.export_scheduler), "behind", 1 << 40)
    ready = await served.call("GET", "/readyz")
    assert (ready.status_code, ready.json()["ok"], ready.json()["problems"]) == (503, False, ["journal"])
    assert "/srv/lake" not in ready.text
    assert served.node.cell.broken is not None
    served.node.cell.broken.set_result(StoreUnavailable(problem="/srv/data is gone"))
    live = await served.call("GET", "/livez")
    assert (live.status_code, "/srv/data" in live.text) == (503, False)
    health = (await served.call("GET", "/api/v1/health", "node")).json()
    assert ["/srv/lake" in part["problem"] for part in health["parts"] if part["name"] == "journal"] == [True]


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint",
    [endpoint for endpoint in ENDPOINTS if "{name}" in endpoint.path],
    ids=lambda one: f"{one.method} {one.path}",
)
async def test_who_may_not_see_a_queue_cannot_find_out_whether_it_exists(served: Tenants, endpoint: Endpoint) -> None:
    async def asked(name: str) -> tuple[int, dict[str, Any]]:
        answer = await served.call(endpoint.method, path_of(endpoint, name), "consume:mine", namespace="acme")
        return answer.status_code, {
            key: str(value).replace(name, "<name>") for key, value in answer.json().items() if key != "correlation_id"
        }

    there, missing = await asked("bills"), await asked("wills")
    assert there == missing
    assert there[0] == 403


async def test_a_dead_queue_does_not_name_the_queues_that_use_it_to_who_may_not_see_them(served: Tenants) -> None:
    await served.node.queues.create(("acme", "morgue"), {"dlq.enabled": False})
    for name in ("hidden", "seen"):
        await served.node.queues.create(("acme", name), {"dlq.queue": "morgue"})
    refused = [
        await served.call("DELETE", "/api/v1/queues/morgue", "admin:morgue", *more, namespace="acme")
        for more in ((), ("consume:seen",), ("consume:#",))
    ]
    assert {one.json()["code"] for one in refused} == {"queue_in_use"}
    assert [("'seen'" in one.text, "'hidden'" in one.text) for one in refused] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    body = {"dlq": {"enabled": True}}
    changed = await served.call("PUT", "/api/v1/queues/morgue/config", "admin:morgue", namespace="acme", json=body)
    assert changed.json()["code"] == "dead_queue_invalid"
    assert "hidden" not in changed.text


# --- hints ----------------------------------------------------------------------------------------------------------


BODIES: dict[str, object] = {
    "/api/v1/queues": {"name": "jobs"},
    "/api/v1/transactions/{transaction}/stage": {"batches": [{"queue": "jobs", "messages": [{"text": "x"}]}]},
    "/api/v1/request/{name}": {"text": "x", "timeout": "1ms"},
    "/enqueue": [{"namespace": "acme", "topic": "jobs", "payload": "eA=="}],
    "/ack": {"namespace": "acme", "topic": "jobs", "id": 1},
    "/nack": {"namespace": "acme", "topic": "jobs", "id": 1},
}
QUERIES = {"/dequeue": "?namespace=acme&topic=jobs", "/api/v1/queues/{name}/stream": "?limit=nonsense"}
NEED_NO_SCOPE = {
    ("GET", "/api/v1/queues"),
    ("GET", "/api/v1/overview"),
    ("GET", "/api/v1/quotas"),
    ("GET", "/metrics"),
}
"""They answer with what the caller may see, and that is nothing."""


@pytest.mark.parametrize(
    "endpoint",
    [endpoint for endpoint in ENDPOINTS if endpoint.right is not Right.ANONYMOUS and endpoint.error_format is None],
    ids=lambda one: f"{one.method} {one.path}",
)
async def test_every_refusal_names_a_scope_that_helps(served: Tenants, endpoint: Endpoint) -> None:
    path = path_of(endpoint, "jobs") + QUERIES.get(endpoint.path, "")
    body = BODIES.get(endpoint.path, {} if endpoint.body is not None else None)
    scopes: list[str] = []
    while (answer := await served.call(endpoint.method, path, *scopes, namespace="acme", json=body)).status_code == 403:
        problem = answer.json()
        assert problem["code"] == "forbidden"
        scope = problem["details"]["scope"]
        assert str(Scope.parse(scope)) == scope
        assert scope in problem["detail"]
        assert scope not in scopes, "it was given already and did not help"
        scopes.append(scope)
    assert bool(scopes) is ((endpoint.method, endpoint.path) not in NEED_NO_SCOPE)


@pytest.mark.parametrize("name", ["a%2B", "%23", "%24queue%2Fx", "a%20b"])
async def test_a_refusal_names_a_scope_also_for_what_is_no_name(served: Tenants, name: str) -> None:
    refused = (await served.call("POST", f"/api/v1/queues/{name}/leases", json={})).json()
    if refused["code"] != "invalid_name":
        Scope.parse(refused["details"]["scope"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/enqueue", [{"namespace": "default", "topic": "jobs", "payload": "eA=="}]),
        ("/ack", {"namespace": "default", "topic": "jobs", "id": 1}),
        ("/v1/queue/ack", {"namespace": "default", "queue": "jobs", "message_id": "1", "lease_id": "1"}),
    ],
)
async def test_another_namespace_needs_other_credentials_not_another_scope(
    served: Tenants, path: str, body: object
) -> None:
    refused = await served.call("POST", path, *ALL_OF_ACME, namespace="acme", json=body)
    assert refused.status_code == 403
    assert "namespace_forbidden" in refused.text
    assert "produce:" not in refused.text
    assert "consume:" not in refused.text


async def test_a_life_shows_no_steps_in_queues_of_others(served: Tenants) -> None:
    sent = (await served.call("POST", "/api/v1/queues/own/messages", "produce:own", json={"messages": [{}]})).json()
    message = sent["ids"][0]
    leased = await served.call("POST", "/api/v1/queues/own/leases", "consume:own", json={})
    [delivery] = leased.json()["deliveries"]
    settlement = {"id": delivery["id"], "lease_token": delivery["lease_token"], "action": "reject"}
    settled = await served.call("POST", "/api/v1/queues/own/settle", "consume:own", json={"settlements": [settlement]})
    assert settled.status_code == 200
    path = f"/api/v1/queues/own/messages/{message}/history?related=true"
    for scopes, queues in ((("consume:own",), {"own"}), (("consume:own", "consume:dlq/own"), {"own", "dlq/own"})):
        steps = (await served.call("GET", path, *scopes)).json()["steps"]
        assert {step["queue"] for step in steps} == queues
