"""Messages to systemd."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from specserve.serve.signals import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_states_reach_the_socket_that_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"@specserve-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(name.replace("@", "\0", 1) if abstract else name)
        service_manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify("READY=1", "STATUS=serving")
        assert service_manager.recv(4096) == b"READY=1\nSTATUS=serving"


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket"])
def test_nobody_who_listens_is_no_error(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")
