"""Queues over SQS: created, looked at, changed, tagged, listed, purged, deleted."""

from __future__ import annotations

import json

import httpx
import pytest

from holdfast.broker.node import Node
from holdfast.core.queue import Ordering
from tests.http_api.dialects.sqs.rig import Sqs, arn


async def test_a_queue_of_sqs_is_a_queue_of_all_protocols(sqs: Sqs, http: httpx.AsyncClient, node: Node) -> None:
    url = await sqs.create("orders", VisibilityTimeout="45", MessageRetentionPeriod="3600", MaximumMessageSize="2048")
    assert url.endswith("/sqs/000000000000/orders")
    config = node.queues.get(("default", "orders")).config
    assert (config.delivery_timeout, config.message_ttl, config.max_message_size) == (45_000_000, 3_600_000_000, 2048)
    assert (config.ordering, config.dlq.enabled, config.retry.total_timeout) == (Ordering.NONE, False, 0)
    await sqs.send(url, "one")
    leased = (await http.post("/api/v1/queues/orders/leases", json={"group": "default"})).json()
    assert [delivery["text"] for delivery in leased["deliveries"]] == ["one"]
    assert await sqs.receive(url) == [], "both are members of one group"


async def test_creating_a_queue_again_gives_its_url_unless_it_is_another(sqs: Sqs) -> None:
    url = await sqs.create("orders", DelaySeconds="5", VisibilityTimeout="9")
    assert await sqs.create("orders", DelaySeconds="5", VisibilityTimeout="9") == url
    assert await sqs.create("orders") == url
    fields = {"QueueName": "orders", "Attributes": {"DelaySeconds": "6"}}
    assert await sqs.refused("CreateQueue", **fields) == "QueueAlreadyExists"
    fields = {"QueueName": "orders", "Attributes": {"VisibilityTimeout": "10"}}
    assert await sqs.refused("CreateQueue", **fields) == "QueueAlreadyExists"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 81, "orders.fifo", "a.b"])
async def test_names_are_those_that_sqs_allows(sqs: Sqs, node: Node, name: str) -> None:
    assert await sqs.refused("CreateQueue", QueueName=name) == "InvalidParameterValue"
    assert node.queues.names() == []


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ({"DelaySeconds": "soon"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "-1"}, "InvalidAttributeValue"),
        ({"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"),
        ({"MaximumMessageSize": "1023"}, "InvalidAttributeValue"),
        ({"ReceiveMessageWaitTimeSeconds": "21"}, "InvalidAttributeValue"),
        ({"RedrivePolicy": "{"}, "InvalidAttributeValue"),
        ({"RedrivePolicy": json.dumps({"maxReceiveCount": 5})}, "InvalidAttributeValue"),
        ({"RedriveAllowPolicy": json.dumps({"redrivePermission": "some"})}, "InvalidAttributeValue"),
        ({"RedriveAllowPolicy": json.dumps({"redrivePermission": "byQueue"})}, "InvalidAttributeValue"),
        ({"FifoQueue": "true"}, "InvalidAttributeValue"),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ({"Colour": "blue"}, "InvalidAttributeName"),
        ({"QueueArn": "x"}, "InvalidAttributeName"),
        ({"Policy": "{}"}, "AWS.SimpleQueueService.UnsupportedOperation"),
        ({"SqsManagedSseEnabled": "true"}, "AWS.SimpleQueueService.UnsupportedOperation"),
        ({"KmsMasterKeyId": "alias/aws/sqs"}, "AWS.SimpleQueueService.UnsupportedOperation"),
    ],
)
async def test_attributes_that_are_wrong_or_would_not_be_kept_are_refused(
    sqs: Sqs, node: Node, attributes: dict[str, str], code: str
) -> None:
    assert await sqs.refused("CreateQueue", QueueName="orders", Attributes=attributes) == code
    assert node.queues.names() == []
    url = await sqs.create("orders")
    before = await sqs.attributes(url)
    assert await sqs.refused("SetQueueAttributes", QueueUrl=url, Attributes=attributes) == code
    assert await sqs.attributes(url) == before


async def test_attributes_are_shown_as_they_were_set(sqs: Sqs, node: Node) -> None:
    given = {
        "DelaySeconds": "7",
        "MaximumMessageSize": "4096",
        "MessageRetentionPeriod": "86400",
        "ReceiveMessageWaitTimeSeconds": "3",
        "VisibilityTimeout": "0",
    }
    url = await sqs.create("orders", SqsManagedSseEnabled="false", Policy="")
    await sqs("SetQueueAttributes", QueueUrl=url, Attributes=given)
    found = await sqs.attributes(url)
    assert {name: found[name] for name in given} == given
    assert found["QueueArn"] == arn("orders")
    created = node.queues.get(("default", "orders")).created_at // 1_000_000
    assert int(found["CreatedTimestamp"]) == created <= int(found["LastModifiedTimestamp"])
    assert "RedrivePolicy" not in found
    assert "FifoQueue" not in found
    assert await sqs.attributes(url, "DelaySeconds", "QueueArn") == {"DelaySeconds": "7", "QueueArn": arn("orders")}
    assert await sqs.attributes(url, "RedrivePolicy") == {}
    assert await sqs.refused("GetQueueAttributes", QueueUrl=url, AttributeNames=["Colour"]) == "InvalidAttributeName"
    assert "Attributes" not in await sqs("GetQueueAttributes", QueueUrl=url)


async def test_what_another_api_changed_is_shown(sqs: Sqs, http: httpx.AsyncClient) -> None:
    url = await sqs.create("orders")
    answer = await http.put("/api/v1/queues/orders/config", json={"delivery_timeout": "90s"})
    assert answer.status_code == 200
    assert (await sqs.attributes(url))["VisibilityTimeout"] == "90"


async def test_a_new_queue_has_nothing_of_one_that_had_its_name(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders", DelaySeconds="7")
    await sqs("TagQueue", QueueUrl=url, Tags={"team": "shop"})
    await node.queues.delete(("default", "orders"))
    url = await sqs.create("orders")
    assert (await sqs.attributes(url))["DelaySeconds"] == "0"
    assert await sqs("ListQueueTags", QueueUrl=url) in ({}, {"Tags": {}})


async def test_counts_are_of_what_is_ready_received_and_delayed(sqs: Sqs) -> None:
    url = await sqs.create("orders")
    for number in range(3):
        await sqs.send(url, str(number))
    await sqs.send(url, "later", DelaySeconds=600)
    await sqs.receive(url, MaxNumberOfMessages=1)
    found = await sqs.attributes(url, "All")
    names = (
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    )
    assert [found[name] for name in names] == ["2", "1", "1"]


async def test_urls_are_found_by_name(sqs: Sqs) -> None:
    url = await sqs.create("orders")
    assert await sqs("GetQueueUrl", QueueName="orders") == {"QueueUrl": url}
    missing = "AWS.SimpleQueueService.NonExistentQueue"
    assert await sqs.refused("GetQueueUrl", QueueName="bills") == missing
    for action in ("GetQueueAttributes", "ReceiveMessage", "PurgeQueue", "DeleteQueue", "ListQueueTags"):
        assert await sqs.refused(action, QueueUrl=url.replace("orders", "bills")) == missing, action
    assert await sqs.refused("SendMessage", QueueUrl=url.replace("orders", "bills"), MessageBody="x") == missing


async def test_queues_are_listed_by_prefix_in_pages(sqs: Sqs) -> None:
    urls = [await sqs.create(name) for name in ("a1", "a2", "a3", "b1")]
    assert (await sqs("ListQueues"))["QueueUrls"] == urls
    assert (await sqs("ListQueues", QueueNamePrefix="a"))["QueueUrls"] == urls[:3]
    page = await sqs("ListQueues", QueueNamePrefix="a", MaxResults=2)
    assert page["QueueUrls"] == urls[:2]
    page = await sqs("ListQueues", QueueNamePrefix="a", MaxResults=2, NextToken=page["NextToken"])
    assert (page["QueueUrls"], "NextToken" in page) == (urls[2:3], False)
    assert await sqs.refused("ListQueues", MaxResults=0) == "InvalidParameterValue"
    assert await sqs("ListQueues", QueueNamePrefix="z") in ({}, {"QueueUrls": []})


async def test_tags_are_added_removed_and_kept_with_the_queue(sqs: Sqs) -> None:
    url = (await sqs("CreateQueue", QueueName="orders", tags={"team": "shop"}))["QueueUrl"]
    await sqs("TagQueue", QueueUrl=url, Tags={"cost": "17", "team": "web"})
    assert (await sqs("ListQueueTags", QueueUrl=url))["Tags"] == {"cost": "17", "team": "web"}
    await sqs("UntagQueue", QueueUrl=url, TagKeys=["cost", "colour"])
    assert (await sqs("ListQueueTags", QueueUrl=url))["Tags"] == {"team": "web"}
    many = {f"t{number}": "" for number in range(50)}
    assert await sqs.refused("TagQueue", QueueUrl=url, Tags=many) == "InvalidParameterValue"
    assert await sqs.refused("TagQueue", QueueUrl=url, Tags={"": "x"}) == "InvalidParameterValue"


async def test_purge_and_delete(sqs: Sqs, node: Node) -> None:
    url = await sqs.create("orders")
    await sqs.send(url, "one")
    await sqs("PurgeQueue", QueueUrl=url)
    assert await sqs.receive(url) == []
    await sqs("DeleteQueue", QueueUrl=url)
    assert node.queues.names() == []


async def test_a_queue_of_another_api_can_be_used_by_its_url(sqs: Sqs, node: Node) -> None:
    await node.queues.create(("default", "tasks/image"))
    [url] = (await sqs("ListQueues"))["QueueUrls"]
    assert url.endswith("/sqs/000000000000/tasks%2Fimage")
    await sqs.send(url, "one")
    assert (await sqs.one(url))["Body"] == "one"
    policy = json.loads((await sqs.attributes(url))["RedrivePolicy"])
    assert policy == {"deadLetterTargetArn": arn("dlq/tasks/image"), "maxReceiveCount": 11}
