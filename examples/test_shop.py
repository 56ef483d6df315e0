"""How to test code that uses Holdfast, with a broker of the test's own.

.venv/bin/python -m pytest examples/test_shop.py
"""

from __future__ import annotations

import msgspec

from holdfast.client import SyncClient, Workers, worker
from holdfast.testing import Broker

pytest_plugins = ["holdfast.testing.fixtures"]


# --- the code to test -----------------------------------------------------------------------------------------------


class Email(msgspec.Struct):
    to: str
    text: str


sent: list[str] = []
mail_server_is_up = False


def buy(client: SyncClient, what: str, customer: str) -> None:
    client.send("emails", Email(customer, f"Thank you for buying {what}."))


@worker("emails")
async def send_email(email: Email) -> None:
    if not mail_server_is_up:
        raise ConnectionError("the mail server is down")
    sent.append(email.to)


# --- its tests ------------------------------------------------------------------------------------------------------


def test_buying_sends_an_email(holdfast_client: SyncClient) -> None:
    buy(holdfast_client, "a book", customer="ann@example.com")
    (message,) = holdfast_client.receive("emails")
    assert message.json(Email) == Email("ann@example.com", "Thank you for buying a book.")


async def test_a_failed_email_is_tried_again() -> None:
    global mail_server_is_up
    async with Broker() as broker, broker.client() as client:
        await client.send("emails", Email("ann@example.com", "Hello"))
        await Workers(send_email).work_off(client)
        assert sent == []

        mail_server_is_up = True
        broker.advance("5s")  # the backoff is over
        await Workers(send_email).work_off(client)
        assert sent == ["ann@example.com"]
        assert (await client.queue("emails")).depth == 0
