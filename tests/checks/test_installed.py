"""The table of the installed vLLM: a shipped one, or what a newer vLLM says of itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.checks.oraclechild import ask_installed, installed_table
from specserve.vllm.facts import INVERSE_FLAGS, at, items, merged
from specserve.vllm.versions import Installed, newest, table

NEWER = Installed("99.0.1", "cuda", "vllm", Path("/nowhere/vllm"))
SHIPPED = replace(newest(), env=frozenset({"VLLM_FROM_THE_CHILD"}))
_SECTIONS = ("engine", "frontend", "speculation", "methods")
ACCEPTED = {
    **{section: items(merged("arguments")[section], newest().minor) for section in _SECTIONS},
    "env": ["VLLM_FROM_THE_CHILD"],
    "inverse_flags": at(INVERSE_FLAGS, newest().minor),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty user cache, and nothing remembered."""
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "cache"))
    installed_table.cache_clear()
    yield tmp_path / "cache"
    installed_table.cache_clear()


def child(tmp_path: Path, said: object) -> list[str]:
    """A command that answers like the child, and notes each call."""
    script = tmp_path / "child.py"
    script.write_text(
        f"import sys\nopen({str(tmp_path / 'calls')!r}, 'a').write('x')\nprint({json.dumps(said)!r})\n",
        encoding="utf-8",
    )
    return [sys.executable, str(script)]


def calls(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", ["0.33.0", "0.32.1+cpu", "0.31.0"])
def test_a_known_version_has_the_shipped_table(version: str) -> None:
    found = Installed(version, "cuda", "vllm", Path("/nowhere/vllm"))
    assert installed_table(found) == table(version)


def test_a_newer_version_is_asked_once(tmp_path: Path) -> None:
    command = child(tmp_path, {"id": 0, "accepted": ACCEPTED})
    first, again = (ask_installed(NEWER, command=command) for _ in range(2))
    assert first == again == replace(SHIPPED, version="99.0.1")
    assert calls(tmp_path) == 1


def test_a_damaged_answer_is_asked_for_again(tmp_path: Path, cache: Path) -> None:
    command = child(tmp_path, {"id": 0, "accepted": ACCEPTED})
    first = ask_installed(NEWER, command=command)
    (file,) = cache.rglob("*.json")
    file.write_text('{"engine": 1}', encoding="utf-8")
    assert ask_installed(NEWER, command=command) == first
    assert calls(tmp_path) == 2


@pytest.mark.parametrize("said", [{"id": 0, "refused": "no"}, {"id": 0, "accepted": {}}, [], "nothing"])
def test_a_newer_version_that_gives_no_answer_gets_the_newest_table(
    said: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = child(tmp_path, said)
    monkeypatch.setattr("specserve.checks.oraclechild.CHILD", command)
    assert ask_installed(NEWER, command=command) is None
    assert installed_table(NEWER) == replace(newest(), exact=False)
