"""A verification's report: golden text, stable JSON, nothing that a terminal would obey."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from specserve.measure.bench.result import Interval as Estimate
from specserve.measure.verify.result import (
    Against,
    Greedy,
    Likeness,
    Outcome,
    Parting,
    Sampled,
    Sampling,
    Smoke,
    Verification,
)
from specserve.measure.verify.result import ServerSpeculation as Speculation
from specserve.measure.verify.result import VerifyVerdict as Verdict
from specserve.measure.verify.result import WrongToken as Difference
from specserve.measure.verify.run import VerifyStatus as Progress
from specserve.metrics.counters import Acceptance
from specserve.report.verify import VerifyProgress, brief, brief_json, verify_json, verify_text

GREEDY = Greedy(Verdict.LOSSLESS, 28, 1792, 1790, 2, 0.031, 0.25, excluded_share=0.00295)
FLAWED = replace(GREEDY, verdict=Verdict.LOSSY, best=1784, excluded_share=None)
SAMPLED = Sampled(
    sampling=Sampling(0.7),
    verdict=Verdict.LOSSLESS,
    requests=61,
    tokens=7520,
    skipped=0,
    z=1.3,
    deviation_points=Estimate(0.41, -0.39, 1.2),
    temperature_error_percent=Estimate(-0.3, -2.4, 1.7),
    outside=444,
    outside_expected=664.4,
    excluded_temperature_percent=2.4,
    excluded_points=1.2,
)
UNBOUNDED = replace(
    SAMPLED,
    verdict=Verdict.INCONCLUSIVE,
    requests=0,
    tokens=0,
    deviation_points=Estimate(0.0, -math.inf, math.inf),
    temperature_error_percent=Estimate(0.0, -math.inf, math.inf),
    excluded_temperature_percent=None,
    excluded_points=None,
    tokens_needed=8000,
)
RIGHT = Verification(
    url="http://127.0.0.1:8000",
    model="demo",
    mode="chat",
    verdict=Verdict.LOSSLESS,
    elapsed_s=31.2,
    requests=89,
    concurrency=8,
    speculation=Speculation(is_on=True, acceptance=Acceptance(100, 400, 240, (80, 70, 50, 40))),
    greedy=GREEDY,
    sampled=(SAMPLED,),
    smoke=(
        Smoke("JSON schema", Outcome.OK, '{"days": 3, "city": "Oslo"}'),
        Smoke("tool call", Outcome.SKIPPED, "the model has no chat template"),
    ),
)
LOOSE = replace(
    RIGHT,
    verdict=Verdict.NO_FAULT_FOUND,
    elapsed_s=58.4,
    tokens_per_s=32.0,
    greedy=replace(GREEDY, requests=8, tokens=512, best=512, near_ties=0, excluded_share=0.0103),
    sampled=(
        replace(
            SAMPLED,
            verdict=Verdict.NO_FAULT_FOUND,
            requests=19,
            tokens=1180,
            deviation_points=Estimate(-0.52, -4.1, 3.06),
            temperature_error_percent=Estimate(1.2, -7.7, 10.1),
            excluded_temperature_percent=10.1,
            excluded_points=4.1,
            tokens_needed=8200,
        ),
    ),
)
WRONG = replace(
    RIGHT,
    verdict=Verdict.LOSSY,
    greedy=replace(
        FLAWED,
        differences=tuple(
            Difference("code-sql", index, "SELECT *\n", " FROM", " WHERE", 6.03) for index in range(5)
        ),
        unstable=1,
    ),
    sampled=(
        replace(
            SAMPLED,
            sampling=Sampling(0.7, top_p=0.9),
            verdict=Verdict.LOSSY,
            skipped=1200,
            reasons=("the tokens are sampled at a higher temperature than requested",),
            excluded_temperature_percent=None,
            excluded_points=None,
        ),
        replace(SAMPLED, sampling=Sampling(1.0), verdict=Verdict.NO_FAULT_FOUND, tokens_needed=4100),
    ),
    smoke=(Smoke("stop string", Outcome.NOT_OK, "the text goes on after ', x'"),),
    against=Against(
        url="http://10.0.0.7:8000",
        model="demo-plain",
        verdict=Likeness.DIFFERENT,
        texts=28,
        equal=26,
        tokens=1792,
        partings=(
            Parting("chat-tides", 7, "The moon ", "is", "was", 0.02, 0.01, is_near_tie=True),
            Parting("code-sql", 1, "SELECT", " *", " name", 3.1, 2.7, is_near_tie=False),
        ),
        mean_difference=0.31,
        largest_difference=4.2,
        own_difference=0.0012,
        other_best=9,
        reasons=("1 text part where neither server sees a near-tie",),
    ),
    unused_prompts={"long": "this model's maximum context length is 1024 tokens"},
)


@pytest.mark.parametrize(("name", "found"), [("right", RIGHT), ("loose", LOOSE), ("wrong", WRONG)])
def test_the_report(golden: Callable[[str, str], None], name: str, found: Verification) -> None:
    golden(f"report/verify-{name}.txt", verify_text(found) + "\n")
    golden(f"report/verify-{name}.json", verify_json(found) + "\n")


def test_what_fails() -> None:
    assert not RIGHT.has_failed and not RIGHT.is_open
    assert WRONG.has_failed
    for broken in (
        replace(RIGHT, verdict=Verdict.LOSSY),
        replace(RIGHT, smoke=(Smoke("n > 1", Outcome.NOT_OK, ""),)),
        replace(RIGHT, against=WRONG.against),
    ):
        assert broken.has_failed
    assert WRONG.against is not None
    close = replace(WRONG.against, verdict=Likeness.CLOSE)
    assert not replace(RIGHT, against=close).has_failed and replace(RIGHT, against=close).is_open
    assert replace(RIGHT, verdict=Verdict.INCONCLUSIVE).is_open
    assert LOOSE.is_open and not LOOSE.has_failed


def test_what_the_interval_does_not_bound_is_left_out() -> None:
    wide = replace(
        SAMPLED,
        verdict=Verdict.NO_FAULT_FOUND,
        temperature_error_percent=Estimate(3.0, -70.0, 76.0),
        excluded_temperature_percent=None,
        excluded_points=21.0,
    )
    text = " ".join(verify_text(replace(RIGHT, verdict=Verdict.NO_FAULT_FOUND, sampled=(wide,))).split())
    assert "the temperature seems" not in text and "a temperature that is off by" not in text
    assert (
        "faults that this run would have found, with 99 % confidence: a most likely token sampled "
        "21.0 points too often or too rarely (at T = 0.7)" in text
    )
    none = replace(RIGHT, verdict=Verdict.INCONCLUSIVE, sampled=(UNBOUNDED,))
    text = verify_text(none)
    assert "0 tokens of 0 requests: too few to measure" in text and "inf" not in text
    assert json.loads(verify_json(none))["excluded_temperature_percent"] is None


def test_words_of_a_server_cannot_steer_a_terminal() -> None:
    evil = "\x1b[2J\u202e\nLOSSLESS: yes"
    found = replace(
        WRONG,
        model=evil,
        url=evil,
        greedy=replace(GREEDY, differences=(Difference(evil, 1, evil, evil, evil, 1.0),)),
        smoke=(Smoke("n > 1", Outcome.NOT_OK, evil),),
        against=replace(
            WRONG.against, model=evil, partings=(Parting(evil, 1, evil, evil, evil, 1, 1, False),)
        ),  # type: ignore[type-var]
        unused_prompts={evil: evil},
    )
    for text in (verify_text(found), brief(found), verify_json(found)):
        assert not {"\x1b", "\u202e"} & set(text)
        assert not any(line.startswith("LOSSLESS: yes") for line in text.splitlines())
    json.loads(verify_json(found))


def hinted(greedy: Greedy, *sampled: Sampled) -> str:
    """What a report says behind the verdicts, in one line."""
    found = replace(
        RIGHT, verdict=Verdict.INCONCLUSIVE, greedy=greedy, sampled=sampled, smoke=(), tokens_per_s=200.0
    )
    return " ".join(verify_text(found).partition("What this cannot see:")[0].split())


def test_an_open_verdict_names_what_would_settle_it() -> None:
    short = replace(GREEDY, verdict=Verdict.INCONCLUSIVE, tokens=192, best=190, tokens_needed=159)
    hot = replace(SAMPLED, verdict=Verdict.INCONCLUSIVE, tokens_needed=4100)
    repeats = "at T = 0 more time gives no more text, as it repeats:"
    longer = "more prompts (`--prompts`)"
    assert hinted(short, SAMPLED).endswith(f"{repeats} {longer}")
    assert "--seconds" not in hinted(short, SAMPLED)
    late = hinted(replace(short, unasked=9))
    assert late.endswith("`--seconds 40` should be enough for LOSSLESS (estimated)")
    both = hinted(short, hot)
    assert "`--seconds 60` should be enough for LOSSLESS above T = 0 (estimated)" in both
    assert both.endswith(longer)


def test_suspects_without_a_second_score_are_counted_and_not_called_wrong() -> None:
    found = replace(GREEDY, verdict=Verdict.INCONCLUSIVE, best=1700, unstable=32, unchecked=58)
    text = hinted(found, SAMPLED)
    assert "58 tokens looked wrong once, and got no second score" in text
    assert text.endswith("more `--seconds` leave time to score again what looked wrong once")
    flawed = replace(
        FLAWED,
        best=1729,
        unchecked=58,
        differences=(Difference("code-sql", 1, "SELECT *\n", " FROM", " WHERE", 6.03),) * 3,
    )
    assert "(tolerance 0.25 nats, largest gap 0.031), 3 wrong 58 tokens looked" in hinted(flawed)


def test_figures_that_are_not_finite_are_null() -> None:
    none = replace(SAMPLED, deviation_points=Estimate(0.0, -math.inf, math.inf))
    content = json.loads(verify_json(replace(RIGHT, sampled=(none,))))
    assert content["sampled"][0]["deviation_points"] == {"value": 0.0, "low": None, "high": None}


def test_the_verdict_in_brief_names_what_is_wrong() -> None:
    assert " ".join(brief(RIGHT).split()) == (
        "LOSSLESS: `demo` at http://127.0.0.1:8000, 9,312 tokens measured in 31 s at concurrency 8 "
        "faults that this run would have found, with 99 % confidence: a temperature that is off by 2.4 % "
        "or more (at T = 0.7); 0.3 % or more wrong tokens (at T = 0)"
    )
    text = brief(WRONG)
    assert "the target prefers" in text and "higher temperature" in text and "not ok: stop string" in text
    assert brief_json(WRONG)["not_ok"] == ["stop string"]
    json.dumps(brief_json(WRONG))


def test_a_pipe_hears_of_progress_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("specserve.report.console.time.monotonic", lambda: now)
    progress = VerifyProgress(limit_s=60)
    with progress:
        progress(Progress("warming up", None))
        now = 111.0
        progress(Progress("warming up", None))
    assert capsys.readouterr().err == "  warming up\n"
    now = 100.0
    progress = VerifyProgress(limit_s=60)
    with progress:
        for step in range(25):
            now = 100.0 + step
            progress(Progress("comparing", float(step), tokens=1000 * step))
    assert capsys.readouterr().err.splitlines() == [
        "  comparing, 10,000 tokens generated, 10 of about 60 s",
        "  comparing, 20,000 tokens generated, 20 of about 60 s",
    ]
