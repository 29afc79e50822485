"""A verification in words and in JSON, and how far it is. Does not know how it was done."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

from specserve.measure.verify.result import (
    CONFIDENCE,
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
from specserve.measure.verify.result import (
    ErrorInterval as Estimate,
)
from specserve.measure.verify.result import (
    VerifyVerdict as Verdict,
)
from specserve.measure.verify.result import (
    WrongToken as Difference,
)
from specserve.measure.verify.run import VerifyStatus as Progress
from specserve.measure.verify.sampled import COOL_PERCENT, HOT_PERCENT, MARGIN_POINTS, WIDEST_PERCENT
from specserve.measure.verify.session import TOP
from specserve.report.answer import acceptance_json
from specserve.report.console import filled, in_one_line, is_terminal, json_text, say, styled

_EVERY_S = 10.0
_COLOURS = {
    Verdict.LOSSLESS: "green", Verdict.NO_FAULT_FOUND: "green", Verdict.LOSSY: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Likeness.SAME: "green", Likeness.CLOSE: "yellow", Likeness.DIFFERENT: "red", Likeness.INCONCLUSIVE: "yellow",
    Outcome.OK: "green", Outcome.NOT_OK: "red", Outcome.SKIPPED: "dim",
}  # fmt: skip
NOT_SEEN = (
    "wrong weights, a wrong chat template, quantisation: the server is compared with itself "
    "(`--against URL` compares it with another)",
    "settings and contents that were not asked for: other temperatures, penalties, adapters, images, long contexts",
    "that other requests of the same moment were right: only those of this run were looked at",
)
_SHOWN = 3


class VerifyProgress:
    """What `verify` is at: a live line on a terminal, a line now and then in a pipe."""

    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s
        self._live = is_terminal(sys.stderr)
        self._spoke = time.monotonic()
        self._drawn = 0.0

    def __call__(self, progress: Progress) -> None:
        """Show it."""
        now = time.monotonic()
        tokens = f", {progress.tokens:,} tokens" if progress.tokens else ""
        text = f"{progress.phase}{tokens}, {progress.elapsed_s:.0f} of about {self._limit_s:.0f} s"
        if self._live:
            if now - self._drawn >= 0.2:
                self._drawn = now
                sys.stderr.write(f"\r\x1b[K  {text[:78]}")
                sys.stderr.flush()
        elif now - self._spoke >= _EVERY_S:
            self._spoke = now
            say(f"  {text}")

    def finish(self) -> None:
        """Take the live line away."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def verify_text(found: Verification) -> str:
    """The whole report, for people."""
    lines = [_headline(found), *([_filled(text, "  ")] if (text := _excluded(found)) else []), ""]
    if found.greedy is not None:
        lines += _part("T = 0", found.greedy.verdict, _greedy_words(found.greedy))
        lines += [line for item in found.greedy.differences[:_SHOWN] for line in _difference(item)]
        more = _wrong(found.greedy) - _SHOWN if found.greedy.differences else 0
        lines += [f"    and {more} more"] if more > 0 else []
    for item in found.sampled:
        lines += _part(sampling_words(item.sampling), item.verdict, _sampled_words(item))
    if found.against is not None:
        lines += ["", *_against(found.against)]
    if found.smoke:
        lines += ["", *_smoke(found.smoke)]
    for name, said in found.unused_prompts.items():
        lines += ["", _filled(f"the prompt `{in_one_line(name)}` was left out: {in_one_line(said)}", "")]
    lines += ["", *_hints(found), "What this cannot see:"]
    lines += [_filled(text, "  - ") for text in NOT_SEEN]
    return "\n".join(lines)


def brief(found: Verification) -> str:
    """The verdict in a line, and what is wrong, for `up --verify`."""
    lines = [_headline(found, stream=sys.stderr)]
    if excluded := _excluded(found):
        lines.append(filled(excluded, lead="  ", stream=sys.stderr))
    if found.greedy is not None:
        lines += [line for item in found.greedy.differences[:1] for line in _difference(item)]
    for item in found.sampled:
        lines += [f"  {sampling_words(item.sampling)}: {reason}" for reason in item.reasons]
    lines += [
        f"  not ok: {item.name}: {in_one_line(item.detail)}"
        for item in found.smoke
        if item.outcome is Outcome.NOT_OK
    ]
    return "\n".join(lines)


def brief_json(found: Verification) -> dict[str, Any]:
    """The same as fields of an event."""
    return {
        "verdict": found.verdict.value,
        "has_failed": found.has_failed,
        "elapsed_s": round(found.elapsed_s, 2),
        **_excluded_json(found),
        "reasons": [reason for item in found.sampled for reason in item.reasons],
        "differences": [dataclasses.asdict(item) for item in found.greedy.differences]
        if found.greedy
        else [],
        "not_ok": [item.name for item in found.smoke if item.outcome is Outcome.NOT_OK],
    }


def _headline(found: Verification, *, stream: Any = None) -> str:
    tokens = (found.greedy.tokens if found.greedy else 0) + sum(item.tokens for item in found.sampled)
    bad = sum(item.outcome is Outcome.NOT_OK for item in found.smoke)
    parts = [f"{tokens:,} tokens measured in {found.elapsed_s:.0f} s at concurrency {found.concurrency}"]
    if found.against is not None:
        parts.append(f"{_coloured(found.against.verdict, stream=stream)} against the other server")
    if bad:
        parts.append(f"{bad} of {len(found.smoke)} smoke tests not ok")
    stream = stream or sys.stdout
    text = f"`{in_one_line(found.model)}` at {in_one_line(found.url)}, {', '.join(parts)}"
    shown = f"{_coloured(found.verdict, stream=stream)}: "
    return filled(text, lead=f"{found.verdict.value}: ", shown=shown, stream=stream)


def _excluded(found: Verification) -> str:
    """The faults that the run excludes, in one sentence; empty if there are none, or a fault was found."""
    parts = [
        f"a temperature wrong by {_up(item.excluded_temperature_percent)} % or more"
        + (f" ({sampling_words(item.sampling)})" if len(found.sampled) > 1 else "")
        if item.excluded_temperature_percent is not None
        else f"a most likely token sampled {_up(item.excluded_points)} points too often or too rarely"
        for item in found.sampled
        if item.excluded_temperature_percent is not None or item.excluded_points is not None
    ]
    if found.greedy is not None and found.greedy.excluded_share is not None:
        parts.append(f"{_up(100 * found.greedy.excluded_share)} % or more wrong tokens at T = 0")
    if found.verdict is Verdict.LOSSY or not parts:
        return ""
    return f"excluded at {100 * CONFIDENCE:.0f} % confidence: {'; '.join(parts)}"


def _up(bound: float | None) -> str:
    """A bound with one digit, rounded up: what it excludes must stay excluded."""
    return "" if bound is None else f"{math.ceil(10 * bound) / 10:.1f}"


def _excluded_json(found: Verification) -> dict[str, Any]:
    """The largest fault that any part of the run still allows; null if a part does not bound it."""
    bounds = [item.excluded_temperature_percent for item in found.sampled]
    known = [bound for bound in bounds if bound is not None]
    return {
        "excluded_temperature_percent": round(max(known), 2) if known and None not in bounds else None,
        "excluded_greedy_share": found.greedy.excluded_share if found.greedy else None,
    }


def sampling_words(sampling: Sampling) -> str:
    """`T = 0.7, top_p 0.9`."""
    words = [f"T = {sampling.temperature:g}"]
    plain = Sampling(sampling.temperature)
    for name in ("top_p", "top_k"):
        if getattr(sampling, name) != getattr(plain, name):
            words.append(f"{name} {getattr(sampling, name):g}")
    return ", ".join(words)


def _part(label: str, verdict: Verdict, words: list[str]) -> list[str]:
    return [f"{label}: {_coloured(verdict)}", *(_filled(text, "  ") for text in words)]


def _greedy_words(found: Greedy) -> list[str]:
    words = [
        f"{found.tokens:,} tokens of {_count(found.requests, 'request')}: {found.best:,} are the target's most "
        f"likely token, {_count(found.near_ties, 'near-tie')} (tolerance {found.tie_tolerance:g} nats"
        + (f", largest gap {found.largest_gap:.3f})" if found.near_ties else ")")
        + (f", {_wrong(found):,} wrong" if found.differences else "")
    ]
    if found.unstable:
        words.append(f"{_count(found.unstable, 'token')} looked wrong once, and not when scored again")
    if found.unchecked:
        words.append(f"{_count(found.unchecked, 'token')} looked wrong once, and got no second score")
    if found.tokens_needed:
        words.append(f"LOSSLESS takes about {found.tokens_needed} more tokens")
    return words


def _wrong(found: Greedy) -> int:
    return found.tokens - found.best - found.near_ties - found.unstable - found.unchecked


def _sampled_words(found: Sampled) -> list[str]:
    points, heat = found.deviation_points, found.temperature_error_percent
    if not math.isfinite(points.high):
        return [f"{_count(found.tokens, 'token')} of {_count(found.requests, 'request')}: too few to measure"]
    words = [
        f"{found.tokens:,} tokens of {_count(found.requests, 'request')}: the most likely token was sampled "
        f"{abs(points.value):.2f} points {'more' if points.value >= 0 else 'less'} often than expected (99 % interval: "
        f"{points.low:+.2f} to {points.high:+.2f}; LOSSLESS within {MARGIN_POINTS:g}), z = {found.z:.1f}",
    ]
    if max(-heat.low, heat.high) <= WIDEST_PERCENT:
        words.append(
            f"sampled as if the temperature were {abs(heat.value):.1f} % {'higher' if heat.value >= 0 else 'lower'} "
            f"(99 % interval: {heat.low:+.1f} to {heat.high:+.1f}; LOSSLESS within {COOL_PERCENT:g})"
        )
    words.append(
        f"{_count(found.outside, 'token')} outside the {TOP} most likely; at most {found.outside_expected:,.0f} "
        "expected"
    )
    if found.skipped:
        words.append(f"{found.skipped:,} tokens left out: these settings hide their distribution")
    words += [f"wrong: {reason}" for reason in found.reasons]
    if found.tokens_needed:
        words.append(f"LOSSLESS takes about {found.tokens_needed:,} more tokens")
    return words


def _difference(item: Difference) -> list[str]:
    return [
        f"    {in_one_line(item.prompt)}, token {item.index}: behind {_quoted(item.before)} came "
        f"{_quoted(item.emitted)},",
        f"    the target wants {_quoted(item.best)} (by {item.gap:.2f} nats)",
    ]


def _against(found: Against) -> list[str]:
    where = f"`{in_one_line(found.model)}` at {in_one_line(found.url)}"
    lines = [
        f"against {where}: {_coloured(found.verdict)}",
        _filled(
            f"{found.equal} of {found.texts} greedy texts are equal, "
            f"{sum(item.is_near_tie for item in found.partings)} part at a near-tie, "
            f"{sum(not item.is_near_tie for item in found.partings)} part elsewhere",
            "  ",
        ),
        _filled(
            f"the same {found.tokens:,} tokens differ by {found.mean_difference:.4f} nats on average, "
            f"{found.largest_difference:.2f} at most; a second score of this server by "
            f"{found.own_difference:.4f}; another best token {found.other_best} times",
            "  ",
        ),
    ]
    lines += [_filled(f"wrong: {reason}", "  ") for reason in found.reasons]
    if found.verdict is Likeness.CLOSE:
        text = "not the same numbers: another version or machine, or slightly other weights"
        lines.append(_filled(text, "  "))
    shown = sorted(found.partings, key=lambda item: item.is_near_tie)[:_SHOWN]
    return lines + [line for item in shown for line in _parting(item)]


def _parting(item: Parting) -> list[str]:
    kind = "a near-tie" if item.is_near_tie else "no near-tie"
    return [
        f"    {in_one_line(item.prompt)}, token {item.index}: behind {_quoted(item.before)} "
        f"{_quoted(item.here)} here, {_quoted(item.there)} there:",
        f"    {kind} (each server's gap for its own: {item.gap_here:.2f} and {item.gap_there:.2f} nats)",
    ]


def _smoke(found: tuple[Smoke, ...]) -> Iterator[str]:
    wide = max(len(item.name) for item in found)
    yield "smoke tests"
    for item in found:
        lead = f"  {item.outcome.value:<7}  {item.name:<{wide}}  "
        shown = lead.replace(item.outcome.value, _coloured(item.outcome), 1)
        yield filled(in_one_line(item.detail), lead=lead, shown=shown, stream=sys.stdout)


def _hints(found: Verification) -> list[str]:
    if found.verdict is Verdict.LOSSY or not found.is_open:
        return []
    greedy = found.greedy
    lacks_text = greedy is not None and greedy.tokens_needed > 0 and not greedy.unasked
    hints = []
    if (seconds := _seconds(found)) is not None:
        where = " above T = 0" if lacks_text else ""
        hints.append(f"`--seconds {seconds}` should be enough for LOSSLESS{where} (estimated)")
    if greedy is not None and greedy.unchecked:
        hints.append("more `--seconds` leave time to score again what looked wrong once")
    if greedy is not None and lacks_text:
        hints.append("at T = 0 more time gives no more text, as it repeats: more prompts (`--prompts`)")
    return [*(_filled(hint, "") for hint in hints), ""] if hints else []


def _seconds(found: Verification) -> int | None:
    """The `--seconds` that should bring the tokens that LOSSLESS lacks; None if time brings none."""
    parts: list[Greedy | Sampled] = list(found.sampled)
    if found.greedy is not None and found.greedy.unasked:
        parts.append(found.greedy)
    needed = sum(part.tokens_needed for part in parts)
    if not needed or not found.tokens_per_s:
        return None
    return max(10, int(math.ceil((found.elapsed_s + 1.1 * needed / found.tokens_per_s) / 10) * 10))


def _filled(text: str, lead: str) -> str:
    return filled(text, lead=lead, stream=sys.stdout)


def _quoted(text: str) -> str:
    return in_one_line(json.dumps(text, ensure_ascii=False))


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _coloured(value: Verdict | Likeness | Outcome, *, stream: Any = None) -> str:
    return styled(value.value, _COLOURS[value], stream=stream or sys.stdout)


def verify_json(found: Verification) -> str:
    """The same for scripts, version 1."""
    content = {
        "version": 1,
        "verdict": found.verdict.value,
        "has_failed": found.has_failed,
        "url": found.url,
        "model": found.model,
        "mode": found.mode,
        "elapsed_s": round(found.elapsed_s, 2),
        "requests": found.requests,
        "concurrency": found.concurrency,
        "tokens_per_s": round(found.tokens_per_s, 2) if found.tokens_per_s else None,
        "basis": "measured",
        "confidence": CONFIDENCE,
        **_excluded_json(found),
        "margins": {
            "deviation_points": MARGIN_POINTS,
            "temperature_error_percent": {"lossy_beyond": HOT_PERCENT, "lossless_within": COOL_PERCENT},
        },
        "speculates": found.speculation.is_on,
        "speculation": acceptance_json(found.speculation.acceptance),
        "greedy": dataclasses.asdict(found.greedy) if found.greedy else None,
        "sampled": [_sampled_json(item) for item in found.sampled],
        "smoke": [dataclasses.asdict(item) for item in found.smoke],
        "against": dataclasses.asdict(found.against) if found.against else None,
        "unused_prompts": dict(found.unused_prompts),
        "not_seen": list(NOT_SEEN),
    }
    return json_text(json.dumps(content, indent=2, ensure_ascii=False))


def _sampled_json(found: Sampled) -> dict[str, Any]:
    content = dataclasses.asdict(found)
    content["sampling"] |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}  # keys of version 1
    for name in ("deviation_points", "temperature_error_percent"):
        content[name] = _estimate(getattr(found, name))
    for name in ("excluded_temperature_percent", "excluded_points"):
        content[name] = None if content[name] is None else round(content[name], 2)
    return content | {"z": round(found.z, 3), "outside_expected": round(found.outside_expected, 1)}


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    """Bounds that are not finite are null: JSON has no infinity."""
    return {
        name: round(value, 4) if abs(value) < 1e9 else None
        for name, value in dataclasses.asdict(estimate).items()
    }
