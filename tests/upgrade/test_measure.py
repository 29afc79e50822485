"""What both sides of an upgrade gave becomes a verdict for each figure, and one page."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.errors import UsageError
from specserve.measure.bench.passes import Pass, Request
from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import Point, from_json
from specserve.measure.verify.judge import Position, ScoredText
from specserve.metrics import Acceptance
from specserve.profile.schema import Profile, Target
from specserve.report.page import Document
from specserve.report.text import json_document
from specserve.report.upgrade import measured_answer, measured_section
from specserve.upgrade.measure import (
    BETTER,
    NEW,
    OLD,
    SAME,
    UNDECIDED,
    WORSE,
    Measured,
    Parting,
    acceptance,
    compare_texts,
    kv_cache,
    plan_side,
    speeds,
    time_to_ready,
)
from specserve.upgrade.sides import Side

POINT = Point("chat", 0.0, 1)
PLAN = BenchPlan(variants=(), sessions=(), points=(POINT,), blocks=6)
HALF = Acceptance(drafts=100, draft_tokens=200, accepted_tokens=110, accepted_per_position=(70, 40))


def passes(
    *,
    seconds: float = 1.0,
    counted: Acceptance | None = HALF,
    blocks: int = 8,
    ok: bool = True,
    spread: float = 0.0,
) -> list[Pass]:
    """Both sides' passes; the options are those of the new one."""
    return [
        Pass(
            launch=0,
            block=block,
            point=POINT,
            variant=side,
            duration_s=(seconds if side == NEW else 1.0) * (1 + 0.001 * (block % 3)),
            client_cpu=0.1,
            requests=(Request(f"p{block}#0", ok or side == OLD, 9, 100, 0.1, 1.0),),
            acceptance=counted if side == NEW else HALF,
            launch_spread=spread,
        )
        for block in range(blocks)
        for side in (OLD, NEW)
    ]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, SAME),
        ({"seconds": 0.8}, BETTER),
        ({"seconds": 1.2}, WORSE),
        ({"spread": 0.05}, UNDECIDED),
        ({"blocks": 1}, UNDECIDED),
        ({"ok": False}, UNDECIDED),
    ],
)
def test_speed_is_judged_by_the_interval_of_bench(given: dict[str, float], word: str) -> None:
    (speed,) = speeds(PLAN, passes(**given))  # type: ignore[arg-type]
    assert speed.verdict.word == word and speed.verdict.sentence
    assert speed.old == pytest.approx(99.9, abs=0.2)


@pytest.mark.parametrize(
    ("counted", "words", "new"),
    [
        (HALF, [SAME] * 3, [2.1, 0.7, 0.4]),
        (Acceptance(100, 200, 60, (50, 10)), [WORSE] * 3, [1.6, 0.5, 0.1]),
        (Acceptance(100, 200, 139, (70, 69)), [BETTER, SAME, BETTER], [2.39, 0.7, 0.69]),
        (Acceptance(100, 100, 70, (70,)), [WORSE, SAME, WORSE], [1.7, 0.7, 0.0]),
        (None, [WORSE] * 3, [1.0, 0.0, 0.0]),  # it drafts nothing
    ],
)
def test_acceptance_is_judged_as_a_whole_and_by_position(
    counted: Acceptance | None, words: list[str], new: list[float]
) -> None:
    found = [*acceptance(PLAN, passes(counted=counted))]
    assert [each.verdict.word for each in found] == words
    assert [each.new for each in found] == pytest.approx(new)
    assert [each.old for each in found] == pytest.approx([2.1, 0.7, 0.4])


def drawn(rng: random.Random, chances: list[float]) -> Acceptance:
    """150 steps whose positions are accepted one after another with these chances."""
    lengths = [next((at for at, one in enumerate(chances) if rng.random() > one), 4) for _ in range(150)]
    positions = tuple(sum(length > at for length in lengths) for at in range(4))
    return Acceptance(150, 600, sum(positions), positions)


@pytest.mark.parametrize(("lost", "worse"), [(0.0, 0), (0.05, 40)])
def test_a_lost_twentieth_of_acceptance_is_found_and_none_is_made_up(lost: float, worse: int) -> None:
    """40 upgrades of 64 blocks that draw different texts, as at a near-tie they do."""
    words = Counter[str]()
    for seed in range(40):
        rng, blocks = random.Random(seed), []
        for one in passes(blocks=64):
            if one.variant == OLD:
                chances = [min(0.97, max(0.05, rng.gauss(0.75, 0.08))) for _ in range(4)]
            share = 1 - lost if one.variant == NEW else 1.0
            counted = drawn(rng, [chance * share for chance in chances])
            blocks.append(replace(one, acceptance=counted, launch=one.block // 32))
        mean, *positions = acceptance(PLAN, blocks)
        words[mean.verdict.word] += 1
        assert lost or not {each.verdict.word for each in positions} & {BETTER, WORSE}
    assert words[WORSE] == worse and not words[BETTER]


def test_without_speculation_there_is_no_acceptance() -> None:
    assert not [*acceptance(PLAN, [replace(each, acceptance=None) for each in passes()])]


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [(1000, 1000, SAME), (1000, 980, SAME), (1000, 820, WORSE), (1000, 1100, BETTER), (None, 9, UNDECIDED)],
)
def test_a_kv_cache_is_compared_by_its_count(old: int | None, new: int | None, word: str) -> None:
    assert kv_cache(old, new).verdict.word == word


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ([20.0], [40.0], UNDECIDED),  # started once: as measured, no verdict
        ([20.0, 20.1], [40.0, 40.1], WORSE),
        ([40.0, 40.1], [20.0, 20.1], BETTER),
        ([20.0, 30.0], [25.0, 22.0], UNDECIDED),
        ([20.0, 20.0], [20.0, 20.0], SAME),
    ],
)
def test_less_time_to_ready_is_better(old: list[float], new: list[float], word: str) -> None:
    found = time_to_ready(old, new)
    assert (found.verdict.word, found.old) == (word, sum(old) / len(old))


def text(*steps: tuple[int, dict[int, float]], prompt: int = 1) -> ScoredText:
    """Each step: the token that came, and all that were scored."""
    positions = tuple(
        Position(token, scores[token], tuple(sorted(scores.items(), key=lambda one: -one[1])), f"t{token}")
        for token, scores in steps
    )
    ids = tuple(token for token, _ in steps)
    return ScoredText("p", (prompt,), ids, "", "length", positions)


SURE = (5, {5: -0.1, 6: -4.0})
TIE, OTHER = {7: -0.7, 8: -0.8}, {7: -0.8, 8: -0.7}


@pytest.mark.parametrize(
    ("old", "new", "word", "place"),
    [
        (text(SURE, SURE), text(SURE, SURE), SAME, None),
        (text(SURE, (7, TIE)), text(SURE, (8, OTHER)), SAME, 1),
        # the new side is sure of another token: its numbers are others
        (text(SURE, (7, TIE)), text(SURE, (8, {8: -0.1, 7: -4.0})), WORSE, 1),
        # the new side's own prefill does not like what it wrote, and the other way round
        (text(SURE), text((6, SURE[1])), WORSE, 0),
        (text((6, SURE[1])), text(SURE), BETTER, 0),
        # a token that is not among the likeliest; an end; another prompt
        (text((7, {7: -0.1})), text((8, {8: -0.1})), WORSE, 0),
        (text(SURE, SURE), text(SURE), WORSE, 1),
        (text(SURE), text(SURE, prompt=2), WORSE, -1),
    ],
)
def test_greedy_text_is_the_same_unless_it_parts_at_more_than_a_tie(
    old: ScoredText, new: ScoredText, word: str, place: int | None
) -> None:
    change, partings = compare_texts({"p": old}, {"p": new})
    assert (change.verdict.word, [each.token for each in partings]) == (
        word,
        [] if place is None else [place],
    )
    assert compare_texts({"p": old}, {})[0].verdict.word == UNDECIDED


def test_a_side_is_launched_by_its_own_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    profile = Profile("", "p", Target("m"), vllm=">=0.33")
    found = plan_side(profile, Side("old", "0.32.0+cpu", python), OLD)
    assert found.plan and found.plan.argv[:4] == (str(python), "-P", "-m", "vllm.entrypoints.cli.main")
    assert str(tmp_path / "lib" / "libiomp5.so") in str(found.plan.env["LD_PRELOAD"])
    assert (found.name, found.plan.platform) == (OLD, "cpu")
    with pytest.raises(UsageError, match=r"cannot start `0.33`"):
        plan_side(profile, Side("0.33", "0.33"), NEW)


RECORDED = Path(__file__).parents[1] / "data" / "upgrade_measured.json"
"""The demo, vLLM 0.31.0 and 0.32.0 on two busy CPU cores, 2026-11-28; `directory` was shortened."""


def page(found: Measured) -> str:
    return Document("upgrade", "demo", [measured_section(found)], [measured_answer(found)]).text(sys.stdout)


def test_what_was_measured_is_a_page_and_json(golden: Callable[[str, str], None]) -> None:
    recorded = RECORDED.read_text()
    found = from_json(Measured, recorded)
    assert json.loads(json_document(found)) == json.loads(recorded) and not found.is_worse
    golden("report/upgrade-measured.txt", page(found))
    tie = Parting("smoke-1", 17, '" the"', '" a"', (0.0, 0.1), is_tie=True)
    ended = Parting("smoke-2", -1, "", "")
    figures = (kv_cache(87_296, 71_600), kv_cache(100, 110), *found.figures[-2:])
    lost = " ".join(page(replace(found, figures=figures, partings=(tie, ended))).split())
    assert lost.startswith(
        "WORSE: KV cache 0.82x (0.82-0.82); undecided: time to ready; better: KV cache 1.10x"
    )
    assert 'smoke-1, token 17 " the" -> " a": near-tie' in lost
    assert "smoke-2, token -1 the lengths or prompts differ: no near-tie" in lost
