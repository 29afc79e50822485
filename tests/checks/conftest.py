"""A profile of a few lines whose target is pinned, so that a finding is about what the lines say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from specserve.profile.load import load_profile
from specserve.profile.schema import Profile

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Starts on this machine are none of a test's business."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def profile(write: Callable[..., Path]) -> Callable[[str], Profile]:
    """A profile of these lines; a pinned target stands already where the text has none."""

    def load(text: str) -> Profile:
        text = dedent(text)
        target = f"target: {{model: org/target, revision: '{COMMIT}'}}\n"
        return load_profile(write(text if "target:" in text else target + text))

    return load
