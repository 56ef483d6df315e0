"""Signed requests, and rights: who signs with an access key is its user, in its namespace, with its scopes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec.structs import replace

from holdfast.auth.gate import Gate
from holdfast.auth.users import AccessKey, User
from holdfast.broker.node import Node
from holdfast.http_api import HttpFront
from holdfast.store.memory import MemoryStore
from tests.auth import rig
from tests.http_api.conftest import config_for
from tests.http_api.dialects.sqs.rig import PROTOCOLS, Sqs, arn
from tests.http_api.server.rig import Wire
from tests.waiting import PATIENCE_SECONDS

SECRET = "s" * 40
ALL = ("produce:#", "consume:#", "admin:#")


def _user(name: str, *scopes: str, namespace: str = "acme", keys: int = 1) -> User:
    made = tuple(AccessKey(f"KEYOF{name}{number}", f"{name}{number}" * 16) for number in range(keys))
    return User(name=name, namespace=namespace, scopes=scopes, access_keys=made)


USERS = (
    _user("boss", *ALL, keys=2),
    _user("other", *ALL, namespace="elsewhere"),
    _user("sender", "produce:orders"),
    _user("worker", "consume:orders"),
    _user("admin", "admin:orders"),
    _user("nobody"),
)


class Guarded:
    """A server that wants credentials, and clients of it."""

    def __init__(self, front: HttpFront, users: Path) -> None:
        self.front = front
        self.node = front.api.node
        self.users = users
        self._clients: dict[tuple[str, str], Sqs] = {}

    def sqs(self, name: str, number: int = 0, protocol: str = "json") -> Sqs:
        key = AccessKey(f"KEYOF{name}{number}", f"{name}{number}" * 16)
        place = (key.id, protocol)
        if place not in self._clients:
            self._clients[place] = Sqs(self.front.url, protocol, key.id, key.secret)
        return self._clients[place]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def serving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    path = tmp_path_factory.mktemp("guarded")
    users = rig.write_users(path / "users.json", *USERS)
    config = config_for(path)
    config = replace(config, auth=replace(config.auth, users_file=users, reload_interval=0))
    node = Node(config, MemoryStore())
    await node.start()
    gate = Gate(config, node.clock)
    front = HttpFront(config, node, gate)
    await front.start()
    found = Guarded(front, users)
    yield found
    found.close()
    await front.stop()
    await node.stop()
    await gate.close()


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(serving: Guarded) -> AsyncIterator[Guarded]:
    yield serving
    rig.write_users(serving.users, *USERS)
    for name in list(serving.node.queues.names()):
        await serving.node.queues.delete(name)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("number", [0, 1])
async def test_who_signs_is_the_user_of_the_access_key(guarded: Guarded, protocol: str, number: int) -> None:
    sqs = guarded.sqs("boss", number, protocol)
    url = await sqs.create("orders")
    assert guarded.node.queues.names() == [("acme", "orders")]
    await sqs.send(url, "ünïcode & =+/")
    message = await sqs.one(url, AttributeNames=["SenderId"])
    assert (message["Body"], message["Attributes"]["SenderId"]) == ("ünïcode & =+/", "access_key:boss")
    missing = "AWS.SimpleQueueService.NonExistentQueue"
    assert await guarded.sqs("other").refused("GetQueueUrl", QueueName="orders") == missing


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_wrong_secret_or_an_unknown_key_is_refused(guarded: Guarded, protocol: str) -> None:
    refused = guarded.front.api.gate.counts.signatures_refused
    wrong = Sqs(guarded.front.url, protocol, "KEYOFboss0", "x" * 40)
    assert await wrong.refused("ListQueues") == "SignatureDoesNotMatch"
    wrong.close()
    unknown = Sqs(guarded.front.url, protocol, "KEYOFstranger", SECRET)
    assert await unknown.refused("ListQueues") == "InvalidClientTokenId"
    unknown.close()
    assert guarded.front.api.gate.counts.signatures_refused == refused + 2


async def test_a_key_that_was_removed_is_refused(guarded: Guarded) -> None:
    sqs = guarded.sqs("sender")
    await sqs("ListQueues")
    rig.write_users(guarded.users, *[user for user in USERS if user.name != "sender"])
    assert await sqs.refused("ListQueues") == "InvalidClientTokenId"


# --- requests made by hand ------------------------------------------------------------------------------------------

BODY = json.dumps({}).encode()
HEADERS = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}


def _signed(front: HttpFront, path: str = "/sqs", headers: dict[str, str] = HEADERS) -> dict[str, str]:
    request = AWSRequest("POST", f"{front.url}{path}", headers, BODY)
    SigV4Auth(Credentials("KEYOFboss0", "boss0" * 16), "sqs", "eu-central-1").add_auth(request)
    return dict(request.headers.items())


async def _post(guarded: Guarded, headers: dict[str, str], body: bytes = BODY, path: str = "/sqs") -> tuple[int, str]:
    async with httpx.AsyncClient(base_url=guarded.front.url, timeout=PATIENCE_SECONDS) as http:
        answer = await http.post(path, content=body, headers=headers)
    error = answer.headers.get("x-amzn-query-error", "")
    return answer.status_code, error.partition(";")[0]


async def test_a_signature_covers_body_headers_path_and_query(guarded: Guarded) -> None:
    good = _signed(guarded.front)
    assert await _post(guarded, good) == (200, "")
    mismatch = (403, "SignatureDoesNotMatch")
    assert await _post(guarded, good, b'{"MaxResults": 1}') == mismatch
    assert await _post(guarded, {**good, "x-amz-target": "AmazonSQS.PurgeQueue"}) == mismatch
    assert await _post(guarded, {**good, "content-type": "application/json"}) == mismatch
    assert await _post(guarded, good, path="/sqs/") == mismatch
    assert await _post(guarded, good, path="/sqs?a=b") == mismatch
    for path in ("/sqs?b=2&a=%20x&a=1", "/sqs/000000000000/tasks%2Fimage"):
        assert await _post(guarded, _signed(guarded.front, path), path=path) == (200, "")


async def test_a_signature_that_leaves_out_what_matters_is_refused(guarded: Guarded) -> None:
    plain = {"content-type": "application/x-amz-json-1.0"}
    unsigned = {**_signed(guarded.front, headers=plain), "x-amz-target": "AmazonSQS.ListQueues"}
    assert await _post(guarded, unsigned) == (403, "IncompleteSignature")
    good = _signed(guarded.front)
    for name in ("Credential=", "SignedHeaders=", "Signature="):
        broken = {**good, "Authorization": good["Authorization"].replace(name, "X=")}
        assert await _post(guarded, broken) == (403, "IncompleteSignature")
    without_date = {name: value for name, value in good.items() if name.lower() != "x-amz-date"}
    assert await _post(guarded, without_date) == (403, "IncompleteSignature")
    assert await _post(guarded, {**good, "X-Amz-Date": "yesterday"}) == (403, "IncompleteSignature")


async def test_a_request_is_good_for_a_quarter_of_an_hour(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    good = _signed(guarded.front)
    gate = guarded.front.api.gate
    now = gate._clock()
    for later, wanted in ((14 * 60, 200), (16 * 60, 403), (-14 * 60, 200), (-16 * 60, 403)):
        monkeypatch.setattr(gate, "_clock", lambda later=later: now + later * 1_000_000)
        assert (await _post(guarded, good))[0] == wanted, later


@pytest.mark.parametrize("headers", [{}, {"authorization": "nonsense"}, {"authorization": "Bearer nonsense"}])
async def test_without_a_credential_nobody_is_let_in(guarded: Guarded, headers: dict[str, str]) -> None:
    assert await _post(guarded, {**HEADERS, **headers}) == (401, "MissingAuthenticationToken")
    form = {"content-type": "application/x-www-form-urlencoded", **headers}
    async with httpx.AsyncClient(base_url=guarded.front.url) as http:
        answer = await http.post("/sqs", content=b"Action=ListQueues", headers=form)
    assert "<Code>MissingAuthenticationToken</Code>" in answer.text


async def test_a_stranger_is_refused_before_its_body_comes(guarded: Guarded) -> None:
    signed = _signed(guarded.front)
    authorization = signed["Authorization"].replace("KEYOFboss0", "KEYOFstranger")
    reader, writer = await asyncio.open_connection(*guarded.front.address)
    head = (
        f"POST /sqs HTTP/1.1\r\nhost: x\r\nauthorization: {authorization}\r\nx-amz-date: {signed['X-Amz-Date']}\r\n"
        "x-amz-target: AmazonSQS.SendMessage\r\ncontent-length: 45000000\r\n\r\n"
    )
    answer = await Wire(reader, writer).ask(head.encode())
    writer.close()
    assert (answer.status, b"InvalidClientTokenId" in answer.body) == (403, True)
    assert guarded.front.api.buffered_bytes == 0


async def test_a_signature_is_a_credential_of_sqs_only(guarded: Guarded) -> None:
    async with httpx.AsyncClient(base_url=guarded.front.url) as http:
        answer = await http.get("/api/v1/queues", headers=_signed(guarded.front))
    assert answer.status_code == 401


# --- rights ---------------------------------------------------------------------------------------------------------


async def test_each_action_needs_its_right(guarded: Guarded) -> None:
    boss = guarded.sqs("boss")
    url = await boss.create("orders")
    await boss.create("bills")
    await boss.send(url, "one")
    handle = (await boss.one(url))["ReceiptHandle"]
    source: dict[str, object] = {"SourceArn": arn("orders")}
    rights: dict[str, list[tuple[str, dict[str, object]]]] = {
        "sender": [
            ("SendMessage", {"QueueUrl": url, "MessageBody": "x"}),
            ("SendMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", "MessageBody": "x"}]}),
        ],
        "worker": [
            ("ReceiveMessage", {"QueueUrl": url}),
            ("ChangeMessageVisibility", {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 9}),
            ("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handle}),
            ("DeleteMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", "ReceiptHandle": handle}]}),
            (
                "ChangeMessageVisibilityBatch",
                {"QueueUrl": url, "Entries": [{"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 9}]},
            ),
        ],
        "admin": [
            ("CreateQueue", {"QueueName": "orders"}),
            ("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"DelaySeconds": "0"}}),
            ("TagQueue", {"QueueUrl": url, "Tags": {"a": "b"}}),
            ("UntagQueue", {"QueueUrl": url, "TagKeys": ["a"]}),
            ("ListMessageMoveTasks", source),
            ("PurgeQueue", {"QueueUrl": url}),
            ("DeleteQueue", {"QueueUrl": url}),
        ],
    }
    for right, actions in rights.items():
        for action, fields in actions:
            for user in {"sender", "worker", "admin"} - {right}:
                assert await guarded.sqs(user).refused(action, **fields) == "AccessDenied", (user, action)
            await guarded.sqs(right)(action, **fields)


async def test_what_a_caller_may_not_see_it_does_not_find(guarded: Guarded) -> None:
    boss = guarded.sqs("boss")
    url, bills = await boss.create("orders"), await boss.create("bills")
    for user in ("sender", "worker", "admin"):
        sqs = guarded.sqs(user)
        assert (await sqs("ListQueues"))["QueueUrls"] == [url]
        assert (await sqs("GetQueueUrl", QueueName="orders"))["QueueUrl"] == url
        for action in ("GetQueueAttributes", "ListQueueTags", "ListDeadLetterSourceQueues"):
            await sqs(action, QueueUrl=url)
            assert await sqs.refused(action, QueueUrl=bills) == "AccessDenied"
            assert await sqs.refused(action, QueueUrl=bills.replace("bills", "missing")) == "AccessDenied"
    assert await guarded.sqs("nobody").refused("ListQueues") == "AccessDenied"
    assert await guarded.sqs("nobody").refused("CreateQueue", QueueName="x") == "AccessDenied"


async def test_both_ends_of_a_dead_letters_way_need_a_right(guarded: Guarded) -> None:
    boss = guarded.sqs("boss")
    url = await boss.create("orders")
    await boss.create("dead")
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 2})}
    admin = guarded.sqs("admin")
    assert await admin.refused("SetQueueAttributes", QueueUrl=url, Attributes=policy) == "AccessDenied"
    await boss("SetQueueAttributes", QueueUrl=url, Attributes=policy)
    assert await admin.refused("StartMessageMoveTask", SourceArn=arn("dead")) == "AccessDenied"
    assert await admin.refused("DeleteQueue", QueueUrl=url.replace("orders", "dead")) == "AccessDenied"
    dead = Sqs(guarded.front.url, "json", "KEYOFdeadadmin", SECRET)
    dead_admin = User(
        name="u", namespace="acme", scopes=("admin:dead",), access_keys=(AccessKey("KEYOFdeadadmin", SECRET),)
    )
    rig.write_users(guarded.users, *USERS, dead_admin)
    fields = {"SourceArn": arn("dead"), "DestinationArn": arn("orders")}
    assert await dead.refused("StartMessageMoveTask", **fields) == "AccessDenied"
    dead.close()


async def test_acts_of_administration_are_in_the_audit_log(guarded: Guarded) -> None:
    boss = guarded.sqs("boss")
    url = await boss.create("orders")
    await guarded.sqs("worker").refused("DeleteQueue", QueueUrl=url)
    await boss.refused("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "x"})
    await boss("DeleteQueue", QueueUrl=url)
    lines = [json.loads(line) for line in (guarded.users.parent / "audit.log").read_text().splitlines()]
    acts = [(line["who"], line["act"], line["result"]) for line in lines if line["front"] == "sqs"][-4:]
    assert acts == [
        ("boss", "queue.create", "ok"),
        ("worker", "queue.delete", "forbidden"),
        ("boss", "queue.update", "invalid_argument"),
        ("boss", "queue.delete", "ok"),
    ]
    logins = [line for line in lines if line["act"] == "login" and line["who"] == "boss"]
    assert {line["resource"] for line in logins} == {"access_key"}
    assert SECRET not in "".join(map(str, lines))
