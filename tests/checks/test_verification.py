"""Verification: what is made up, what is lossy, what contradicts itself, what has no effect."""

from __future__ import annotations

from collections.abc import Callable

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile
from tests.checks.judging import of

Load = Callable[[str], Profile]


def test_synthetic_text_is_an_error_and_fly_a_warning(profile: Load) -> None:
    text = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 4, rejection_sample_method: %s}"
    assert [item.severity for item in of("SD127", profile(text % "synthetic"))] == [Severity.ERROR]
    assert [item.severity for item in of("SD127", profile(text % "fly"))] == [Severity.WARNING]
    for method in ("standard", "block"):
        assert of("SD127", profile(text % method)) == of("SD127", profile(text % method)) == []
