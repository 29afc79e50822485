"""Tests of facts have a cache of their own, and a Hub that nobody answers for unless the test starts one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer, connect


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's, and nothing of the network."""
    connect(monkeypatch, tmp_path, "http://127.0.0.1:9")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub on loopback that HF_ENDPOINT names."""
    with HubServer() as server:
        server.connect(monkeypatch, tmp_path)
        yield server
