"""`holdfast queue`, and what all commands that talk to a server share."""

from __future__ import annotations

import json

import click
import msgspec

from holdfast import wire
from holdfast.cli.main import main
from holdfast.cli.support.queue_options import FLAGS
from holdfast.client import SyncClient
from holdfast.config import load
from holdfast.testing import Broker
from tests.cli.conftest import Shell


def test_the_flags_are_the_settings_of_a_queue() -> None:
    fields: list[str] = []
    for field in msgspec.structs.fields(wire.QueueConfig):
        nested = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        names = [f"{field.name}.{inner.name}" for inner in msgspec.structs.fields(field.type)] if nested else []
        fields += names or [field.name]
    assert [flag.field for flag in FLAGS] == fields


def test_create_show_update_and_list(shell: Shell) -> None:
    made = shell.done("queue", "create", "a/b", "--max-depth", "100000000", "--max-retries", "2", "--topic", "x/#")
    assert (made.stdout, made.stderr) == ("", "Created a/b.\n")
    found = shell.json("queue", "show", "a/b")
    assert (found["config"]["max_depth"], found["config"]["retry"]["max_retries"]) == (100_000_000, 2)
    assert found["config"]["topics"] == ["x/#"]
    assert ["retry.max_retries", "2"] in [
        line.split() for line in shell.done("queue", "show", "a/b").stdout.splitlines()
    ]

    again = shell.run("queue", "create", "a/b")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.endswith("[queue_exists]\n")
    assert "left as it is" in shell.done("queue", "create", "a/b", "--exist-ok").stderr

    dry = shell.done("queue", "update", "a/b", "--max-depth", "5", "--dry-run")
    assert dry.stderr == "Would set max_depth = 5.\n"
    assert shell.done("queue", "update", "a/b", "--max-depth", "5").stderr == "Set max_depth = 5 of a/b.\n"
    assert "Nothing changed" in shell.done("queue", "update", "a/b", "--max-depth", "5").stderr
    assert shell.run("queue", "update", "a/b").exit_code == 2

    shell.done("queue", "create", "c", "--paused")
    lines = shell.done("queue", "list").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["name", "depth", "partitions", "ordering", "groups", "state"],
        ["a/b", "0", "10", "partition", "-", "running"],
        ["c", "0", "10", "partition", "-", "paused"],
    ]
    assert [each["name"] for each in shell.json("queue", "list", "a/")] == ["a/b"]
    jsonl = shell.done("queue", "list", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["name"] for line in jsonl] == ["a/b", "c"]


def test_a_wrong_setting_is_named_with_its_range_and_nothing_is_made(shell: Shell) -> None:
    result = shell.run("queue", "create", "q", "--partitions", "0")
    assert result.exit_code == 2
    assert "partitions" in result.stderr
    assert "1 to 1024" in result.stderr
    assert shell.json("queue", "list") == []
    assert "There are no queues yet." in shell.done("queue", "list").stderr


def test_what_cannot_be_undone_is_asked_for(shell: Shell) -> None:
    shell.done("send", "q", stdin="1\n2\n")
    refused = shell.run("queue", "purge", "q")
    assert refused.exit_code == 2
    assert "Give --yes" in refused.stderr
    assert shell.done("queue", "purge", "q", "--dry-run").stderr == "Would purge q of up to 2 messages.\n"
    assert shell.json("queue", "show", "q")["depth"] == 2
    purged = shell.done("queue", "purge", "q", "--yes", "-o", "jsonl")
    assert (purged.stdout, purged.stderr) == ('{"queue":"q","messages":2}\n', "Removed 2 messages from q.\n")
    assert shell.done("queue", "delete", "q", "--dry-run").stderr == "Would delete q with 0 messages.\n"
    assert shell.done("queue", "delete", "q", HOLDFAST_YES="1").stderr == "Deleted q with 0 messages.\n"
    gone = shell.run("queue", "delete", "q", "-y")
    assert (gone.exit_code, "[queue_not_found]" in gone.stderr) == (1, True)


def test_pause_and_resume(shell: Shell) -> None:
    shell.done("send", "q", "x")
    assert shell.done("queue", "pause", "q").stderr == "Paused q; 1 message in it.\n"
    assert shell.run("receive", "q", "--create").exit_code == 3
    assert shell.done("queue", "resume", "q").stderr == "Resumed q; 1 message in it.\n"
    assert shell.done("receive", "q", "--create", "--raw").stdout == "x"


def test_groups_are_created_listed_and_deleted(shell: Shell, client: SyncClient, broker: Broker) -> None:
    client.send_many("q", ["a", "b"])
    assert shell.done("queue", "group", "create", "q", "g", "--dry-run").stderr == "Would create group g of q.\n"
    assert client.groups("q") == []
    assert shell.done("queue", "group", "create", "q", "g").stderr == "Created group g of q.\n"
    assert shell.json("queue", "group", "create", "q", "log", "--kind", "cursor")["kind"] == "cursor"
    broker.advance("10m")
    lines = shell.done("queue", "group", "list", "q").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["group", "kind", "backlog", "consumers", "unattended", "for"],
        ["g", "lease", "2", "0", "10m", lines[1].split()[-1]],
        ["log", "cursor", "0", "0", "-"],
    ]
    assert [each["name"] for each in shell.json("queue", "group", "list", "q")] == ["g", "log"]
    about = "group g of q, which has not settled 2 messages"
    assert shell.done("queue", "group", "delete", "q", "g", "--dry-run").stderr == f"Would delete {about}.\n"
    assert f"Delete {about}?" in shell.run("queue", "group", "delete", "q", "g").stderr
    assert shell.done("queue", "group", "delete", "q", "g", "--yes").stderr == "Deleted group g of q.\n"
    missing = shell.run("queue", "group", "delete", "q", "g", "--yes")
    assert (missing.exit_code, "[group_not_found]" in missing.stderr) == (1, True)


def test_stats(shell: Shell) -> None:
    shell.done("send", "q", stdin="1\n2\n3\n")
    shell.done("receive", "q", "--create", "-g", "g", "--ack")
    text = shell.done("queue", "stats", "q").stdout
    assert "enqueued   3 (0 duplicates, 0 refused)" in text
    (stats,) = shell.json("queue", "stats", "q")
    assert (stats["depth"], stats["groups"][0]["acked"]) == (2, 1)


def test_a_server_that_is_not_there_is_one_line_that_says_what_to_do(shell: Shell) -> None:
    result = shell.run("--url", "http://127.0.0.1:1", "--timeout", "1s", "queue", "list")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: The server at http://127.0.0.1:1 did not answer")
    assert "holdfast serve" in result.stderr
    assert result.stderr.count("\n") == 1


def test_every_flag_has_an_environment_variable(shell: Shell) -> None:
    shell.done("queue", "create", "q", HOLDFAST_QUEUE_CREATE_MAX_DEPTH="7", HOLDFAST_OUTPUT="json")
    assert json.loads(shell.done("queue", "show", "q", HOLDFAST_OUTPUT="json").stdout)["config"]["max_depth"] == 7
    shell.done("send", "q", "x", HOLDFAST_SEND_KEY="k")
    assert shell.json("browse", "q")[0]["key"] == "k"
    assert "Would" in shell.done("queue", "delete", "q", HOLDFAST_DRY_RUN="1").stderr


def test_no_variable_of_a_flag_is_taken_for_a_misspelt_setting_of_the_server() -> None:
    variables: list[str] = []

    def collect(command: click.Command) -> None:
        for parameter in command.params:
            setting = "__" in str(parameter.name)  # those have the setting's variable
            others = isinstance(parameter, click.Argument) or parameter.name == "version"
            assert others or setting or parameter.envvar, parameter.name
            variables.extend([parameter.envvar] if isinstance(parameter.envvar, str) else [])
        for child in command.commands.values() if isinstance(command, click.Group) else ():
            collect(child)

    collect(main)
    assert len(variables) > 100
    assert "HOLDFAST_SEND_FILE" in variables
    config = load(None, dict.fromkeys(variables, "x"))
    assert set(config.origins.values()) == {"default"}
