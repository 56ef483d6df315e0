"""The jobs of docs/how-to/move-from-celery.md.

HOLDFAST_URL=http://127.0.0.1:8080 .venv/bin/python examples/from_celery.py
HOLDFAST_URL=http://127.0.0.1:8080 .venv/bin/holdfast worker --app-dir examples from_celery:app
"""

from __future__ import annotations

from holdfast.client import Reject, SyncClient, Workers, use_client, worker


@worker("emails", concurrency=4, timeout="30s", retries=5, backoff="10s", rate="10/s")
def send_email(to: str, text: str = "Hello") -> None:
    if "@" not in to:
        raise Reject(f"{to} is no address")
    print(f"sent to {to}: {text}")


app = Workers(send_email)


if __name__ == "__main__":
    with SyncClient() as client, use_client(client):
        job = send_email.send_sync("ann@example.com", text="Hi")
        print(f"sent job {job.id} to {job.queue}")
        send_email.delay("5m").send_sync("ann@example.com")
        send_email.key("ann").options(priority=0, ttl="1h").send_sync("ann@example.com", text="in order")
        client.send_many("emails", [send_email.draft(each) for each in ("bob@example.com", "nobody")])
