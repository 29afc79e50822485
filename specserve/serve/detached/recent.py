"""Acceptance and progress of the last minute, as vLLM's own log tells them. Asks no server."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specserve.serve.ownfiles import open_regular

_END_BYTES = 256 << 10
# vllm 0.26 to 0.33: v1/spec_decode/metrics.py and v1/metrics/loggers.py, every VLLM_LOG_STATS_INTERVAL (10 s)
_DRAFTED = re.compile(
    r"SpecDecoding metrics: .*?Accepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+) tokens"
)
_THROUGHPUT = re.compile(
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: (?P<generation>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs"
)
_CLOCK = re.compile(r"\b(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\b")
_NO_ANSWER = re.compile(r"No available shared memory broadcast block found in (?P<seconds>\d+) seconds")


@dataclass(frozen=True, slots=True)
class Recent:
    """What the end of the log says. `still_since_s`: since then requests wait and no token came."""

    accepted_tokens: int = 0
    drafted_tokens: int = 0
    still_since_s: float | None = None
    stuck: str | None = None
    """vLLM's own words for a worker that does not answer."""

    is_quiet: bool = True
    """Whether vLLM wrote no figures in the last minute: it is idle, or its log is not what it is by default."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted share of what was drafted in the last minute; None where nothing was."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


def recent(path: Path, *, now_s: float, span_s: float = 60.0) -> Recent:
    """Read the end of a server's log. Lines without a time of their own belong to the line before them."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _END_BYTES))
            text = file.read(_END_BYTES).decode(errors="replace")
    except OSError:
        return Recent()
    return of_lines(text.splitlines(), now_s=now_s, span_s=span_s)


def of_lines(lines: Iterable[str], *, now_s: float, span_s: float = 60.0) -> Recent:
    """The same, of lines in the order of the log."""
    accepted = drafted = 0
    at_s: float | None = None
    still_since_s: float | None = None
    stuck: str | None = None
    is_quiet = True
    for line in lines:
        at_s = _time(line, now_s=now_s) or at_s
        if at_s is None:
            continue
        if match := _DRAFTED.search(line):
            stuck = None
            if now_s - at_s <= span_s:
                accepted += int(match["accepted"])
                drafted += int(match["drafted"])
        elif match := _THROUGHPUT.search(line):
            moves = float(match["generation"]) > 0 or float(match["prompt"]) > 0
            is_quiet = is_quiet and now_s - at_s > span_s
            waits = int(match["running"]) + int(match["waiting"]) > 0
            still_since_s = (still_since_s or at_s) if waits and not moves else None
            stuck = None if moves else stuck
        elif _NO_ANSWER.search(line):
            stuck = line[line.index("No available") :]
    return Recent(accepted, drafted, still_since_s, stuck, is_quiet)


def _time(line: str, *, now_s: float) -> float | None:
    """Seconds since the epoch: vLLM writes month, day and time, and no year."""
    found = _CLOCK.search(line[:200])
    if found is None:
        return None
    parts = {name: int(value) for name, value in found.groupdict().items()}
    year = datetime.datetime.fromtimestamp(now_s).year  # vLLM logs local time
    for guess in (year, year - 1):
        try:
            at_s = datetime.datetime(guess, **parts).timestamp()  # type: ignore[arg-type]
        except ValueError:
            continue
        if at_s <= now_s + 3600:
            return at_s
    return None
