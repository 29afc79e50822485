"""What watching a server found: a live screen on a terminal, lines in a pipe, one block, JSON lines."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from specserve.measure.watch.figures import LATENCIES, NUMBER_DRAFTS, QUANTILES, WatchFigures, quantiles_s
from specserve.measure.watch.verdict import JudgedPromise, Kept, WatchState
from specserve.measure.watch.watch import WatchedServer, WatchReport
from specserve.metrics.counters import Acceptance, Histogram
from specserve.report.console import filled, in_one_line, is_terminal, out, say, styled
from specserve.report.text import NONE, STYLES, TONES, VERSION, count, number, picked, toned

_BAR = 30


def clock(report: WatchReport) -> str:
    """Return the time of day."""
    return datetime.fromtimestamp(report.at_s).strftime("%H:%M:%S")


def line(report: WatchReport) -> str:
    """Return one look in 80 columns, for a pipe."""
    seen = report.figures
    if seen is None:
        return f"{clock(report)}  {in_one_line(report.verdict.sentence)}"
    tokens_per_s = seen.per_s(seen.counters.generation_tokens)
    return (
        f"{clock(report)}  length {number(seen.mean_acceptance_length):>4}"
        f"  accepted {number(seen.known.acceptance_rate):>4}  {tokens_per_s:>6,.0f} tokens/s"
        f"  running {report.running_requests:>3}  waiting {report.waiting_requests:>3}"
    )


def verdict_lines(report: WatchReport) -> list[str]:
    """Return the verdict, and the advice if there is one."""
    advice = [f"advice: {in_one_line(report.advice.sentence)}"] if report.advice is not None else []
    return [f"{report.verdict.state}: {in_one_line(report.verdict.sentence)}", *advice]


def block(report: WatchReport, *, url: str) -> list[tuple[str, str]]:
    """Return all of it, as label and text; the verdict is left to `verdict_lines`."""
    seen = report.figures
    if seen is None:
        return [("server", in_one_line(url))]
    counters, whole = seen.counters, seen.whole
    models = dict.fromkeys(in_one_line(name.model_name) for name in whole.engines)
    measured = (
        f"over {whole.seconds:.0f} s: {counters.acceptance.drafts:,} drafts, "
        f"{counters.finished_requests:,} requests finished"
    )
    measured += f"; {count(report.restarts, 'restart')} of the server" if report.restarts else ""
    measured += "; the last reading failed" if report.trouble is not None else ""
    tokens, requests = seen.per_s(counters.generation_tokens), seen.per_s(counters.finished_requests)
    usage = "unknown" if whole.most_kv_cache_usage is None else f"{whole.most_kv_cache_usage:.0%} at most"
    rows = [
        ("server", f"{in_one_line(url)}, {', '.join(models)}"),
        ("measured", measured),
        *(_speculation(seen) if whole.speculates else ()),
        ("output", f"{tokens:.1f} tokens/s, {requests:.2f} requests/s"),
        *((name.upper(), _latency(seen.latency(name))) for name in LATENCIES[:3]),
        (
            "queue",
            f"{seen.running_requests:.1f} running and {seen.per_s(whole.waiting_request_s):.1f} waiting on average, "
            f"at most {whole.most_running} and {whole.most_waiting}",
        ),
        ("KV cache", f"{usage}, {count(counters.preemptions, 'preemption')}"),
    ]
    ended = {why: many for why, many in counters.finished.items() if many and why not in {"stop", "length"}}
    if ended:
        words = ", ".join(f"{many} {in_one_line(why)}" for why, many in ended.items())
        rows.append(("ended by", f"{words}, of {counters.finished_requests} requests"))
    for name, each in whole.engines.items() if len(whole.engines) > 1 else ():
        counted = each.acceptance
        length = number(counted.mean_acceptance_length if counted.drafts >= NUMBER_DRAFTS else None)
        did = f"mean length {length}, {counted.drafts:,} drafts, {each.finished_requests:,} requests"
        rows.append((f"engine {in_one_line(name.engine)}", did))
    return rows + [("promise", _promise(promise)) for promise in report.promises]


def _speculation(seen: WatchFigures) -> Iterator[tuple[str, str]]:
    if seen.mean_acceptance_length is None:
        needed = f"a figure needs drafts of 2 finished requests, or {NUMBER_DRAFTS} drafts"
        yield "acceptance", f"- ({needed if seen.counters.acceptance.drafts else 'there were no drafts'})"
        return
    rate, length = number(seen.known.acceptance_rate), number(seen.mean_acceptance_length)
    if seen.mean_acceptance_length_interval is not None:
        low, high = seen.mean_acceptance_length_interval
        length += f" tokens per step (95 %: {low:.2f} to {high:.2f})"
    yield "acceptance", f"{rate} of the drafted tokens, {seen.per_s(seen.known.drafts):.1f} drafts/s"
    yield "mean length", length
    yield "per position", " ".join(map(number, seen.known.per_position)) or NONE
    yield "conditional", " ".join(map(number, seen.known.conditional)) or NONE
    if seen.undrafted_share is not None and seen.undrafted_share >= 0.01:
        yield "undrafted", f"{seen.undrafted_share:.0%} of the output tokens came without a draft"


def _promise(promise: JudgedPromise) -> str:
    """One promise: what became of it, what was promised, what was measured."""
    text = f"{promise.kept}: `{promise.key}` {promise.promised:g}{promise.unit}"
    is_bounded = promise.interval is None or math.isfinite(promise.interval[1])
    if promise.measured is not None and (is_bounded or promise.kept is not Kept.UNDECIDED):
        text += f", measured {promise.number(promise.measured)}{promise.unit}"
    if promise.interval is not None:
        low, high = map(promise.number, promise.interval)
        bounds = f"{low} to {high}" if math.isfinite(promise.interval[1]) else f"at least {low}{promise.unit}"
        text += f" (95 %: {bounds})"
    return f"{text}{f'; {promise.why}' if promise.why else ''} [{in_one_line(str(promise.span))}]"


def _latency(latency: Histogram) -> str:
    """The mean, and the quantiles that the requests suffice for; those are as coarse as vLLM's buckets."""
    return "  ".join(f"{name} {_wait(value)}" for name, value in _times(latency).items())


def _times(latency: Histogram) -> dict[str, float | None]:
    quantiles = zip(QUANTILES, quantiles_s(latency), strict=True)
    return {"mean": latency.mean, **{f"p{share * 100:g}": value for share, value in quantiles}}


def _wait(seconds: float | None) -> str:
    """`9.1 ms`, `41 ms`, `1.25 s`."""
    if seconds is None:
        return NONE
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


def as_json(report: WatchReport, *, url: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return the same for programs, `version` 1; null if it is not known. `labels`: profile and fingerprint."""
    error = report.trouble
    promises = [
        {
            **picked(promise, "key", "promised", "kept", "measured", "interval"),
            "why": promise.why or None,
            "location": str(promise.span),
        }
        for promise in report.promises
    ]
    return {
        "version": VERSION,
        "at": datetime.fromtimestamp(report.at_s, tz=UTC).isoformat(timespec="milliseconds"),
        "url": url,
        "profile": labels.get("profile") or None,
        "fingerprint": labels.get("fingerprint") or None,
        "final": report.is_final,
        "reachable": error is None,
        "error": error.message if error is not None else None,
        "restarts": report.restarts,
        "verdict": picked(report.verdict, "state", "sentence"),
        "advice": picked(report.advice, "code", "sentence") if report.advice else None,
        "promises": promises,
        **picked(report, "running_requests", "waiting_requests", "kv_cache_usage"),
        "window": None if report.figures is None else _window_json(report.figures),
    }


def _window_json(seen: WatchFigures) -> dict[str, Any]:
    counters, whole, known = seen.counters, seen.whole, seen.known
    speculation = {
        **_counts(counters.acceptance),
        **picked(known, "acceptance_rate", "mean_acceptance_length"),
        **picked(seen, "acceptance_rate_interval", "mean_acceptance_length_interval"),
        "acceptance_rate_per_position": list(known.per_position),
        "conditional_acceptance_rate_per_position": list(known.conditional),
        "mean_draft_tokens": known.draft_tokens / known.drafts if known.drafts else None,
        "undrafted_share": seen.undrafted_share,
        "drafts_per_s": seen.per_s(counters.acceptance.drafts),
    }
    times = {
        f"{name}_ms": {
            "count": latency.count,
            **{key: None if value is None else 1000 * value for key, value in _times(latency).items()},
        }
        for name, latency in ((name, seen.latency(name)) for name in LATENCIES)
    }
    return {
        "seconds": whole.seconds,
        "speculation": speculation if whole.speculates else None,
        "output_tokens_per_s": seen.per_s(counters.generation_tokens),
        "prompt_tokens_per_s": seen.per_s(counters.prompt_tokens),
        "requests_per_s": seen.per_s(counters.finished_requests),
        "finished_requests": counters.finished_requests,
        "finished_by_reason": dict(counters.finished),
        "running_requests_mean": seen.running_requests,
        "waiting_requests_mean": seen.per_s(whole.waiting_request_s),
        "running_requests_max": whole.most_running,
        "waiting_requests_max": whole.most_waiting,
        "kv_cache_usage_max": whole.most_kv_cache_usage,
        "preemptions": counters.preemptions,
        **times,
        "engines": [
            {**name._asdict(), **_counts(engine.acceptance)} for name, engine in whole.engines.items()
        ],
    }


def _counts(counted: Acceptance) -> dict[str, int]:
    return {
        "num_drafts": counted.drafts,
        "num_draft_tokens": counted.draft_tokens,
        "num_accepted_tokens": counted.accepted_tokens,
    }


def picture(report: WatchReport, *, url: str) -> Any:
    """Return what the live screen shows, as rich draws it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column()
    known = report.figures.known if report.figures is not None else Acceptance()
    for label, text in block(report, url=url):
        if label == "per position":  # bars, which show `conditional` too
            pairs = zip(known.per_position, known.conditional, strict=True)
            for at, (share, given) in enumerate(pairs):
                full = round(_BAR * min(share, 1.0))
                bar = [(f"{at + 1:>2} ", ""), ("━" * full, "green"), ("─" * (_BAR - full), "dim")]
                after = f"   {number(given)} given the one before" if at else ""
                rows.add_row("" if at else label, Text.assemble(*bar, f" {number(share)}", (after, "dim")))
        elif label != "conditional":
            rows.add_row(label, Text(text))
    head, *advice = verdict_lines(report)
    state, _, sentence = head.partition(": ")
    verdict = Text.assemble((state, f"bold {STYLES.get(TONES.get(state, ''), 'default')}"), ": ", sentence)
    foot = Text(clock(report) if report.is_final else f"{clock(report)}  Ctrl-C ends it", style="dim")
    # what matters most comes first: a window that is too small cuts off the end
    return Group(verdict, *(Text(each) for each in advice), Text(), rows, foot)


def show_watch(
    watched: WatchedServer, reports: Iterable[WatchReport], *, is_json: bool, only_last: bool
) -> WatchReport:
    """Show each report, or the last alone; return the last one. A live screen is left standing."""
    request, profile = watched.request, watched.profile
    how_long = f" for {request.for_s:g} s" if request.for_s is not None else ""
    say(f"watching {watched.endpoint.root}{how_long}: figures cover the last {request.window_s:g} s")
    if profile is not None and profile.expect:
        say(f"checking against the promises of `{profile.file}`")
    elif profile is not None and watched.is_other_arm:
        say(f"no promises are checked: `expect` applies only to the speculation of `{profile.file}` itself")
    can_redraw = is_terminal(sys.stdout) and os.environ.get("TERM") not in {None, "", "dumb"}
    if can_redraw and not is_json and not only_last:
        return _draw(watched, reports)
    return _write(watched, reports, is_json=is_json, only_last=only_last)


def _draw(watched: WatchedServer, reports: Iterable[WatchReport]) -> WatchReport:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as screen:
        for report in reports:
            screen.update(picture(report, url=watched.endpoint.root), refresh=True)
    return report


def _write(
    watched: WatchedServer, reports: Iterable[WatchReport], *, is_json: bool, only_last: bool
) -> WatchReport:
    warning = styled("warning", "yellow")
    state, trouble = None, ""
    for report in reports:
        before, trouble = trouble, report.trouble.message if report.trouble is not None else ""
        if trouble != before and not report.is_final:
            say(f"{warning}: {trouble}; waiting for the server" if trouble else "the server answers again")
        if report.restarted and not report.is_final:
            say(f"{warning}: the server was restarted: a new window begins")
        if report.is_final or not only_last:
            if is_json:
                out(json.dumps(as_json(report, url=watched.endpoint.root, labels=watched.labels)))
            else:
                _print(report, url=watched.endpoint.root, is_news=report.verdict.state is not state)
        if report.trouble is None:
            state = report.verdict.state
    return report


def _print(report: WatchReport, *, url: str, is_news: bool) -> None:
    """A line for one look, or the last report in full; without an answer nothing, for stderr has the reason."""
    if report.is_final and (report.figures is not None or report.trouble is None):
        for label, text in block(report, url=url):
            out(filled(text, lead=f"{label:<13}", stream=sys.stdout))
        state = report.verdict.state.value
        head, *rest = (filled(text, lead="", stream=sys.stdout) for text in verdict_lines(report))
        out("\n".join(["", head.replace(state, toned(state, stream=sys.stdout), 1), *rest]))
    elif not report.is_final and report.trouble is None:
        if report.figures is not None and report.verdict.state is not WatchState.IDLE:
            out(line(report))  # that it idles is said once
        for text in verdict_lines(report) if is_news else ():
            out(filled(text, lead=f"{clock(report)}  ", stream=sys.stdout))
