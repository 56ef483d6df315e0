"""`holdfast send`, `receive`, the settling commands, `browse` and `dlq`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.client import SyncClient, lease_extender
from holdfast.testing import Broker
from holdfast.wire import Settled, Settlement
from tests.cli.conftest import Shell
from tests.waiting import PATIENCE_SECONDS

HOLDFAST = Path(sys.executable).parent / "holdfast"


def test_send_an_argument_prints_its_id(shell: Shell) -> None:
    sent = shell.done("send", "q", "hello", "--key", "k", "-p", "a=1", "-p", "a=2", "-p", "b=x=y", "--priority", "3")
    (message,) = shell.json("browse", "q")
    assert sent.stdout == message["id"] + "\n"
    assert (message["text"], message["key"], message["priority"]) == ("hello", "k", 3)
    assert message["properties"] == {"a": ["1", "2"], "b": "x=y"}


def test_send_a_file_and_bytes(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "cat.jpg"
    file.write_bytes(b"\xff\xd8\x00")
    shell.done("send", "q", "--file", str(file), "--content-type", "image/jpeg")
    received = shell.done("receive", "q", "--create", "--raw", "--ack")
    assert received.stdout_bytes == b"\xff\xd8\x00"
    missing = shell.run("send", "q", "--file", str(tmp_path / "none"))
    assert (missing.exit_code, "No such file" in missing.stderr) == (1, True)


def test_send_lines_of_standard_input_or_a_file(shell: Shell, tmp_path: Path) -> None:
    piped = shell.done("send", "q", stdin="a\nb\r\n\nlast")
    assert (piped.stdout, piped.stderr) == ("", "Stored 4 messages in q.\n")
    file = tmp_path / "lines"
    file.write_text("".join(f"{n}\n" for n in range(25)))
    assert len(shell.json("send", "q", "--lines", str(file), "--chunk", "10")) == 25
    texts = [message.get("text", message.get("payload")) for message in shell.json("browse", "q", "--all")]
    assert texts == ["a", "b", "", "last", *map(str, range(25))]


def test_send_json_and_whole_messages(shell: Shell) -> None:
    shell.done("send", "q", '{"a": 1}', "--as", "json")
    bad = shell.run("send", "q", "{", "--as", "json")
    assert (bad.exit_code, "is not JSON" in bad.stderr) == (1, True)
    shell.done("send", "q", "--as", "message", stdin='{"payload": [1], "key": "k"}\n{"text": "t", "ttl": "1h"}\n')
    assert [message.get("key") for message in shell.json("browse", "q")] == [None, "k", None]
    assert shell.json("browse", "q")[1]["payload"] == [1]
    wrong = shell.run("send", "q", "--as", "message", stdin='{"pay": 1}\n')
    assert (wrong.exit_code, "unknown field `pay`" in wrong.stderr) == (1, True)


def test_send_a_message_id_twice(shell: Shell) -> None:
    first = shell.json("send", "q", "x", "--message-id", "m")
    second = shell.json("send", "q", "x", "--message-id", "m")
    assert second == {"id": first["id"], "duplicate": True}
    assert "had been stored before" in shell.done("send", "q", "x", "--message-id", "m").stderr
    assert shell.run("send", "q", "--message-id", "m", stdin="1\n2\n").exit_code == 2


def test_send_reports_what_was_refused_and_stores_the_rest(shell: Shell) -> None:
    shell.done("queue", "create", "q", "--max-message-size", "1KiB")
    result = shell.run("send", "q", stdin="a\n" + "b" * 2000 + "\nc\n")
    assert result.exit_code == 1
    assert "Stored 2 messages in q." in result.stderr
    assert "1 of 3 messages were not stored" in result.stderr
    assert result.stderr.endswith("[batch_incomplete]\n")


def test_send_dry_run_and_wrong_ways_to_say_it(shell: Shell) -> None:
    assert shell.done("send", "q", "--dry-run", stdin="1\n2\n").stderr == "Would send 2 messages to q.\n"
    assert shell.json("queue", "list") == []
    assert shell.run("send", "q", "x", "--file", "y").exit_code == 2
    assert shell.run("send", "q", "x", "-p", "novalue").exit_code == 2


def test_receive_and_settle_by_arguments(shell: Shell) -> None:
    shell.done("queue", "create", "q", "--initial-backoff", "0s")
    shell.done("send", "q", "x")
    (one,) = shell.json("receive", "q", "--create", "--lease", "5m")
    assert (one["text"], one["attempt"]) == ("x", 1)
    assert shell.done("extend", "q", one["id"], one["lease_token"], "--lease", "10m").stdout > one["lease_deadline"]
    assert "Would ack" in shell.done("ack", "q", one["id"], one["lease_token"], "--dry-run").stderr
    act = shell.json("release", "q", one["id"], one["lease_token"])
    assert act == {"queue": "q", "id": one["id"], "action": "release"}
    late = shell.run("ack", "q", one["id"], one["lease_token"])
    assert (late.exit_code, late.stderr.endswith("[lease_lost]\n")) == (1, True)
    (two,) = shell.json("receive", "q", "--create")
    shell.done("nack", "q", two["id"], two["lease_token"], "--delay", "0s", "--error", "no")
    (three,) = shell.json("receive", "q", "--create", "-w", "5s")
    assert three["attempt"] == 2
    shell.done("reject", "q", three["id"], three["lease_token"], "--error", "hopeless")
    assert shell.json("dlq", "list", "q")[0]["origin"]["error"] == "hopeless"


def test_receive_exports_variables_and_ack_reads_them(shell: Shell) -> None:
    shell.done("send", "q", "it's $HOME\nline 2", "--key", "k")
    script = f"""
        set -eu
        eval "$({shlex.quote(str(HOLDFAST))} receive q --group workers --create --export)"
        printf '%s|%s|%s|%s' "$HOLDFAST_PAYLOAD" "$HOLDFAST_KEY" "$HOLDFAST_ATTEMPT" "$HOLDFAST_GROUP"
        {shlex.quote(str(HOLDFAST))} ack
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    ran = subprocess.run(
        ["bash", "-c", script],
        env={**environment, "HOLDFAST_URL": shell.url},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.stdout == "it's $HOME\nline 2|k|1|workers"
    assert "Acked message" in ran.stderr
    assert shell.json("queue", "show", "q")["depth"] == 0


def test_receive_runs_a_command_and_its_exit_code_settles(shell: Shell, capfd: pytest.CaptureFixture[str]) -> None:
    shell.done("queue", "create", "q", "--max-retries", "0")
    shell.done("send", "q", stdin="good\nbad\n")
    result = shell.run(
        "receive",
        "q",
        "--create",
        "-n",
        "5",
        "--exec",
        'read line; echo "$HOLDFAST_ID $line"; echo oh >&2; test "$line" = good',
    )
    assert result.exit_code == 1
    assert "1 message acked, 1 failed." in result.stderr
    assert [line.split()[1] for line in capfd.readouterr().out.splitlines()] == ["good", "bad"]
    (dead_letter,) = shell.json("dlq", "list", "q")
    assert (dead_letter["text"], dead_letter["origin"]["error"]) == ("bad", "exit code 1: oh")
    assert shell.run("receive", "q", "--create", "--exec", "true").exit_code == 3


def test_a_command_may_complain_at_length_and_leave_its_message_unread(shell: Shell, tmp_path: Path) -> None:
    shell.done("queue", "create", "q", "--max-retries", "0")
    (tmp_path / "large").write_bytes(b"x" * 500_000)
    shell.done("send", "q", "--file", str(tmp_path / "large"))
    result = shell.run("receive", "q", "--create", "--exec", "yes oh | head -c 500000 >&2; exit 3")
    assert result.exit_code == 1
    assert len(result.stderr) >= 500_000
    (dead_letter,) = shell.json("dlq", "list", "q")
    assert dead_letter["origin"]["error"].startswith("exit code 3: ")
    assert dead_letter["origin"]["error"].endswith("oh\noh")


def test_a_command_whose_lease_is_lost_is_ended(
    shell: Shell, client: SyncClient, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_extender, "EXTENSIONS_PER_LEASE", 10_000)
    client.create_queue("q", {"retry.initial_backoff": "0s"})
    client.send("q", "a")
    begun = tmp_path / "begun"
    os.mkfifo(begun)

    def take_it_away() -> None:
        begun.read_text()  # until the command has begun
        broker.advance("61s")

    thief = threading.Thread(target=take_it_away)
    thief.start()
    result = shell.run("receive", "q", "--create", "--lease", "60s", "--exec", f"echo x > {begun}; sleep 1000")
    thief.join()
    assert (result.exit_code, "lease of message" in result.stderr) == (1, True)
    (again,) = client.receive("q")
    assert again.attempt == 2
    again.ack()


def test_release_takes_a_delay(shell: Shell, client: SyncClient, broker: Broker) -> None:
    client.send("q", "a")
    (leased,) = client.lease("q")
    shell.done("release", "q", leased.id, leased.lease_token, "--delay", "1h")
    assert client.receive("q") == []
    broker.advance("1h")
    assert len(client.receive("q")) == 1


@pytest.mark.parametrize("how", [("--raw",), ("-o", "table"), ("-o", "json"), ("-o", "jsonl")])
def test_what_could_not_be_shown_is_not_acked_but_given_back(shell: Shell, how: tuple[str, ...]) -> None:
    shell.done("send", "q", "x")
    environment = {**os.environ, "HOLDFAST_URL": shell.url}
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(
            [HOLDFAST, "receive", "q", "--create", "--ack", *how],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: The command's output cannot be written: No space left on device.")
    assert failed.stderr.count("\n") == 1
    [again] = shell.json("receive", "q", "--create")
    assert again["attempt"] == 1


def test_a_dash_is_standard_input(shell: Shell) -> None:
    assert shell.done("send", "q", "-", stdin="a\nb\n").stderr == "Stored 2 messages in q.\n"
    assert shell.json("queue", "show", "q")["depth"] == 2


def test_receive_says_what_it_could_not_ack(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.done("send", "q", "x")
    settle = SyncClient.settle

    def late(client: SyncClient, queue: str, settlements: list[Settlement], **options: str) -> Settled:
        """The lease was lost meanwhile."""
        lost = [replace(each, lease_token="1") for each in settlements]
        return settle(client, queue, lost, **options)

    monkeypatch.setattr(SyncClient, "settle", late)
    result = shell.run("receive", "q", "--create", "--ack", "-o", "json")
    assert result.exit_code == 1
    assert "1 message not acked, and will be delivered again: " in result.stderr
    assert shell.json("queue", "show", "q")["depth"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("send", "q", "x", "--delay", "soon"),
        ("send", "q", "x", "--ttl", "-5s"),
        ("send", "q", "x", "--deliver-at", "tomorrow"),
        ("send", "a+b", "x"),
        ("receive", "q", "--create", "--wait", "long"),
        ("nack", "q", "1", "2", "--delay", "soon"),
        ("--timeout", "soon", "queue", "list"),
    ],
)
def test_what_cannot_be_meant_is_exit_code_2_and_does_nothing(shell: Shell, arguments: tuple[str, ...]) -> None:
    shell.done("queue", "create", "q")
    result = shell.run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert shell.json("queue", "show", "q")["depth"] == 0


@pytest.mark.parametrize("how", [(), ("--exec", "cat"), ("--exec", "cat", "--follow"), ("--wait", "1s")])
def test_receive_creates_neither_queue_nor_group(shell: Shell, client: SyncClient, how: tuple[str, ...]) -> None:
    missing = shell.run("receive", "typo", *how)
    assert (missing.exit_code, "[queue_not_found]" in missing.stderr) == (1, True)
    assert client.queues() == []
    client.send("q", "a")
    missing = shell.run("receive", "q", *how)
    assert missing.exit_code == 1
    assert "It has no group yet, or create this one: --create." in missing.stderr
    client.create_group("q", "mailer")
    missing = shell.run("receive", "q", *how)
    assert "Its groups: mailer; choose one with --group, or create this one: --create." in missing.stderr
    assert [group.name for group in client.groups("q")] == ["mailer"]


def test_receive_from_a_paused_queue_says_so(shell: Shell, client: SyncClient) -> None:
    client.send("q", "a")
    client.create_group("q", "default")
    client.pause_queue("q")
    for how in ((), ("--exec", "cat")):
        nothing = shell.run("receive", "q", *how)
        assert (nothing.exit_code, "q is paused" in nothing.stderr) == (3, True)


def test_raw_payloads_are_not_glued_together(shell: Shell, client: SyncClient) -> None:
    client.send_many("q", ["a", "b", "c"])
    assert shell.done("receive", "q", "--create", "--raw", "-n", "2", "--ack").stdout_bytes == b"a\nb\n"
    assert shell.done("receive", "q", "--raw", "--ack").stdout_bytes == b"c"


def test_nothing_to_receive_is_exit_code_3(shell: Shell) -> None:
    result = shell.run("receive", "q", "--create")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "Nothing to receive from q.\n")


def test_receive_for_a_person_says_how_to_go_on(shell: Shell) -> None:
    shell.done("send", "q", "x")
    result = shell.done("receive", "q", "--create")
    assert result.stdout.splitlines()[0].split() == ["id", "attempt", "age", "prio", "key", "payload", "token"]
    assert "Done with one: holdfast ack q " in result.stderr


def test_browse_takes_nothing(shell: Shell) -> None:
    shell.done("send", "q", stdin="".join(f"{n}\n" for n in range(30)))
    browsed = shell.done("browse", "q")
    assert len(browsed.stdout.splitlines()) == 21
    assert "20 of 30 messages shown" in browsed.stderr
    assert len(shell.done("browse", "q", "--all", "-o", "jsonl").stdout.splitlines()) == 30
    one = shell.json("browse", "q")[0]
    assert shell.json("browse", "q", one["id"]) == one
    assert one["id"] in shell.done("browse", "q", one["id"]).stdout
    shell.done("receive", "q", "--create", "-g", "g")
    (leased,) = shell.json("browse", "q", "--state", "leased")
    assert leased["deliveries"][0]["consumer"].startswith("cli-")
    assert "g: leased (attempt 1, cli-" in shell.done("browse", "q", "--state", "leased").stdout
    assert shell.run("browse", "none").exit_code == 1


def _dead(shell: Shell, *payloads: str) -> None:
    shell.done("queue", "create", "q", "--exist-ok")
    shell.done("send", "q", stdin="".join(f"{payload}\n" for payload in payloads))
    for each in shell.json("receive", "q", "--create", "-n", "100"):
        shell.done("reject", "q", each["id"], each["lease_token"], "--error", f"cannot do {each['text']}")


def test_dead_letters_are_listed_shown_and_retried(shell: Shell) -> None:
    _dead(shell, "one", "two")
    lines = shell.done("dlq", "list", "q").stdout.splitlines()
    assert lines[0].split() == ["id", "age", "reason", "attempts", "error", "payload"]
    assert [line.split()[2] for line in lines[1:]] == ["rejected", "rejected"]
    (two,) = shell.json("dlq", "list", "q", "--error", "TWO")
    assert "cannot do two" in shell.done("dlq", "show", "q", two["id"]).stdout
    assert "Would redrive" in shell.done("dlq", "retry", "q", two["id"], "--dry-run").stderr
    new = shell.done("dlq", "retry", "q", two["id"]).stdout.strip()
    (back,) = shell.json("browse", "q")
    assert (back["id"], back["text"], back["origin"]["source_queue"]) == (new, "two", "q")
    assert len(shell.json("dlq", "list", "q")) == 1


def test_dead_letters_are_redriven_and_purged_by_filter(shell: Shell) -> None:
    _dead(shell, "a1", "a2", "b1")
    assert shell.done("dlq", "redrive", "q", "--error", "do a", "--dry-run").stderr.startswith("Would redrive 2 dead")
    assert shell.run("dlq", "redrive", "q", "--error", "do a").exit_code == 2
    assert "Redrove 2 dead letters of q." in shell.done("dlq", "redrive", "q", "--error", "do a", "-y").stderr
    assert [message["text"] for message in shell.json("browse", "q")] == ["a1", "a2"]
    assert "No dead letters of q match." in shell.done("dlq", "redrive", "q", "--reason", "expired", "-y").stderr
    job = json.loads(shell.done("dlq", "redrive", "q", "-y", "--to", "q", "-o", "json").stdout)
    assert (job["state"], job["moved"]) == ("done", 1)
    _dead(shell, "c1", "c2")
    assert "Would throw away 5" in shell.done("dlq", "purge", "q", "--dry-run").stderr
    assert "Threw away 1 dead letter of q." in shell.done("dlq", "purge", "q", "--error", "do c1", "-y").stderr
    assert "Threw away 4 dead letters of q." in shell.done("dlq", "purge", "q", "-y").stderr
    assert "No dead letters of q." in shell.done("dlq", "list", "q").stderr


def test_one_message_is_shown_without_the_words_of_python(shell: Shell, client: SyncClient) -> None:
    message = client.send("q", {"a": None, "b": [True]}, properties={"x": ["1", "2"]})
    client.create_group("q", "g")
    text = shell.done("browse", "q", message.id).stdout
    assert '{"a":null,"b":[true]}' in text
    assert '"group":"g"' in text
    assert '{"x":["1","2"]}' in text
    assert not set(text) & {"'"}
    raw = client.send("q", b"\xff\x00")
    shown = shell.done("browse", "q", raw.id).stdout
    assert [line.split() for line in shown.splitlines() if line.startswith("base64")] == [["base64", "/wA="]]


def test_what_browse_and_receive_print_can_be_sent_again(shell: Shell, client: SyncClient) -> None:
    client.send("q", {"a": 1}, key="k", priority=3, properties={"x": "y"}, correlation_id="c")
    client.send("q", b"\xff", content_type="image/png")
    client.create_group("q", "g")
    shell.done("send", "copy", "--as", "message", stdin=shell.done("browse", "q", "-o", "jsonl").stdout)
    received = shell.done("receive", "q", "-g", "g", "-n", "2", "-o", "jsonl").stdout
    shell.done("send", "other", "--as", "message", stdin=received)
    for queue in ("copy", "other"):
        first, second = client.browse(queue)
        assert (first.body(), first.key, first.priority, first.properties) == (b'{"a":1}', "k", 3, {"x": "y"})
        assert (second.body(), second.content_type) == (b"\xff", "image/png")
    refused = shell.run("send", "copy", "--as", "message", stdin='{"text": "a", "prio": 1}')
    assert (refused.exit_code, "prio" in refused.stderr) == (1, True)
