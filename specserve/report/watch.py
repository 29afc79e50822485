"""What watching a server found: a live screen on a terminal, lines in a pipe, one block, JSON lines."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from specserve.measure.watch.figures import NUMBER_DRAFTS, QUANTILES, Latency, WatchFigures
from specserve.measure.watch.server import WatchedServer, WatchRequest
from specserve.measure.watch.verdict import JudgedPromise, WatchState
from specserve.measure.watch.watch import WatchReport
from specserve.metrics.counters import Counters
from specserve.report.console import filled, in_one_line, is_terminal, out, say, styled
from specserve.report.numbers import NONE, count, number
from specserve.report.serializer import VERSION, picked
from specserve.report.table import STYLES, TONES, toned

_BAR = 30


def clock(report: WatchReport) -> str:
    """The time of day."""
    return datetime.fromtimestamp(report.at_s).strftime("%H:%M:%S")


def line(report: WatchReport) -> str:
    """One look in 80 columns, for a pipe."""
    seen = report.figures
    if seen is None:
        return f"{clock(report)}  {in_one_line(report.verdict.sentence)}"
    return (
        f"{clock(report)}  length {number(seen.mean_acceptance_length):>4}  accepted {number(seen.acceptance_rate):>4}"
        f"  {seen.output_tokens_per_s:>6,.0f} tokens/s  running {report.running_requests:>3}"
        f"  waiting {report.waiting_requests:>3}"
    )


def verdict_lines(report: WatchReport) -> list[str]:
    """The verdict, and the advice if there is one."""
    advice = [f"advice: {in_one_line(report.advice.sentence)}"] if report.advice is not None else []
    return [f"{report.verdict.state}: {in_one_line(report.verdict.sentence)}", *advice]


def block(report: WatchReport, *, url: str) -> list[tuple[str, str]]:
    """All of it, as label and text; the verdict is left to `verdict_lines`."""
    seen = report.figures
    if seen is None:
        return [("server", in_one_line(url))]
    counters = seen.counters
    models = dict.fromkeys(in_one_line(name.model_name) for name in seen.engines)
    measured = (
        f"over {seen.window_s:.0f} s: {seen.acceptance.drafts:,} drafts, "
        f"{counters.finished_requests:,} requests finished"
    )
    measured += f"; {count(report.restarts, 'restart')} of the server" if report.restarts else ""
    measured += "; the last reading failed" if report.trouble is not None else ""
    usage = "unknown" if seen.most_kv_cache_usage is None else f"{seen.most_kv_cache_usage:.0%} at most"
    rows = [
        ("server", f"{in_one_line(url)}, {', '.join(models)}"),
        ("measured", measured),
        *(_speculation(seen) if seen.speculates else ()),
        ("output", f"{seen.output_tokens_per_s:.1f} tokens/s, {seen.requests_per_s:.2f} requests/s"),
        ("TTFT", _latency(seen.ttft)),
        ("TPOT", _latency(seen.tpot)),
        ("E2E", _latency(seen.e2e)),
        (
            "queue",
            f"{seen.running_requests:.1f} running and {seen.waiting_requests:.1f} waiting on average, "
            f"at most {seen.most_running} and {seen.most_waiting}",
        ),
        ("KV cache", f"{usage}, {count(counters.preemptions, 'preemption')}"),
    ]
    ended = {why: many for why, many in counters.finished.items() if many and why not in {"stop", "length"}}
    if ended:
        words = ", ".join(f"{many} {in_one_line(why)}" for why, many in ended.items())
        rows.append(("ended by", f"{words}, of {counters.finished_requests} requests"))
    if len(seen.engines) > 1:
        rows += [(f"engine {in_one_line(name.engine)}", _engine(each)) for name, each in seen.engines.items()]
    return rows + [("promise", _promise(promise)) for promise in report.promises]


def _speculation(seen: WatchFigures) -> Iterator[tuple[str, str]]:
    if seen.mean_acceptance_length is None:
        yield "acceptance", f"- (a figure needs 2 finished requests, or {NUMBER_DRAFTS} drafts)"
        return
    rate, length = number(seen.acceptance_rate), number(seen.mean_acceptance_length)
    if seen.mean_acceptance_length_interval is not None:
        low, high = seen.mean_acceptance_length_interval
        length += f" tokens per step (95 %: {low:.2f} to {high:.2f})"
    yield "acceptance", f"{rate} of the drafted tokens, {seen.drafts_per_s:.1f} drafts/s"
    yield "mean length", length
    yield "per position", " ".join(map(number, seen.per_position)) or NONE
    yield "conditional", " ".join(map(number, seen.conditional)) or NONE
    if seen.undrafted_share is not None and seen.undrafted_share >= 0.01:
        yield "undrafted", f"{seen.undrafted_share:.0%} of the output tokens came without a draft"


def _engine(counters: Counters) -> str:
    counted = counters.acceptance
    length = number(counted.mean_acceptance_length if counted.drafts >= NUMBER_DRAFTS else None)
    return f"mean length {length}, {counted.drafts:,} drafts, {counters.finished_requests:,} requests"


def _promise(promise: JudgedPromise) -> str:
    """One promise: what became of it, what was promised, what was measured."""
    digits, unit = (0, " ms") if promise.key.endswith("_ms") else (2, "")
    text = f"{promise.kept}: `{promise.key}` {promise.promised:g}{unit}"
    if promise.measured is not None:
        text += f", measured {promise.measured:.{digits}f}{unit}"
    if promise.interval is not None:
        low, high = promise.interval
        upper = f"to {high:.{digits}f}" if math.isfinite(high) else "or more"
        text += f" (95 %: {low:.{digits}f} {upper})"
    return f"{text}{f'; {promise.why}' if promise.why else ''} [{in_one_line(str(promise.span))}]"


def _latency(latency: Latency) -> str:
    """The mean, and the quantiles that the requests suffice for; those are as coarse as vLLM's buckets."""
    quantiles = zip(QUANTILES, latency.quantiles_s, strict=True)
    parts = [f"p{share * 100:g} {_wait(value)}" for share, value in quantiles]
    return "  ".join([f"mean {_wait(latency.mean_s)}", *parts])


def _wait(seconds: float | None) -> str:
    """`9.1 ms`, `41 ms`, `1.25 s`."""
    if seconds is None:
        return NONE
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


def as_json(report: WatchReport, *, url: str, labels: dict[str, str]) -> dict[str, Any]:
    """Returns the same for programs, `version` 1; null if it is not known. `labels`: profile and fingerprint."""
    error = report.trouble
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
        "promises": [
            {
                **picked(promise, "key", "promised", "kept", "measured", "interval"),
                "why": promise.why or None,
                "location": str(promise.span),
            }
            for promise in report.promises
        ],
        **picked(report, "running_requests", "waiting_requests", "kv_cache_usage"),
        "window": None if report.figures is None else _window_json(report.figures),
    }


def _window_json(seen: WatchFigures) -> dict[str, Any]:
    counters = seen.counters
    return {
        "seconds": seen.window_s,
        "speculation": _speculation_json(seen) if seen.speculates else None,
        "output_tokens_per_s": seen.output_tokens_per_s,
        "prompt_tokens_per_s": counters.prompt_tokens / seen.window_s if seen.window_s else None,
        "requests_per_s": seen.requests_per_s,
        "finished_requests": counters.finished_requests,
        "finished_by_reason": dict(counters.finished),
        "running_requests_mean": seen.running_requests,
        "waiting_requests_mean": seen.waiting_requests,
        "running_requests_max": seen.most_running,
        "waiting_requests_max": seen.most_waiting,
        "kv_cache_usage_max": seen.most_kv_cache_usage,
        "preemptions": counters.preemptions,
        **{f"{name}_ms": _latency_json(getattr(seen, name)) for name in ("ttft", "tpot", "e2e", "queue")},
        "engines": [
            {**picked(name, "model_name", "engine"), **_counts(engine)}
            for name, engine in seen.engines.items()
        ],
    }


def _speculation_json(seen: WatchFigures) -> dict[str, Any]:
    rates = ("acceptance_rate", "acceptance_rate_interval")
    lengths = ("mean_acceptance_length", "mean_acceptance_length_interval")
    return {
        **_counts(seen.counters),
        **picked(seen, *rates, *lengths),
        "acceptance_rate_per_position": list(seen.per_position),
        "conditional_acceptance_rate_per_position": list(seen.conditional),
        **picked(seen, "mean_draft_tokens", "undrafted_share", "drafts_per_s"),
    }


def _counts(counters: Counters) -> dict[str, int]:
    counted = counters.acceptance
    return {
        "num_drafts": counted.drafts,
        "num_draft_tokens": counted.draft_tokens,
        "num_accepted_tokens": counted.accepted_tokens,
    }


def _latency_json(latency: Latency) -> dict[str, Any]:
    names = ("mean", *(f"p{share * 100:g}" for share in QUANTILES))
    values = (latency.mean_s, *latency.quantiles_s)
    times = {name: None if s is None else 1000 * s for name, s in zip(names, values, strict=True)}
    return {"count": latency.count, **times}


def picture(report: WatchReport, *, url: str) -> Any:
    """Returns what the live screen shows, as rich draws it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows, seen = Table.grid(padding=(0, 2)), report.figures
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column()
    for label, text in block(report, url=url):
        if label == "per position" and seen is not None and seen.per_position:
            for at, (share, given) in enumerate(zip(seen.per_position, seen.conditional, strict=True)):
                full = round(_BAR * min(share, 1.0))
                bar = [(f"{at + 1:>2} ", ""), ("━" * full, "green"), ("─" * (_BAR - full), "dim")]
                after = f"   {number(given)} given the one before" if at else ""
                rows.add_row("" if at else label, Text.assemble(*bar, f" {number(share)}", (after, "dim")))
        elif label != "conditional" or seen is None or not seen.per_position:  # the bars show it
            rows.add_row(label, Text(text))
    head, *advice = verdict_lines(report)
    state, _, sentence = head.partition(": ")
    verdict = Text.assemble((state, f"bold {STYLES.get(TONES.get(state, ''), 'default')}"), ": ", sentence)
    foot = Text(clock(report) if report.is_final else f"{clock(report)}  Ctrl-C ends it", style="dim")
    # what matters most comes first: a window that is too small cuts off the end
    return Group(verdict, *(Text(each) for each in advice), Text(), rows, foot)


class WatchPrinter:
    """Shows each report, or the last alone (`only_last`); a context manager, which leaves the last screen standing."""

    def __init__(self, *, is_json: bool, only_last: bool) -> None:
        self._is_json = is_json
        self._only_last = only_last
        self._screen: Any = None
        can_redraw = is_terminal(sys.stdout) and os.environ.get("TERM") not in {None, "", "dumb"}
        if can_redraw and not is_json and not only_last:
            from rich.console import Console
            from rich.live import Live

            console = Console(highlight=False)
            self._screen = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")
        self._watched: WatchedServer | None = None
        self._state: WatchState | None = None
        self._trouble = ""

    def __enter__(self) -> WatchPrinter:
        if self._screen is not None:
            self._screen.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._screen is not None:
            self._screen.__exit__(*exception)

    def begin(self, watched: WatchedServer, request: WatchRequest) -> None:
        """Say what is watched."""
        self._watched = watched
        how_long = f" for {request.for_s:g} s" if request.for_s is not None else ""
        say(f"watching {watched.endpoint.root}{how_long}: figures cover the last {request.window_s:g} s")
        if watched.profile is not None and watched.profile.expect:
            say(f"checking against the promises of `{watched.profile.file}`")
        elif watched.profile is not None and watched.is_other_arm:
            say(
                f"no promises are checked: `expect` applies only to the speculation of `{watched.profile.file}` "
                "itself"
            )

    def exporting(self, host: str, port: int) -> None:
        """Say where the exporter listens."""
        shown = f"[{host}]" if ":" in host else host
        say(f"metrics at http://{shown}:{port}/metrics")
        if host not in {"127.0.0.1", "::1", "localhost"}:
            say(f"{styled('warning', 'yellow')}: anyone who can reach {shown}:{port} can read the metrics")

    def show(self, report: WatchReport) -> None:
        """Show one report."""
        assert self._watched is not None
        url = self._watched.endpoint.root
        if self._screen is not None:
            self._screen.update(picture(report, url=url), refresh=True)
            return
        self._say_trouble(report)
        if self._only_last and not report.is_final:
            return
        if self._is_json:
            out(json.dumps(as_json(report, url=url, labels=self._watched.labels)))
        elif report.is_final:
            _print_block(report, url=url)
        elif report.trouble is None:  # else said on stderr
            if report.figures is not None and report.verdict.state is not WatchState.IDLE:
                out(line(report))  # that it idles is said once
            if report.verdict.state is not self._state:
                for text in verdict_lines(report):
                    out(filled(text, lead=f"{clock(report)}  ", stream=sys.stdout))
            self._state = report.verdict.state

    def _say_trouble(self, report: WatchReport) -> None:
        """To stderr, when it comes and when it goes."""
        warning = styled("warning", "yellow")
        trouble = report.trouble.message if report.trouble is not None else ""
        if trouble != self._trouble and not report.is_final:
            say(f"{warning}: {trouble}; waiting for the server" if trouble else "the server answers again")
            self._trouble = trouble
        if report.restarted:
            say(f"{warning}: the server was restarted: a new window begins")


def _print_block(report: WatchReport, *, url: str) -> None:
    """All of it; nothing if no server answered: the error that ends the command says so."""
    if report.figures is None and report.trouble is not None:
        return
    for label, text in block(report, url=url):
        out(filled(text, lead=f"{label:<13}", stream=sys.stdout))
    state = report.verdict.state.value
    head, *rest = (filled(text, lead="", stream=sys.stdout) for text in verdict_lines(report))
    out("\n" + head.replace(state, toned(state, stream=sys.stdout), 1))
    for text in rest:
        out(text)
