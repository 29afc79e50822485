"""A verification's report: golden text, stable JSON, nothing that a terminal would obey."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from specserve.measure.verdict import INCONCLUSIVE, Estimate
from specserve.measure.verify.judge import (
    LOSSLESS,
    LOSSY,
    NO_FAULT_FOUND,
    Compared,
    Smoke,
    Verification,
    verdict_of,
)
from specserve.report.text import json_document
from specserve.report.verify import VerifyProgress, verify_text

EXACT, BY_ANSWER = "99 %, exact binomial", "99 %, Student's t over answers"
GREEDY = Compared(
    temperature=0.0,
    verdict=verdict_of(LOSSLESS, "more than 0.3 % wrong tokens"),
    answers=28,
    tokens=1792,
    fault_percent=Estimate(0.0, 0.0, 0.295, 1792, EXACT),
    excluded_percent=0.295,
)
SAMPLED = Compared(
    temperature=0.7,
    verdict=verdict_of(LOSSLESS, "a temperature wrong by more than 2.4 %"),
    answers=61,
    tokens=7520,
    fault_percent=Estimate(-0.3, -2.4, 1.7, 61, BY_ANSWER),
    excluded_percent=2.4,
)
RIGHT = Verification(
    url="http://127.0.0.1:8000",
    model="demo",
    verdict=verdict_of(
        LOSSLESS, "more than 0.3 % wrong tokens at T = 0; a temperature wrong by more than 2.4 % at T = 0.7"
    ),
    has_failed=False,
    elapsed_s=31.2,
    against=None,
    temperatures=(GREEDY, SAMPLED),
    smoke=(
        Smoke("JSON schema", "ok", '{"city": "Oslo"}'),
        Smoke("stop string", "skipped", "the greedy text differed the second time: a near-tie"),
    ),
    unused_prompts={},
)
LOOSE = replace(
    RIGHT,
    verdict=verdict_of(NO_FAULT_FOUND, "a temperature wrong by more than 41.2 % at T = 0.7"),
    elapsed_s=58.4,
    temperatures=(
        GREEDY,
        replace(
            SAMPLED,
            verdict=verdict_of(NO_FAULT_FOUND, "a temperature wrong by more than 41.2 %"),
            tokens=1180,
            fault_percent=Estimate(-12.7, -41.2, 16.0, 19, BY_ANSWER),
            excluded_percent=41.2,
        ),
    ),
)
NONE = replace(
    RIGHT,
    verdict=verdict_of(INCONCLUSIVE),
    temperatures=(
        replace(
            SAMPLED,
            verdict=verdict_of(INCONCLUSIVE),
            fault_percent=Estimate(0.0, -math.inf, math.inf, 1, BY_ANSWER),
            excluded_percent=None,
        ),
    ),
)
HOT = "the tokens are sampled at a temperature 24.0 % higher than requested (99 % interval: 20.1 to 27.9 %)"
WRONG = replace(
    RIGHT,
    verdict=verdict_of(LOSSY, f"4 of 1,792 tokens are wrong at T = 0; {HOT} at T = 0.7"),
    has_failed=True,
    against="http://10.0.0.7:8000",
    temperatures=(
        replace(
            GREEDY,
            verdict=verdict_of(LOSSY, "4 of 1,792 tokens are wrong"),
            fault_percent=Estimate(0.223, 0.04, 0.74, 1792, EXACT),
            excluded_percent=None,
            wrong=tuple(
                f'code-sql, token {index}: " FROM" came, the target prefers " WHERE" (by 6.03 nats)'
                for index in range(4)
            ),
        ),
        replace(SAMPLED, verdict=verdict_of(LOSSY, HOT), excluded_percent=None),
    ),
    smoke=(*RIGHT.smoke, Smoke("stop string", "not ok", "the text goes on after ', x'")),
    unused_prompts={"long": "this model's maximum context length is 1024 tokens"},
)


@pytest.mark.parametrize(("name", "found"), [("right", RIGHT), ("none", NONE), ("wrong", WRONG)])
def test_the_report(golden: Callable[[str, str], None], name: str, found: Verification) -> None:
    text, whole = verify_text(found), verify_text(found, is_verbose=True)
    assert text.startswith(f"{found.verdict.word}: ")
    golden(f"report/verify-{name}.txt", f"{text}\n\n$ with -v\n{whole}\n")
    if found is WRONG:
        golden(f"report/verify-{name}.json", json_document(found) + "\n")


def test_a_right_server_is_not_described_by_a_number_that_frightens() -> None:
    text = " ".join(verify_text(LOOSE, is_verbose=True).split())
    assert "12.7" not in text and "lower" not in text
    assert "no difference seen" in text
    assert "Excluded with 99 % confidence" in text and "wrong by more than 41.2 %" in text


def test_words_of_a_server_cannot_steer_a_terminal() -> None:
    evil = "\x1b[2J\u202e\nLOSSLESS: yes"
    found = replace(
        WRONG,
        model=evil,
        url=evil,
        against=evil,
        temperatures=(replace(GREEDY, wrong=(evil,)),),
        smoke=(Smoke("drafts", "not ok", evil),),
        unused_prompts={evil: evil},
    )
    for text in (verify_text(found), verify_text(found, is_verbose=True), json_document(found)):
        assert not {"\x1b", "\u202e"} & set(text)
        assert not any(line.startswith("LOSSLESS: yes") for line in text.splitlines())
    json.loads(json_document(found))


def test_a_pipe_hears_of_progress_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("specserve.report.console.time.monotonic", lambda: now)
    progress = VerifyProgress(limit_s=60)
    with progress:
        progress(None, 0)
        now = 111.0
        progress(None, 0)
        for step in range(25):
            now = 111.0 + step
            progress(float(step), 1000 * step)
    assert capsys.readouterr().err.splitlines() == [
        "  warm-up requests, not counted",
        "  10,000 tokens compared, 10 s (planned: 60 s)",
        "  20,000 tokens compared, 20 s (planned: 60 s)",
    ]
