"""The synchronous twin: the same calls, from ordinary code."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from holdfast.client import (
    Client,
    Consumer,
    Message,
    Schedules,
    SyncClient,
    SyncConsumer,
    SyncMessage,
    SyncSchedules,
    SyncTransaction,
    Transaction,
    lease_extender,
)
from holdfast.errors import LeaseLost, QueueNotFound
from holdfast.testing import Broker
from tests.waiting import PATIENCE_SECONDS

pytest_plugins = ["holdfast.testing.fixtures"]

FOR_THE_CLIENTS_OWN_PARTS = {
    "run",  # of the synchronous one
    "abandon",
    "lose",
    "call",
    "settle_one",
    "hold",
    "keep",
    "lease_messages",
    "stream_messages",
    "lease_seconds",
    "forget",
}
EQUIVALENT = (
    ("AsyncGenerator[wire.MessageView, None]", "Iterator[wire.MessageView]"),
    ("AsyncGenerator[wire.RedriveOutcome, None]", "Iterator[wire.RedriveOutcome]"),
    ("Iterable[object] | AsyncIterable[object]", "Iterable[object]"),
    ("list[Message]", "list[SyncMessage]"),
    ("-> 'Message | None'", "-> 'SyncMessage | None'"),
    ("-> 'Consumer'", "-> 'SyncConsumer'"),
    ("-> 'Transaction'", "-> 'SyncTransaction'"),
)


def methods(kind: type) -> dict[str, str]:
    return {
        name: str(inspect.signature(member))
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_"))
    }


def as_sync(signature: str) -> str:
    for one, other in EQUIVALENT:
        signature = signature.replace(one, other)
    return signature


@pytest.mark.parametrize(
    ("one", "sync", "without"),
    [
        (Client, SyncClient, FOR_THE_CLIENTS_OWN_PARTS),
        (Consumer, SyncConsumer, {"__init__", "done", "lose", "reserve", "free"}),
        (Message, SyncMessage, {"__init__", "lose", "hold", "finish", "time_out", "on_stop"}),
        (Transaction, SyncTransaction, {"__init__"}),
        (Schedules, SyncSchedules, {"__init__"}),
    ],
)
def test_the_sync_client_has_every_method_with_the_same_signature(one: type, sync: type, without: set[str]) -> None:
    expected = {name: as_sync(signature) for name, signature in methods(one).items() if name not in without}
    assert {name: text for name, text in methods(sync).items() if name not in without} == expected


def test_a_message_goes_and_comes(holdfast_client: SyncClient) -> None:
    sent = holdfast_client.send("jobs", {"n": 1})
    (message,) = holdfast_client.receive("jobs", wait="60s")
    assert (message.id, message.json()) == (sent.id, {"n": 1})
    message.nack(delay=0, error="no")
    with holdfast_client.receive("jobs", wait="60s")[0] as again:
        assert again.attempt == 2
        assert again.extend("1m") > again.enqueued_at
        again.ack()
    assert again.settled == "ack"
    assert holdfast_client.queue("jobs").depth == 0


def test_a_loop_extends_leases_while_the_callers_thread_works(
    holdfast_client: SyncClient, holdfast_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_extender, "EXTENSIONS_PER_LEASE", 6000)
    holdfast_client.send("jobs", "a")
    for message in holdfast_client.consume("jobs", lease="60s"):
        before = message.lease_deadline
        while message.lease_deadline < before + timedelta(seconds=60):  # past where it would have been lost
            extended = message.lease_deadline + timedelta(seconds=20)
            holdfast_broker.advance("20s")
            while message.lease_deadline < extended:
                assert not holdfast_client.receive("jobs", wait="10ms")
        message.ack()
        break
    assert holdfast_client.queue("jobs").depth == 0


def test_leaving_the_loop_and_the_with_releases(holdfast_client: SyncClient, holdfast_broker: Broker) -> None:
    holdfast_client.send_many("jobs", range(3))
    for _ in holdfast_client.consume("jobs", prefetch=3):
        break
    with holdfast_broker.sync_client() as other:
        assert [m.attempt for m in other.receive("jobs", limit=3)] == [1, 1, 1]
    assert [m.attempt for m in holdfast_client.receive("jobs", limit=3)] == [1, 1, 1]


def test_errors_are_raised_where_the_call_was_made(holdfast_client: SyncClient, holdfast_broker: Broker) -> None:
    with pytest.raises(QueueNotFound):
        holdfast_client.queue("none")
    holdfast_client.create_queue("jobs", {"retry.initial_backoff": "0s"})
    holdfast_client.send("jobs", "x")
    (message,) = holdfast_client.receive("jobs")
    holdfast_broker.advance("1m")
    assert holdfast_client.receive("jobs", wait="60s")[0].attempt == 2
    with pytest.raises(LeaseLost):
        message.ack()
    assert message.lost


def test_sending_many_reads_its_source_as_it_goes(holdfast_client: SyncClient) -> None:
    reported: list[int] = []

    def source() -> Iterator[int]:
        yield from range(25)

    holdfast_client.send_many("jobs", source(), chunk=10, progress=reported.append)
    assert reported == [10, 20, 25]
    assert [int(view.body()) for view in holdfast_client.browse("jobs")] == list(range(25))


def test_another_thread_can_stop_a_loop(holdfast_client: SyncClient) -> None:
    consumer = holdfast_client.consume("jobs")
    holdfast_client.send("jobs", "x")
    iterator = iter(consumer)
    next(iterator).ack()
    stopper = threading.Thread(target=consumer.stop)
    stopper.start()
    assert list(iterator) == []
    stopper.join()


def test_what_was_iterated_may_be_left_until_after_the_client_has_closed() -> None:
    with Broker() as broker:
        with broker.sync_client() as client:
            client.send_many("jobs", ["a", "b"])
            messages = client.browse("jobs")
            assert next(iter(messages)).body() == b"a"
        del messages  # its end finds nothing to close: an error there would be told as one that was ignored
        gc.collect()


def test_a_closed_client_says_so() -> None:
    client = SyncClient("http://127.0.0.1:1")
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.queue("jobs")


FORKED = """
import os, sys
from holdfast.client import SyncClient
with SyncClient(sys.argv[1]) as client:
    client.send("jobs", "before")
    if not (child := os.fork()):
        try:
            client.send("jobs", "in the child")
        except RuntimeError as error:
            print(error, flush=True)
        client.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    client.send("jobs", "after")
"""


def test_a_client_that_was_forked_says_so_and_does_not_wait_for_ever() -> None:
    with Broker(http=True) as broker:
        command = [sys.executable, "-c", FORKED, broker.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
        with broker.sync_client() as client:
            assert [message.text() for message in client.receive("jobs", limit=5)] == ["before", "after"]
    assert "open one in each process" in done.stdout


def test_the_client_needs_nothing_of_the_server() -> None:
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rocksdict", "uvloop", "pyarrow", "structlog", "rich",
                "click", "argon2", "cryptography", "joserfc", "prometheus_client", "websockets", "httptools"}:
            raise ImportError(name)
        if name in {"holdfast.broker", "holdfast.core", "holdfast.store", "holdfast.config", "holdfast.server"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import holdfast.client
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
