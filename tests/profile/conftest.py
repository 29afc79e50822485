"""Profiles written for one test, and their problems as lines to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import settings

from specserve.diagnostics import Finding
from specserve.profile.load import examine

settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")

Write = Callable[..., Path]
Problems = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test works in a folder of its own, which is the working directory too."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Write:
    """Writes a file of this test's folder and returns its name, relative to it."""

    def written(text: str | bytes, name: str = "demo.yaml") -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Path(name)

    return written


def lines(findings: Iterable[Finding]) -> list[str]:
    """`file:line:column CODE message | help`, without the file where it is demo.yaml."""
    return [
        f"{finding.span}".removeprefix("demo.yaml:")
        + f" {finding.code} {finding.message}"
        + (f" | {finding.help}" if finding.help else "")
        for finding in findings
    ]


@pytest.fixture
def problems(write: Write) -> Problems:
    """The problems of a profile's text, one line each."""

    def told(text: str | bytes, *, settings: Iterable[str] = ()) -> list[str]:
        profile, findings = examine(write(text), settings=settings)
        assert (profile is None) == any(not finding.policy for finding in findings)
        return lines(findings)

    return told
