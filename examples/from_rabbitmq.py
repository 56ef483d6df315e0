"""The code of docs/how-to/move-from-rabbitmq.md.

HOLDFAST_URL=http://127.0.0.1:8080 .venv/bin/python examples/from_rabbitmq.py
"""

from __future__ import annotations

from holdfast.client import SyncClient

with SyncClient() as client:
    client.create_queue("emails", {"retry.max_retries": 5}, exist_ok=True)
    client.send("emails", {"to": "ann@example.com"}, message_id="order-4711")

    for message in client.consume("emails", prefetch=10):
        print("sent to", message.json()["to"])
        message.ack()
        break  # an example comes to an end; a program goes on
