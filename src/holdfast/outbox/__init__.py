"""A transactional outbox: messages that are enqueued if, and only if, a transaction of your database commits.

    outbox = Outbox()
    with connection:                                       # sqlite3 or psycopg
        connection.execute("INSERT INTO orders …")
        outbox.add(connection, "orders", {"order": 4711})

    python -m holdfast.outbox postgresql://…/shop          # relays what was committed

A message waits in a table of the database. The relay enqueues it and then removes it from there. If it dies in between
it enqueues it again, with the same `message_id`, of which the queue stores one: nothing is lost, and nothing is doubled
while the relay comes again within the queue's `dedup_window`.
"""

from holdfast.outbox.relay import Relay as Relay
from holdfast.outbox.relay import Table as Table
from holdfast.outbox.relay import Waiting as Waiting
from holdfast.outbox.table import Outbox as Outbox
from holdfast.outbox.table import outbox_item as outbox_item
