"""A job that fails, is retried, and ends in the dead queue with its story.

.venv/bin/python examples/taste.py     (the server of HOLDFAST_URL, or http://127.0.0.1:8080)
"""

from __future__ import annotations

from holdfast.client import SyncClient


def main() -> None:
    with SyncClient() as client:
        client.create_queue("images", {"retry": {"max_retries": 1, "initial_backoff": "50ms"}})
        client.send("images", "resize 4711.png", key="user-7")  # durable when this returns

        for _ in range(2):
            (job,) = client.receive("images", wait="5s")  # leased: nobody else gets it
            print(f"attempt {job.attempt}: {job.text()}")
            job.nack(error="out of memory")  # retried after the backoff

        (dead,) = client.receive("dlq/images", wait="5s")
        assert dead.origin is not None
        print(f"dead after {dead.origin.attempts} attempts: {dead.origin.reason}, {dead.origin.error}")
        dead.ack()

        client.delete_queue("images")
        client.delete_queue("dlq/images")


if __name__ == "__main__":
    main()
