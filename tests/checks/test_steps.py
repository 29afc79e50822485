"""The tokens of a step: K + 1 of each request, at its borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rule import Context
from specserve.checks.rules.speculation import small_steps
from specserve.diagnostics import Severity
from specserve.profile.schema import Profile, Speculation, Target
from tests.checks.judging import of

Load = Callable[[str], Profile]
METHODS = ("draft_model", "ngram", "suffix", "eagle3", "mtp", "dflash", "dspark")
BLOCK = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 7}\n"


@given(
    method=st.sampled_from(METHODS), lora=st.booleans(), k=st.integers(1, 64),
    requests=st.integers(1, 2048), tokens=st.integers(1, 65536),
)  # fmt: skip
def test_a_step_needs_every_token_of_every_request(
    method: str, lora: bool, k: int, requests: int, tokens: int
) -> None:
    block = Speculation(method, {"method": method, "num_speculative_tokens": k})
    engine: dict[str, Any] = {"enable_lora": lora, "max_num_seqs": requests, "max_num_batched_tokens": tokens}
    profile = Profile("p.yaml", "p", Target("org/t"), speculation=block, engine=engine)
    hits = [*small_steps.check(Context(profile, ("0.33",)))]
    needed = requests * (k + 1)
    is_refused = lora or tokens < requests
    severity = Severity.ERROR if is_refused else Severity.WARNING
    assert [hit.severity for hit in hits] == [severity] * (tokens < needed)


@pytest.mark.parametrize(
    ("engine", "severities"),
    [
        ("{max_num_seqs: 1024, max_num_batched_tokens: 2048}", [Severity.WARNING]),
        ("{max_num_seqs: 1K, max_num_batched_tokens: 8k, enable_lora: true}", [Severity.ERROR]),
        ("{enable_lora: true}", []),
        ("{enable_lora: true, max_num_seqs: 4096}", []),
    ],
)
def test_without_both_figures_nothing_is_said_of_them(
    profile: Load, engine: str, severities: list[Severity]
) -> None:
    assert [item.severity for item in of("SD138", profile(f"{BLOCK}engine: {engine}"))] == severities


def test_on_a_gpu_vllm_s_least_default_of_requests_counts(profile: Load) -> None:
    text = f"{BLOCK}hardware: {{accelerator: L4-24GB}}\nengine: "
    for tokens, hits in ((2047, 1), (2048, 0)):
        engine = f"{{enable_lora: true, max_num_batched_tokens: {tokens}}}"
        assert len(of("SD138", profile(text + engine))) == hits
