"""Nothing that callers send reaches a terminal as a command."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import logs
from holdfast.cli.support.output import show_error, show_note, show_one, show_one_line, show_rows
from holdfast.config import LogSettings
from holdfast.errors import QueueNotFound
from holdfast.escapes import escape_controls

EVIL = "a\x1b[2J\x1b]0;owned\x07\x9b31mb\u202ec\r"


@given(st.text())
def test_nothing_is_left_that_controls_a_terminal(text: str) -> None:
    shown = escape_controls(text)
    assert all(char in "\t\n" or (ord(char) >= 0x20 and not 0x7F <= ord(char) < 0xA0) for char in shown)
    assert escape_controls(shown) == shown
    assert shown == text or len(shown) > len(text)


@pytest.mark.parametrize("shape", ["console", "json"])
def test_a_line_of_the_log_is_one_line_without_commands(shape: str, capfd: pytest.CaptureFixture[str]) -> None:
    import structlog

    logs.configure(LogSettings(format=shape))
    try:
        structlog.get_logger().warning("refused", client=EVIL + "\n2026-01-01 forged line")
    finally:
        structlog.reset_defaults()
    line = capfd.readouterr().err
    assert line.count("\n") == 1
    assert not set("\x07\r\x9b\u202e") & set(line)
    assert "[2J" not in line.replace("\\x1b[2J", "").replace("\\\\x1b[2J", "")
    if shape == "json":
        assert json.loads(line)["client"].startswith("a\\x1b[2J")


def test_commands_show_names_and_texts_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows("table", ["name"], [{"name": EVIL}])
    show_one("table", {"name": EVIL})
    show_one_line("ok", "green", "name", EVIL, "")
    show_note(EVIL)
    show_error(QueueNotFound(queue=EVIL, namespace="default"))
    shown = "".join(capsys.readouterr())
    assert not set("\x1b\x07\r\x9b\u202e") & set(shown)
    assert shown.count("\\x1b[2J") + shown.count("\\\\x1b[2J") >= 5
