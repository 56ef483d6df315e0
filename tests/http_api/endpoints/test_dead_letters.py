"""Dead letters over HTTP."""

from __future__ import annotations

import httpx

QUEUE = "/api/v1/queues/jobs"


async def die(http: httpx.AsyncClient, *errors: str) -> list[str]:
    """Messages that are rejected with these errors; their ids."""
    stored = await http.post(f"{QUEUE}/messages", json={"messages": [{"text": error} for error in errors]})
    leased = (await http.post(f"{QUEUE}/leases", json={"limit": 100})).json()["deliveries"]
    await http.post(
        f"{QUEUE}/settle",
        json={
            "settlements": [
                {"id": item["id"], "lease_token": item["lease_token"], "action": "reject", "error": item["text"]}
                for item in leased
            ]
        },
    )
    ids: list[str] = stored.json()["ids"]
    return ids


async def test_dead_letters_are_listed_with_their_story(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/queues", json={"name": "jobs"})
    assert (await http.get(f"{QUEUE}/dlq")).json() == {"messages": [], "cursor": ""}
    sources = await die(http, "boom", "bang")
    dead_letters = (await http.get(f"{QUEUE}/dlq")).json()["messages"]
    assert [dead_letter["origin"]["source_id"] for dead_letter in dead_letters] == sources
    assert [dead_letter["origin"]["error"] for dead_letter in dead_letters] == ["boom", "bang"]
    assert {dead_letter["origin"]["reason"] for dead_letter in dead_letters} == {"rejected"}
    some = (await http.get(f"{QUEUE}/dlq", params={"error": "an"})).json()["messages"]
    assert [dead_letter["text"] for dead_letter in some] == ["bang"]


async def test_one_dead_letter_is_retried(http: httpx.AsyncClient) -> None:
    [source] = await die(http, "boom")
    [dead_letter] = (await http.get(f"{QUEUE}/dlq")).json()["messages"]
    back = (await http.post(f"{QUEUE}/dlq/{dead_letter['id']}/retry")).json()
    assert back["queue"] == "jobs"
    [again] = (await http.post(f"{QUEUE}/leases")).json()["deliveries"]
    assert again["id"] == back["id"]
    assert again["origin"]["source_id"] == source
    gone = await http.post(f"{QUEUE}/dlq/{dead_letter['id']}/retry")
    assert gone.json()["code"] == "message_not_found"


async def test_redrive_counts_first_then_moves_what_matches(http: httpx.AsyncClient) -> None:
    await die(http, "timeout 1", "timeout 2", "bad input")
    body = {"filter": {"error": "timeout", "reason": "rejected"}}
    dry = await http.post(f"{QUEUE}/dlq/redrive", json={**body, "dry_run": True})
    assert dry.status_code == 202
    assert (dry.json()["state"], dry.json()["matched"], dry.json()["moved"]) == ("done", 2, 0)
    job = (await http.post(f"{QUEUE}/dlq/redrive", json={**body, "rate": 1000})).json()
    while job["state"] == "running":
        job = (await http.get(f"{QUEUE}/dlq/redrive/{job['id']}")).json()
    assert (job["state"], job["moved"]) == ("done", 2)
    assert len((await http.get(f"{QUEUE}/dlq/redrive")).json()["redrives"]) == 2
    assert [dead_letter["text"] for dead_letter in (await http.get(f"{QUEUE}/dlq")).json()["messages"]] == ["bad input"]


async def test_dead_letters_go_to_the_group_they_died_in_or_to_the_one_that_is_named(http: httpx.AsyncClient) -> None:
    await die(http, "boom", "bang")
    await http.put(f"{QUEUE}/groups/late", json={})
    [boom, bang] = (await http.get(f"{QUEUE}/dlq")).json()["messages"]
    assert (await http.post(f"{QUEUE}/dlq/{boom['id']}/retry")).status_code == 200
    both = await http.post(f"{QUEUE}/dlq/{bang['id']}/retry", params={"group": "late", "all_groups": "true"})
    assert both.json()["code"] == "invalid_argument"
    nobody = await http.post(f"{QUEUE}/dlq/redrive", json={"group": "nobody"})
    assert (nobody.status_code, nobody.json()["code"]) == (404, "group_not_found")
    vague = await http.post("/api/v1/queues/dlq%2Fjobs/dlq/redrive", json={"group": "late"})
    assert "needs `to`" in vague.json()["detail"]
    job = (await http.post(f"{QUEUE}/dlq/redrive", json={"group": "late"})).json()
    assert job["group"] == "late"
    while job["state"] == "running":
        job = (await http.get(f"{QUEUE}/dlq/redrive/{job['id']}")).json()
    assert job["moved"] == 1
    got = {
        group: [item["text"] for item in (await http.post(f"{QUEUE}/leases", json=body)).json()["deliveries"]]
        for group in ("default", "late")
        if (body := {"group": group, "limit": 10})
    }
    assert got == {"default": ["boom"], "late": ["bang"]}


async def test_a_redrive_at_a_rate_can_be_cancelled(http: httpx.AsyncClient) -> None:
    await die(http, *["slow"] * 20)
    job = (await http.post(f"{QUEUE}/dlq/redrive", json={"rate": 0.1})).json()
    ended = (await http.delete(f"{QUEUE}/dlq/redrive/{job['id']}")).json()
    assert ended["state"] == "cancelled"
    assert ended["moved"] <= 1
    missing = await http.get(f"{QUEUE}/dlq/redrive/nothing")
    assert missing.json()["code"] == "redrive_not_found"


async def test_dead_letters_are_purged_by_filter(http: httpx.AsyncClient) -> None:
    await die(http, "keep", "drop", "drop")
    assert (await http.post(f"{QUEUE}/dlq/purge", json={"error": "drop"})).json() == {"messages": 2}
    assert (await http.post(f"{QUEUE}/dlq/purge")).json() == {"messages": 1}


async def test_a_shared_dead_queue_gives_each_queue_its_own_dead_letters(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/queues", json={"name": "morgue", "config": {"dlq": {"enabled": False}}})
    for name in ("jobs", "other"):
        await http.post("/api/v1/queues", json={"name": name, "config": {"dlq": {"queue": "morgue"}}})
    await die(http, "boom")
    assert (await http.get("/api/v1/queues/other/dlq")).json()["messages"] == []
    [dead_letter] = (await http.get(f"{QUEUE}/dlq")).json()["messages"]
    refused = await http.post(f"/api/v1/queues/other/dlq/{dead_letter['id']}/retry")
    assert refused.json()["code"] == "message_not_found"
    assert (await http.post("/api/v1/queues/other/dlq/purge")).json() == {"messages": 0}
    assert (await http.get("/api/v1/queues/morgue/dlq")).json()["messages"] == [dead_letter], (
        "its own path names them all"
    )


async def test_stored_items_are_imported_once(http: httpx.AsyncClient) -> None:
    items = [{"text": "a", "origin": {"source_id": "41", "source_queue": "old", "reason": "expired", "attempts": 3}}]
    first = (await http.post(f"{QUEUE}/import", json={"items": items})).json()
    again = (await http.post(f"{QUEUE}/import", json={"items": items})).json()
    assert again["ids"] == first["ids"]
    assert again["duplicates"] == [0]
    [message] = (await http.get(f"{QUEUE}/messages")).json()["messages"]
    assert message["origin"] == items[0]["origin"]


async def test_dead_letters_are_brought_back_under_an_id_once_and_taken_back(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/queues", json={"name": "jobs"})
    await die(http, "boom", "bang", "bing")
    dead_letters = (await http.get(f"{QUEUE}/dlq")).json()["messages"]
    ids = [dead_letter["id"] for dead_letter in dead_letters]
    audit = f"{QUEUE}/dlq/audits/ops%2F1"
    body = {"dead_letters": [{"id": ids[0]}, {"id": ids[1], "base64": "Y2hhbmdlZA=="}], "note": "amount > 3"}
    told = (await http.post(audit, json=body)).json()["dead_letters"]
    assert [(one["dead_letter"], one["outcome"], one["queue"]) for one in told] == [
        (ids[0], "moved", "jobs"),
        (ids[1], "moved", "jobs"),
    ]
    assert [one["outcome"] for one in (await http.post(audit, json=body)).json()["dead_letters"]] == ["repeated"] * 2
    shown = (await http.get(audit)).json()
    assert (shown["id"], shown["moved"], shown["note"], shown["dead_queue"]) == ("ops/1", 2, "amount > 3", "dlq/jobs")
    assert (await http.get(f"{QUEUE}/dlq/audits")).json()["audits"] == [shown]
    first = (await http.get(f"{audit}/dead-letters", params={"limit": 1})).json()
    assert [one["outcome"] for one in first["dead_letters"]] == ["waiting"]
    rest = (await http.get(f"{audit}/dead-letters", params={"cursor": first["cursor"]})).json()
    assert (len(rest["dead_letters"]), rest["cursor"]) == (1, "")
    [message] = (await http.post(f"{QUEUE}/leases")).json()["deliveries"]
    assert message["properties"] == {"holdfast-redrive": "ops/1"}
    undone = (await http.post(f"{audit}/undo")).json()["dead_letters"]
    assert [one["outcome"] for one in undone] == ["leased", "undone"]
    left = (await http.get(f"{QUEUE}/dlq")).json()["messages"]
    assert {(dead_letter["id"], dead_letter["text"]) for dead_letter in left} == {
        (ids[2], "bing"),
        (undone[1]["again"], "bang"),
    }
    unknown = await http.get(f"{QUEUE}/dlq/audits/nothing")
    assert unknown.json()["code"] == "audit_not_found"
    many = {"dead_letters": [{"id": str(number + 1)} for number in range(1_001)]}
    assert (await http.post(audit, json=many)).json()["code"] == "limit_exceeded"
