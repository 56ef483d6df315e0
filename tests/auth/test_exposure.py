"""Without credentials the server is for this machine only."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import structlog

from holdfast.auth import exposure
from holdfast.auth.gate import Gate
from holdfast.auth.principal import Action, Principal
from holdfast.config import AuthSettings, Config
from holdfast.config.secret import SecretText
from holdfast.errors import CrossOrigin, ExposureRefused, InvalidConfig
from tests.auth.conftest import Clock
from tests.auth.rig import gate, user, write_users

LOOPBACK = ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST", "::ffff:127.0.0.1"]
OPEN = ["0.0.0.0", "::", "", "10.0.0.1", "192.168.1.5", "broker.example.org", "2001:db8::1", "localhost.example.org"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_is_always_allowed(host: str) -> None:
    with structlog.testing.capture_logs() as logs:
        exposure.check(AuthSettings(), host, front="HTTP", tls=False)
    assert logs == []


@pytest.mark.parametrize("host", OPEN)
def test_any_other_address_is_refused_without_credentials(host: str) -> None:
    with pytest.raises(ExposureRefused, match=r"HTTP cannot listen on .* or say --insecure") as caught:
        exposure.check(AuthSettings(), host, front="HTTP", tls=True)
    assert isinstance(caught.value, InvalidConfig), "the command line ends with the exit code of a wrong configuration"


@pytest.mark.parametrize("host", OPEN)
def test_insecure_allows_it_and_warns(host: str) -> None:
    with structlog.testing.capture_logs() as logs:
        exposure.check(AuthSettings(insecure=True), host, front="MQTT", tls=False)
    assert [(line["log_level"], line["front"]) for line in logs] == [("warning", "MQTT")]
    assert "everybody" in logs[0]["event"]


@pytest.mark.parametrize(
    "auth",
    [
        AuthSettings(users_file=Path("users.json")),
        AuthSettings(key_file=Path("keys.json")),
        AuthSettings(token_secret=SecretText("s" * 32)),
    ],
)
def test_with_credentials_only_missing_tls_is_warned_of(auth: AuthSettings) -> None:
    with structlog.testing.capture_logs() as logs:
        exposure.check(auth, "0.0.0.0", front="HTTP", tls=True)
        assert logs == []
        exposure.check(auth, "0.0.0.0", front="HTTP", tls=False)
    assert [line["log_level"] for line in logs] == ["warning"]
    assert "without TLS" in logs[0]["event"]


def test_without_credentials_everybody_may_do_everything_in_the_default_namespace(clock: Clock) -> None:
    door = Gate(Config(), clock)
    who = door.anonymous()
    assert not door.required
    assert (who.namespace, who.method) == ("default", "anonymous")
    for action in Action:
        assert who.may(action, "orders/new")
        assert who.may(action, "$SYS/load")
        assert who.may_filter(action, "#")
        assert who.may_filter(action, "$SYS/#")
    assert door.valid(who)


# --- browsers -------------------------------------------------------------------------------------------------------

ANONYMOUS = Principal(name="anonymous", namespace="default", method="anonymous", unlimited=True)
NO_CREDENTIALS = AuthSettings()
USERS = AuthSettings(users_file=Path("users.json"))


def refused(auth: AuthSettings, method: str, host: str | None, origin: str | None) -> bool:
    who = msgspec.structs.replace(ANONYMOUS, method=method)
    try:
        exposure.check_browser(auth, who, host, origin)
    except CrossOrigin:
        return True
    return False


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080", "[::1]", None, ""])
def test_a_program_on_this_machine_may_call(host: str | None) -> None:
    assert not refused(NO_CREDENTIALS, "anonymous", host, None)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://localhost.evil.example:8080", "null", "", "http://evil.example:8080"]
)
@pytest.mark.parametrize("method", ["anonymous", "password", "certificate"])
def test_a_page_from_elsewhere_cannot_use_what_a_browser_has(method: str, origin: str) -> None:
    assert refused(USERS if method != "anonymous" else NO_CREDENTIALS, method, "localhost:8080", origin)


def test_a_page_that_has_a_token_may_call() -> None:
    assert not refused(USERS, "token", "broker.example.org", "https://app.example.org")


@pytest.mark.parametrize("host", ["evil.example:8080", "evil.example", "127.0.0.1.evil.example", "10.0.0.1:8080"])
def test_a_name_of_somebody_else_that_points_here_is_refused(host: str) -> None:
    """DNS rebinding: for the browser the page is from the same origin, so no other rule would stop it."""
    assert refused(NO_CREDENTIALS, "anonymous", host, f"http://{host}")
    assert refused(NO_CREDENTIALS, "anonymous", host, None)


def test_a_page_of_another_server_on_this_machine_may_call_only_where_there_are_no_credentials() -> None:
    assert not refused(NO_CREDENTIALS, "anonymous", "localhost:8080", "http://127.0.0.1:3000")
    assert refused(AuthSettings(insecure=True), "anonymous", "localhost:8080", "http://127.0.0.1:3000")
    assert refused(USERS, "password", "localhost:8080", "http://127.0.0.1:3000")


def test_before_a_caller_has_shown_who_it_is_only_a_gate_without_credentials_objects(
    clock: Clock, tmp_path: Path
) -> None:
    with pytest.raises(CrossOrigin):
        gate(clock).check_browser(None, "localhost:8080", "http://evil.example")
    closed = gate(clock, users_file=write_users(tmp_path / "users.json", user("shop")))
    closed.check_browser(None, "localhost:8080", "http://evil.example")


def test_a_page_of_our_own_may_call() -> None:
    assert not refused(NO_CREDENTIALS, "anonymous", "localhost:8080", "http://localhost:8080")
    assert not refused(USERS, "password", "broker.example.org", "https://broker.example.org")
    assert not refused(USERS, "password", "Broker.example.org", "https://broker.example.org")


def test_insecure_is_for_any_name_but_not_for_other_pages() -> None:
    insecure = AuthSettings(insecure=True)
    assert not refused(insecure, "anonymous", "broker.example.org:8080", None)
    assert refused(insecure, "anonymous", "broker.example.org:8080", "http://evil.example")
