"""An estimate's reports: what they say at 80 columns, and what scripts find in them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Passed
from specserve.measure.tune.estimate import Assumed, Estimate, estimate
from specserve.measure.tune.roofline import geometric_rate
from specserve.report.estimates import BenchView, estimate_document, estimate_json

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from tune_pair import LLAMA_8B, MIXTURE, NGRAM, arm

LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
SHOWN = Assumed(geometric_rate(3.6, tokens=4), 3.6, 4)


def told(
    folder: Path, *, chance: Assumed = SHOWN, most: int = 8, loads: tuple[int, ...] = LOADS, **kind: Any
) -> Estimate:
    s = arm(folder, **kind)
    return estimate(s, name="p", assumed=chance, concurrency=loads, most_tokens=most, ranks=1)


def text_of(found: Estimate) -> str:
    return estimate_document(found, file="p.yaml").text(sys.stdout).rstrip()


def in_one_line(found: Estimate) -> str:
    return " ".join(text_of(found).split())


def test_the_text_is_what_was_agreed(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    golden("report/tune-estimate.txt", text_of(told(tmp_path, name="L4-24GB")) + "\n")


def test_without_a_gain_at_some_loads_it_names_them(
    golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    found = told(tmp_path, chance=Assumed(0.25), target=MIXTURE, speculation=NGRAM, name="H200-141GB")
    golden("report/tune-estimate-mixture.txt", text_of(found) + "\n")


@pytest.mark.parametrize("kind", [{}, {"speculation": NGRAM}, {"name": "T4-16GB"}, {"name": "L4-24GB"}])
@pytest.mark.parametrize("chance", [SHOWN, Assumed(0.0), Assumed(0.123456), Assumed(1.0)])
def test_every_line_fits_80_columns(tmp_path: Path, kind: dict[str, Any], chance: Assumed) -> None:
    assert [
        line for line in text_of(told(tmp_path, chance=chance, **kind)).splitlines() if len(line) > 80
    ] == []


def test_it_says_what_was_assumed_and_where_it_comes_from(tmp_path: Path) -> None:
    assert "chance 0.83 of each draft token, from 3.60 tokens a step at K = 4" in in_one_line(told(tmp_path))
    plain = in_one_line(told(tmp_path, chance=Assumed(0.7)))
    assert "chance 0.7 of each draft token, given the one before" in plain


def test_a_progress_line_that_is_cut_keeps_the_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with BenchView() as view:
        view(Passed("baseline", Point("summarise", 0.7, 16), 123.4, 7, 240, 332.0))
    line = capsys.readouterr().err.split("\r\x1b[K")[1]
    assert line.startswith("7/240, about 5m32s left; baseline, summarise, concurrency 16") and len(line) < 80


def test_the_memory_stands_above_the_table(tmp_path: Path) -> None:
    for name, verdict in {"H200-141GB": "fits; ", "L4-24GB": "tight: ", "T4-16GB": "does not fit: "}.items():
        head, _, _ = text_of(told(tmp_path, name=name)).partition("requests  K")
        assert f"\nMemory: {verdict}" in head
    assert "the weights take" in head and "no request could be served" in " ".join(head.split())
    assert "`specserve check p.yaml --assume 1xT4-16GB`" in " ".join(head.split())


def test_loads_that_do_not_fit_are_marked_and_the_mark_explained(tmp_path: Path) -> None:
    small, large = (text_of(told(tmp_path, name=name)) for name in ("L4-24GB", "H200-141GB"))
    assert "\n      128*  " in small and "\n  *  more requests than the KV cache holds" in small
    assert "\n        8?  " in small and "\n  ?  perhaps more" in small
    assert "\n      128   " in large and "requests than the KV cache holds" not in large


def test_what_is_recommended_has_its_speedups_and_a_reason(tmp_path: Path) -> None:
    found = told(tmp_path, chance=Assumed(0.7), name="H200-141GB")
    lines = " ".join(text_of(found).split())
    assert "One K for all loads: `draft_model` on vLLM's V2 runner drafts" in lines
    gains = [
        f"{point.recommended.speedup.value:.2f}x at {point.concurrency}"
        for point in found.points
        if point.recommended
    ]
    assert f"With that, by concurrency: {', '.join(gains)}." in lines


def test_a_schedule_is_one_line_that_can_be_copied(tmp_path: Path) -> None:
    target = {**LLAMA_8B, "num_nextn_predict_layers": 1}
    mtp = "{method: mtp, num_speculative_tokens: 4}"
    text = text_of(told(tmp_path, target=target, speculation=mtp, chance=Assumed(0.8), loads=(1, 256)))
    (line,) = (
        each for each in text.splitlines() if each.startswith("  num_speculative_tokens_per_batch_size: ")
    )
    assert len(json.loads(line.partition(": ")[2])) == 2
    assert "One K for all loads" not in text


@pytest.mark.parametrize(
    ("chance", "loads", "said"),
    [
        (0.25, (1, 64), "At concurrency 1 no K gains"),
        (0.25, (1, 2, 64), "At concurrency 1 and 2 no K gains"),
        (0.25, (1,), "Speculation gains nothing at any of these loads"),
        (0.7, LOADS, ""),
    ],
)
def test_loads_without_a_gain_are_named_also_where_higher_ones_gain(
    tmp_path: Path, chance: float, loads: tuple[int, ...], said: str
) -> None:
    kind: dict[str, Any] = {"target": MIXTURE, "speculation": NGRAM, "name": "H200-141GB"}
    text = in_one_line(told(tmp_path, chance=Assumed(chance), loads=loads, **kind))
    assert said in text and "From " not in text
    assert bool(said) == ("no K gains" in text or "gains nothing" in text)


def test_a_gain_that_ends_for_good_ends_from_there_on(tmp_path: Path) -> None:
    text = in_one_line(told(tmp_path, chance=Assumed(0.5), loads=(1, 64, 256), name="H20-96GB"))
    assert "From concurrency 64 on, no K gains anything" in text


def test_what_costs_more_than_it_brings_over_all_loads_is_said_to(tmp_path: Path) -> None:
    kind: dict[str, Any] = {"target": MIXTURE, "speculation": NGRAM, "name": "H200-141GB"}
    few, many = (
        " ".join(text_of(told(tmp_path, chance=Assumed(0.25), loads=loads, **kind)).split())
        for loads in ((1, 2, 4, 64), (16, 64))
    )
    assert "x in the mean: better without speculation, unless the load stays low enough." in few
    assert "in the mean" not in many


@pytest.mark.parametrize(("most", "said"), [(2, "`--k-max 4`"), (40, "`--k-max 64`"), (64, None), (8, None)])
def test_a_best_k_at_the_end_of_what_was_looked_at_says_how_to_look_further(
    tmp_path: Path, most: int, said: str | None
) -> None:
    chance = Assumed(0.7 if most == 8 else 1.0)
    kind = {"speculation": NGRAM} if most > 8 else {}
    text = text_of(told(tmp_path, chance=chance, most=most, loads=(1, 2), name="H200-141GB", **kind))
    assert said in text if said else "--k-max" not in text


def test_json_has_what_the_text_says(tmp_path: Path) -> None:
    found = told(tmp_path, name="RTX-4090-24GB")
    content = json.loads(estimate_json(found))
    assert (content["version"], content["kind"], content["basis"]) == (1, "estimate", "estimated")
    assert content["assumed"]["acceptance"] == pytest.approx(SHOWN.acceptance)
    assert content["assumed"]["mean_acceptance_length"] == 3.6
    assert content["assumed"]["mean_acceptance_length_at"] == 4
    assert content["memory"]["verdict"] == "tight" and content["memory"]["reason"]
    assert content["memory"]["requests_at_once"]["high"] < 128
    assert [point["fits_kv_cache"] for point in content["points"]] == [True] * 3 + [None] * 2 + [False] * 3
    assert {point["recommended"]["num_speculative_tokens"] for point in content["points"]} == {
        content["num_speculative_tokens"]
    }
    assert "V2 runner" in content["no_schedule_because"]
    assert any("prefill" in line for line in content["rests_on"])


def test_json_recommends_nothing_where_nothing_gains(tmp_path: Path) -> None:
    content = json.loads(estimate_json(told(tmp_path, chance=Assumed(0.0))))
    assert content["num_speculative_tokens"] == 0
    assert [point["recommended"] for point in content["points"]] == [None] * len(LOADS)
