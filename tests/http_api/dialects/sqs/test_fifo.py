"""FIFO queues: order within message groups, deduplication, attempts to receive."""

from __future__ import annotations

from holdfast.broker.node import Node
from tests.http_api.dialects.sqs.rig import Fields, Sqs

NAME = ("default", "orders.fifo")


async def _send(sqs: Sqs, url: str, body: str, group: str, deduplication_id: str | None = None) -> Fields:
    return await sqs.send(url, body, MessageGroupId=group, MessageDeduplicationId=deduplication_id or f"{group}-{body}")


async def _delete(sqs: Sqs, url: str, message: Fields) -> None:
    await sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


async def test_messages_of_a_group_come_one_after_another_and_groups_beside_each_other(sqs: Sqs) -> None:
    url = await sqs.create("orders.fifo")
    sent = [await _send(sqs, url, body, group) for body, group in (("1", "a"), ("2", "a"), ("1", "b"))]
    numbers = [entry["SequenceNumber"] for entry in sent]
    assert numbers == sorted(numbers)
    assert {len(number) for number in numbers} == {20}
    received = await sqs.receive(url, AttributeNames=["All"])
    found = {message["Attributes"]["MessageGroupId"]: message for message in received}
    assert {group: message["Body"] for group, message in found.items()} == {"a": "1", "b": "1"}
    assert found["a"]["Attributes"]["MessageDeduplicationId"] == "a-1"
    assert found["a"]["Attributes"]["SequenceNumber"] == numbers[0]
    assert await sqs.receive(url) == [], "a group waits for its first message"
    await _delete(sqs, url, found["a"])
    assert (await sqs.one(url))["Body"] == "2"


async def test_a_message_that_is_visible_again_comes_before_those_behind_it(sqs: Sqs) -> None:
    url = await sqs.create("orders.fifo")
    for body in "123":
        await _send(sqs, url, body, "a")
    message = await sqs.one(url)
    await sqs("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    bodies = []
    for _ in range(3):
        message = await sqs.one(url)
        bodies.append(message["Body"])
        await _delete(sqs, url, message)
    assert bodies == ["1", "2", "3"]


async def test_a_repetition_is_accepted_and_not_stored(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders.fifo")
    first = await _send(sqs, url, "one", "a", "x")
    again = await _send(sqs, url, "one", "b", "x")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    await _delete(sqs, url, await sqs.one(url))
    await _send(sqs, url, "one", "a", "x")
    assert node.queues.depth(NAME) == 0, "also after it was deleted"
    entries = [
        {"Id": str(n), "MessageBody": "two", "MessageGroupId": "a", "MessageDeduplicationId": "y"} for n in range(2)
    ]
    found = await sqs("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert len({entry["MessageId"] for entry in found["Successful"]}) == 1
    assert node.queues.depth(NAME) == 1


async def test_the_content_may_be_the_deduplication_id(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders.fifo", ContentBasedDeduplication="true")
    for body in ("one", "one", "two"):
        await sqs.send(url, body, MessageGroupId="a")
    assert node.queues.depth(NAME) == 2
    await sqs.send(url, "one", MessageGroupId="a", MessageDeduplicationId="own")
    assert node.queues.depth(NAME) == 3


async def test_deduplication_may_be_within_groups(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders.fifo", DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    for group in ("a", "b", "a"):
        await _send(sqs, url, "one", group, "x")
    assert node.queues.depth(NAME) == 2
    messages = await sqs.receive(url, AttributeNames=["MessageDeduplicationId"])
    assert [message["Attributes"]["MessageDeduplicationId"] for message in messages] == ["x", "x"]
    found = await sqs.attributes(url)
    assert (found["DeduplicationScope"], found["FifoThroughputLimit"]) == ("messageGroup", "perMessageGroupId")
    assert (found["FifoQueue"], found["ContentBasedDeduplication"]) == ("true", "false")


async def test_what_a_fifo_queue_needs_and_does_not_take(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders.fifo")
    message = {"QueueUrl": url, "MessageBody": "x"}
    assert await sqs.refused("SendMessage", **message) == "MissingParameter"
    assert await sqs.refused("SendMessage", **message, MessageGroupId="a") == "InvalidParameterValue"
    ids = {"MessageGroupId": "a", "MessageDeduplicationId": "x"}
    assert await sqs.refused("SendMessage", **message, **ids, DelaySeconds=5) == "InvalidParameterValue"
    assert node.queues.depth(NAME) == 0
    attributes = {"FifoQueue": "false"}
    assert await sqs.refused("SetQueueAttributes", QueueUrl=url, Attributes=attributes) == "InvalidAttributeValue"


async def test_a_fifo_queue_may_delay_all_its_messages(sqs: Sqs) -> None:
    url = await sqs.create("orders.fifo", DelaySeconds="600")
    await _send(sqs, url, "one", "a")
    assert await sqs.receive(url) == []


async def test_a_handle_whose_time_is_over_has_expired(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders.fifo")
    await _send(sqs, url, "one", "a")
    first = await sqs.one(url, VisibilityTimeout=0)
    await sqs.one(url, WaitTimeSeconds=20)
    fields = {"QueueUrl": url, "ReceiptHandle": first["ReceiptHandle"]}
    assert await sqs.refused("DeleteMessage", **fields) == "InvalidParameterValue"
    assert node.queues.depth(NAME) == 1


async def test_an_attempt_that_is_repeated_gives_the_same_messages(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders.fifo")
    for group in "ab":
        await _send(sqs, url, "1", group)
        await _send(sqs, url, "2", group)
    first = await sqs.receive(url, ReceiveRequestAttemptId="x", AttributeNames=["All"])
    again = await sqs.receive(url, ReceiveRequestAttemptId="x", AttributeNames=["All"], VisibilityTimeout=7_200)
    assert [message["ReceiptHandle"] for message in again] == [message["ReceiptHandle"] for message in first]
    assert [message["Body"] for message in again] == ["1", "1"]
    statuses = [status for _, _, [status] in (await node.inspection.browse(NAME)).messages if status.deadline]
    assert all(status.deadline - node.clock() > 6_000_000_000 for status in statuses)
    assert await sqs.receive(url, ReceiveRequestAttemptId="y") == []
    await _delete(sqs, url, first[0])
    assert [message["Body"] for message in await sqs.receive(url, ReceiveRequestAttemptId="x")] == ["2"]
