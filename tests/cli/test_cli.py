"""The `holdfast` command, as a person at a terminal meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from holdfast import __version__
from holdfast.build_info import commit
from holdfast.cli.main import main
from holdfast.config import all_fields
from tests.numbers import WILD_NUMBERS
from tests.waiting import PATIENCE_SECONDS

HOLDFAST = Path(sys.executable).parent / "holdfast"


def run(*arguments: str, stdin: str | None = None, **environ: str) -> Result:
    clean = {name: None for name in os.environ if name.startswith("HOLDFAST_")}
    return CliRunner().invoke(main, arguments, input=stdin, env={**clean, **environ})


def run_for_real(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return subprocess.run(
        [HOLDFAST, *arguments],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_version() -> None:
    done = run_for_real("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {__version__} (commit {commit()})\n", "")


def test_a_lake_in_object_storage_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for job in ("build", "reconcile", "runs"):
        done = run("pipeline", job, "--lake", "s3a://bucket/lake")
        assert done.exit_code == 2
        assert "must be a path on this machine; s3a:// is not supported" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_config_show_origin_names_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[limits]\nmax_wait = "1m"\n')
    done = run_for_real(
        "config", "show", "--origin", "--config", str(file), "--data-dir", "/srv", HOLDFAST_NODE_NODE_ID="5"
    )
    lines = [line.strip().split(maxsplit=2) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [field for field, *_ in lines] == ["setting", *(field.dotted for field in all_fields())]
    assert ["limits.max_wait", "1m", f"file {file}"] in lines
    assert ["node.node_id", "5", "environment HOLDFAST_NODE_NODE_ID"] in lines
    assert ["node.data_dir", "/srv", "flag --data-dir"] in lines


def test_config_show_without_origin_is_two_columns() -> None:
    lines = run("config", "show").stdout.splitlines()
    assert lines[0].split() == ["setting", "value"]
    assert ["limits.inbox_bytes", "64MiB"] in [line.split() for line in lines]


def test_config_show_as_json_is_for_programs() -> None:
    plain = json.loads(run("config", "show", "-o", "json").stdout)
    assert plain["limits"]["max_wait"] == "15m"
    assert plain["limits"]["lease_max"] == 1000
    assert plain["queues"]["auto_create"] is True
    assert plain["node"]["data_dir"] == "data"
    settings = json.loads(run("config", "show", "--origin", "-o", "json", HOLDFAST_LIMITS_LEASE_MAX="9").stdout)
    assert settings["limits"]["lease_max"] == {"value": 9, "origin": "environment HOLDFAST_LIMITS_LEASE_MAX"}


def test_config_check_of_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "good.toml"
    file.write_text("[node]\nnode_id = 3\n")
    done = run("config", "check", str(file))
    assert done.exit_code == 0
    assert "The configuration is good: 1 settings given" in done.stderr


def test_config_check_of_a_file_does_not_look_at_the_environment_but_without_a_file_it_does(tmp_path: Path) -> None:
    file = tmp_path / "good.toml"
    file.write_text("[node]\nnode_id = 3\n")
    assert run("config", "check", str(file), HOLDFAST_NODE_NODE_ID="bad").exit_code == 0
    assert run("config", "check", HOLDFAST_NODE_NODE_ID="bad").exit_code == 2


def test_config_check_takes_its_file_as_other_commands_do(tmp_path: Path) -> None:
    file = tmp_path / "good.toml"
    file.write_text("[node]\nnode_id = 3\n")
    done = run("config", "check", "--config", str(file))
    assert (done.exit_code, "1 settings given" in done.stderr) == (0, True)
    assert run("config", "check", "--config", str(file), HOLDFAST_NODE_NODE_ID="bad").exit_code == 2, (
        "as serve finds it"
    )
    twice = run("config", "check", str(file), "--config", str(file))
    assert (twice.exit_code, "Give the file once" in twice.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[http]\nlisten = "0.0.0.0:0"\n', "HTTP cannot listen on 0.0.0.0"),
        ('[mqtt]\nlisten = "0.0.0.0:0"\n', "MQTT cannot listen on 0.0.0.0"),
        ('[mqtt]\ntls_listen = "127.0.0.1:0"\n', "it needs tls.certificate_file"),
    ],
)
def test_where_it_may_not_listen_serve_changes_nothing_and_config_check_says_so(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(text)
    refused = run_for_real("serve", "--config", str(file), "--data-dir", str(tmp_path / "data"))
    assert (refused.returncode, problem in refused.stderr) == (2, True)
    assert not (tmp_path / "data").exists()
    done = run("config", "check", "--config", str(file))
    assert (done.exit_code, problem in done.stderr) == (2, True)
    assert (
        run("config", "check", "--config", str(file), HOLDFAST_MQTT_ENABLED="no", HOLDFAST_HTTP_ENABLED="no").exit_code
        == 0
    )


def test_config_check_of_a_bad_file_names_the_setting_the_range_and_the_error_code(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[node]\nnode_id = 5000\n")
    done = run_for_real("config", "check", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: Setting node.node_id cannot be 5000: it must be a whole number from 0 to 1023 (file {file}). "
        "[invalid_config]\n"
    )


def test_config_check_finds_what_serve_would_refuse_about_certificates(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[tls]\ncertificate_file = "none.pem"\n')
    done = run("config", "check", str(file))
    assert (done.exit_code, "tls.certificate_file cannot be 'none.pem'" in done.stderr) == (2, True)
    refused = run_for_real("serve", "--config", str(file), "--data-dir", str(tmp_path / "data"))
    assert refused.returncode == 2
    assert not (tmp_path / "data").exists(), "nothing is made before it is known to be good"


def test_a_missing_configuration_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run("serve", "--config", str(tmp_path / "none.toml"))
    assert done.exit_code == 2
    assert "No such file or directory. [config_unreadable]" in done.stderr


def test_a_flag_out_of_range_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = run("serve", "--data-dir", str(tmp_path / "data"), "--node-id", "1024")
    assert done.exit_code == 2
    assert "1024 is not in the range 0<=x<=1023" in done.stderr
    assert not (tmp_path / "data").exists()


def test_help_lists_only_what_exists() -> None:
    text = run("serve", "--help").stdout
    for flag in ("--data-dir", "--store", "--config", "--log-level", "--log-format", "--node-id", "--http", "--grpc"):
        assert flag in text
    assert "--amqp" not in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_for_this_command(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0
    assert "_HOLDFAST_COMPLETE" in done.stdout


def test_completion_completes() -> None:
    done = run_for_real(_HOLDFAST_COMPLETE="bash_complete", COMP_WORDS="holdfast serve --st", COMP_CWORD="2")
    assert "--store" in done.stdout


def test_every_command_and_option_explains_itself() -> None:
    todo: list[click.Command] = [main]
    silent: list[str] = []
    while todo:
        command = todo.pop()
        todo.extend(command.commands.values() if isinstance(command, click.Group) else [])
        silent += [] if command.help else [str(command.name)]
        options = [option for option in command.params if isinstance(option, click.Option)]
        silent += [f"{command.name} {option.name}" for option in options if not option.help]
    assert silent == []


@pytest.mark.parametrize("number", WILD_NUMBERS, ids=lambda text: text[:20])
def test_a_wild_number_is_taken_or_refused_by_every_option(number: str) -> None:
    def walk(command: click.Command, path: str) -> Iterator[click.Parameter]:
        yield from command.params
        if isinstance(command, click.Group):
            for name, child in command.commands.items():
                yield from walk(child, f"{path} {name}")

    seen = 0
    for parameter in walk(main, "holdfast"):
        seen += 1
        with suppress(click.UsageError):
            parameter.type.convert(number, parameter, None)
    assert seen > 100
