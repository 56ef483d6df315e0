"""A server that systemd started says when it is ready, and when it stops."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from holdfast import service_manager
from tests.test_server import serving
from tests.waiting import PATIENCE_SECONDS


def test_the_server_says_when_clients_can_connect_and_when_it_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE_SECONDS)
        manager.bind(str(tmp_path / "notify"))
        with serving(tmp_path / "data", "--store", "memory", NOTIFY_SOCKET=str(tmp_path / "notify")) as server:
            assert manager.recv(100) == b"READY=1"
            server.signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert server.exit_code() == 0


def test_an_abstract_socket_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE_SECONDS)
        manager.bind("")  # the system gives it an abstract name
        name = manager.getsockname()
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name[1:].decode())
        service_manager.notify("READY=1")
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nobody/is/there", "vsock:1:2"])
def test_without_a_manager_nothing_happens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    service_manager.notify("READY=1")
