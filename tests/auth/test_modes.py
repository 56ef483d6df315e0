"""Files that decide who is let in are the server's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from holdfast.auth import modes
from holdfast.config import AuthSettings, Config, NodeSettings, load
from holdfast.errors import InvalidConfig


@pytest.fixture
def config(tmp_path: Path) -> Config:
    tmp_path.chmod(0o700)
    (tmp_path / "users.json").write_text("{}")
    (tmp_path / "users.json").chmod(0o600)
    return Config(node=NodeSettings(data_dir=tmp_path), auth=AuthSettings(users_file=tmp_path / "users.json"))


def warnings(config: Config) -> list[str]:
    with capture_logs() as logs:
        modes.check(config)
    return [line["event"] for line in logs]


def test_what_only_the_server_may_read_is_accepted(config: Config) -> None:
    assert warnings(config) == []
    assert warnings(replace(config, auth=AuthSettings(users_file=Path("missing")))) == []


def test_credentials_that_everybody_may_change_are_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "users.json").chmod(0o602)
    with pytest.raises(InvalidConfig, match=r"auth\.users_file .* chmod o-w"):
        modes.check(config)


def test_what_everybody_may_read_is_told(config: Config, tmp_path: Path) -> None:
    (tmp_path / "users.json").chmod(0o604)
    tmp_path.chmod(0o755)
    assert warnings(config) == [
        "everybody on this machine may read a secret",
        "everybody on this machine may read the data directory",
    ]


def test_the_configuration_file_is_looked_at_too(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(f'[node]\ndata_dir = "{tmp_path / "data"}"\n[auth]\ntoken_secret = "{"x" * 32}"\n')
    file.chmod(0o644)
    assert warnings(load(file)) == ["everybody on this machine may read a secret"]
    file.write_text(f'[node]\ndata_dir = "{tmp_path / "data"}"\n')
    assert warnings(load(file)) == []
    file.chmod(0o646)
    with pytest.raises(InvalidConfig, match="--config"):
        modes.check(load(file))
