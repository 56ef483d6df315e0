"""No entry of the audit log can be changed, removed or put in without being found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.auth.audit import AuditLog, numbered_files
from holdfast.auth.audit_chain import verify
from holdfast.auth.principal import Principal
from holdfast.cli.main import main
from holdfast.config import AuditSettings, Config, NodeSettings
from holdfast.units import KIB
from tests.auth.conftest import Clock

OPS = Principal(name="ops", namespace="acme", method="password")


@pytest.fixture
def path(tmp_path: Path, clock: Clock) -> Path:
    """A log of several files."""
    config = Config(node=NodeSettings(data_dir=tmp_path), audit=AuditSettings(file_bytes=64 * KIB))
    for part in range(3):  # of a server that was restarted
        audit = AuditLog(config, clock)
        for number in range(150):
            audit.record(OPS, "queue.update", f"orders/{part}/{number}", "ok", front="http", note="x" * 200)
        audit.close()
    return tmp_path / "audit.log"


def files(path: Path) -> list[Path]:
    return numbered_files(path)[::-1]


def test_a_log_that_was_only_written_is_in_order(path: Path) -> None:
    assert len(files(path)) > 2
    result = verify(files(path))
    assert (result.entries, result.torn, result.findings) == (450, 0, [])
    assert (result.first.number, result.last.number) == (1, 450)
    files(path)[0].unlink()  # the oldest may be deleted: the next says what it follows
    assert verify(files(path)).findings == []


def _change(lines: list[bytes]) -> None:
    lines[40] = lines[40].replace(b"orders", b"others")


def _remove(lines: list[bytes]) -> None:
    del lines[40]


def _swap(lines: list[bytes]) -> None:
    lines[40], lines[41] = lines[41], lines[40]


def _repeat(lines: list[bytes]) -> None:
    lines.insert(40, lines[10])


def _unseal(lines: list[bytes]) -> None:
    lines[40] = lines[40].partition(b',"chain"')[0] + b"}"


def _forge(lines: list[bytes]) -> None:
    lines[40] = lines[40][:-4] + b'00"}'


def _replace_first(lines: list[bytes]) -> None:
    lines[0] = lines[0].replace(b"orders", b"others")


def _garble(lines: list[bytes]) -> None:
    lines[40:42] = [b"garbage", b"garbage"]


@pytest.mark.parametrize(
    "tamper", [_change, _remove, _swap, _repeat, _unseal, _forge, _replace_first, _garble], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("which", [0, 1])
def test_every_tampering_is_found(path: Path, tamper: Callable[[list[bytes]], None], which: int) -> None:
    file = files(path)[which]
    lines = file.read_bytes().splitlines()
    tamper(lines)
    file.write_bytes(b"\n".join(lines) + b"\n")
    findings = verify(files(path)).findings
    assert findings
    assert findings[0].file == file.name


def test_a_file_in_between_that_is_gone_is_found(path: Path) -> None:
    files(path)[1].unlink()
    assert "entries are missing" in verify(files(path)).findings[0].problem


def test_a_line_torn_by_a_crash_is_no_tampering(path: Path, tmp_path: Path, clock: Clock) -> None:
    with path.open("ab") as file:
        file.write(b'{"number":451,"at":"20')
    [last] = verify(files(path)).findings
    assert "as after a crash" in last.problem
    audit = AuditLog(Config(node=NodeSettings(data_dir=tmp_path)), clock)
    audit.record(OPS, "queue.delete", "orders", "ok", front="http")
    audit.close()
    result = verify(files(path))
    assert (result.entries, result.torn, result.findings) == (451, 1, [])


def test_the_command_verifies_and_says_the_last_hash(path: Path, tmp_path: Path) -> None:
    command = ["audit", "verify", "--data-dir", str(tmp_path)]
    good = CliRunner().invoke(main, [*command, "-o", "json"])
    assert good.exit_code == 0
    last = verify(files(path)).last
    assert f'"chain": "{last.chain}"' in good.output
    assert CliRunner().invoke(main, [*command, "--last", last.chain]).exit_code == 0
    newest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(newest[:-1]))
    assert CliRunner().invoke(main, command).exit_code == 0  # the chain alone cannot tell
    cut = CliRunner().invoke(main, [*command, "--last", last.chain])
    assert cut.exit_code == 1
    assert "the end of the log was cut off" in cut.output
    path.write_bytes(b"".join(newest[1:]))
    tampered = CliRunner().invoke(main, command)
    assert (tampered.exit_code, "problem" in tampered.output) == (1, True)
    for file in files(path):
        file.unlink()
    nothing = CliRunner().invoke(main, command)
    assert nothing.exit_code != 0
