"""Speculation changes the speed and not the text: the small pair with and without it, on the demo's prompts."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specserve.metrics.acceptance import Acceptance, since
from tests.engine.conftest import started
from tests.engine.texts import Text, acceptance, demo_prompts, logprobs, near_ties, write

if TYPE_CHECKING:
    from tests.engine.conftest import Up

pytestmark = pytest.mark.engine
PROMPTS = demo_prompts(32)
BF16_PROMPTS = PROMPTS[::3]
BF16 = {
    "target": {"dtype": "bfloat16"},
    "speculation": {"draft_sample_method": "probabilistic"},
}


@dataclass(frozen=True)
class Written:
    """What one server in bf16 wrote, before it was stopped again."""

    greedy: dict[int, list[Text]]
    """By concurrency."""
    sampled: list[Text]
    """At temperature 0.7."""
    sampled_acceptance: Acceptance


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    """The target's own greedy texts in float32, from the server of `tiny_server` without speculation."""
    with started(tmp_path_factory.mktemp("plain"), "--baseline") as up:
        up.wait_ready()
        texts = write(up, PROMPTS, concurrency=4)
        assert up.stop() == 0
    return texts


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Written]:
    """What bf16 servers with and without speculation wrote, both at the same time: 1.6 GB each."""
    folders = tmp_path_factory.mktemp("bf16"), tmp_path_factory.mktemp("bf16-plain")
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(written, folders[1], "--baseline")
        return written(folders[0]), plain.result()


def written(folder: Path, *options: str) -> Written:
    with started(folder, *options, changes=BF16) as up:
        up.wait_ready()
        greedy = {
            concurrency: write(up, BF16_PROMPTS, concurrency=concurrency, top=5) for concurrency in (1, 4)
        }
        before = acceptance(up)
        sampled = [
            text
            for seed in (1, 2)
            for text in write(up, BF16_PROMPTS, concurrency=4, temperature=0.7, seed=seed)
        ]
        gained = since(before, now=acceptance(up))
        assert up.stop() == 0
    return Written(greedy, sampled, gained)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_in_float32_every_token_is_the_targets_own(
    tiny_server: Up, references: list[Text], concurrency: int
) -> None:
    before = acceptance(tiny_server)
    texts = write(tiny_server, PROMPTS, concurrency=concurrency)
    gained = since(before, now=acceptance(tiny_server))
    assert [text.ids for text in texts] == [text.ids for text in references]
    assert [text.text for text in texts] == [text.text for text in references]
    # Otherwise nothing was speculated, and equality says nothing.
    assert (gained.acceptance_rate or 0) > 0.3
    assert sum(len(text.ids) for text in texts) > 1000


@pytest.mark.parametrize("concurrency", [1, 4])
def test_in_bf16_a_text_leaves_the_targets_own_only_at_a_near_tie(
    bf16: tuple[Written, Written], concurrency: int, capsys: pytest.CaptureFixture[str]
) -> None:
    speculative, plain = bf16
    count = near_ties(speculative.greedy[concurrency], plain.greedy[concurrency])
    with capsys.disabled():
        print(f" [bf16, concurrency {concurrency}: {count} near-ties in {len(BF16_PROMPTS)} texts] ", end="")


def test_drafts_are_accepted_at_a_temperature(bf16: tuple[Written, Written]) -> None:
    assert (bf16[0].sampled_acceptance.acceptance_rate or 0) > 0.3


def test_sampled_text_decodes_cleanly(bf16: tuple[Written, Written]) -> None:
    texts = [text.text for text in bf16[0].sampled]
    assert all(texts)
    # A byte-level model may once in a while write half a character by itself; at the end it is the token limit.
    broken = [text for text in texts if "\ufffd" in text.rstrip("\ufffd")]
    assert len(broken) <= 1, broken


def test_sampled_tokens_are_as_likely_as_those_sampled_without_speculation(
    bf16: tuple[Written, Written], tiny_server: Up
) -> None:
    """Scored by a prefill, which drafts take no part in. Corrupted sampling parameters cost several nats."""
    speculative, plain = (
        statistics.fmean(value for text in one.sampled for value in logprobs(tiny_server, text))
        for one in bf16
    )
    assert abs(speculative - plain) < 0.6
