"""Numbers of any size in every numeric field: they are refused or taken, and the node goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

Q = "/api/v1/queues/numbers"
DEAD = "/api/v1/queues/dlq%2Fnumbers"
NUMBERS = [2**31, 2**63 - 1, 2**63, 2**64, 2**70, 10**400, -1, -(2**63), -(2**70), 1e300]

ANY = object()
"""Stands for the number."""

REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", f"{Q}/messages", {"messages": [{"text": "x", "priority": ANY}]}),
    ("POST", f"{Q}/messages", {"messages": [{"text": "x", "delay": ANY}]}),
    ("POST", f"{Q}/messages", {"messages": [{"text": "x", "ttl": ANY}]}),
    ("POST", f"{Q}/messages", {"messages": [{"text": "x", "deliver_at": ANY}]}),
    ("POST", f"{Q}/leases", {"limit": ANY}),
    ("POST", f"{Q}/leases", {"max_bytes": ANY}),
    ("POST", f"{Q}/leases", {"wait": ANY, "limit": 0}),
    ("POST", f"{Q}/leases", {"timeout": ANY}),
    ("POST", f"{Q}/settle", {"settlements": [{"id": "1", "lease_token": "1", "partition": ANY}]}),
    ("POST", f"{Q}/settle", {"settlements": [{"id": "1", "lease_token": "1", "action": "nack", "delay": ANY}]}),
    ("POST", f"{Q}/settle", {"settlements": [{"id": "1", "lease_token": "1", "action": "extend", "timeout": ANY}]}),
    ("POST", f"{Q}/groups/log/read", {"first": ANY}),
    ("POST", f"{Q}/groups/log/read", {"until": ANY}),
    ("POST", f"{Q}/groups/log/read", {"limit": ANY}),
    ("POST", f"{Q}/groups/log/read", {"max_bytes": ANY}),
    ("POST", f"{Q}/groups/log/read", {"partition": ANY}),
    ("POST", f"{Q}/groups/log/commit", {"partition": 0, "sequence": ANY}),
    ("POST", f"{Q}/groups/log/commit", {"partition": ANY, "sequence": 0}),
    ("POST", f"{Q}/groups", {"name": "g", "max_lag_messages": ANY}),
    ("POST", f"{Q}/groups", {"name": "g", "max_lag_age": ANY}),
    ("POST", f"{Q}/dlq/redrive", {"limit": ANY}),
    ("POST", f"{Q}/dlq/redrive", {"rate": ANY}),
    ("POST", f"{Q}/dlq/redrive", {"filter": {"after": ANY}}),
    ("POST", f"{Q}/dlq/redrive", {"filter": {"before": ANY}}),
    ("POST", f"{Q}/dlq/audits/a/undo", {"limit": ANY}),
    ("POST", f"{DEAD}/import", {"messages": [{"text": "x", "origin": {"source_id": "5", "attempts": ANY}}]}),
    ("POST", f"{DEAD}/import", {"messages": [{"text": "x", "origin": {"source_id": "5", "first_attempt_at": ANY}}]}),
    ("POST", f"{DEAD}/import", {"messages": [{"text": "x", "origin": {"source_id": "5", "last_attempt_at": ANY}}]}),
    ("POST", "/api/v1/queues", {"name": "other", "config": {"max_depth": ANY}}),
    *(
        ("PATCH", Q, {name: ANY})
        for name in (
            *("partitions", "max_depth", "max_message_size", "batch_size", "delivery_timeout", "dedup_window", "ttl"),
            *("retry.max_retries", "retry.initial_backoff", "retry.max_backoff", "retry.multiplier"),
        )
    ),
]
QUERIES = [
    *(f"{Q}/messages?limit={{}}", f"{Q}/messages?cursor={{}}", f"{Q}/dlq?limit={{}}", f"{Q}/dlq?cursor={{}}"),
    *(f"{Q}/messages/{{}}", f"{Q}/partitions/{{}}/messages", f"{Q}/partitions/0/messages?first={{}}"),
    *(f"{Q}/partitions/0/messages?limit={{}}", f"{Q}/dlq?after={{}}", f"{Q}/partitions?since={{}}"),
]


def _with(body: Any, number: float) -> Any:
    if body is ANY:
        return number
    if isinstance(body, dict):
        return {name: _with(value, number) for name, value in body.items()}
    return [_with(value, number) for value in body] if isinstance(body, list) else body


@pytest.fixture(autouse=True)
def no_failure() -> Iterator[None]:
    with capture_logs() as logs:
        yield
    failed = [entry for entry in logs if entry["log_level"] in ("error", "critical")]
    assert failed == [], "the node took a caller's number for a failure of its own"


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_no_number_in_a_body_is_too_much(http: httpx.AsyncClient, method: str, path: str, body: Any) -> None:
    await http.post(f"{Q}/messages", json={"messages": [{"text": "x"}]})
    await http.post("/api/v1/queues", json={"name": "dlq/numbers"})
    for number in NUMBERS:
        response = await http.request(method, path, json=_with(body, number), timeout=10)
        assert response.status_code < 500, (number, response.text)
    for text in ("NaN", "Infinity", "1e999"):
        raw = json.dumps(_with(body, 12345)).replace("12345", text)
        headers = {"Content-Type": "application/json"}
        response = await http.request(method, path, content=raw, headers=headers, timeout=10)
        assert response.status_code < 500, (text, response.text)
    stored = await http.post("/api/v1/queues/after/messages", json={"messages": [{"text": "x"}]})
    assert stored.status_code == 200, stored.text


async def test_a_redrive_that_is_refused_leaves_no_job(http: httpx.AsyncClient) -> None:
    """Sixteen may run at a time."""
    path = "/api/v1/queues/limits/dlq/redrive"
    await http.post("/api/v1/queues", json={"name": "limits"})
    for _ in range(20):
        assert (await http.post(path, json={"limit": 2**70})).status_code == 400
    assert (await http.get(path)).json() == {"redrives": []}
    assert (await http.post(path, json={"limit": 1})).status_code == 202


@pytest.mark.parametrize("path", QUERIES)
async def test_no_number_in_a_path_or_query_is_too_much(http: httpx.AsyncClient, path: str) -> None:
    await http.post(f"{Q}/messages", json={"messages": [{"text": "x"}]})
    for number in (*NUMBERS, "NaN", "1e999"):
        response = await http.get(path.format(number))
        assert response.status_code < 500, (number, response.text)
