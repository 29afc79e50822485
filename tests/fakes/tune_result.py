"""A tune's result for the reports: of a machine in arithmetic, names from outside as bad as they can be."""

from __future__ import annotations

from tune_machine import Machine, measured, prompts, texts, tune_plan

from specserve.measure.bench.result import Comparison, Point
from specserve.measure.statistics import PAYS, Estimate, Verdict
from specserve.measure.tune.candidates import ladder
from specserve.measure.tune.choose import Confirmed, choose
from specserve.measure.tune.observe import StepModel
from specserve.measure.tune.plan import CandidateInfo
from specserve.measure.tune.predict import Prediction, plain_rows, predict
from specserve.measure.tune.result import TuneResult, causes

TRUTH = StepModel(0.02, 0.001, ((16, 0.001),), 0.001, 0.0025, 0.0003)


def example(*, chance: float = 0.75, name: str = "demo", speculates: bool = True) -> TuneResult:
    """One candidate on `code`, four loads."""
    plan = tune_plan(rungs=ladder((1, 2, 4, 8), most_tokens=6, most_requests=16), most_tokens=6)
    chosen = {"code": prompts(8)}
    machine = Machine(TRUTH, texts(prompts=chosen["code"], chance=chance if speculates else 0.0))
    passes = measured(machine, plan, chosen)
    known = predict(plan, passes, plan.candidates[0])
    choice = choose([known], objective="throughput")
    by_load = choice.num_speculative_tokens_by_concurrency
    row = next(
        row for row in known.rows if row.concurrency == 1 and row.num_speculative_tokens == by_load.get(1, 1)
    )
    return TuneResult(
        name=name, fingerprint="f" * 64, created="2026-11-21T12:00:00+00:00", duration_s=312.0,
        versions={"specserve": "0.1.0", "vllm": "0.32.0+cpu", "python": "3.11.9"},
        host={"accelerator": "cpu", "cores": "2"}, runner="v1", platform="cpu", objective="throughput", launches=3,
        candidates=(known.info, CandidateInfo("ngram", "ngram", left_out="needs another launch: `--candidate ngram`")),
        points=known.rows, choice=choice, plain_points=plain_rows(plan, passes),
        confirmed=_confirmed(known) if choice.speculates else (), confirmed_turn_by_turn=True,
        causes=causes(row, steps=next(iter(known.models.values())), kv_tokens=(90_112, 98_304)), causes_of=row,
        notes=("code: 2 prompts were shortened to fit max_model_len 1024",),
        per_position_acceptance=known.per_position,
    )  # fmt: skip


def _confirmed(known: Prediction) -> tuple[Confirmed, ...]:
    found = []
    for load, off in ((1, 0.97), (8, 1.15)):
        row = next(row for row in known.rows if (row.concurrency, row.num_speculative_tokens) == (load, 3))
        value, rate = row.predicted.speedup.value * off, row.predicted.output_tokens_per_s
        told = Comparison(
            "tuned",
            "baseline",
            Point("code", 0.0, load),
            Estimate(value, value * 0.95, value * 1.05),
            Verdict(PAYS, "good"),
        )
        found.append(Confirmed(told, row.predicted.speedup.value, rate * off, rate))
    return tuple(found)
