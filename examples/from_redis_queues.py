"""The jobs of docs/how-to/move-from-redis-queues.md.

HOLDFAST_URL=http://127.0.0.1:8080 .venv/bin/python examples/from_redis_queues.py
HOLDFAST_URL=http://127.0.0.1:8080 .venv/bin/holdfast worker --app-dir examples from_redis_queues:app
"""

from __future__ import annotations

from holdfast.client import Workers, worker


@worker("emails", concurrency=4, timeout="30s", retries=5, backoff="10s")
def send_email(to: str, text: str = "Hello") -> None:
    print(f"sent to {to}: {text}")


app = Workers(send_email)


if __name__ == "__main__":
    for _ in range(2):  # the second is the same job
        send_email.options(message_id="order-4711").send_sync("ann@example.com")
        send_email.delay("5m").send_sync("ann@example.com")
