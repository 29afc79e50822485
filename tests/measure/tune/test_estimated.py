"""An estimate of several loads: which of them the memory holds, what is recommended, and what it rests on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from specserve.measure.tune.estimate import Assumed, Estimate, EstimatedPoint, estimate
from specserve.memory.situation import MemorySituation as Situation

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from tune_pair import LLAMA_8B, MIXTURE, NGRAM, arm

EAGLE_LIKE = "{method: mtp, num_speculative_tokens: 4}"
LOADS = (1, 4, 16, 64, 128)


def estimated(s: Situation, *, chance: float = 0.7, **changes: Any) -> Estimate:
    values = {"concurrency": LOADS, "most_tokens": 8, "ranks": 1, **changes}
    assumed = Assumed(chance, context_tokens=values.pop("context_tokens", 1024))
    return estimate(s, name="p", assumed=assumed, **values)


def fits(found: Estimate) -> dict[int, bool | None]:
    return {point.concurrency: point.fits_kv_cache for point in found.points}


def gain(point: EstimatedPoint) -> float:
    assert point.recommended is not None
    return point.recommended.speedup.value


def test_a_load_that_the_kv_cache_cannot_hold_does_not_fit(tmp_path: Path) -> None:
    # 128 x 1,024 tokens at 0.16 MB each, the draft's layers included, are 21 GB
    small, large = (estimated(arm(tmp_path, name=name)) for name in ("L4-24GB", "H200-141GB"))
    assert fits(small)[128] is False
    assert small.memory.verdict == "tight"
    assert list(fits(large).values()) == [True] * 5
    assert large.memory.verdict == "fit"


def test_more_context_leaves_room_for_fewer_requests(tmp_path: Path) -> None:
    s = arm(tmp_path)
    short, long = (estimated(s, context_tokens=tokens).memory.requests_at_once for tokens in (1024, 4096))
    assert short is not None and long is not None
    assert short.low / long.low == pytest.approx(4, rel=0.05)


def test_a_model_that_does_not_fit_at_all_is_told_so(tmp_path: Path) -> None:
    found = estimated(arm(tmp_path, name="T4-16GB"))
    assert found.memory.verdict == "does_not_fit"
    assert list(fits(found).values()) == [False] * 5
    assert found.num_speculative_tokens  # what it would be, if it fitted


def test_loads_that_do_not_fit_have_no_say_in_the_recommended_k(tmp_path: Path) -> None:
    s = arm(tmp_path, name="L4-24GB", max_model_len=2048)
    some, all_of_them = estimated(s, concurrency=(1, 8)), estimated(s, concurrency=(1, 8, 128))
    assert fits(all_of_them)[128] is False
    assert some.num_speculative_tokens == all_of_them.num_speculative_tokens > 0


def test_one_k_for_all_loads_has_a_reason_and_its_own_speedups(tmp_path: Path) -> None:
    found = estimated(arm(tmp_path))
    assert found.no_schedule_because is not None and "V2 runner" in found.no_schedule_because
    assert found.num_speculative_tokens and found.num_speculative_tokens_per_batch_size is None
    assert len({load.num_speculative_tokens for load in found.points}) > 1
    for load in found.points:
        assert load.recommended is not None
        assert load.recommended.num_speculative_tokens == found.num_speculative_tokens
        if load.recommended.num_speculative_tokens == load.num_speculative_tokens:
            assert load.recommended.speedup == load.speedup
        else:
            assert gain(load) < load.speedup.value


def test_where_k_may_follow_the_load_each_load_is_given_that_of_its_range(tmp_path: Path) -> None:
    target = {**LLAMA_8B, "num_nextn_predict_layers": 1}
    s = arm(tmp_path, target=target, speculation=EAGLE_LIKE)
    found = estimated(s, concurrency=(1, 256), chance=0.8)
    assert found.no_schedule_because is None
    assert found.num_speculative_tokens_per_batch_size is not None
    for load in found.points:
        assert load.recommended is not None
        assert load.recommended.num_speculative_tokens == load.num_speculative_tokens


def test_a_recommended_k_may_cost_where_none_is_best(tmp_path: Path) -> None:
    found = estimated(arm(tmp_path, target=MIXTURE, speculation=NGRAM, name="H200-141GB"), chance=0.25)
    first, last = found.points[0], found.points[-1]
    assert first.num_speculative_tokens == 0 < last.num_speculative_tokens
    assert gain(first) < 1.0 < gain(last)
    assert found.recommended_mean_speedup is not None
    assert gain(first) < found.recommended_mean_speedup < gain(last)


def test_the_basis_says_what_is_left_out_of_it(tmp_path: Path) -> None:
    model = " ".join(estimated(arm(tmp_path)).rests_on)
    looked_up = " ".join(estimated(arm(tmp_path, speculation=NGRAM)).rests_on)
    assert "for decoding only: prefill is left out" in model and "prefill is left out" in looked_up
    assert "a match is assumed at every step" in looked_up and "upper limit" in looked_up
    assert "a match is assumed" not in model


def test_accelerators_that_nothing_uses_are_told(tmp_path: Path) -> None:
    told = " ".join(estimated(arm(tmp_path, count=4), ranks=1).rests_on)
    assert "use 1 of 4 accelerators" in told
    assert "accelerators" not in " ".join(estimated(arm(tmp_path)).rests_on[3:])
