"""Queues, groups and schedules as a file: the plan, applying it, and the same file from a server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from holdfast.client import SyncClient
from tests.cli.conftest import Shell

FILE = """
[queues."shop/orders"]
max_depth = 50_000
delivery_timeout = "60s"
max_message_size = "2MiB"
topics = ["orders/#"]
retry = {max_retries = 7}
groups = {billing = {}, audit = {kind = "cursor", max_lag_age = "1h"}}

[queues."shop/mails"]
dlq.enabled = false

[schedules.nightly]
queue = "shop/mails"
payload = {kind = "daily", lines = [1, "two"]}
cron = "30 2 * * *"
timezone = "Europe/Rome"

[schedules.sweep]
queue = "shop/mails"
payload = "sweep \\"now\\""
every = "15m"
jitter = "30s"
overlap = "skip"
properties = {by = "clock"}
"""


@pytest.fixture
def file(tmp_path: Path, shell: Shell, client: SyncClient) -> Path:
    for schedule in client.schedules.all():
        client.schedules.delete(schedule.name)
    path = tmp_path / "topology.toml"
    path.write_text(FILE)
    return path


def test_a_file_is_planned_then_applied_and_then_there_is_nothing_to_do(
    file: Path, shell: Shell, client: SyncClient
) -> None:
    planned = shell.done("apply", str(file), "--dry-run")
    assert "+ queue shop/orders\n    max_depth = 50000\n" in planned.stdout
    assert client.queues() == []
    assert shell.run("apply", str(file), "--check").exit_code == 1
    refused = shell.run("apply", str(file))
    assert refused.exit_code == 2
    assert "Apply 6 changes? Give --yes" in refused.output
    done = shell.done("apply", str(file), "--yes")
    assert "Applied 6 changes." in done.stderr
    orders = client.queue("shop/orders")
    assert (orders.config.max_depth, orders.config.retry.max_retries, orders.config.topics) == (50_000, 7, ["orders/#"])
    assert {group.name: group.kind for group in orders.groups} == {"billing": "lease", "audit": "cursor"}
    assert not client.queue("shop/mails").config.dlq.enabled
    again = shell.done("apply", str(file), "--yes")
    assert (again.stdout, "Nothing to do" in again.stderr) == ("", True)
    assert shell.run("apply", str(file), "--check").exit_code == 0


def test_what_is_exported_is_what_was_applied(file: Path, shell: Shell, client: SyncClient, tmp_path: Path) -> None:
    shell.done("apply", str(file), "--yes")
    for shape in ("toml", "yaml"):
        other = tmp_path / f"exported.{shape}"
        other.write_text(shell.done("export", "--format", shape).stdout)
        assert "Nothing to do" in shell.done("apply", str(other), "--prune", "--yes").stderr
    exported = tmp_path / "exported.yaml"
    assert yaml.safe_load(exported.read_text())["queues"]["shop/orders"]["groups"]["billing"] == {}
    for queue in ("shop/orders", "shop/mails"):
        client.delete_queue(queue)
    for schedule in ("nightly", "sweep"):
        client.schedules.delete(schedule)
    shell.done("apply", str(exported), "--yes")
    assert "Nothing to do" in shell.done("apply", str(file), "--prune", "--yes").stderr


def test_what_a_file_no_longer_names_gets_its_default_but_what_is_paused_stays(
    file: Path, shell: Shell, client: SyncClient
) -> None:
    shell.done("apply", str(file), "--yes")
    client.update_queue("shop/orders", {"partitions": 12})
    client.pause_queue("shop/orders")
    file.write_text(FILE.replace("max_depth = 50_000\n", "").replace('every = "15m"', 'every = "900s"'))
    planned = shell.json("apply", str(file), "--dry-run")
    assert planned == [{"change": "~", "what": "queue shop/orders", "details": ["max_depth: 50000 -> 100000"]}]
    shell.done("apply", str(file), "--yes")
    config = client.queue("shop/orders").config
    assert (config.max_depth, config.partitions, config.paused) == (100_000, 12, True)


def test_a_schedule_is_changed_in_its_place(file: Path, shell: Shell, client: SyncClient) -> None:
    shell.done("apply", str(file), "--yes")
    file.write_text(FILE.replace("30 2 * * *", "0 4 * * *").replace('"daily"', '"weekly"'))
    planned = shell.done("apply", str(file), "--yes").stdout
    assert '~ schedule nightly\n    payload: {"kind":"daily"' in planned
    assert client.schedules.get("nightly").cron == "0 4 * * *"
    assert "Nothing to do" in shell.done("apply", str(file), "--yes").stderr


def test_only_prune_deletes_what_the_file_does_not_name(file: Path, shell: Shell, client: SyncClient) -> None:
    shell.done("apply", str(file), "--yes")
    client.send("stray", "hello")
    client.create_group("shop/orders", "by-hand")
    client.send("shop/orders", "no")
    client.receive("shop/orders", group="billing")[0].reject("dead")
    assert "Nothing to do" in shell.done("apply", str(file), "--yes").stderr
    file.write_text(FILE[: FILE.index("[schedules.sweep]")])
    planned = shell.done("apply", str(file), "--prune", "--yes").stdout
    assert set(planned.splitlines()) == {
        "- schedule sweep",
        "- queue stray",
        "    with 1 message",
        "- group by-hand of shop/orders",
        "    with those of 1 message that no other group needs",
    }
    assert {queue.name for queue in client.queues()} == {"shop/orders", "shop/mails", "dlq/shop/orders"}
    assert [schedule.name for schedule in client.schedules.all()] == ["nightly"]


def test_prune_leaves_groups_where_a_file_names_none_and_refuses_an_empty_file(
    tmp_path: Path, shell: Shell, client: SyncClient
) -> None:
    client.create_queue("orders")
    client.create_group("orders", "default")
    client.send("orders", "hello")
    file = tmp_path / "topology.toml"
    file.write_text("[queues.orders]\n")
    planned = shell.json("apply", str(file), "--prune", "--dry-run")
    assert not [step for step in planned if step["what"].startswith("group ")]
    file.write_text("")
    refused = shell.run("apply", str(file), "--prune", "--yes")
    assert refused.exit_code == 1
    assert "names nothing" in refused.stderr
    assert client.queue("orders").depth == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("queues = 3", "queues must be a table"),
        ("[queus.a]", "has no setting 'queus'; did you mean queues?"),
        ("[queues.a]\nmax_dept = 3", "queues.a has no setting 'max_dept'; did you mean max_depth?"),
        ("[queues.a]\nretry = {max_retrys = 3}", "did you mean retry.max_retries?"),
        ("[queues.a.groups.g]\nkind = 'both'", "queues.a.groups.g is not good"),
        ("[schedules.s]\ncron = '* * * * *'", "schedules.s is not good"),
        ("[queues.a", "is not TOML"),
    ],
)
def test_a_file_with_a_mistake_changes_nothing_and_the_place_is_named(
    text: str, problem: str, file: Path, shell: Shell, client: SyncClient
) -> None:
    file.write_text(f"{text}\n")
    done = shell.run("apply", str(file), "--yes")
    assert done.exit_code == 1
    assert problem in " ".join(done.output.split())
    assert client.queues() == []


def test_what_the_server_refuses_is_named_and_the_rest_can_be_applied_later(
    file: Path, shell: Shell, client: SyncClient
) -> None:
    file.write_text("[queues.good]\n[queues.bad]\nmax_depth = -1\n")
    done = shell.run("apply", str(file), "--yes")
    assert done.exit_code == 2
    assert "1 change of 2 made; failed: + queue bad" in done.output
    assert [queue.name for queue in client.queues()] == ["good"]


def test_a_group_of_another_kind_is_not_silently_left(file: Path, shell: Shell, client: SyncClient) -> None:
    client.create_queue("shop/orders")
    client.create_group("shop/orders", "audit", kind="lease")
    done = shell.run("apply", str(file), "--yes")
    assert done.exit_code == 1
    assert "Group audit of shop/orders exists with other settings" in done.output
    assert [queue.name for queue in client.queues()] == ["shop/orders"]


def test_yaml_may_be_empty_and_is_refused_when_it_is_none(shell: Shell, client: SyncClient, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("queues:\n  a:\n  b: {groups: {g: }}\n")
    shell.done("apply", str(path), "--yes")
    assert [queue.name for queue in client.queues()] == ["a", "b"]
    path.write_text("queues: [a\n")
    assert "is not YAML" in shell.run("apply", str(path), "--yes").output


USERS = """
[users.shop]
scopes = ["produce:shop/#", "consume:shop/#"]

[users.billing]
scopes = ["consume:shop/orders"]
subject = "CN=billing,O=Acme"
namespace = "bills"
"""


def test_users_are_applied_to_the_users_file(shell: Shell, tmp_path: Path) -> None:
    path, users = tmp_path / "topology.toml", tmp_path / "users.json"
    path.write_text(USERS)
    options = ("--users-file", str(users))
    assert "name it with --users-file" in shell.run("apply", str(path), "-y").stderr
    assert shell.run("apply", str(path), "--check", *options).exit_code == 1
    assert not users.exists()
    applied = shell.done("apply", str(path), "-y", *options)
    [password] = [line for line in applied.stderr.splitlines() if line.startswith("password of ")]
    assert password.split()[2] == "shop:"
    assert len(password.split()[3]) == 32
    found = {user["name"]: user for user in shell.json("user", "list", "--file", str(users))}
    assert found["shop"]["scopes"] == ["produce:shop/#", "consume:shop/#"]
    assert (found["shop"]["password"], found["billing"]["password"]) == (True, False)
    assert (found["billing"]["subject"], found["billing"]["namespace"]) == ("CN=billing,O=Acme", "bills")
    before = users.read_bytes()
    assert "Nothing to do" in shell.done("apply", str(path), "-y", *options).stderr
    assert users.read_bytes() == before
    exported = tmp_path / "exported.toml"
    exported.write_text(shell.done("export", "none", *options).stdout)
    assert "Nothing to do" in shell.done("apply", str(exported), "-y", *options).stderr


def test_a_user_is_changed_and_only_prune_removes_one(shell: Shell, tmp_path: Path) -> None:
    path, users = tmp_path / "topology.toml", tmp_path / "users.json"
    options = ("--users-file", str(users))
    path.write_text(USERS)
    shell.done("apply", str(path), "-y", *options)
    path.write_text('[users.shop]\nscopes = ["produce:shop/#"]\n')
    plan = shell.done("apply", str(path), "--dry-run", *options).stdout
    assert plan.splitlines() == ["~ user shop", '    scopes: ["produce:shop/#","consume:shop/#"] -> ["produce:shop/#"]']
    shell.done("apply", str(path), "-y", *options)
    assert [user["name"] for user in shell.json("user", "list", "--file", str(users))] == ["billing", "shop"]
    path.write_text(path.read_text() + "[queues.keep]\n")
    shell.done("apply", str(path), "-y", "--prune", *options)
    [left] = shell.json("user", "list", "--file", str(users))
    assert (left["name"], left["scopes"], left["password"]) == ("shop", ["produce:shop/#"], True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[users.shop]\nscopes = ["everything"]', "wrong scope"),
        ('[users.shop]\npassword = "secret"', "no setting 'password'"),
        ('[users.shop]\nnamespace = "a b/"', "namespace"),
    ],
)
def test_a_user_that_cannot_be_changes_nothing(text: str, problem: str, shell: Shell, tmp_path: Path) -> None:
    path, users = tmp_path / "topology.toml", tmp_path / "users.json"
    path.write_text(text + "\n\n[queues.new]\n")
    refused = shell.run("apply", str(path), "-y", "--users-file", str(users))
    assert (refused.exit_code, problem in refused.stderr) == (1, True), refused.stderr
    assert not users.exists()
    assert shell.json("queue", "list") == []
