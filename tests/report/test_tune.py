"""What a tune tells: the answer in its first line, all figures on the page, nothing that steers a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from specserve.measure.bench.result import Point
from specserve.measure.intervals import Estimate
from specserve.measure.tune.choose import Choice, Row
from specserve.measure.tune.plan import Setting
from specserve.measure.tune.run import TuneResult, remark
from specserve.measure.verdict import Verdict
from specserve.report.bench import tune_document


def row(load: int, tokens: int, value: float, *, word: str | None = None) -> Row:
    judged = Verdict(word, "good") if word else None
    speedup = Estimate(value, 0.95 * value, 1.05 * value)
    return Row(Point("code", 0.0, load), tokens, 2.5, 1.2, speedup, judged)


PAYS = Choice(
    Verdict("PAYS", "good", "K = 4 is the best of what was measured"),
    Setting(4),
    {"method": "draft_model", "model": "small", "num_speculative_tokens": 4},
    Estimate(1.84, 1.7, 1.99),
)
RESULT = TuneResult(
    name="demo",
    created="2026-11-27T12:00:00+00:00",
    duration_s=312.0,
    host={"accelerator": "cpu", "vllm": "0.32.0+cpu"},
    launches=3,
    choice=PAYS,
    rows=(row(1, 4, 2.1, word="PAYS"), row(1, 5, 2.0), row(8, 2, 1.1), row(8, 4, 0.9, word="COSTS")),
    missing=("K = 8: out of memory \x1b[2J<blink>",),
)


def text(found: TuneResult) -> str:
    return tune_document(found).text(io.StringIO())


def told(choice: Choice) -> str:
    return " ".join(text(replace(RESULT, choice=choice)).split())


def test_the_first_line_answers_and_all_lines_are_short() -> None:
    lines = text(RESULT).splitlines()
    assert lines[0].startswith("PAYS: K = 4: 1.84x (1.70-1.99) the tokens/s of no speculation")
    assert all(len(line) <= 80 for line in lines)
    shown = " ".join(" ".join(lines).split())
    assert '"num_speculative_tokens": 4' in shown
    assert "COSTS on code, concurrency 8, temperature 0: send such load to a server" in shown
    assert "1 0 1.00 1.00x 4 2.50 2.10x (1.99-2.21) PAYS" in shown
    assert "5 2.50 2.00x (1.90-2.10) predicted 8 0 1.00 1.00x" in shown
    assert "cpu, vLLM 0.32.0+cpu, 2026-11-27, 5.2 min, 3 launches" in shown


def test_what_comes_from_outside_steers_nothing() -> None:
    page = tune_document(RESULT).html()
    assert "\x1b" not in text(RESULT) + page and "<blink>" not in page
    assert "out of memory" in page


def test_a_schedule_names_both_ranges() -> None:
    choice = replace(PAYS, setting=Setting(5, 4, 2, 8))
    assert told(choice).startswith("PAYS: K = 5 up to 4 requests, K = 2 above: 1.84x")
    assert '"num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 8, 2]]' in told(choice)


def test_no_speculation_and_no_answer_say_what_to_do() -> None:
    costs = Choice(Verdict("COSTS", "bad", "the best K that was measured, 1, does not pay"),
                   speedup=Estimate(0.8, 0.7, 0.9))  # fmt: skip
    assert told(costs).startswith("COSTS: run without speculation: the best K that was measured")
    unsure = Choice(Verdict("INCONCLUSIVE", "open", "no K was measured at every load"))
    assert told(unsure).startswith(
        "INCONCLUSIVE: no K was measured at every load; the same command with a longer `--budget`"
    )
    whole = " ".join(text(replace(RESULT, choice=unsure, missing=())).split())
    assert whole.startswith("INCONCLUSIVE: no K was measured at every load; `specserve bench` ")


def test_the_comment_in_a_profile_says_when_where_and_why() -> None:
    head = "specserve tune: 2026-11-27, cpu, vLLM 0.32.0+cpu: "
    assert remark(RESULT) == f"{head}measured 1.84x (1.70-1.99)"
