"""Verification: what is made up, what is lossy, what contradicts itself, what has no effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile
from tests.checks.judging import of, places

Load = Callable[[str], Profile]


def test_synthetic_text_is_an_error_and_fly_a_warning(profile: Load) -> None:
    text = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 4, rejection_sample_method: %s}"
    assert [item.severity for item in of("SD127", profile(text % "synthetic"))] == [Severity.ERROR]
    assert [item.severity for item in of("SD128", profile(text % "fly"))] == [Severity.WARNING]
    for method in ("standard", "block"):
        assert of("SD127", profile(text % method)) == of("SD128", profile(text % method)) == []


@pytest.mark.parametrize(
    ("speculation", "expect", "hits"),
    [
        ("{method: eagle3, model: ./h, num_speculative_tokens: 2}", "[{temperature: 0.7}]", 1),
        ("{method: mtp, num_speculative_tokens: 2}", "[{temperature: 0}, {temperature: 1}]", 1),
        ("{method: eagle3, model: ./h, num_speculative_tokens: 2}", "[{temperature: 0}]", 0),
        ("{method: eagle3, model: ./h, num_speculative_tokens: 2}", "[{concurrency: 4}]", 0),
        ("{method: ngram, num_speculative_tokens: 2}", "[{temperature: 0.7}]", 0),
        ("{method: suffix, num_speculative_tokens: 2}", "[{temperature: 0.7}]", 0),
        (
            "{method: eagle3, model: ./h, num_speculative_tokens: 2, draft_sample_method: greedy}",
            "[{temperature: 0.7}]",
            0,
        ),
        (
            "{method: draft_model, model: ./h, num_speculative_tokens: 2, use_heterogeneous_vocab: true}",
            "[{temperature: 0.7}]",
            0,
        ),
    ],
)
def test_greedy_drafts_are_worth_knowing_only_where_a_temperature_is_promised_and_another_way_exists(
    profile: Load, speculation: str, expect: str, hits: int
) -> None:
    found = of("SD131", profile(f"speculation: {speculation}\nexpect: {expect}"))
    assert [item.severity for item in found] == [Severity.INFO] * hits


@pytest.mark.parametrize(
    ("vllm", "keys", "found"),
    [
        (
            ">=0.32",
            "use_heterogeneous_vocab: true, draft_sample_method: probabilistic",
            ["speculation.draft_sample_method"],
        ),
        (
            ">=0.33",
            "use_heterogeneous_vocab: true, use_local_argmax_reduction: true",
            ["speculation.use_local_argmax_reduction"],
        ),
        ("~=0.32.0", "use_heterogeneous_vocab: true, use_local_argmax_reduction: true", []),
        (
            ">=0.32",
            "use_local_argmax_reduction: true, draft_sample_method: probabilistic",
            ["speculation.use_local_argmax_reduction"],
        ),
        (">=0.32", "use_local_argmax_reduction: true", []),
        (">=0.32", "use_heterogeneous_vocab: true, draft_sample_method: greedy", []),
    ],
)
def test_ways_to_draft_that_exclude_each_other(profile: Load, vllm: str, keys: str, found: list[str]) -> None:
    text = (
        f'vllm: "{vllm}"\nspeculation: {{method: draft_model, model: ./d, num_speculative_tokens: 2, {keys}}}'
    )
    assert places("SD132", profile(text)) == found
