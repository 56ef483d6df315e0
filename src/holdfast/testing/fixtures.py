"""Fixtures for pytest. In your `conftest.py`:

    pytest_plugins = ["holdfast.testing.fixtures"]

    def test_the_shop_sends_an_email(holdfast_client):
        shop.buy(holdfast_client, "a book")
        (email,) = holdfast_client.receive("emails")

Each test has a broker of its own. Asynchronous tests take `Broker` itself: `async with Broker() as broker`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.client import SyncClient
from holdfast.testing.broker import Broker


@pytest.fixture
def holdfast_broker() -> Iterator[Broker]:
    """A running broker on the memory store; its address is `holdfast_broker.url`."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def holdfast_client(holdfast_broker: Broker) -> Iterator[SyncClient]:
    """A client of that broker."""
    with holdfast_broker.sync_client() as client:
        yield client
