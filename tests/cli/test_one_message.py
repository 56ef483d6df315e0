"""Commands about one message, its consumers and redrives: `history`, `request`, `consumer list`, `dlq jobs`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.client import SyncClient
from tests.cli.conftest import Shell


def test_the_history_of_a_message_that_is_gone(shell: Shell, client: SyncClient) -> None:
    sent = client.send("jobs", "x")
    client.receive("jobs")[0].nack(0, "not yet")
    client.receive("jobs", wait="60s")[0].ack()
    steps = shell.json("history", "jobs", sent.id)
    assert [step["event"] for step in steps] == ["enqueued", "leased", "failed", "leased", "acked"]
    lines = shell.done("history", "jobs", sent.id).stdout.splitlines()
    assert lines[0].split()[:3] == ["at", "event", "group"]
    assert "not yet" in lines[3]
    assert "acked" in lines[5]


def test_the_history_of_a_message_goes_on_in_its_dead_letter_and_after_a_redrive(
    shell: Shell, client: SyncClient
) -> None:
    sent = client.send("mails", "x")
    client.receive("mails")[0].reject("no such mailbox")
    client.redrive("mails")
    client.receive("mails", wait="60s")[0].ack()
    steps = shell.json("history", "mails", sent.id)
    assert [step["queue"] for step in steps if step["event"] == "enqueued"] == ["mails", "dlq/mails", "mails"]
    assert steps[-1]["event"] == "acked"
    lines = shell.done("history", "mails", sent.id).stdout.splitlines()
    assert lines[0].split()[:4] == ["at", "queue", "message_id", "event"]


def test_a_request_prints_its_reply(shell: Shell, client: SyncClient) -> None:
    def answer() -> None:
        (message,) = client.receive("sums", wait="60s")
        client.send(message.reply_to or "", message.body + b"!", correlation_id=message.correlation_id)
        message.ack()

    client.create_queue("sums")
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(answer)
        assert shell.done("request", "sums", "ping", "--wait", "60s").stdout == "ping!"
        done.result()


def test_a_request_without_a_reply_fails(shell: Shell, client: SyncClient) -> None:
    client.create_queue("sums")
    done = shell.run("request", "sums", "-", "--wait", "10ms", stdin="ping")
    assert done.exit_code == 1
    assert "[reply_timeout]" in done.stderr
    assert client.queue("sums").depth == 1


def test_consumers_that_wait_are_counted(shell: Shell, client: SyncClient) -> None:
    client.create_queue("jobs")
    done = shell.done("consumer", "list", "jobs")
    assert "No messages of jobs are pushed to anybody." in done.stderr
    assert "0 lease requests wait" in done.stderr
    assert shell.json("consumer", "list", "jobs") == []


@pytest.fixture
def dead(shell: Shell, client: SyncClient) -> None:
    for number in range(3):
        client.send("jobs", number)
    for message in client.receive("jobs", limit=3):
        message.reject("no")


@pytest.mark.usefixtures("dead")
def test_redrives_are_listed_with_their_progress_and_cancelled(shell: Shell) -> None:
    assert "There are no redrives of jobs." in shell.done("dlq", "jobs", "jobs").stderr
    job = shell.done("dlq", "redrive", "jobs", "--yes", "--background", "--rate", "0.01").stdout.strip()
    (found,) = shell.json("dlq", "jobs", "jobs")
    assert (found["id"], found["state"]) == (job, "running")
    assert "is cancelled" in shell.done("dlq", "cancel", "jobs", job).stderr
    lines = shell.done("dlq", "jobs", "jobs").stdout.splitlines()
    assert lines[0].split()[:4] == ["id", "state", "moved", "matched"]
    assert lines[1].split()[1] == "cancelled"
