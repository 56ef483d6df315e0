"""Workflow state over HTTP."""

from __future__ import annotations

import httpx

QUEUE = "/api/v1/queues/jobs"


async def leased(http: httpx.AsyncClient) -> tuple[str, dict[str, str]]:
    """A message under a lease: where its state is, and the query that names the lease."""
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "job"}]})
    (delivery,) = (await http.post(f"{QUEUE}/leases", json={})).json()["deliveries"]
    return f"{QUEUE}/messages/{delivery['id']}/state", {"lease_token": delivery["lease_token"]}


async def test_a_state_is_made_when_it_is_first_put_and_changed_over_what_was_got(http: httpx.AsyncClient) -> None:
    path, lease = await leased(http)
    empty = await http.get(path)
    assert (empty.status_code, empty.content, empty.headers["etag"]) == (200, b"", '"0"')
    made = await http.put(path, params=lease, content=b"\x00half", headers={"if-none-match": "*"})
    assert (made.status_code, made.headers["etag"]) == (204, '"1"')
    got = await http.get(path, params=lease)
    assert (got.content, got.headers["etag"], got.headers["content-type"]) == (
        b"\x00half",
        '"1"',
        "application/octet-stream",
    )
    changed = await http.put(path, params=lease, json={"step": 2}, headers={"if-match": '"1"'})
    assert changed.headers["etag"] == '"2"'
    late = await http.put(path, params=lease, content=b"x", headers={"if-match": '"1"'})
    assert (late.status_code, late.json()["code"]) == (412, "state_changed")
    assert (await http.get(path)).json() == {"step": 2}
    assert (await http.put(path, params=lease, content=b"any", headers={"if-match": "*"})).headers["etag"] == '"3"'


async def test_a_state_is_deleted_under_the_lease_and_the_etag_it_must_have(http: httpx.AsyncClient) -> None:
    path, lease = await leased(http)
    await http.put(path, params=lease, content=b"half")
    stale = await http.delete(path, params=lease, headers={"if-match": '"7"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "state_changed")
    wrong = await http.delete(path, params=lease, headers={"if-match": "half"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_argument")
    without = await http.delete(path)
    assert (without.status_code, without.json()["code"]) == (400, "invalid_argument")
    other = await http.delete(path, params={"lease_token": "17"})
    assert (other.status_code, other.json()["code"]) == (409, "lease_lost")
    assert (await http.get(path)).content == b"half"
    for headers in ({"if-match": '"1"'}, {}, {"if-match": '"0"'}, {"if-match": "*"}):
        gone = await http.delete(path, params=lease, headers=headers)
        assert (gone.status_code, gone.content, gone.headers["etag"]) == (204, b"", '"0"')
    empty = await http.get(path, params=lease)
    assert (empty.content, empty.headers["etag"]) == (b"", '"0"')
    again = await http.put(path, params=lease, content=b"new", headers={"if-none-match": "*"})
    assert (again.status_code, again.headers["etag"]) == (204, '"3"')


async def test_a_state_needs_the_lease_that_holds_the_message(http: httpx.AsyncClient) -> None:
    path, lease = await leased(http)
    without = await http.put(path, content=b"x")
    assert (without.status_code, without.json()["code"]) == (400, "invalid_argument")
    other = await http.put(path, params={"lease_token": "17"}, content=b"x")
    assert (other.status_code, other.json()["code"]) == (409, "lease_lost")
    assert (await http.get(path, params={"lease_token": "17"})).json()["code"] == "lease_lost"
    stranger = await http.put(path, params=lease | {"group": "other"}, content=b"x")
    assert (stranger.status_code, stranger.json()["code"]) == (404, "group_not_found")
    assert (await http.get(f"{QUEUE}/messages/17/state")).json()["code"] == "message_not_found"


async def test_an_etag_that_is_none_is_refused(http: httpx.AsyncClient) -> None:
    path, lease = await leased(http)
    for headers in ({"if-match": "abc"}, {"if-none-match": '"1"'}, {"if-none-match": "*", "if-match": '"1"'}):
        answer = await http.put(path, params=lease, content=b"x", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
