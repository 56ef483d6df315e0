"""A client of SQS in each of its protocols. To make one takes longer than most tests, so a server has one of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.http_api import HttpFront
from tests.http_api.dialects.sqs.rig import PROTOCOLS, Sqs

Clients = dict[tuple[str, str], Sqs]


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    """By the server's address and the protocol."""
    made: Clients = {}
    yield made
    for client in made.values():
        client.close()


@pytest.fixture(params=PROTOCOLS)
def sqs(request: pytest.FixtureRequest, front: HttpFront, clients: Clients) -> Sqs:
    place = (front.url, request.param)
    if place not in clients:
        clients[place] = Sqs(*place)
    return clients[place]
