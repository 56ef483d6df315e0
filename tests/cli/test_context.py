"""Saved servers: commands talk to the chosen one, and what is given on the command line comes first."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.client import SyncClient
from tests.cli.conftest import Shell

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    return tmp_path / "holdfast" / "contexts.toml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"NO_COLOR": "1"})


def done(*arguments: str) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def test_commands_talk_to_the_chosen_server(home: Path, shell: Shell, client: SyncClient) -> None:
    client.create_queue("here")
    done("--url", shell.url, "context", "save", "dev", "--use")
    done("--url", NOBODY, "context", "save", "away")
    assert "here" in done("queue", "list").stdout
    assert run("--context", "away", "--timeout", "1s", "queue", "list").exit_code == 1
    assert run("--url", NOBODY, "queue", "list").exit_code == 1
    done("context", "use", "away")
    assert run("queue", "list").exit_code == 1
    assert "here" in done("queue", "list", "--context", "dev").stdout
    lines = [line.split() for line in done("context", "list").stdout.splitlines()]
    assert lines[1:] == [["*", "away", NOBODY, "-", "-", "-"], ["-", "dev", shell.url, "-", "-", "-"]]
    done("context", "delete", "away")
    assert '"current": ""' not in home.read_text()
    assert run("queue", "list", "--context", "away").exit_code == 1


def test_files_are_saved_by_their_path_and_secrets_are_not(home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    done("--url", NOBODY, "--token-file", str(token), "context", "save", "prod")
    assert "secret" not in home.read_text()
    assert f'token_file = "{token}"' in home.read_text()
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    refused = run("--url", NOBODY, "--token", "secret", "context", "save", "prod")
    assert refused.exit_code == 1
    assert "--token-file" in refused.output


def test_credentials_do_not_go_to_another_server(home: Path, tmp_path: Path, shell: Shell, client: SyncClient) -> None:
    """A token file that is not there would be an error if it were read."""
    client.create_queue("here")
    done("--url", NOBODY, "--token-file", str(tmp_path / "gone"), "context", "save", "prod", "--use")
    assert run("queue", "list").exit_code == 1
    assert "here" in done("--url", shell.url, "queue", "list").stdout
    refused = run("--context", "prod", "--url", shell.url, "queue", "list")
    assert refused.exit_code == 1
    assert "give one of them" in " ".join(refused.output.split())


@pytest.mark.parametrize("text", ["current = 3", "contexts = ", "[contexts.a]\nurl = 'x'\ntoken = 'secret'"])
def test_a_file_that_is_not_good_is_named(text: str, home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text(text)
    result = run("queue", "list")
    assert result.exit_code == 2
    assert "contexts.toml" in "".join(result.output.split())
    assert run("config", "show").exit_code == 0, "what needs no server needs none that is saved"


def test_a_name_that_is_not_saved_is_refused_with_those_that_are(home: Path) -> None:
    done("--url", NOBODY, "context", "save", "prod")
    result = run("--context", "prd", "queue", "list")
    assert result.exit_code == 1
    assert "does not exist; there are: prod" in " ".join(result.output.split())
    assert run("context", "use", "prd").exit_code == 1
