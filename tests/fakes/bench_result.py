"""A result with every kind of cell. Its figures are made up for tests: nobody measured them."""

from __future__ import annotations

from specserve.measure.bench.result import Cell, Comparison, Figures, Point, Quantiles, Result, VariantInfo
from specserve.measure.verdict import COSTS, INCONCLUSIVE, PAYS, Estimate, Judged, Kept, Limit, Verdict
from specserve.metrics import Acceptance

LOADS = (1, 4, 16)
RATES = {  # tokens/s by workload, variant and load
    ("chat", "baseline"): (38.1, 121.4, 301.7),
    ("chat", "profile"): (82.6, 190.2, 296.4),
    ("chat", "eagle3"): (96.4, 241.0, 331.9),
    ("creative", "baseline"): (38.4, 122.0, 303.3),
    ("creative", "profile"): (51.2, 129.8, 251.9),
    ("creative", "eagle3"): (60.3, 151.1, 289.0),
}
SPREADS = {1: 0.04, 4: 0.06, 16: 0.05}
LENGTHS = {
    ("chat", "profile"): 3.2,
    ("chat", "eagle3"): 3.6,
    ("creative", "profile"): 2.1,
    ("creative", "eagle3"): 2.5,
}


def example() -> Result:
    """Two workloads, three loads, a baseline and two variants; one cell is invalid, one promise missed."""
    cells, comparisons = [], []
    for (workload, variant), rates in RATES.items():
        for load, rate in zip(LOADS, rates, strict=True):
            point = Point(workload, 0.7, concurrency=load)
            spoilt = (workload, variant, load) == ("creative", "eagle3", 16)
            wrong = "the load generator used 0.97 of its core" if spoilt else None
            cells.append(
                Cell(variant, point, figures(workload, variant, load, rate), wrong, promises(variant, point))
            )
            if variant != "baseline":
                comparisons.append(compared(workload, variant, point, rate, spoilt=spoilt))
    return Result(
        name="llama70b-8b",
        created="2026-11-21T12:00:00Z",
        duration_s=2712.0,
        host={"accelerator": "4xH100-80GB", "cores": "64", "specserve": "0.1.0", "vllm": "0.33.0"},
        launches=1,
        variants=variants(),
        workloads={"chat": "8721404f" * 8, "creative": "aa9f4f00" * 8},
        cells=tuple(cells),
        comparisons=tuple(comparisons),
        stops_paying={
            "profile, chat, 0.7": "at concurrency 16 it no longer pays (0.93 to 1.03)",
            "profile, creative, 0.7": "at concurrency 16 it costs (0.79 to 0.87)",
        },
        notes=("example data: nobody measured these figures",),
    )


def variants() -> tuple[VariantInfo, ...]:
    model = "meta-llama/Llama-3.1-70B-Instruct"
    argv = ("vllm", "serve", model, "--port", "8000")
    pair = {"method": "draft_model", "model": "meta-llama/Llama-3.1-8B-Instruct", "num_speculative_tokens": 5}
    head = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "num_speculative_tokens": 3}
    told = (*argv, "--speculative-config", '{"method": "draft_model"}')
    return (
        VariantInfo("baseline", is_baseline=True, model=model, argv=argv),
        VariantInfo("profile", model=model, speculation=pair, argv=told),
        VariantInfo("eagle3", model=model, speculation=head, argv=argv),
    )


def figures(workload: str, variant: str, load: int, rate: float) -> Figures:
    tpot = 1000 * load / rate
    ttft = 180 + 9 * load
    e2e = ttft + 240 * tpot
    drafts, k = 2400, 3 if variant == "eagle3" else 5
    length = LENGTHS.get((workload, variant))
    counts = positions(length, k, drafts) if length else ()
    return Figures(
        requests=150,
        blocks=6,
        output_tokens=36_120,
        output_tokens_per_s=rate,
        ttft_ms=Quantiles(ttft, ttft * 1.3, ttft * 2.1),
        tpot_ms=Quantiles(tpot, tpot * 1.1, tpot * (1.2 if variant == "baseline" else 1.6)),
        e2e_ms=Quantiles(e2e, e2e * 1.2, e2e * (1.25 if variant == "baseline" else 1.7)),
        acceptance=Acceptance(drafts, drafts * k, sum(counts), counts) if counts else None,
    )


def positions(length: float, k: int, drafts: int) -> tuple[int, ...]:
    """Counts whose shares fall by one factor from position to position and sum to `length` - 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(1, k + 1)) < length - 1 else (low, middle)
    return tuple(round(drafts * low**i) for i in range(1, k + 1))


def compared(workload: str, variant: str, point: Point, rate: float, *, spoilt: bool) -> Comparison:
    load = point.concurrency or 0
    ratio = rate / RATES[workload, "baseline"][LOADS.index(load)]
    bounds = Estimate(ratio, ratio * (1 - SPREADS[load]), ratio * (1 + SPREADS[load]))
    verdict = Verdict(INCONCLUSIVE, "open", "it needs about 4 more blocks")
    if spoilt:
        verdict = Verdict(INCONCLUSIVE, "open", "it needs a valid cell")
    elif bounds.low > 1.03 or bounds.high < 0.97:
        verdict = Verdict(PAYS, "good") if bounds.low > 1.03 else Verdict(COSTS, "bad")
    return Comparison(
        variant=variant,
        against="baseline",
        point=point,
        speedup=None if spoilt else bounds,
        verdict=verdict,
        break_even_mean_acceptance_length=LENGTHS[workload, variant] / ratio,
        mean_acceptance_length=LENGTHS[workload, variant],
    )


def promises(variant: str, point: Point) -> tuple[Judged, ...]:
    if (variant, point.workload) != ("profile", "chat"):
        return ()
    rows = {
        (4, "min_speedup"): (1.3, Kept.KEPT, (1.567, 1.473, 1.661), 21),
        (16, "min_speedup"): (1.1, Kept.MISSED, (0.982, 0.933, 1.032), 27),
        (16, "max_ttft_p99_ms"): (800, Kept.KEPT, (680.4, 650.0, 710.0), 28),
        (4, "max_tpot_p99_ms"): (35, Kept.UNDECIDED, (33.6, 31.0, 36.5), 23),
    }
    return tuple(
        Judged(Limit(key, promised, f"llama70b-8b.yaml:{line}"), kept, Estimate(*measured))
        for (load, key), (promised, kept, measured, line) in rows.items()
        if load == point.concurrency
    )
