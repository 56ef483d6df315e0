"""Messages over SQS: sent, received, made visible, deleted; one by one and in batches."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64encode
from uuid import UUID

import httpx
import pytest

from holdfast.broker.node import Node
from holdfast.core.commands import Draft
from holdfast.core.records import Extra
from holdfast.http_api import HttpFront
from tests.http_api.dialects.sqs.rig import Fields, Sqs
from tests.waiting import until

ATTRIBUTES: Fields = {
    "colour": {"DataType": "String", "StringValue": "blü <&> \r\n"},
    "size": {"DataType": "Number", "StringValue": "-1.5e3"},
    "picture": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG\0"},
    "trace.id": {"DataType": "String.uuid", "StringValue": "17"},
}
BODY = "ünïcode <&> \r\n\t ]]> 🎺 line"


async def test_what_was_sent_is_received_with_its_attributes_and_digests(sqs: Sqs) -> None:
    """boto3 itself compares the digests, of the body and of the attributes, and raises if they differ."""
    url = await sqs.create("orders")
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988"}}
    sent = await sqs.send(url, BODY, MessageAttributes=ATTRIBUTES, MessageSystemAttributes=trace)
    assert sent["MD5OfMessageBody"] == hashlib.md5(BODY.encode()).hexdigest()
    assert {"MD5OfMessageAttributes", "MD5OfMessageSystemAttributes"} <= sent.keys()
    assert UUID(sent["MessageId"]).version == 8
    message = await sqs.one(url, MessageAttributeNames=["All"], AttributeNames=["All"])
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], BODY)
    assert message["MessageAttributes"] == ATTRIBUTES
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"].keys() == {
        *("SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "AWSTraceHeader")
    }
    assert message["Attributes"]["AWSTraceHeader"] == "Root=1-5759e988"


async def test_a_receiver_gets_the_attributes_that_it_asks_for(sqs: Sqs) -> None:
    url = await sqs.create("orders")
    await sqs.send(url, "one", MessageAttributes=ATTRIBUTES)
    asked: list[tuple[Fields, set[str], set[str]]] = [
        ({}, set(), set()),
        ({"MessageAttributeNames": ["size", "weight"]}, {"size"}, set()),
        ({"MessageAttributeNames": ["trace.*"]}, {"trace.id"}, set()),
        ({"MessageAttributeNames": [".*"]}, set(ATTRIBUTES), set()),
        ({"AttributeNames": ["SentTimestamp", "MessageGroupId"]}, set(), {"SentTimestamp"}),
    ]
    if sqs.protocol == "json":  # newer than the description of the query protocol
        asked.append(({"MessageSystemAttributeNames": ["ApproximateReceiveCount"]}, set(), {"ApproximateReceiveCount"}))
    for fields, attributes, system in asked:
        message = await sqs.one(url, **fields)
        assert set(message.get("MessageAttributes", {})) == attributes
        assert ("MD5OfMessageAttributes" in message) == bool(attributes)
        assert set(message.get("Attributes", {})) == system
        await _make_visible(sqs, url, message)
    assert await sqs.refused("ReceiveMessage", QueueUrl=url, AttributeNames=["Colour"]) == "InvalidAttributeName"


async def _make_visible(sqs: Sqs, url: str, message: Fields) -> None:
    await sqs("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": "\x00"}, "InvalidMessageContents"),
        ({"MessageBody": "x" * 2049}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a": {"DataType": "String", "StringValue": "x" * 2048}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a": {"DataType": "Colour", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a": {"DataType": "Number", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"a": {"DataType": "String"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"AWS.a": {"DataType": "String", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"sqs-types": {"DataType": "String", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {".a": {"DataType": "String", "StringValue": "x"}}}, "InvalidParameterValue"),
        (
            {"MessageAttributes": {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}},
            "InvalidParameterValue",
        ),
        ({"MessageSystemAttributes": {"X": {"DataType": "String", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"DelaySeconds": 901}, "InvalidParameterValue"),
        ({"DelaySeconds": -1}, "InvalidParameterValue"),
        ({"MessageDeduplicationId": "x"}, "InvalidParameterValue"),
        ({"MessageGroupId": "a b"}, "InvalidParameterValue"),
    ],
)
async def test_a_message_that_is_wrong_is_refused(sqs: Sqs, node: Node, fields: Fields, code: str) -> None:
    url = await sqs.create("orders", MaximumMessageSize="2048")
    assert await sqs.refused("SendMessage", **{"QueueUrl": url, "MessageBody": "x", **fields}) == code
    assert node.queues.depth(("default", "orders")) == 0


async def test_a_batch_reports_each_entry(sqs: Sqs) -> None:
    url = await sqs.create("orders")
    entries = [
        {"Id": "first", "MessageBody": "one", "MessageAttributes": {"colour": ATTRIBUTES["colour"]}},
        {"Id": "wrong", "MessageBody": "\x01"},
        {"Id": "last", "MessageBody": "two", "DelaySeconds": 600},
    ]
    found = await sqs("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in found["Successful"]] == ["first", "last"]
    [failed] = found["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("wrong", "InvalidMessageContents", True)
    message = await sqs.one(url, MessageAttributeNames=["All"])
    assert message["MessageId"] == found["Successful"][0]["MessageId"]
    assert message["MD5OfMessageAttributes"] == found["Successful"][0]["MD5OfMessageAttributes"]


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([str(n) for n in range(11)], "TooManyEntriesInBatchRequest"),
        (["a", "a"], "BatchEntryIdsNotDistinct"),
        (["a b"], "InvalidBatchEntryId"),
        ([""], "InvalidBatchEntryId"),
    ],
)
async def test_a_batch_that_is_wrong_as_a_whole_is_refused(sqs: Sqs, ids: list[str], code: str) -> None:
    url = await sqs.create("orders")
    for action, field in (
        ("SendMessageBatch", "MessageBody"),
        ("DeleteMessageBatch", "ReceiptHandle"),
        ("ChangeMessageVisibilityBatch", "ReceiptHandle"),
    ):
        entries = [{"Id": entry_id, field: "x"} for entry_id in ids]
        assert await sqs.refused(action, QueueUrl=url, Entries=entries) == f"AWS.SimpleQueueService.{code}"
    long = [{"Id": str(n), "MessageBody": "x" * 600_000} for n in range(2)]
    refused = await sqs.refused("SendMessageBatch", QueueUrl=url, Entries=long)
    assert refused == "AWS.SimpleQueueService.BatchRequestTooLong"


async def test_a_delayed_message_is_not_visible_yet(sqs: Sqs) -> None:
    url = await sqs.create("orders", DelaySeconds="600")
    await sqs.send(url, "later")
    await sqs.send(url, "now", DelaySeconds=0)
    assert [message["Body"] for message in await sqs.receive(url)] == ["now"]


# --- receiving ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"WaitTimeSeconds": 21},
        {"WaitTimeSeconds": -1},
        {"VisibilityTimeout": 43_201},
        {"VisibilityTimeout": -1},
    ],
)
async def test_a_receive_that_is_wrong_is_refused(sqs: Sqs, fields: Fields) -> None:
    url = await sqs.create("orders")
    assert await sqs.refused("ReceiveMessage", QueueUrl=url, **fields) == "InvalidParameterValue"


async def test_a_receiver_waits_for_a_message(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders", ReceiveMessageWaitTimeSeconds="20")
    waiting = asyncio.create_task(sqs.receive(url))
    await until(lambda: node.inspection.waiting(("default", "orders")) == 1)
    await sqs.send(url, "one")
    assert [message["Body"] for message in await waiting] == ["one"]


async def test_one_message_is_received_unless_more_are_asked_for(sqs: Sqs) -> None:
    url = await sqs.create("orders")
    for number in range(12):
        await sqs.send(url, str(number))
    assert len((await sqs("ReceiveMessage", QueueUrl=url))["Messages"]) == 1
    assert len(await sqs.receive(url, MaxNumberOfMessages=10)) == 10


async def test_a_received_message_is_hidden_and_visible_again_after_its_time(sqs: Sqs) -> None:
    url = await sqs.create("orders")
    await sqs.send(url, "one")
    first = await sqs.one(url, VisibilityTimeout=0, AttributeNames=["All"])
    again = await sqs.one(url, WaitTimeSeconds=20, AttributeNames=["All"])
    assert [one["Attributes"]["ApproximateReceiveCount"] for one in (first, again)] == ["1", "2"]
    assert first["ReceiptHandle"] != again["ReceiptHandle"]
    assert first["MessageId"] == again["MessageId"]
    assert await sqs.receive(url) == []


async def test_visibility_is_extended_and_ended(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders", VisibilityTimeout="600")
    await sqs.send(url, "one")
    message = await sqs.one(url)
    handle = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    before = await _deadline(node)
    await sqs("ChangeMessageVisibility", **handle, VisibilityTimeout=7_200)
    assert await _deadline(node) - before > 6_000_000_000
    assert await sqs.refused("ChangeMessageVisibility", **handle, VisibilityTimeout=43_201) == "InvalidParameterValue"
    await sqs("ChangeMessageVisibility", **handle, VisibilityTimeout=0)
    again = await sqs.one(url, AttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    lost = "AWS.SimpleQueueService.MessageNotInflight"
    assert await sqs.refused("ChangeMessageVisibility", **handle, VisibilityTimeout=5) == lost
    assert again["Body"] == "one"


async def _deadline(node: Node) -> int:
    [(_, _, [status])] = (await node.inspection.browse(("default", "orders"))).messages
    return status.deadline


async def test_visibility_is_changed_in_batches(sqs: Sqs) -> None:
    url = await sqs.create("orders")
    for number in range(3):
        await sqs.send(url, str(number))
    handles = [message["ReceiptHandle"] for message in await sqs.receive(url)]
    entries = [
        {"Id": "end", "ReceiptHandle": handles[0], "VisibilityTimeout": 0},
        {"Id": "extend", "ReceiptHandle": handles[1], "VisibilityTimeout": 60},
        {"Id": "nonsense", "ReceiptHandle": "nonsense", "VisibilityTimeout": 60},
        {"Id": "long", "ReceiptHandle": handles[2], "VisibilityTimeout": 50_000},
    ]
    found = await sqs("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in found["Successful"]] == ["end", "extend"]
    assert {entry["Id"]: entry["Code"] for entry in found["Failed"]} == {
        "nonsense": "ReceiptHandleIsInvalid",
        "long": "InvalidParameterValue",
    }
    assert len(await sqs.receive(url)) == 1


# --- deleting -------------------------------------------------------------------------------------------------------


async def test_a_deleted_message_is_gone_and_may_be_deleted_again(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders")
    await sqs.send(url, "one")
    handle = {"QueueUrl": url, "ReceiptHandle": (await sqs.one(url))["ReceiptHandle"]}
    await sqs("DeleteMessage", **handle)
    assert node.queues.depth(("default", "orders")) == 0
    await sqs("DeleteMessage", **handle)


async def test_a_message_that_is_visible_again_is_deleted_by_who_had_received_it(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders")
    await sqs.send(url, "one")
    message = await sqs.one(url)
    await _make_visible(sqs, url, message)
    await sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert node.queues.depth(("default", "orders")) == 0


async def test_what_another_has_received_stays(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders")
    await sqs.send(url, "one")
    first = await sqs.one(url)
    await _make_visible(sqs, url, first)
    await sqs.one(url)
    await sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert node.queues.depth(("default", "orders")) == 1, "as at AWS: accepted, and not deleted"


async def test_what_other_groups_have_yet_to_see_stays(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders")
    await node.groups.create(("default", "orders"), "others")
    await sqs.send(url, "one")
    message = await sqs.one(url)
    await _make_visible(sqs, url, message)
    await sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert len(await node.messages.lease(("default", "orders"), "others")) == 1


async def test_messages_are_deleted_in_batches(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders")
    for number in range(3):
        await sqs.send(url, str(number))
    handles = [message["ReceiptHandle"] for message in await sqs.receive(url)]
    entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate([*handles[:2], handles[2][:-4]])]
    found = await sqs("DeleteMessageBatch", QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in found["Successful"]] == ["0", "1"]
    assert [(entry["Id"], entry["Code"]) for entry in found["Failed"]] == [("2", "ReceiptHandleIsInvalid")]
    assert node.queues.depth(("default", "orders")) == 1


async def test_a_receipt_handle_is_one_of_its_queue(sqs: Sqs, node: Node) -> None:
    url, other = await sqs.create("orders"), await sqs.create("bills")
    await sqs.send(url, "one")
    handle = (await sqs.one(url))["ReceiptHandle"]
    for wrong in ("", "nonsense", handle[:-1], "B" + handle[1:], "ü", handle.swapcase()):
        fields = {"QueueUrl": url, "ReceiptHandle": wrong}
        assert await sqs.refused("DeleteMessage", **fields) == "ReceiptHandleIsInvalid", wrong
        assert await sqs.refused("ChangeMessageVisibility", **fields, VisibilityTimeout=1) == "ReceiptHandleIsInvalid"
    assert await sqs.refused("DeleteMessage", QueueUrl=other, ReceiptHandle=handle) == "ReceiptHandleIsInvalid"
    await node.queues.delete(("default", "orders"))
    await sqs.create("orders")
    assert await sqs.refused("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) == "ReceiptHandleIsInvalid"


# --- other protocols ------------------------------------------------------------------------------------------------


async def test_attributes_of_type_string_are_properties(sqs: Sqs, http: httpx.AsyncClient) -> None:
    url = await sqs.create("orders")
    await sqs.send(url, "one", MessageAttributes={"colour": {"DataType": "String", "StringValue": "blue"}})
    await http.post("/api/v1/queues/orders/messages", json={"messages": [{"text": "two", "properties": {"size": "5"}}]})
    leased = (await http.post("/api/v1/queues/orders/leases", json={"limit": 1})).json()["deliveries"]
    assert leased[0]["properties"] == {"colour": "blue"}
    message = await sqs.one(url, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == {"size": {"DataType": "String", "StringValue": "5"}}


@pytest.mark.parametrize("payload", [b"\xff\0", b"nul \0", "\ufffe".encode()])
async def test_a_payload_that_is_no_text_comes_in_base64(sqs: Sqs, node: Node, payload: bytes) -> None:
    url = await sqs.create("orders")
    await node.messages.enqueue(("default", "orders"), [Draft(payload)])
    message = await sqs.one(url)
    assert message["Body"] == b64encode(payload).decode()
    assert message["MessageAttributes"]["sqs-encoding"]["StringValue"] == "base64"


@pytest.mark.parametrize("types", ["nonsense", '{"picture": "Binary"}', "[]"])
async def test_properties_that_only_look_like_ours_do_no_harm(sqs: Sqs, node: Node, types: str) -> None:
    url = await sqs.create("orders")
    extra = Extra(properties=(("sqs-types", types), ("picture", "no base64!")))
    await node.messages.enqueue(("default", "orders"), [Draft(b"x", extra=extra)])
    message = await sqs.one(url, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == {"picture": {"DataType": "String", "StringValue": "no base64!"}}


# --- the protocol ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "body", "name"),
    [
        ("AmazonSQS.Dance", b"{}", "UnknownOperationException"),
        ("Dance", b"{}", "UnknownOperationException"),
        ("", b"{}", "UnknownOperationException"),
        ("AmazonSQS.ListQueues", b"{", "InvalidParameterValueException"),
        ("AmazonSQS.ListQueues", b"[]", "InvalidParameterValueException"),
        ("AmazonSQS.SendMessage", b'{"QueueUrl": 5, "MessageBody": {}}', "InvalidParameterValueException"),
        ("AmazonSQS.AddPermission", b"{}", "UnsupportedOperation"),
    ],
)
async def test_requests_that_are_none_are_refused_in_json(
    http: httpx.AsyncClient, target: str, body: bytes, name: str
) -> None:
    headers = {"x-amz-target": target, "content-type": "application/x-amz-json-1.0"}
    answer = await http.post("/sqs", content=body, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/x-amz-json-1.0")
    assert answer.json()["__type"] == f"com.amazonaws.sqs#{name}"


@pytest.mark.parametrize(
    ("form", "code"),
    [
        (b"", "InvalidAction"),
        (b"Action=Dance", "InvalidAction"),
        (b"Action=SendMessage", "InvalidParameterValue"),
        (b"Action=TagQueue&Tag=a&Tag.1.Key=b", "InvalidParameterValue"),
        (b"Action=%ff", "InvalidParameterValue"),
        (b"Action=GetQueueUrl&QueueName=a/%23", "InvalidParameterValue"),
        (b"&".join(b"a%d=b" % n for n in range(3_000)), "InvalidParameterValue"),
    ],
)
async def test_requests_that_are_none_are_refused_in_xml(http: httpx.AsyncClient, form: bytes, code: str) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = await http.post("/sqs", content=form, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/xml")
    assert f"<Code>{code}</Code>" in answer.text


async def test_numbers_may_be_texts_and_actions_may_be_sent_to_the_root(http: httpx.AsyncClient, sqs: Sqs) -> None:
    url = await sqs.create("orders")
    await sqs.send(url, "one")
    for path in ("/", "/sqs", "/sqs/", "/sqs/000000000000/orders"):
        body = {"QueueUrl": url, "MaxNumberOfMessages": "10", "VisibilityTimeout": "0", "WaitTimeSeconds": "20"}
        answer = await http.post(path, content=json.dumps(body), headers={"x-amz-target": "AmazonSQS.ReceiveMessage"})
        assert [message["Body"] for message in answer.json()["Messages"]] == ["one"], path


async def test_who_goes_while_it_waits_is_given_nothing(front: HttpFront, node: Node, sqs: Sqs) -> None:
    url = await sqs.create("orders")
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    reader, writer = await asyncio.open_connection(*front.address)
    head = (
        "POST /sqs HTTP/1.1\r\nhost: localhost\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await until(lambda: node.inspection.waiting(("default", "orders")) == 1)
    writer.close()
    await until(lambda: node.inspection.waiting(("default", "orders")) == 0)
    assert await reader.read() == b""
    await sqs.send(url, "one")
    assert (await sqs.one(url, AttributeNames=["All"]))["Attributes"]["ApproximateReceiveCount"] == "1"


async def test_an_overloaded_server_refuses_all_but_those_that_wait(
    front: HttpFront, sqs: Sqs, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await sqs.create("orders")
    monkeypatch.setattr(front.api, "working", front.api.config.http.max_concurrency)
    assert await sqs.refused("SendMessage", QueueUrl=url, MessageBody="x") == "ServiceUnavailable"
    assert await sqs.receive(url) == []
