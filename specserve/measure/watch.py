"""One server watched: its newest window of readings comes to a state and to what to do about it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import correlation, fmean

from specserve.errors import FactError, SpecserveError, TrafficError
from specserve.measure.verdict import (
    Estimate,
    Judged,
    Kept,
    RateSample,
    Verdict,
    judge,
    library,
    limits,
    quantile_ranks,
    rate,
    ratio,
)
from specserve.metrics import Acceptance, Counters, Histogram, Metrics, read, since
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.serve.client import fetch
from specserve.serve.records import locate

MAX_READINGS = 120
MIN_DRAFTS = 200
"""Fewer prove nothing: of three tokens vLLM's log once said a mean length of 4.00."""
_MIN_REQUESTS = 30
"""Of a P99: one hiccup delays several requests."""
_MAX_PARTS, _MIN_PARTS = 12, 3
_REQUESTS_PER_PART = 1.5
"""A part of the window lasts this many times as long as a request on average."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's metrics at a time, in seconds of a clock that never jumps."""

    at_s: float
    metrics: Metrics


def gained(before: Reading, now: Reading) -> Counters | None:
    """Return what the engines counted in between; None if one was restarted, came or went."""
    if before.metrics.engines.keys() != now.metrics.engines.keys():
        return None
    total = Counters()
    for name, engine in now.metrics.engines.items():
        earlier = before.metrics.engines[name]
        counted = since(earlier.counters, now=engine.counters)
        # counters of a new process may have overtaken the old one's
        if counted is None or earlier.created_s != engine.created_s:
            return None
        total += counted
    return total


class Window:
    """The newest readings of one server, oldest first, and never more than MAX_READINGS.

    `history` is as many since it started, or since the watch began: older ones stand further apart.
    """

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self.readings: deque[Reading] = deque()
        self.history: list[Reading] = []

    def add(self, reading: Reading) -> None:
        """Add one and drop what is too old; all of it after a restart."""
        kept = self.readings
        if kept and gained(kept[-1], reading) is None:
            kept.clear()
            self.history.clear()
        self.history.append(reading)
        if len(self.history) > MAX_READINGS:
            del self.history[1::2]
        if len(kept) > 1 and kept[-1].at_s - kept[-2].at_s < self.span_s / MAX_READINGS:
            kept.pop()
        kept.append(reading)
        while len(kept) > 2 and reading.at_s - kept[1].at_s >= 0.999 * self.span_s:
            kept.popleft()


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """What is known of a window. Estimates are of 95 %, and None if there is too little."""

    seconds: float
    speculates: bool
    counted: Counters
    running_requests: float
    mean_acceptance_length: Estimate | None
    acceptance_rate: Estimate | None
    ttft_p99_ms: Estimate | None
    """As coarse as vLLM's buckets, and open above for under 368 requests."""
    tpot_p99_ms: Estimate | None
    undrafted_share: float | None
    """Share of the output tokens that came without a draft; None for under 200 tokens."""


def figures(readings: Sequence[Reading]) -> WindowFigures:
    """Return all that can be said of readings without a restart in between; at least two."""
    first, last = readings[0], readings[-1]
    counted = gained(first, last) or Counters()
    drafts, later = counted.acceptance, counted.generation_tokens - counted.ttft_s.count
    length, rate = acceptance_intervals([part.acceptance for part in _parts(readings, _MAX_PARTS)])
    return WindowFigures(
        seconds=last.at_s - first.at_s,
        speculates=last.metrics.speculates,
        counted=counted,
        running_requests=fmean(reading.metrics.running_requests for reading in readings),
        mean_acceptance_length=length,
        acceptance_rate=rate,
        ttft_p99_ms=p99_ms(counted.ttft_s),
        tpot_p99_ms=p99_ms(counted.tpot_s),
        # a request's first token comes of its prompt; a step gives one more token than it accepts
        undrafted_share=max(0.0, 1 - (drafts.drafts + drafts.accepted_tokens) / later)
        if later >= MIN_DRAFTS
        else None,
    )


def _parts(readings: Sequence[Reading], most: int) -> list[Counters]:
    """What was counted in at most so many parts of the time, each longer than a request."""
    first, last = readings[0], readings[-1]
    seconds, counted = last.at_s - first.at_s, gained(first, last) or Counters()
    running = fmean(reading.metrics.running_requests for reading in readings)
    # drafts of one request are correlated: in parts that are shorter than one, neighbours would be
    # alike, and the interval too narrow; by Little's law also of requests that still run
    request_s = running * seconds / max(counted.finished_requests, 1)
    request_s = max(counted.e2e_s.mean or 0.0, request_s)
    least_s, cuts = max(seconds / most, _REQUESTS_PER_PART * request_s), [first]
    for reading in readings:
        if reading.at_s - cuts[-1].at_s >= 0.99 * least_s:
            cuts.append(reading)
    if len(cuts) > 1:
        cuts[-1] = last
    return [gained(before, now) or Counters() for before, now in pairwise(cuts)]


def acceptance_intervals(parts: Sequence[Acceptance]) -> tuple[Estimate | None, Estimate | None]:
    """Return the mean acceptance length and the acceptance rate: a part of the window is a block.

    None for fewer than 3 parts with drafts, or 200 drafts: fewer can be alike by chance. The rate
    is None, too, if nothing was accepted.
    """
    used = [part for part in parts if part.drafts]
    if len(used) < _MIN_PARTS or sum(part.drafts for part in used) < MIN_DRAFTS:
        return None, None

    def interval(pairs: Iterable[tuple[int, int]], least: float, most: float) -> Estimate | None:
        samples = [RateSample("all", str(at), *pair) for at, pair in enumerate(pairs)]
        if (found := rate(samples)) is None:
            return None
        estimate = found.estimate
        low, high = (min(max(end, least), most) for end in (estimate.low, estimate.high))
        return replace(estimate, low=low, high=high)

    longest = max(len(part.accepted_per_position) for part in used)
    length = interval(
        ((each.drafts + each.accepted_tokens, each.drafts) for each in used), 1, 1 + longest
    )
    return length, interval(((each.accepted_tokens, each.draft_tokens) for each in used), 0, 1)


def p99_ms(observed: Histogram) -> Estimate | None:
    """Return where P99 lies by the ranks that it can have, and the edges of their buckets."""
    value, count = observed.quantile(0.99), observed.count
    if value is None or count < _MIN_REQUESTS:
        return None
    low_rank, high_rank = quantile_ranks(count, 0.99)
    high = observed.bucket(high_rank)[1] if high_rank <= count else math.inf
    # a bucket does not hold its lower edge
    low = math.nextafter(1000 * observed.bucket(low_rank)[0], math.inf)
    return Estimate(1000 * value, low, 1000 * high, count, "95 %, ranks within buckets")


_TREND_AFTER_S = 1800.0
_TREND_PARTS = 24
_SINKS_BY = 0.05
_CERTAINTY = 0.999
"""A watch looks hundreds of times."""
_STEADILY = -0.9
"""Correlation of the eighths' figures with time: traffic that comes and goes has a weaker one."""
_SAME = 0.03
"""Positions and lengths that differ by less are called alike."""
_OTHER_TRAFFIC = 1.33


@dataclass(frozen=True, slots=True)
class Stretch:
    """A quarter of the time that a server was watched."""

    mean_acceptance_length: float
    per_position: tuple[float, ...]
    draft_tokens: float
    """Per draft: K, or less."""
    prompt_tokens: float
    """Per finished request."""
    output_tokens: float
    """Per finished request."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How acceptance changed since the server started, or since the watch began."""

    seconds: float
    first: Stretch
    newest: Stretch
    change: Estimate
    """The newest mean acceptance length by the first; its bounds are of 99.9 %."""
    per_hour: float | None
    """Of the mean acceptance length, in tokens; None for under an hour."""
    sinks: bool
    """By more than 5 %, surely, steadily, and not because K is smaller."""


def trend(history: Sequence[Reading]) -> Trend | None:
    """Compare the first quarter of the readings with the newest.

    None for under 30 minutes, 12 parts longer than a request, or 200 drafts in an eighth.
    """
    seconds = history[-1].at_s - history[0].at_s
    parts = _parts(history, _TREND_PARTS) if seconds >= _TREND_AFTER_S else []
    size = len(parts) // 4
    if size < _MIN_PARTS:
        return None
    cuts = [round(at * len(parts) / 8) for at in range(9)]
    eighths = [sum(parts[at:to], Counters()) for at, to in pairwise(cuts)]
    if min(each.acceptance.drafts for each in eighths) < MIN_DRAFTS:
        return None
    samples = [
        RateSample("all", str(at), each.drafts + each.accepted_tokens, each.drafts)
        for at, each in enumerate(part.acceptance for part in parts)
    ]
    found = ratio(samples[-size:], against=samples[:size])
    assert found is not None  # a draft gives at least the target's own token
    first, newest = (_stretch(sum(each, Counters())) for each in (parts[:size], parts[-size:]))
    fell = newest.mean_acceptance_length - first.mean_acceptance_length
    is_same_k = abs(newest.draft_tokens / first.draft_tokens - 1) < _SAME
    low, high = found.bounds(_CERTAINTY)
    sinks = high < 1 - _SINKS_BY and (is_same_k or _fell(first, newest)[0])
    if sinks:  # else all may be equal
        lengths = [each.acceptance.mean_acceptance_length or 1.0 for each in eighths]
        sinks = correlation(range(8), lengths) < _STEADILY
    per_hour = fell / (0.75 * seconds) * 3600 if seconds >= 3600 else None
    change = Estimate(found.value, low, high, 2 * size, "99.9 %, Student's t over parts")
    return Trend(seconds, first, newest, change, per_hour, sinks)


def _stretch(counted: Counters) -> Stretch:
    drafts, requests = counted.acceptance, max(counted.finished_requests, 1)
    return Stretch(
        drafts.mean_acceptance_length or 1.0,
        drafts.per_position,
        max(drafts.draft_tokens, 1) / drafts.drafts,  # a broken server may say 0
        counted.prompt_tokens / requests,
        counted.generation_tokens / requests,
    )


def _fell(first: Stretch, newest: Stretch) -> tuple[bool, bool]:
    """Whether position 1 accepts less, and whether later ones do of what reaches them."""

    def shares(of: Stretch) -> tuple[float, float]:
        each = of.per_position or (0.0,)
        return each[0], sum(each[1:]) / (sum(each[:-1]) or 1.0)

    pairs = zip(shares(first), shares(newest), strict=True)
    at_first, later = (now < (1 - _SAME) * before for before, now in pairs)
    return at_first, later


DEAD_DRAFT_LENGTH = 1.05
"""Mean acceptance length of a dead draft: of 20 steps, one accepts one draft token."""
_DEAD_FOR_S = 15.0
_UNDRAFTED_SHARE = 0.1
_WORTH_SHARE = 0.05
"""Of a step's tokens, what a position must add: drafting one costs 2 to 10 % of a step."""
_LONGER = "use a longer `--window`"

UNSEEN, OFF, COLLAPSED, MISSED = "UNSEEN", "OFF", "COLLAPSED", "MISSED"
SINKING, UNDECIDED, STEADY = "SINKING", "UNDECIDED", "STEADY"
"""What is the matter: no metrics, no speculation, a dead draft, a promise that is not kept, an
acceptance that sinks, too little to tell, or nothing; the first that applies."""


def verdict_of(word: str, sentence: str) -> Verdict:
    """Return the verdict with this word."""
    is_bad = word in (COLLAPSED, MISSED)
    return Verdict(word, "bad" if is_bad else "good" if word == STEADY else "open", sentence)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, in one sentence, and a word for programs."""

    code: str
    sentence: str


def shown(interval: Estimate | None, unit: str = "") -> str:
    """Return a figure with its interval: `4.35 (95 %: 4.00 to 4.70)`."""
    if interval is None:
        return "-"
    low, digits = interval.low, 0 if unit else 2
    if math.isinf(interval.high):
        return f"{low:.{digits}f}{unit} or more (95 %)"
    bounds = f"95 %: {low:.{digits}f} to {interval.high:.{digits}f}"
    return f"{interval.value:.{digits}f}{unit} ({bounds})"


def promise_words(promise: Judged) -> str:
    """Return what was measured, and what was promised where."""
    limit, unit = promise.limit, " ms" if promise.limit.key.endswith("_ms") else ""
    promised = f"{limit.promised:g}{unit} was promised ({limit.place})"
    figure = f" is {shown(promise.measured, unit)}, and" if promise.measured is not None else ":"
    return f"`{limit.key}`{figure} {promised}"


def judge_promises(profile: Profile, seen: WindowFigures) -> tuple[Judged, ...]:
    """Hold each limit of a profile against the window. Counters tell no workload or temperature."""
    why = "a server's metrics do not show it: `specserve bench` measures it"
    return tuple(
        judge(limit, getattr(seen, figure))
        if hasattr(seen, figure := limit.key[len("min_") :])
        else Judged(limit, Kept.NOT_JUDGED, why=why)
        for limit in limits(profile, None, None, seen.running_requests)
    )


def dead_drafts(readings: Sequence[Reading]) -> str | None:
    """Return what the newest drafts of an engine show if they are refused.

    Newest is the shortest time that holds 200 of its drafts and is 15 s long, or the whole window:
    what went well before does not hide it. Each engine is judged alone: in the sum of eight, one
    dead one does not show.
    """
    last, found = readings[-1], []
    for_s = min(_DEAD_FOR_S, last.at_s - readings[0].at_s)
    for name, engine in last.metrics.engines.items():
        for reading in reversed(readings):
            before = reading.metrics.engines[name].counters.acceptance
            newest = since(before, now=engine.counters.acceptance) or Acceptance()
            if newest.drafts >= MIN_DRAFTS and last.at_s - reading.at_s >= for_s:
                length = newest.mean_acceptance_length or 1.0
                found += [f"{length:.2f} (engine {name.engine})"] * (length < DEAD_DRAFT_LENGTH)
                break
    return f"the newest drafts give {', '.join(found)} tokens per step" if found else None


def trend_words(found: Trend) -> str:
    """Return both figures, the change with its interval, and the fall per hour."""
    change, hours = found.change, found.seconds / 3600
    now, low, high = (
        f"{100 * (each - 1):+.0f}" for each in (change.value, change.low, change.high)
    )
    first, newest = (each.mean_acceptance_length for each in (found.first, found.newest))
    time_ = f"{hours:.1f} h" if hours >= 1.5 else f"{60 * hours:.0f} min"
    pace = f", {found.per_hour:+.2f} per hour" if found.per_hour is not None else ""
    return f"from {first:.2f} to {newest:.2f} in {time_} ({now} %, 99.9 %: {low} to {high}{pace})"


def judge_window(
    readings: Sequence[Reading],
    seen: WindowFigures,
    *,
    promises: Sequence[Judged] = (),
    since: Trend | None = None,
) -> Verdict:
    """Return the worst that the figures show."""
    drafts, length = seen.counted.acceptance.drafts, seen.mean_acceptance_length
    if not seen.speculates:
        return verdict_of(OFF, "the server does not speculate: it has no speculation counters")
    if (dead := dead_drafts(readings)) is not None:
        return verdict_of(COLLAPSED, f"the draft is dead: {dead}")
    if not drafts and not seen.counted.generation_tokens:
        return verdict_of(UNDECIDED, f"no traffic in {seen.seconds:.0f} s")
    if missed := [each for each in promises if each.kept is Kept.MISSED]:
        return verdict_of(MISSED, "; ".join(map(promise_words, missed)))
    if since is not None and since.sinks:
        return verdict_of(SINKING, f"the mean acceptance length sank {trend_words(since)}")
    if length is None:
        text = f"{drafts:,} drafts in {seen.seconds:.0f} s give no interval yet: {_LONGER}"
        return verdict_of(UNDECIDED, text)
    figure = f"the mean acceptance length is {shown(length)}"
    if length.low < DEAD_DRAFT_LENGTH:
        text = f"{figure}, and a draft below {DEAD_DRAFT_LENGTH} is dead: {_LONGER}"
        return verdict_of(UNDECIDED, text)
    for each in promises:
        if each.kept is Kept.UNDECIDED and not each.limit.key.endswith("_ms"):
            return verdict_of(UNDECIDED, f"{promise_words(each)}: {_LONGER}")
    kept = sum(each.kept is Kept.KEPT for each in promises)
    return verdict_of(STEADY, figure + (f"; promises kept: {kept}" if kept else ""))


def _advise_sinking(found: Trend) -> Advice:
    """What to do by what the counters can tell: lengths, K and positions, but no text."""
    first, newest = found.first, found.newest
    for what in ("prompt_tokens", "output_tokens"):
        before, now = getattr(first, what), getattr(newest, what)
        if max(before, now) > _OTHER_TRAFFIC * min(before, now):
            words = f"{now:,.0f} {what.replace('_', ' ')} instead of {before:,.0f}"
            return Advice(
                "traffic_changed",
                f"the traffic changed, too (requests of {words}): before you blame the draft, send "
                "the same prompts as in the beginning, with `specserve bench`",
            )
    at_first, later = _fell(first, newest)
    where = "at all positions" if at_first == later else "at position 1 alone"
    if later and not at_first:
        where = "behind position 1, where a smaller `num_speculative_tokens` loses little"
    return Advice(
        "restart_one",
        "restart it: if the same traffic then starts as high as before, the server's state rots "
        "(vllm-project/vllm#41838), else the text changed (language, template, temperature); "
        f"acceptance sinks {where}",
    )


def advise(seen: WindowFigures, word: str, *, since: Trend | None = None) -> Advice | None:
    """Return the first of five rules that applies. `word`: of the verdict."""
    drafted, share = seen.counted.acceptance, seen.undrafted_share
    if word == COLLAPSED:
        return Advice(
            "restart",
            "restart the server; if the draft stays dead, run `specserve check` on it; until then "
            "`specserve up --alternative baseline` serves the same text",
        )
    if word in (MISSED, SINKING) and since is not None and since.sinks:
        return _advise_sinking(since)
    if seen.speculates and share is not None and share >= _UNDRAFTED_SHARE:
        return Advice(
            "nothing_drafted",
            f"{share:.0%} of the output tokens came without a draft: raise the draft's "
            "`max_model_len` or the batch-size schedule; `ngram` and `suffix` found no copy there",
        )
    if seen.counted.preemptions:
        return Advice(
            "overload",
            "send fewer concurrent requests (`max_num_seqs`), or lower `num_speculative_tokens`: "
            f"the KV cache is full, and {seen.counted.preemptions:,} preemptions lost work",
        )
    worth, tokens, last = 0, 1.0, len(drafted.per_position)
    for position, gain in enumerate(drafted.per_position, start=1):
        worth = position if gain / tokens >= _WORTH_SHARE else worth
        tokens += gain
    # later positions also read low if K varies
    is_fixed = drafted.draft_tokens >= 0.98 * last * drafted.drafts
    if word == STEADY and is_fixed and 0 < worth < last:
        added = sum(drafted.per_position[worth:]) / tokens
        return Advice(
            "fewer_tokens",
            f"try `num_speculative_tokens: {worth}`: the positions after that add {added:.0%} of "
            "the tokens, less than they cost",
        )
    return None


_TIMEOUT_S = 4.0


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What one look came to."""

    at_s: float
    verdict: Verdict
    window: WindowFigures | None = None
    """None until there are two readings of the same server."""
    trend: Trend | None = None
    advice: Advice | None = None
    promises: tuple[Judged, ...] = ()
    running_requests: int | None = None
    waiting_requests: int | None = None
    trouble: SpecserveError | None = None
    """Why there is no newest reading."""

    @property
    def is_undecided(self) -> bool:
        """Whether there was too little to tell."""
        is_open = any(promise.kept is Kept.UNDECIDED for promise in self.promises)
        return is_open or self.verdict.word in (UNDECIDED, UNSEEN)


class WatchedServer:
    """A server by its name or URL, and the profile that judges it: the named one, or its own.

    Raises UsageError, FactError, and ProfileError for a profile that was named.
    """

    def __init__(self, server: str | None, *, profile: str | None = None) -> None:
        self.endpoint, self.record = locate(server)
        self.profile = load_profile(profile) if profile is not None else None
        self.no_promises: str | None = None
        """Why those of a detached server's profile are not judged, in one clause."""
        self.profile_error: SpecserveError | None = None
        record = self.record
        if record is None or profile is not None:
            return
        if record.alternative:
            self.no_promises = f"`expect` is not for alternatives: `{record.alternative}`"
        elif record.profile == "-":
            self.no_promises = "the server's profile came from stdin: `--profile` names it"
        else:
            try:
                self.profile = load_profile(record.profile, settings=record.settings)
            except SpecserveError as error:
                self.profile_error = error
                self.no_promises = f"the server's profile cannot be read: {error.message}"

    def read(self) -> Reading:
        """Return one reading. Raises TrafficError without an answer, FactError if it is no use."""
        text = fetch(self.endpoint.root, "/metrics", timeout_s=_TIMEOUT_S)
        return Reading(time.monotonic(), read(text))


def reports(
    watched: WatchedServer, *, window_s: float, interval_s: float, once: bool = False
) -> Iterator[WatchReport]:
    """Yield a report each interval; with `once`, until a window is over.

    A server that was seen before is waited for. Else raises FactError if the answer is no use, and
    with `once` TrafficError if nobody answers.
    """
    library("scipy.special")  # without it no window has an interval
    began_s, window = time.monotonic(), Window(window_s)
    newest: WatchReport | None = None
    while True:
        try:
            window.add(watched.read())
            report = newest = _report(watched, window)
        except (TrafficError, FactError) as error:
            if newest is None and (once or isinstance(error, FactError)):
                raise
            unseen = verdict_of(UNSEEN, error.message)
            report = WatchReport(time.time(), unseen, trouble=error)
        is_over = once and time.monotonic() - began_s >= window_s - 1e-3
        # what was seen before is judged if only the last readings failed
        yield replace(newest, trouble=report.trouble) if is_over and newest else report
        if is_over:
            return
        # a slow answer does not make the next looks come faster
        passed_s = time.monotonic() - began_s
        due_s = (passed_s // interval_s + 1) * interval_s
        time.sleep(max(0.0, (min(due_s, window_s) if once else due_s) - passed_s))


def _report(watched: WatchedServer, window: Window) -> WatchReport:
    profile, metrics = watched.profile, window.readings[-1].metrics
    report = WatchReport(
        at_s=time.time(),
        verdict=verdict_of(UNDECIDED, "one reading: figures need two"),
        running_requests=metrics.running_requests,
        waiting_requests=metrics.waiting_requests,
    )
    if profile is not None and profile.speculation is not None and not metrics.speculates:
        text = f"the server does not speculate, but {profile.span('speculation')} does"
        text += ": `specserve up` without `--alternative baseline` starts it so"
        return replace(report, verdict=verdict_of(MISSED, text))
    if len(window.readings) < 2:
        return report
    seen, since = figures(window.readings), trend(window.history)
    promises = judge_promises(profile, seen) if profile is not None else ()
    verdict = judge_window(window.readings, seen, promises=promises, since=since)
    advice = advise(seen, verdict.word, since=since)
    known = replace(report, window=seen, trend=since, promises=promises)
    return replace(known, verdict=verdict, advice=advice)
