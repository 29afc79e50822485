"""vLLM's `prompt_logprobs`, read, and what is none; several jobs at once, and their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from specserve.errors import TrafficError
from specserve.measure.verify.run import load_prompts
from specserve.measure.verify.session import positions, results_of


def entry(logprob: float, rank: int | None, text: str = "x") -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


STEPS = [
    None,
    {"5": entry(-3.0, 40, "e"), "1": entry(-0.2, 1, "a"), "2": entry(-1.9, 2, "b")},
    {"1": entry(-0.1, 1, "a"), "2": entry(-2.5, 2, "b")},
]


def test_the_emitted_token_is_told_from_the_likeliest() -> None:
    beyond, best = positions(STEPS, [5, 1], count=2)
    assert (beyond.token, beyond.logprob, beyond.top) == (5, -3.0, ((1, -0.2), (2, -1.9)))
    assert (beyond.text, beyond.best_text) == ("e", "a")
    assert beyond.gap == pytest.approx(2.8)
    assert best.top == ((1, -0.1), (2, -2.5))
    assert best.gap == 0
    assert len(positions(STEPS, [1], count=2)) == 1
    assert positions(STEPS, [], count=2) == ()


@pytest.mark.parametrize(
    "steps",
    [
        None, 7, "rubbish", [], [None], [{}], [{"5": None}], [{"5": {}}], [{"5": entry(float("nan"), 1)}],
        [{"1": entry(-1.0, 1)}], [{"x": entry(-1.0, 1)}], [{"5": {"logprob": "much", "rank": 1}}],
        [["5"]],
    ],
)  # fmt: skip
def test_what_vllm_would_not_write_is_an_error(steps: Any) -> None:
    with pytest.raises(TrafficError, match="the server's `prompt_logprobs` are not in vLLM's format"):
        positions(steps, [5], count=2)


def nothing() -> None:
    """Of ticks."""


def test_an_error_of_a_job_is_raised_and_no_further_job_begins() -> None:
    begun: list[int] = []

    def job(number: int) -> Callable[[], float]:
        def do() -> float:
            begun.append(number)
            return 1 / (number - 5)

        return do

    with pytest.raises(ZeroDivisionError):
        list(results_of([job(number) for number in range(100_000)], concurrency=2, on_tick=nothing))
    assert len(begun) < 100_000


def test_what_a_tick_raises_ends_it_though_a_job_hangs() -> None:
    hangs = threading.Event()

    def stop() -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(results_of([hangs.wait], concurrency=1, on_tick=stop))
    hangs.set()
    assert time.monotonic() - began < 60


def test_the_prompts_that_ship_are_of_various_kinds_and_short() -> None:
    found = load_prompts()
    assert len({one.id for one in found}) == 28
    kinds = {one.id.partition("-")[0] for one in found}
    assert {"chat", "code", "json", "translate", "story", "copy"} <= kinds
    assert max(len(one.content) for one in found) < 400
