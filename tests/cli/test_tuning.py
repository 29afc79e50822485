"""The run directory of a tune: gone on with, told again where it is complete, made anew where that is asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specserve.cli.tuneprepare import Asked
from specserve.cli.tuning import _directory


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    wish = SimpleNamespace(digest="d" * 64, name="p", fingerprint="f" * 64)
    return SimpleNamespace(wish=wish, asked=Asked("p.yaml"))


def opened(ready: Any, *, anew: bool = False, is_complete: bool = False) -> Path:
    with _directory(ready, None, anew=anew) as directory:
        if is_complete:
            directory.update(is_complete=True)
        return directory.path


def test_the_same_command_goes_on_in_the_same_directory(ready: Any) -> None:
    assert opened(ready) == opened(ready)


def test_a_complete_run_is_told_again_and_says_how_to_measure_anew(
    ready: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = opened(ready, is_complete=True)
    assert capsys.readouterr().err == ""
    assert opened(ready) == first
    assert "already; `--fresh` measures anew" in capsys.readouterr().err
    assert opened(ready, anew=True) != first


def test_another_tune_has_another_directory(ready: Any) -> None:
    first = opened(ready)
    ready.wish.digest = "e" * 64
    assert opened(ready) != first
