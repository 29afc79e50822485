"""A Hub that answers on loopback, for commands that ask one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from hub_server import HubServer

_VARIABLES = (
    "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers that run on this machine, and what is left of others, are none of a test's business."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def empty_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """Without models, and with caches of its own, whatever the surroundings say."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
