"""The versions a finding holds for: old ones that nobody asked for fail nothing, newer ones follow the newest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.checks.rule import Context
from specserve.checks.rules.steps_and_graphs import fewer_active_requests
from specserve.profile.schema import Profile

Load = Callable[[str], Profile]
NGRAM = (
    "speculation: {method: ngram, num_speculative_tokens: 2, prompt_lookup_min: 2, prompt_lookup_max: 4}\n"
)


@pytest.mark.parametrize("version", ["0.33", "0.34", "1.0"])
def test_a_version_that_is_still_to_come_is_judged_like_the_newest(profile: Load, version: str) -> None:
    block = "speculation: {method: dflash, model: ./d, num_speculative_tokens: 15}\n"
    capped = profile(f"{block}engine: {{max_num_seqs: 256, max_num_batched_tokens: 2048}}")
    assert len([*fewer_active_requests.check(Context(capped, (version,)))]) == 1
