"""The versions a finding holds for: old ones that nobody asked for fail nothing, newer ones follow the newest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.checks.rule import Context
from specserve.checks.rules.model_runner import unsupported_async_scheduling
from specserve.checks.rules.steps_and_graphs import fewer_active_requests
from specserve.diagnostics import Severity
from specserve.profile.schema import Profile
from tests.checks.judging import of

Load = Callable[[str], Profile]
NGRAM = (
    "speculation: {method: ngram, num_speculative_tokens: 2, prompt_lookup_min: 2, prompt_lookup_max: 4}\n"
)


@pytest.mark.parametrize(
    ("vllm", "severity"),
    [
        ("", None),
        ('vllm: ">=0.26"', Severity.ERROR),
        ('vllm: "~=0.26.0"', Severity.ERROR),
        ('vllm: ">=0.32"', None),
    ],
)
def test_what_only_an_old_version_refuses_is_an_error_where_the_profile_names_that_version(
    profile: Load, vllm: str, severity: Severity | None
) -> None:
    loaded = profile(f"{vllm}\n{NGRAM}env: {{VLLM_USE_V2_MODEL_RUNNER: 1}}")
    assert [item.severity for item in of("SD122", loaded)] == ([severity] if severity else [])


def test_what_the_newest_takes_is_a_warning_where_the_profile_names_no_version(profile: Load) -> None:
    block = "speculation: {method: eagle3, model: ./d, num_speculative_tokens: 2, disable_padded_drafter_batch: true}"
    asked = f"{block}\nengine: {{async_scheduling: true}}"
    assert [item.severity for item in of("SD123", profile(asked))] == [Severity.WARNING]
    assert [item.severity for item in of("SD123", profile(f'vllm: "~=0.32.0"\n{asked}'))] == [Severity.ERROR]


def test_what_the_newest_refuses_is_an_error_whatever_the_range(profile: Load) -> None:
    loaded = profile("speculation: {method: suffix}\nenv: {VLLM_USE_V2_MODEL_RUNNER: 1}")
    assert [item.severity for item in of("SD122", loaded)] == [Severity.ERROR]


@pytest.mark.parametrize("version", ["0.33", "0.34", "1.0"])
def test_a_version_that_is_still_to_come_is_judged_like_the_newest(profile: Load, version: str) -> None:
    loaded = profile(f"{NGRAM}engine: {{async_scheduling: true}}")
    assert [*unsupported_async_scheduling.check(Context(loaded, (version,)))] == []
    block = "speculation: {method: dflash, model: ./d, num_speculative_tokens: 15}\n"
    capped = profile(f"{block}engine: {{max_num_seqs: 256, max_num_batched_tokens: 2048}}")
    assert len([*fewer_active_requests.check(Context(capped, (version,)))]) == 1
