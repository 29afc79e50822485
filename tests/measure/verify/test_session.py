"""Scores as vLLM gives them, several jobs at once, smoke tests, and the lines of vLLM that a verification rests on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from specserve.errors import TrafficError
from specserve.measure.verify.judge import Smoke
from specserve.measure.verify.run import VerifySession, load_prompts, positions, results_of, smoke_test
from specserve.vllm.versions import installed


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


WHOLE = "one two three four five six seven eight"
"""A greedy text, a character a token. The stop string is `hre`: the first of its kind behind the first quarter."""


class Written:
    """A server that answers with WHOLE, and where a stop string is asked for, with `cut`."""

    def __init__(self, cut: str, reason: str, *, ids: str) -> None:
        self.cut, self.reason, self.ids = cut, reason, ids

    def ask(self, _prompt: object, **body: Any) -> dict[str, Any]:
        text, ids, reason = WHOLE, WHOLE, "length"
        if "stop" in body:
            assert body["stop"] == ["hre"]
            text, ids, reason = self.cut, self.ids, self.reason
        choice = {"text": text, "token_ids": [ord(letter) for letter in ids], "finish_reason": reason}
        return {"choices": [choice], "prompt_token_ids": [1]}


def stopped(cut: str, reason: str, *, ids: str | None = None) -> Smoke:
    session = cast(VerifySession, Written(cut, reason, ids=cut if ids is None else ids))
    return smoke_test("stop string", session)


def test_a_stop_string_ends_the_text_right_before_it() -> None:
    assert stopped("one two t", "stop", ids="one two thre").outcome == "ok"


@pytest.mark.parametrize(
    ("cut", "reason", "ids"),
    [
        ("one too many things", "stop", None),
        ("one two tables and no chair beside them", "length", None),  # parts in the stop string itself
    ],
)
def test_a_greedy_text_that_parts_at_a_near_tie_says_nothing_of_stop_strings(
    cut: str, reason: str, ids: str | None
) -> None:
    found = stopped(cut, reason, ids=ids)
    assert found.outcome == "skipped"
    assert found.detail == "the greedy text differed the second time: a near-tie"


@pytest.mark.parametrize(
    ("cut", "reason", "ids"),
    [
        ("one two three four", "length", None),
        ("one two th", "stop", None),
        ("one two t", "length", None),
        ("one two te four five six seven eight", "length", WHOLE),  # taken out, and gone on
    ],
)
def test_a_server_that_cuts_elsewhere_or_not_at_all_is_not_ok(cut: str, reason: str, ids: str | None) -> None:
    assert stopped(cut, reason, ids=ids).outcome == "not ok"


TEXTS = [
    ("sampling_params.py", "if self.skip_reading_prefix_cache is None:"),
    ("sampling_params.py", "self.prompt_logprobs is not None"),
    ("v1/core/kv_cache_manager.py", "request.skip_reading_prefix_cache"),
    ("v1/core/sched/scheduler.py", "if request.spec_token_ids:"),
    ("v1/worker/gpu_model_runner.py", "prompt_hidden_states = hidden_states[offset : offset + num_logits]"),
    ("v1/worker/gpu_model_runner.py", "prompt tokens skip sampling processors"),
    ("v1/worker/gpu/sample/prompt_logprob.py", "def compute_prompt_logprobs("),
    ("v1/engine/logprobs.py", "def _update_prompt_logprobs("),
    ("v1/sample/rejection_sampler.py", "def apply_sampling_constraints("),
    ("config/model.py", "max_logprobs: int = Field(default=20"),
]


@pytest.mark.vllm
@pytest.mark.parametrize(("file", "text"), TEXTS)
def test_the_text_is_in_the_installed_file(file: str, text: str) -> None:
    vllm = installed()
    assert vllm is not None
    assert text in (vllm.package / file).read_text(encoding="utf-8")
