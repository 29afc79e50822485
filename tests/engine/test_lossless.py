"""Speculation changes the speed and not the text: the small pair with and without it, on the demo's prompts."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specserve.metrics import Acceptance, since_by_engine
from tests.engine.conftest import started
from tests.engine.texts import Text, acceptance, demo_prompts, logprobs, near_ties, write

if TYPE_CHECKING:
    from tests.engine.conftest import Up

pytestmark = pytest.mark.engine
PROMPTS = demo_prompts(32)
FEWER = PROMPTS[::3]
BF16 = {"target": {"dtype": "bfloat16"}}


@dataclass(frozen=True)
class Written:
    """What one server wrote, and how much of its sampled drafts was accepted."""

    greedy: list[Text]
    sampled: list[Text]
    """At temperature 0.7."""
    sampled_acceptance: Acceptance


def sampled_by(up: Up) -> list[Text]:
    """Answers at temperature 0.7."""
    return [text for seed in (1, 2) for text in write(up, FEWER, concurrency=4, temperature=0.7, seed=seed)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The target's own texts in float32, from the server of `tiny_server` without speculation."""
    with started(tmp_path_factory.mktemp("plain"), "--alternative", "baseline") as up:
        up.wait_ready()
        greedy, before = write(up, PROMPTS, concurrency=4), acceptance(up)
        found = Written(greedy, sampled_by(up), since_by_engine({"": before}, now={"": acceptance(up)}))
        assert up.stop() == 0
    return found


@pytest.fixture(scope="module")
def speculative(tiny_server: Up) -> Written:
    """What the server with speculation samples; its greedy texts depend on the concurrency."""
    before = acceptance(tiny_server)
    texts = sampled_by(tiny_server)
    return Written([], texts, since_by_engine({"": before}, now={"": acceptance(tiny_server)}))


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, list[Text]], dict[int, list[Text]]]:
    """The greedy texts in bf16 by concurrency, with and without speculation; both servers run at the same time."""
    folders = tmp_path_factory.mktemp("bf16"), tmp_path_factory.mktemp("bf16-plain")
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(greedy_in_bf16, folders[1], "--alternative", "baseline")
        return greedy_in_bf16(folders[0]), plain.result()


def greedy_in_bf16(folder: Path, *options: str) -> dict[int, list[Text]]:
    with started(folder, *options, changes=BF16) as up:
        up.wait_ready()
        found = {concurrency: write(up, FEWER, concurrency=concurrency, top=5) for concurrency in (1, 4)}
        assert up.stop() == 0
    return found


@pytest.mark.parametrize("concurrency", [1, 4])
def test_in_float32_every_token_is_the_targets_own(tiny_server: Up, plain: Written, concurrency: int) -> None:
    before = acceptance(tiny_server)
    texts = write(tiny_server, PROMPTS, concurrency=concurrency)
    gained = since_by_engine({"": before}, now={"": acceptance(tiny_server)})
    assert [text.ids for text in texts] == [text.ids for text in plain.greedy]
    assert [text.text for text in texts] == [text.text for text in plain.greedy]
    # Otherwise nothing was speculated, and equality says nothing.
    assert (gained.acceptance_rate or 0) > 0.3
    assert sum(len(text.ids) for text in texts) > 1000


@pytest.mark.soak
@pytest.mark.parametrize("concurrency", [1, 4])
def test_in_bf16_a_text_leaves_the_targets_own_only_at_a_near_tie(
    bf16: tuple[dict[int, list[Text]], dict[int, list[Text]]],
    concurrency: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In `make soak`: a processor without instructions for bf16 takes minutes for it."""
    speculative, plain = bf16
    count = near_ties(speculative[concurrency], plain[concurrency])
    with capsys.disabled():
        print(f" [bf16, concurrency {concurrency}: {count} near-ties in {len(FEWER)} texts] ", end="")


def test_drafts_are_accepted_at_a_temperature(speculative: Written) -> None:
    assert (speculative.sampled_acceptance.acceptance_rate or 0) > 0.3


def test_sampled_text_decodes_cleanly(speculative: Written) -> None:
    texts = [text.text for text in speculative.sampled]
    assert all(texts)
    # A byte-level model may once in a while write half a character by itself; at the end it is the token limit.
    broken = [text for text in texts if "\ufffd" in text.rstrip("\ufffd")]
    assert len(broken) <= 1, broken


def test_sampled_tokens_are_as_likely_as_those_sampled_without_speculation(
    speculative: Written, plain: Written, tiny_server: Up
) -> None:
    """Scored by a prefill, which drafts take no part in. Corrupted sampling parameters cost several nats."""
    with_drafts, without = (
        statistics.fmean(value for text in one.sampled for value in logprobs(tiny_server, text))
        for one in (speculative, plain)
    )
    assert abs(with_drafts - without) < 0.6
