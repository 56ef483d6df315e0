"""Commands with a token, against a server that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.config import Config, load
from holdfast.testing import Broker
from tests.cli.conftest import Shell

SECRET = {"HOLDFAST_AUTH_TOKEN_SECRET": "a secret that is long enough for anybody"}


@pytest.fixture
def guarded() -> Iterator[Shell]:
    config: Config = load(None, {**SECRET, "HOLDFAST_HTTP_LISTEN": "127.0.0.1:0", "HOLDFAST_JOURNAL_ENABLED": "false"})
    with Broker(config=config) as broker:
        yield Shell(broker.url)


def token(shell: Shell, *scopes: str, namespace: str = "default") -> str:
    arguments = [part for scope in scopes for part in ("--scope", scope)]
    made = shell.done("token", "create", "--subject", "me", "--namespace", namespace, *arguments, **SECRET)
    return made.stdout.strip()


def test_a_token_decides_what_a_command_may_do(guarded: Shell, tmp_path: Path) -> None:
    stranger = guarded.run("send", "jobs", "x")
    assert (stranger.exit_code, stranger.stderr.endswith("[unauthenticated]\n")) == (1, True)

    producer = token(guarded, "produce:jobs")
    guarded.done("send", "jobs", "x", "--token", producer)
    refused = guarded.run("receive", "jobs", "--create", HOLDFAST_TOKEN=producer)
    assert (refused.exit_code, refused.stderr.endswith("[forbidden]\n")) == (1, True)
    assert "consume:jobs" in refused.stderr

    file = tmp_path / "token"
    file.write_text(token(guarded, "consume:#", "admin:#") + "\n")
    assert guarded.done("--token-file", str(file), "receive", "jobs", "--create", "--raw", "--ack").stdout == "x"
    unreadable = guarded.run("--token-file", str(tmp_path / "none"), "queue", "list")
    assert (unreadable.exit_code, "cannot be read" in unreadable.stderr) == (1, True)


def test_the_namespace_is_the_credentials_own(guarded: Shell) -> None:
    mine = token(guarded, "produce:#", "consume:#", namespace="acme")
    guarded.done("--token", mine, "--namespace", "acme", "send", "jobs", "x")
    wrong = guarded.run("--token", mine, "--namespace", "default", "receive", "jobs", "--create")
    assert "the credentials are for 'acme'" in wrong.stderr
    assert guarded.done("--token", mine, "receive", "jobs", "--create", "--raw", "--ack").stdout == "x"
