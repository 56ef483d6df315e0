"""Schedules over HTTP: who may do what with them, and what is recorded of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from holdfast.http_api.server.app import ROUTES
from tests.http_api.endpoints.test_health import samples
from tests.http_api.tenants import Tenants, tenants

PATH = "/api/v1/schedules/nightly"
EVERY_HOUR = {"queue": "reports/daily", "every": "1h", "message": {"text": "go"}}
FULL = ("admin:reports/#", "produce:reports/#")


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path) as found:
        yield found


async def test_storing_and_running_need_both_rights_on_the_queue(served: Tenants) -> None:
    for scope in FULL:
        refused = await served.call("PUT", PATH, scope, "admin:elsewhere", json=EVERY_HOUR)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await served.call("PUT", PATH, *FULL, json=EVERY_HOUR)).status_code == 200
    refused = await served.call("POST", f"{PATH}/run", "admin:reports/#")
    assert (refused.status_code, refused.json()["details"]["scope"]) == (403, "produce:reports/daily")
    assert (await served.call("POST", f"{PATH}/run", *FULL)).json()["outcome"] == "enqueued"


async def test_a_schedule_can_be_moved_only_by_who_has_the_rights_at_both_ends(served: Tenants) -> None:
    assert (await served.call("PUT", PATH, *FULL, json=EVERY_HOUR)).status_code == 200
    mine = {**EVERY_HOUR, "queue": "mine"}
    refused = await served.call("PUT", PATH, "admin:mine", "produce:mine", json=mine)
    assert (refused.status_code, refused.json()["details"]["scope"]) == (403, "admin:#")
    assert "reports/daily" not in refused.text, "the queue of another is not named"
    assert (await served.call("GET", PATH, *FULL)).json()["queue"] == "reports/daily"
    moved = await served.call("PUT", PATH, "admin:mine", "produce:mine", "admin:reports/#", json=mine)
    assert (moved.status_code, moved.json()["queue"]) == (200, "mine")


async def test_what_a_caller_may_not_see_is_not_there(served: Tenants) -> None:
    await served.call("PUT", PATH, *FULL, json=EVERY_HOUR)
    for method, path in (("GET", PATH), ("DELETE", PATH), ("POST", f"{PATH}/pause"), ("POST", f"{PATH}/resume")):
        hidden = await served.call(method, path, "admin:other", "produce:other")
        assert (hidden.status_code, hidden.json()["code"]) == (404, "schedule_not_found")
        refused = await served.call(method, path, "admin:other", "consume:reports/daily")
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        nobody = await served.call(method, path, *FULL, namespace="acme")
        assert nobody.status_code == 404
    assert (await served.call("GET", "/api/v1/schedules", "admin:other")).json()["schedules"] == []
    listed = (await served.call("GET", "/api/v1/schedules", "admin:reports/#")).json()["schedules"]
    assert [one["name"] for one in listed] == ["nightly"]


async def test_every_change_is_in_the_audit_log() -> None:
    (routes,) = [routes for routes in ROUTES if routes.tag == "Schedules"]
    assert {endpoint.act for endpoint in routes.endpoints if endpoint.method != "GET"} == {
        "schedule.put",
        "schedule.delete",
        "schedule.pause",
        "schedule.resume",
        "schedule.run",
    }


async def test_pages_and_what_is_wrong(served: Tenants) -> None:
    for name in ("a", "b%2Fc", "d"):
        assert (await served.call("PUT", f"/api/v1/schedules/{name}", *FULL, json=EVERY_HOUR)).status_code == 200
    first = (await served.call("GET", "/api/v1/schedules?limit=2", *FULL)).json()
    assert ([one["name"] for one in first["schedules"]], first["cursor"]) == (["a", "b/c"], "b/c")
    rest = (await served.call("GET", "/api/v1/schedules?limit=2&cursor=b/c", *FULL)).json()
    assert ([one["name"] for one in rest["schedules"]], rest["cursor"]) == (["d"], "")
    assert (await served.call("GET", "/api/v1/schedules?limit=0", *FULL)).status_code == 400
    for field in ("message_id", "delay", "deliver_at"):
        wrong = {**EVERY_HOUR, "message": {field: "1"}}
        refused = await served.call("PUT", PATH, *FULL, json=wrong)
        assert (refused.status_code, refused.json()["detail"]) == (
            400,
            f"message.{field} is the schedule's to say; leave it out.",
        )


async def test_schedules_count_against_the_quota_and_are_measured(served: Tenants) -> None:
    await served.node.quotas.change("default", {"schedules": 1})
    assert (await served.call("PUT", PATH, *FULL, json=EVERY_HOUR)).status_code == 200
    refused = await served.call("PUT", "/api/v1/schedules/second", *FULL, json=EVERY_HOUR)
    assert (refused.status_code, refused.json()["details"]["quota"]) == (429, "schedules")
    await served.call("POST", f"{PATH}/run", *FULL)
    found = samples((await served.call("GET", "/metrics", "node")).text)
    assert found["holdfast_schedules"][()] == 1
    assert found["holdfast_schedule_run_total"][("outcome", "enqueued"),] == 1
    assert found["holdfast_quota_used"][("namespace", "default"), ("quota", "schedules")] == 1
