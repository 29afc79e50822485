"""The sweep's figures: speedups free of the machine's drift, half-widths for the prompts that were sent."""

import importlib.util
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specserve.measure.bench.records import Pass
from specserve.measure.bench.result import Point
from tests.measure.bench.making import request

ROOT = Path(__file__).resolve().parents[2]
CODE = Point("code", 0.0, 1)
GAINS = {1: 1.4, 2: 1.7, 3: 1.9, 4: 2.0, 5: 1.95, 6: 1.8, 7: 1.6, 8: 1.5}
SESSIONS = ((1, 2, 3, 4), (5, 6, 7, 8))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sweep_demo", ROOT / "scripts" / "sweep_demo.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def passes(*, blocks: int, noise: float, seed: int = 0, drift: float = 0.2) -> Iterator[Pass]:
    """Two sessions of a server without speculation at 10 tokens/s and four K; each block has a mood of its own."""
    rng = random.Random(seed)
    for session, block in itertools.product(range(2), range(blocks)):
        mood = math.exp(rng.uniform(-drift, drift))
        for tokens in (0, *SESSIONS[session]):
            rate = 10 * GAINS.get(tokens, 1.0) * mood * math.exp(rng.gauss(0, noise))
            yield Pass(
                launch=0,
                block=1000 * session + block,
                point=CODE,
                arm=f"k{tokens}" if tokens else "baseline",
                duration_s=100 / rate,
                client_cpu=0.1,
                requests=(request(tokens=100),),
            )


def rows(script: ModuleType, found: Sequence[Pass]) -> dict[int, dict[str, Any]]:
    return {row["num_speculative_tokens"]: row for row in script._rows(CODE, found)}


def test_a_drift_of_the_machine_is_not_in_the_speedups(script: ModuleType) -> None:
    told = rows(script, list(passes(blocks=2, noise=0.0)))
    for tokens, gain in GAINS.items():
        assert told[tokens]["speedup"] == pytest.approx(gain, rel=1e-4)
        assert told[tokens]["half_width"] == pytest.approx(0, abs=1e-4)
    assert sorted(told) == list(range(9))


def test_the_half_width_covers_the_truth_in_95_of_100_sweeps(script: ModuleType) -> None:
    held = wide = 0
    for seed in range(150):
        told = rows(script, list(passes(blocks=2, noise=0.02, seed=seed)))
        for tokens in (1, 5):
            held += abs(math.log(told[tokens]["speedup"] / GAINS[tokens])) <= told[tokens]["half_width"]
            wide += 1
    assert 0.91 < held / wide < 0.985


def test_one_block_says_nothing_of_its_width(script: ModuleType) -> None:
    assert rows(script, list(passes(blocks=1, noise=0.02)))[4]["half_width"] == 9.0


def test_a_block_that_was_cut_short_is_left_out(script: ModuleType) -> None:
    whole = list(passes(blocks=3, noise=0.02))
    cut = [each for each in whole if each.block != 2 or each.arm in ("baseline", "k1")]
    told = rows(script, cut)
    assert told[1]["blocks"] == 2
    assert told[5]["blocks"] == 3


def test_a_tune_is_compared_with_the_best_of_each_point(script: ModuleType) -> None:
    sweep = {"points": list(rows(script, list(passes(blocks=2, noise=0.0, drift=0.0))).values())}
    said = [
        {
            "workload": "code",
            "concurrency": 1,
            "num_speculative_tokens": tokens,
            "predicted": {"speedup": {"value": gain * 1.05}, "output_tokens_per_s": gain * 10 * 1.08},
        }
        for tokens, gain in GAINS.items()
    ]
    tune = {
        "choice": {"num_speculative_tokens_by_concurrency": {"1": 5}},
        "points": said,
        "launches": 3,
    }
    told = "\n".join(script.compared(sweep, [tune]))
    assert "chose K = 5" in told
    assert "best K = 4, 2.000x: 2.5% less" in told
    assert "predicted best K = 4" in told
    assert "best by prediction: 0.0% below the best in the median, 0.0% at most" in told
    assert "speedup predicted against measured: 5.0% off in the median of 8" in told
    assert "tokens/s predicted against measured: 8.0% off in the median of 8" in told
    assert "3 launches instead of 9" in told
