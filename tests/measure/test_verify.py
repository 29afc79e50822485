"""Right servers pass and wrong ones do not, on tokens that a real one wrote; scores, jobs and smoke tests of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from specserve.errors import TrafficError
from specserve.measure.verdict import INCONCLUSIVE
from specserve.measure.verify.judge import (
    LOSSLESS,
    LOSSY,
    Compared,
    Position,
    ScoredText,
    Smoke,
    Tally,
    judge_greedy,
    judge_sampled,
    suspects,
)
from specserve.measure.verify.run import VerifySession, load_prompts, positions, results_of, smoke_test
from specserve.vllm.versions import installed
from tests.measure.recorded import pool, run

T = 0.7
BEST = Position(7, -0.1, ((7, -0.1), (8, -2.5)), "a", "a")
TIE = Position(8, -0.8, ((7, -0.7), (8, -0.8)), "b", "a")
WRONG = Position(8, -2.5, ((7, -0.1), (8, -2.5)), "b", "a")


def answer(*positions: Position) -> ScoredText:
    return ScoredText("p", (1, 2), tuple(one.token for one in positions), "", "length", positions)


def test_greedy_tokens_that_are_best_or_tie_are_lossless() -> None:
    one = answer(*[BEST] * 400, TIE)
    assert suspects([one]) == []
    found = judge_greedy([one])
    assert (found.verdict.word, found.tokens, found.wrong) == (LOSSLESS, 401, ())


def test_a_wrong_greedy_token_is_lossy_and_is_named() -> None:
    one = answer(BEST, TIE, WRONG, *[BEST] * 400)
    found = judge_greedy([one], suspects([one]))
    assert found.verdict.word == LOSSY
    (wrong,) = found.wrong
    assert wrong == 'p, token 2: "b" came, the target prefers "a" (by 2.40 nats)'
    assert found.verdict.sentence == "1 of 403 tokens are wrong" and found.excluded_percent is None
    assert found.fault_percent.low < 100 / 403 < found.fault_percent.high


@pytest.mark.parametrize("tokens", [1, 100, 350, 351, 10_000])
def test_greedy_tokens_without_a_wrong_one_exclude_a_share(tokens: int) -> None:
    found = judge_greedy([answer(*[BEST] * tokens)])
    assert found.excluded_percent == found.fault_percent.high
    assert (1 - found.fault_percent.high / 100) ** tokens == pytest.approx(0.005, rel=1e-6)
    assert (found.verdict.word == LOSSLESS) == (tokens >= 351)
    assert judge_greedy([]).verdict.word == INCONCLUSIVE


def results(factor: float, *, runs: int, most_tokens: int) -> list[Compared]:
    drawn = pool(T, factor=factor)
    return [run(drawn, T, most_tokens=most_tokens, seed=seed) for seed in range(runs)]


@pytest.mark.parametrize("most_tokens", [1_000, 15_000])
def test_a_right_server_is_lossy_in_at_most_one_of_200_runs(most_tokens: int) -> None:
    found = Counter(one.verdict.word for one in results(1.0, runs=200, most_tokens=most_tokens))
    assert found[LOSSY] <= 1
    assert most_tokens < 15_000 or found[LOSSLESS] >= 190


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_temperature_that_is_wrong_by_5_percent_is_lossy_in_95_of_100_runs(factor: float) -> None:
    found = Counter(one.verdict.word for one in results(factor, runs=100, most_tokens=15_000))
    assert found[LOSSY] >= 95


@pytest.mark.parametrize(("factor", "most"), [(0.85, 1), (1.15, 1), (1.0, 5)])
def test_a_run_excludes_no_error_that_is_there(factor: float, most: int) -> None:
    """What a minute gives on a slow server: 20 answers of about 60 tokens."""
    drawn, missed = pool(T, factor=factor, tokens=64), 0
    for start in range(0, 1200, 12):
        found = judge_sampled(drawn[start : start + 20], T)
        if factor == 1.0:
            estimate = found.fault_percent
            missed += not estimate.low <= 0 <= estimate.high
            assert found.excluded_percent is None or found.excluded_percent < 25
        else:
            missed += found.excluded_percent is not None and found.excluded_percent < 15
    assert missed <= most


def test_nothing_is_inconclusive() -> None:
    for tallies in ([], [Tally(10, 0, 0.1, 3.0)], [Tally(10, 0, 0.0, 0.0)] * 5):
        found = judge_sampled(tallies, T)
        assert (found.verdict.word, found.excluded_percent) == (INCONCLUSIVE, None)


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


def test_an_error_of_a_job_is_raised_and_no_further_job_begins() -> None:
    begun: list[int] = []

    def job(number: int) -> Callable[[], float]:
        def do() -> float:
            begun.append(number)
            return 1 / (number - 5)

        return do

    with pytest.raises(ZeroDivisionError):
        list(results_of([job(number) for number in range(100_000)], concurrency=2, on_tick=lambda: None))
    assert len(begun) < 100_000


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
