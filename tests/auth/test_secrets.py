"""Secrets stay out of logs, representations and files."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest

from holdfast.config import AuthSettings, Config, load
from holdfast.config.kinds import Rate, Rates
from holdfast.config.secret import SecretText, is_secret_name
from tests.waiting import PATIENCE_SECONDS

SECRET = "a secret that is forty characters long!!"


LOGGING = """
import sys, structlog
from holdfast import logs
from holdfast.config import LogSettings

logs.configure(LogSettings(format=sys.argv[1]))
s = sys.argv[2]
hidden = dict(password=s, Authorization=s, new_password=s, token=s)
structlog.get_logger().warning("hello", **hidden, user="shop", lease_token="42")
"""


@pytest.mark.parametrize("shape", ["json", "console"])
def test_log_lines_hide_what_goes_by_a_secret_name(shape: str) -> None:
    command = [sys.executable, "-c", LOGGING, shape, SECRET]
    line = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True).stderr
    assert SECRET not in line
    assert line.count("********") == 4
    assert "shop" in line
    assert "42" in line


FAILING = """
import sys, structlog
from holdfast import logs
from holdfast.config import LogSettings

def fail(payload):
    raise ValueError("odd")

logs.configure(LogSettings(format=sys.argv[1]))
try:
    fail(sys.argv[2])
except ValueError:
    structlog.get_logger().exception("failed")
"""


@pytest.mark.parametrize("shape", ["json", "console"])
def test_a_traceback_in_the_log_shows_no_values(shape: str) -> None:
    command = [sys.executable, "-c", FAILING, shape, SECRET]
    text = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True).stderr
    assert "ValueError: odd" in text
    assert SECRET not in text


@pytest.mark.parametrize("name", ["user", "secretary", "tokens", "lease_token", "token_bytes_max", "peer"])
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


def test_a_secret_shows_itself_only_when_asked() -> None:
    config = Config(auth=AuthSettings(token_secret=SecretText(SECRET)))
    assert SECRET not in repr(config)
    assert SECRET not in str(config.auth.token_secret)
    assert SECRET not in f"{config.auth.token_secret}"
    with pytest.raises(TypeError):
        pickle.dumps(config.auth.token_secret)
    with pytest.raises(TypeError):
        json.dumps(config.auth.token_secret)
    assert config.auth.token_secret.reveal() == SECRET
    assert config.auth.token_secret == SecretText(SECRET)
    assert config.auth.token_secret != SecretText(SECRET + "x")
    assert hash(SecretText(SECRET)) == hash(config.auth.token_secret)


def test_rates_are_written_as_text_or_as_a_list() -> None:
    kind = Rates(3)
    expected = (Rate("acme", 5000, 10 << 20), Rate("tests", 100, 0))
    assert kind.read("acme=5000/10MiB, tests=100") == expected
    assert kind.read(["acme=5000/10MiB", "tests=100/0"]) == expected
    assert kind.read(kind.show(expected)) == expected
    assert kind.read("none") == ()
    environ = {"HOLDFAST_RATES_NAMESPACES": "acme=5000/10MiB"}
    assert load(None, environ).rates.namespaces == expected[:1]


@pytest.mark.parametrize(
    "text", ["acme", "acme=", "acme=-1", "a/b=1", "acme=1/x", "=5", "a=1,a=2", "a=1,b=1,c=1,d=1", "a=1,", ","]
)
def test_rates_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        Rates(3).read(text)


@pytest.mark.parametrize("raw", [7, {"acme": 5}, [5], True])
def test_rates_of_another_kind_are_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="must"):
        Rates(3).read(raw)
