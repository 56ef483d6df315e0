"""Redrive policies, and message move tasks."""

from __future__ import annotations

import json

import pytest

from holdfast.broker.node import Node
from holdfast.broker.parts.redrive_jobs import JobState
from tests.http_api.dialects.sqs.rig import Fields, Sqs, arn
from tests.waiting import until


def policy(target: str, count: object = 2) -> str:
    return json.dumps({"deadLetterTargetArn": arn(target), "maxReceiveCount": count})


async def _die(sqs: Sqs, url: str, *bodies: str) -> None:
    for body in bodies:
        await sqs.send(url, body)
    for _ in range(2):
        for message in await sqs.receive(url):
            fields = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
            await sqs("ChangeMessageVisibility", **fields)


async def _queues(sqs: Sqs) -> tuple[str, str]:
    dead = await sqs.create("dead")
    return await sqs.create("orders", RedrivePolicy=policy("dead")), dead


async def test_a_message_received_too_often_is_moved(sqs: Sqs) -> None:
    url, dead = await _queues(sqs)
    sent = await sqs.send(url, "one")
    for count in ("1", "2"):
        message = await sqs.one(url, VisibilityTimeout=0, WaitTimeSeconds=20, AttributeNames=["All"])
        assert message["Attributes"]["ApproximateReceiveCount"] == count
    message = await sqs.one(dead, WaitTimeSeconds=20, AttributeNames=["All"])
    assert (message["Body"], message["MessageId"]) == ("one", sent["MessageId"])
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn("orders")
    assert await sqs.receive(url) == []


async def test_a_redrive_policy_is_shown_changed_and_removed(sqs: Sqs, node: Node) -> None:
    url, dead = await _queues(sqs)
    assert json.loads((await sqs.attributes(url))["RedrivePolicy"]) == json.loads(policy("dead"))
    assert (await sqs("ListDeadLetterSourceQueues", QueueUrl=dead))["queueUrls"] == [url]
    await sqs("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": policy("dead", "5")})
    assert json.loads((await sqs.attributes(url))["RedrivePolicy"])["maxReceiveCount"] == 5
    deleted = await sqs.refused("DeleteQueue", QueueUrl=dead)
    assert deleted == "AWS.SimpleQueueService.UnsupportedOperation"
    await sqs("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in await sqs.attributes(url)
    assert node.queues.get(("default", "orders")).config.retry.max_retries == 1_000_000
    assert await sqs("ListDeadLetterSourceQueues", QueueUrl=dead) in ({}, {"queueUrls": []})
    await sqs("DeleteQueue", QueueUrl=dead)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (policy("missing"), "InvalidAttributeValue"),
        (policy("dead", 0), "InvalidAttributeValue"),
        (policy("dead", 1_001), "InvalidAttributeValue"),
        (policy("orders"), "InvalidAttributeValue"),
        (policy("other.fifo"), "InvalidAttributeValue"),
        (json.dumps({"deadLetterTargetArn": "dead", "maxReceiveCount": 2}), "InvalidParameterValue"),
    ],
)
async def test_a_redrive_policy_that_cannot_work_is_refused(sqs: Sqs, text: str, code: str) -> None:
    await sqs.create("dead")
    await sqs.create("other.fifo")
    url = await sqs.create("orders")
    assert await sqs.refused("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": text}) == code
    assert "RedrivePolicy" not in await sqs.attributes(url)


async def test_a_redrive_allow_policy_says_whose_dead_letters_a_queue_takes(sqs: Sqs) -> None:
    dead, url = await sqs.create("dead"), await sqs.create("orders")
    redrive = {"QueueUrl": url, "Attributes": {"RedrivePolicy": policy("dead")}}
    for allowed, refused in (
        ({"redrivePermission": "denyAll"}, True),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("bills")]}, True),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn("orders")]}, False),
        ({"redrivePermission": "allowAll"}, False),
    ):
        attributes = {"RedriveAllowPolicy": json.dumps(allowed)}
        await sqs("SetQueueAttributes", QueueUrl=dead, Attributes=attributes)
        assert json.loads((await sqs.attributes(dead))["RedriveAllowPolicy"]) == allowed
        if refused:
            assert await sqs.refused("SetQueueAttributes", **redrive) == "InvalidAttributeValue"
        else:
            await sqs("SetQueueAttributes", **redrive)


async def _ended(sqs: Sqs, node: Node) -> Fields:
    jobs = node.redrive_jobs.of(("default", "dead"))
    await until(lambda: all(job.progress.state is not JobState.RUNNING for job in jobs))
    found = await sqs("ListMessageMoveTasks", SourceArn=arn("dead"))
    [task] = found["Results"]
    return dict(task)


async def test_dead_letters_are_moved_back_to_their_source(sqs: Sqs, node: Node) -> None:
    url, dead = await _queues(sqs)
    await _die(sqs, url, "one", "two")
    assert (await sqs.attributes(dead))["ApproximateNumberOfMessages"] == "2"
    handle = (await sqs("StartMessageMoveTask", SourceArn=arn("dead")))["TaskHandle"]
    task = await _ended(sqs, node)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"], task["SourceArn"]) == (
        "COMPLETED",
        2,
        arn("dead"),
    )
    assert "TaskHandle" not in task
    assert {message["Body"] for message in await sqs.receive(url)} == {"one", "two"}
    assert await sqs.refused("CancelMessageMoveTask", TaskHandle=handle) == "ResourceNotFoundException"


async def test_dead_letters_are_moved_elsewhere_at_a_rate_and_a_task_is_cancelled(sqs: Sqs, node: Node) -> None:
    url, _ = await _queues(sqs)
    other = await sqs.create("other")
    await _die(sqs, url, *"12345")
    fields = {"SourceArn": arn("dead"), "DestinationArn": arn("other"), "MaxNumberOfMessagesPerSecond": 1}
    handle = (await sqs("StartMessageMoveTask", **fields))["TaskHandle"]
    running = "AWS.SimpleQueueService.UnsupportedOperation"
    assert await sqs.refused("StartMessageMoveTask", **fields) == running
    task = (await sqs("ListMessageMoveTasks", SourceArn=arn("dead"), MaxResults=10))["Results"][0]
    assert (task["Status"], task["TaskHandle"], task["DestinationArn"]) == ("RUNNING", handle, arn("other"))
    assert task["MaxNumberOfMessagesPerSecond"] == 1
    moved = (await sqs("CancelMessageMoveTask", TaskHandle=handle))["ApproximateNumberOfMessagesMoved"]
    assert moved < 5
    assert (await _ended(sqs, node))["Status"] == "CANCELLED"
    assert len(await sqs.receive(other)) == moved


@pytest.mark.parametrize(
    ("action", "fields", "code"),
    [
        ("StartMessageMoveTask", {"SourceArn": arn("missing")}, "ResourceNotFoundException"),
        ("StartMessageMoveTask", {"SourceArn": arn("orders")}, "InvalidParameterValue"),
        ("StartMessageMoveTask", {"SourceArn": "dead"}, "InvalidParameterValue"),
        ("StartMessageMoveTask", {"SourceArn": arn("dead"), "DestinationArn": arn("x")}, "ResourceNotFoundException"),
        (
            "StartMessageMoveTask",
            {"SourceArn": arn("dead"), "MaxNumberOfMessagesPerSecond": 501},
            "InvalidParameterValue",
        ),
        ("ListMessageMoveTasks", {"SourceArn": arn("missing")}, "ResourceNotFoundException"),
        ("ListMessageMoveTasks", {"SourceArn": arn("dead"), "MaxResults": 11}, "InvalidParameterValue"),
        ("CancelMessageMoveTask", {"TaskHandle": "nonsense"}, "InvalidParameterValue"),
        ("CancelMessageMoveTask", {"TaskHandle": "bm9uc2Vuc2U="}, "InvalidParameterValue"),
    ],
)
async def test_a_task_that_cannot_be_is_refused(sqs: Sqs, action: str, fields: Fields, code: str) -> None:
    await _queues(sqs)
    assert await sqs.refused(action, **fields) == code
