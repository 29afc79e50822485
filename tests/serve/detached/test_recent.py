"""The last minute out of vLLM's log."""

from __future__ import annotations

import datetime
from pathlib import Path

from specserve.serve.detached.observe import Recent, of_lines, recent

NOW = datetime.datetime(2026, 11, 21, 8, 50, 0)
NOW_S = NOW.timestamp()


def line(seconds_ago: float, text: str) -> str:
    at = NOW - datetime.timedelta(seconds=seconds_ago)
    return f"(APIServer pid=7) INFO {at:%m-%d %H:%M:%S} [metrics.py:120] {text}"


def drafted(seconds_ago: float, *, accepted: int, drafted: int) -> str:
    return line(
        seconds_ago,
        "SpecDecoding metrics: Mean acceptance length: 4.10, Accepted throughput: 2.87 tokens/s, Drafted throughput: "
        f"3.71 tokens/s, Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: 0.900",
    )


def passed(seconds_ago: float, *, generation: float, running: int, waiting: int = 0) -> str:
    return line(
        seconds_ago,
        f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {generation} tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 0.0%",
    )


def test_acceptance_is_that_of_the_last_minute() -> None:
    found = of_lines(
        [
            drafted(120, accepted=0, drafted=1000),
            drafted(50, accepted=30, drafted=40),
            drafted(10, accepted=10, drafted=40),
        ],
        now_s=NOW_S,
    )
    assert found.acceptance_rate == 0.5
    assert of_lines([drafted(61, accepted=1, drafted=2)], now_s=NOW_S).acceptance_rate is None


def test_requests_that_wait_without_a_token_are_still_since_the_first_such_line() -> None:
    lines = [passed(60, generation=9.5, running=2), passed(50, generation=0.0, running=2)]
    assert of_lines([*lines, passed(40, generation=0.0, running=2)], now_s=NOW_S).still_since_s == NOW_S - 50
    assert of_lines([*lines, passed(40, generation=1.0, running=2)], now_s=NOW_S).still_since_s is None


def test_an_idle_server_is_not_still() -> None:
    found = of_lines(
        [passed(60, generation=9.5, running=1), passed(50, generation=0.0, running=0)], now_s=NOW_S
    )
    assert found.still_since_s is None


def test_a_worker_that_does_not_answer_is_told_in_vllms_words_until_tokens_come_again() -> None:
    stuck = line(
        20, "No available shared memory broadcast block found in 60 seconds. This typically happens when …"
    )
    assert (of_lines([stuck], now_s=NOW_S).stuck or "").startswith(
        "No available shared memory broadcast block"
    )
    assert of_lines([stuck, passed(5, generation=3.0, running=1)], now_s=NOW_S).stuck is None


def test_a_line_of_december_read_in_january_is_of_last_year() -> None:
    january = datetime.datetime(2027, 1, 1, 0, 0, 20).timestamp()
    text = drafted(0, accepted=1, drafted=2).replace("11-21 08:50:00", "12-31 23:59:50")
    assert of_lines([text], now_s=january).acceptance_rate == 0.5


def test_a_log_that_is_not_there_or_says_nothing_tells_nothing(tmp_path: Path) -> None:
    assert recent(tmp_path / "no.log", now_s=NOW_S) == Recent()
    (tmp_path / "other.log").write_bytes(b"\xff\x00 99-99 99:99:99 SpecDecoding metrics\n" * 100)
    assert recent(tmp_path / "other.log", now_s=NOW_S) == Recent()
