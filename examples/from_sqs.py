"""The code of docs/how-to/move-from-sqs.md: one queue, used by boto3 and by the client.

HOLDFAST_URL=http://127.0.0.1:8080 .venv/bin/python examples/from_sqs.py
"""

from __future__ import annotations

import json
import os

import boto3

from holdfast.client import SyncClient

if __name__ == "__main__":
    sqs = boto3.client(
        "sqs",
        endpoint_url=os.environ.get("HOLDFAST_URL", "http://127.0.0.1:8080") + "/sqs",
        region_name="eu-central-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106 - a server without credentials takes any
    )
    client = SyncClient()
    emails = sqs.create_queue(QueueName="emails")["QueueUrl"]
    # boto3
    sqs.send_message(QueueUrl=emails, MessageBody=json.dumps({"to": "ann@example.com"}), DelaySeconds=0)
    received = sqs.receive_message(QueueUrl=emails, MaxNumberOfMessages=10, WaitTimeSeconds=20)
    for each in received.get("Messages", []):
        print("sent to", json.loads(each["Body"])["to"])
        sqs.delete_message(QueueUrl=emails, ReceiptHandle=each["ReceiptHandle"])
    # and here
    client.send("emails", {"to": "bob@example.com"}, delay="0s")
    for message in client.receive("emails", limit=10, wait="20s"):
        with message:  # its lease is extended while the block runs
            print("sent to", message.json()["to"])
            message.ack()
    client.close()
