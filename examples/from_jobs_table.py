"""The code of docs/how-to/move-from-a-jobs-table.md.

python examples/from_jobs_table.py shop.db
python -m holdfast.outbox sqlite:shop.db
holdfast worker --app-dir examples from_jobs_table:app
"""

from __future__ import annotations

import json
import sqlite3
import sys

from holdfast.client import Workers, worker
from holdfast.outbox import Outbox

outbox = Outbox()


@worker("emails", concurrency=4, retries=5, backoff="10s")
def send_email(to: str) -> None:
    print(f"sent to {to}")


app = Workers(send_email)


def place_order(connection: sqlite3.Connection, to: str) -> None:
    with connection:  # one transaction
        connection.execute("INSERT INTO orders (buyer) VALUES (?)", (to,))
        outbox.add(connection, send_email.queue, send_email.draft(to))


def move_waiting(connection: sqlite3.Connection, limit: int = 500) -> int:
    """Move jobs from the table to the outbox. Returns how many."""
    with connection:
        rows = connection.execute(
            "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE status = 'waiting' ORDER BY id LIMIT ?) "
            "RETURNING id, args, priority",
            (limit,),
        ).fetchall()
        for number, args, priority in sorted(rows):
            moved = send_email.options(message_id=f"job-{number}", priority=priority)
            outbox.add(connection, send_email.queue, moved.draft(**json.loads(args)))
    return len(rows)


if __name__ == "__main__":
    database = sqlite3.connect(sys.argv[1])
    outbox.create(database)
    while moved := move_waiting(database):
        print(f"moved {moved} jobs")
    database.close()
