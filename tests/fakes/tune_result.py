"""A tune's result for the reports: of a machine in arithmetic, names from outside as bad as they can be."""

from __future__ import annotations

from tune_machine import Machine, measured, prompts, texts, wish

from specserve.measure.bench.result import Comparison, Interval, Point, Verdict
from specserve.measure.tune.choose import Known, choose
from specserve.measure.tune.observe import StepModel
from specserve.measure.tune.outcome import causes
from specserve.measure.tune.plan import ladder_of
from specserve.measure.tune.predict import known_of, plain_of, plain_rows_of
from specserve.measure.tune.result import CandidateInfo, Confirmed, TuneResult
from specserve.measure.tune.schedule import Situation

TRUTH = StepModel(0.02, 0.001, ((16, 0.001),), 0.001, 0.0025, 0.0003)


def example(*, chance: float = 0.75, name: str = "demo", speculates: bool = True) -> TuneResult:
    """One candidate on `code`, four loads."""
    rungs, _ = ladder_of(
        Situation("draft_model", "v1", "cpu"), loads=(1, 2, 4, 8), most_tokens=6, most_requests=16
    )
    wanted = wish(rungs=rungs, most_tokens=6)
    chosen = {"code": prompts(8)}
    machine = Machine(TRUTH, texts(prompts=chosen["code"], chance=chance if speculates else 0.0))
    passes = measured(machine, wanted, chosen)
    known = known_of(wanted, passes, wanted.candidates[0], launches=[1])
    choice = choose([known], objective="throughput")
    plain = plain_of(wanted, passes)
    zero = plain_rows_of(wanted, passes)
    row = next(row for row in known.rows if row.concurrency == 1 and row.tokens == choice.by_load.get(1, 1))
    return TuneResult(
        name=name, fingerprint="f" * 64, created="2026-11-21T12:00:00+00:00", duration_s=312.0,
        versions={"specserve": "0.1.0", "vllm": "0.32.0+cpu", "python": "3.11.9"},
        host={"accelerator": "cpu", "cores": "2"}, runner="v1", platform="cpu", objective="throughput", launches=3,
        candidates=(known.info, CandidateInfo("ngram", "ngram", left_out="needs another launch: `--candidate ngram`")),
        rows=known.rows,
        baseline={place: {load: seen.tokens_per_s for load, seen in by.items()} for place, by in plain.items()},
        choice=choice, plain_rows=zero,

        confirmed=_confirmed(known) if choice.speculates else (), is_interleaved=True,
        causes=causes(row, steps=next(iter(known.models.values())), kv_tokens=(90_112, 98_304)), caused=row,
        notes=("code: 2 prompts were shortened to fit max_model_len 1024",), per_position=known.per_position,
    )  # fmt: skip


def _confirmed(known: Known) -> tuple[Confirmed, ...]:
    found = []
    for load, off in ((1, 0.97), (8, 1.15)):
        row = next(row for row in known.rows if (row.concurrency, row.tokens) == (load, 3))
        value = row.speedup.value * off
        told = Comparison(
            "tuned",
            "baseline",
            Point("code", 0.0, load),
            Interval(value, value * 0.95, value * 1.05),
            Verdict.PAYS,
        )
        found.append(Confirmed(told, row.speedup.value, row.tokens_per_s * off, row.tokens_per_s))
    return tuple(found)
