"""A shop whose orders and messages are stored together, or not at all: FastAPI, SQLite and the outbox.

pip install "holdfast" fastapi uvicorn
uvicorn orders_outbox:app
python -m holdfast.outbox sqlite:shop.db --create          # relays what was committed
holdfast worker orders_outbox:workers
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel

from holdfast.client import Workers, worker
from holdfast.outbox import Outbox

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
outbox = Outbox()


@worker("parcels")
def pack(order: int, item: str) -> None:
    print(f"packed order {order}: {item}", flush=True)


workers = Workers(pack)


class Order(BaseModel):
    item: str
    cents: int


def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(DATABASE, check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, cents INTEGER)")
        outbox.create(connection)
        yield connection


app = FastAPI()


@app.post("/orders")
def place(order: Order, connection: Annotated[sqlite3.Connection, Depends(database)]) -> int:
    with connection:  # one transaction: commits at its end, rolls back if anything raises
        row = connection.execute("INSERT INTO orders (item, cents) VALUES (?, ?)", (order.item, order.cents))
        number = int(row.lastrowid or 0)
        outbox.add(connection, pack.queue, pack.draft(number, order.item))
        if order.cents <= 0:
            raise HTTPException(402, "it must be paid for")
    return number
