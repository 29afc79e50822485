"""A verification in words and in JSON, and its progress."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from specserve.errors import VerifyFailed
from specserve.measure.verify import result
from specserve.measure.verify.result import (
    CONFIDENCE,
    Greedy,
    Outcome,
    Sampled,
    Sampling,
    Verification,
    VerifyVerdict,
)
from specserve.measure.verify.run import VerifyRequest, VerifyStatus
from specserve.measure.verify.sampled import COOL_PERCENT, HOT_PERCENT, MARGIN_POINTS, WIDEST_PERCENT
from specserve.measure.verify.server import load_prompts, verify_url
from specserve.measure.verify.session import TOP
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile
from specserve.report.answer import acceptance_json
from specserve.report.console import LiveLine, filled, in_one_line, say
from specserve.report.text import count, json_document, json_values, toned
from specserve.serve.server import Gate, RunningServer
from specserve.serve.signals import notify

NOT_SEEN = (
    "wrong weights, a wrong chat template, quantization: the server is compared with itself "
    "(`--against URL` compares it with another)",
    "what this run did not request: other temperatures, adapters, images, and penalties and long contexts beyond the "
    "smoke tests",
    "faults in the requests of other clients: only those of this run were looked at",
)
_SHOWN = 3
_DIGITS = 4
"""Of figures in JSON."""


class VerifyProgress(LiveLine):
    """Shows the phase of `verify`: a live line on a terminal, a line now and then in a pipe."""

    def __init__(self, *, limit_s: float) -> None:
        super().__init__(every_s=10.0)
        self._limit_s = limit_s

    def __call__(self, progress: VerifyStatus) -> None:
        """Show it, if it is time to."""
        tokens = f", {progress.tokens:,} tokens generated" if progress.tokens else ""
        elapsed_s = progress.elapsed_s
        clock = ""
        if elapsed_s is not None:
            is_late = elapsed_s > self._limit_s
            planned = f" (planned: {self._limit_s:.0f} s)" if is_late else f" of about {self._limit_s:.0f} s"
            clock = f", {elapsed_s:.0f}{' s' if is_late else ''}{planned}"
        self.show(f"  {progress.phase}{tokens}{clock}")


def verify_text(found: Verification) -> str:
    """Returns the whole report, for people."""
    lines = [*_headline(found, sys.stdout), ""]
    if found.greedy is not None:
        lines += _part("T = 0", found.greedy.verdict, _greedy_words(found.greedy))
        lines += [line for item in found.greedy.differences[:_SHOWN] for line in _difference(item)]
        more = _wrong(found.greedy) - _SHOWN if found.greedy.differences else 0
        lines += [f"    and {more} more"] if more > 0 else []
    for item in found.sampled:
        lines += _part(_sampling_words(item.sampling), item.verdict, _sampled_words(item))
    if found.against is not None:
        lines += ["", *_against(found.against)]
    if found.smoke:
        lines += ["", "smoke tests", *_smoke(found.smoke)]
    for name, reason in found.unused_prompts.items():
        lines += ["", *_filled([f"the prompt `{in_one_line(name)}` was left out: {in_one_line(reason)}"])]
    for hint in _filled(_hints(found)):
        lines += ["", hint]
    return "\n".join([*lines, "", "What this cannot see:", *_filled(NOT_SEEN, "  - ")])


def brief(found: Verification) -> str:
    """Returns the verdict in a line, and what is wrong, for `up --verify`."""
    lines = _headline(found, sys.stderr)
    if found.greedy is not None:
        lines += [line for item in found.greedy.differences[:1] for line in _difference(item)]
    for item in found.sampled:
        lines += [f"  {_sampling_words(item.sampling)}: {reason}" for reason in item.reasons]
    lines += [f"  not ok: {item.name}: {in_one_line(item.detail)}" for item in _not_ok(found)]
    return "\n".join(lines)


def brief_json(found: Verification) -> dict[str, Any]:
    """Returns the same as fields of an event."""
    return {
        "verdict": found.verdict.value,
        "has_failed": found.has_failed,
        "elapsed_s": round(found.elapsed_s, 2),
        **_excluded_json(found),
        "reasons": [reason for item in found.sampled for reason in item.reasons],
        "differences": json_values(found.greedy.differences) if found.greedy else [],
        "not_ok": [item.name for item in _not_ok(found)],
    }


def _not_ok(found: Verification) -> list[result.Smoke]:
    return [item for item in found.smoke if item.outcome is Outcome.NOT_OK]


def _headline(found: Verification, stream: TextIO) -> list[str]:
    """The verdict, what was measured, and the faults that the run excludes."""
    tokens = sum(item.tokens for item in (found.greedy, *found.sampled) if item)
    parts = [f"{tokens:,} tokens measured in {found.elapsed_s:.0f} s at concurrency {found.concurrency}"]
    if found.against is not None:
        parts.append(f"{found.against.verdict.value} against the other server")
    if bad := len(_not_ok(found)):
        parts.append(f"{bad} of {len(found.smoke)} smoke tests not ok")
    text = f"`{in_one_line(found.model)}` at {in_one_line(found.url)}, {', '.join(parts)}"
    verdict = found.verdict.value
    lines = [filled(text, lead=f"{verdict}: ", shown=f"{toned(verdict, stream=stream)}: ", stream=stream)]
    if found.verdict is not VerifyVerdict.LOSSY and (excluded := "; ".join(_excluded(found))):
        text = f"faults that this run would have found, with {100 * CONFIDENCE:.0f} % confidence: {excluded}"
        lines.append(filled(text, lead="  ", stream=stream))
    return lines


def _excluded(found: Verification) -> Iterator[str]:
    """The faults that the run excludes."""

    def up(bound: float) -> str:  # what a bound excludes must stay excluded
        return f"{math.ceil(10 * bound) / 10:.1f}"

    for item in found.sampled:
        if item.excluded_temperature_percent is not None:
            fault = f"a temperature that is off by {up(item.excluded_temperature_percent)} % or more"
        elif item.excluded_points is not None:
            fault = f"a most likely token sampled {up(item.excluded_points)} points too often or too rarely"
        else:
            continue
        yield f"{fault} (at {_sampling_words(item.sampling)})"
    if found.greedy is not None and found.greedy.excluded_share is not None:
        yield f"{up(100 * found.greedy.excluded_share)} % or more wrong tokens (at T = 0)"


def _excluded_json(found: Verification) -> dict[str, Any]:
    """The largest fault that any part of the run still allows; null if a part does not bound it."""
    bounds = [item.excluded_temperature_percent for item in found.sampled]
    known = [bound for bound in bounds if bound is not None]
    content = {
        "excluded_temperature_percent": max(known) if known and None not in bounds else None,
        "excluded_greedy_share": found.greedy.excluded_share if found.greedy else None,
    }
    return dict(json_values(content, digits=_DIGITS))


def _sampling_words(sampling: Sampling) -> str:
    """`T = 0.7, top_p 0.9`: the temperature, and what differs from vLLM's defaults."""
    values, plain = json_values(sampling), json_values(Sampling(sampling.temperature))
    others = (f"{name} {value:g}" for name, value in values.items() if value != plain[name])
    return ", ".join([f"T = {sampling.temperature:g}", *others])


def _part(label: str, verdict: VerifyVerdict | result.Likeness, words: Iterable[str]) -> list[str]:
    return [f"{label}: {toned(verdict.value, stream=sys.stdout)}", *_filled(words, "  ")]


def _filled(texts: Iterable[str], lead: str = "") -> Iterator[str]:
    return (filled(text, lead=lead, stream=sys.stdout) for text in texts)


def _greedy_words(found: Greedy) -> Iterator[str]:
    gap = f", largest gap {found.largest_gap:.3f}" if found.near_ties else ""
    wrong = f", {_wrong(found):,} wrong" if found.differences else ""
    yield (
        f"{found.tokens:,} tokens of {count(found.requests, 'request')}: {found.best:,} are the target's most "
        f"likely token, {count(found.near_ties, 'near-tie')} (tolerance {found.tie_tolerance:g} nats{gap}){wrong}"
    )
    if found.unstable:
        yield f"{count(found.unstable, 'token')} looked wrong once, and not when scored again"
    if found.unchecked:
        yield f"{count(found.unchecked, 'token')} looked wrong once, and got no second score"
    if found.tokens_needed:
        yield f"the verdict LOSSLESS needs about {found.tokens_needed:,} more tokens"


def _wrong(found: Greedy) -> int:
    return found.tokens - found.best - found.near_ties - found.unstable - found.unchecked


def _sampled_words(found: Sampled) -> Iterator[str]:
    points, heat = found.deviation_points, found.temperature_error_percent
    of_all = f"{count(found.tokens, 'token')} of {count(found.requests, 'request')}"
    if not math.isfinite(points.high):
        yield f"{of_all}: too few to measure"
        return
    yield (
        f"{of_all}: the most likely token was sampled {abs(points.value):.2f} percentage points "
        f"{'more' if points.value >= 0 else 'less'} often than expected; 99 % interval {points.low:+.2f} to "
        f"{points.high:+.2f}; LOSSLESS needs an interval within ±{MARGIN_POINTS:g}"
    )
    if max(-heat.low, heat.high) <= WIDEST_PERCENT:
        yield (
            f"the temperature seems {abs(heat.value):.1f} % {'higher' if heat.value >= 0 else 'lower'} than requested; "
            f"99 % interval {heat.low:+.1f} % to {heat.high:+.1f} %; LOSSLESS needs an interval within "
            f"±{COOL_PERCENT:g} %"
        )
    strays = f"{count(found.outside, 'sampled token')} not among the target's {TOP} most likely"
    normal = f"up to {found.outside_expected:,.0f} are normal"
    if found.outside > found.outside_expected and not found.reasons:
        normal = f"the mean is up to {found.outside_expected:,.0f}, and chance can explain the rest"
    yield f"{strays}; {normal}"
    if found.skipped:
        yield f"{found.skipped:,} tokens left out: these settings hide their distribution"
    yield from (f"wrong: {reason}" for reason in found.reasons)
    if found.tokens_needed:
        yield f"the verdict LOSSLESS needs about {found.tokens_needed:,} more tokens"


def _difference(item: result.WrongToken) -> list[str]:
    place = f"{in_one_line(item.prompt)}, token {item.index}"
    return [
        f"    {place}: after {_quoted(item.before)} came {_quoted(item.emitted)},",
        f"    the target prefers {_quoted(item.best)} (by {item.gap:.2f} nats)",
    ]


def _against(found: result.Against) -> Iterator[str]:
    near = sum(item.is_near_tie for item in found.partings)
    words = [
        f"{found.equal} of {found.texts} greedy texts are equal, {near} part at a near-tie, "
        f"{len(found.partings) - near} part elsewhere",
        f"the same {found.tokens:,} tokens differ by {found.mean_difference:.4f} nats on average, "
        f"{found.largest_difference:.2f} at most; a second score of this server by "
        f"{found.own_difference:.4f}; another best token {found.other_best} times",
        *(f"wrong: {reason}" for reason in found.reasons),
    ]
    if found.verdict is result.Likeness.CLOSE:
        words.append("not the same numbers: another version or machine, or slightly other weights")
    label = f"against `{in_one_line(found.model)}` at {in_one_line(found.url)}"
    yield from _part(label, found.verdict, words)
    for item in sorted(found.partings, key=lambda item: item.is_near_tie)[:_SHOWN]:
        place = f"{in_one_line(item.prompt)}, token {item.index}: after {_quoted(item.before)}"
        kind = "a near-tie" if item.is_near_tie else "no near-tie"
        gaps = f"{item.gap_here:.2f} and {item.gap_there:.2f} nats"
        yield f"    {place} {_quoted(item.here)} here, {_quoted(item.there)} there:"
        yield f"    {kind} (each server's gap for its own: {gaps})"


def _smoke(found: tuple[result.Smoke, ...]) -> Iterator[str]:
    wide = max(len(item.name) for item in found)
    for item in found:
        word = item.outcome.value
        lead = f"  {word:<7}  {item.name:<{wide}}  "
        shown = lead.replace(word, toned(word, stream=sys.stdout), 1)
        yield filled(in_one_line(item.detail), lead=lead, shown=shown, stream=sys.stdout)


def _hints(found: Verification) -> Iterator[str]:
    """What would settle an open verdict."""
    greedy, needed = found.greedy, sum(part.tokens_needed for part in found.sampled)
    if found.verdict is VerifyVerdict.LOSSY or not found.is_open:
        return
    lacks_text = greedy is not None and greedy.tokens_needed > 0 and not greedy.unasked
    if greedy is not None and greedy.unasked:
        needed += greedy.tokens_needed
    if needed and found.tokens_per_s:  # more time brings these tokens
        wanted_s = found.elapsed_s + 1.1 * needed / found.tokens_per_s
        seconds = max(10, math.ceil(wanted_s / 10) * 10)
        above = " above T = 0" if lacks_text else ""
        yield f"`--seconds {seconds}` should be enough for LOSSLESS{above} (estimated)"
    if greedy is not None and greedy.unchecked:
        yield "more `--seconds` leave time to score again what looked wrong once"
    if lacks_text:
        yield "at T = 0 more time gives no more text, as it repeats: more prompts (`--prompts`)"


def _quoted(text: str) -> str:
    return in_one_line(json.dumps(text, ensure_ascii=False))


def verify_json(found: Verification) -> str:
    """Returns the same for scripts, version 1."""
    return json_document(
        {
            "verdict": found.verdict,
            "has_failed": found.has_failed,
            **json_values(found, digits=_DIGITS),
            "basis": "measured",
            "confidence": CONFIDENCE,
            **_excluded_json(found),
            "margins": {
                "deviation_points": MARGIN_POINTS,
                "temperature_error_percent": {"lossy_beyond": HOT_PERCENT, "lossless_within": COOL_PERCENT},
            },
            "speculates": found.speculation.is_on,
            "speculation": acceptance_json(found.speculation.acceptance),
            "not_seen": NOT_SEEN,
        }
    )


_PATIENCE = 3
"""A verification may take this many times its limit before systemd gives up."""


def verification_gate(profile: Profile, plan: LaunchPlan, *, as_json: bool, limit_s: float = 60.0) -> Gate:
    """A gate that verifies as `specserve verify` does, without options, and prints the result on stderr."""
    request = VerifyRequest((Sampling(0.0), Sampling(0.7)), load_prompts()[0], limit_s)

    def gate(server: RunningServer) -> None:
        limit_us = round(_PATIENCE * limit_s * 1e6)
        notify("STATUS=verifying; the port is already open", f"EXTEND_TIMEOUT_USEC={limit_us}")
        if not as_json:
            say("verifying; the port is already open, and requests are answered during this time")
        progress = None if as_json else VerifyProgress(limit_s=limit_s)
        found = verify_url(
            server.url, plan.api_key_env, request, stop=server.stop, progress=progress, profile=profile
        )
        event = {"version": 1, "name": plan.name, "event": "verified"}
        say(json.dumps({**event, **brief_json(found)}) if as_json else brief(found))
        if found.has_failed:
            raise VerifyFailed(
                f"the server did not pass its verification ({found.verdict.value}): it is stopped",
                hint="start it without `--verify`, then run `specserve verify` for details",
            )

    return gate
