"""What watching a server found: a line, a block, JSON, the live screen."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any, TextIO

from specserve.measure.watch.figures import NUMBER_DRAFTS, QUANTILES, Latency, WatchFigures
from specserve.measure.watch.verdict import JudgedPromise
from specserve.measure.watch.watch import WatchReport
from specserve.metrics.counters import Counters
from specserve.report.console import in_one_line
from specserve.report.numbers import NONE, count, number
from specserve.report.serializer import VERSION, picked
from specserve.report.table import STYLES, TONES, toned


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
    """The verdict, and the advice where there is one."""
    lines = [f"{report.verdict.state}: {in_one_line(report.verdict.sentence)}"]
    if report.advice is not None:
        lines.append(f"advice: {in_one_line(report.advice.sentence)}")
    return lines


def coloured(head: str, report: WatchReport, *, stream: TextIO) -> str:
    """The line of the verdict with its state in colour, where the stream wants that."""
    state = report.verdict.state.value
    return head.replace(state, toned(state, stream=stream), 1)


def block(report: WatchReport, *, url: str) -> list[tuple[str, str]]:
    """All of it, as label and text; the verdict is left to `verdict_lines`."""
    seen = report.figures
    if seen is None:
        return [("server", in_one_line(url))]
    counters = seen.counters
    rows = [
        ("server", f"{in_one_line(url)}, {', '.join(in_one_line(name) for name in models(seen))}"),
        ("measured", _measured(report, seen)),
        *(_speculation(seen) if seen.speculates else []),
        ("output", f"{seen.output_tokens_per_s:.1f} tokens/s, {seen.requests_per_s:.2f} requests/s"),
        ("TTFT", latency_text(seen.ttft)),
        ("TPOT", latency_text(seen.tpot)),
        ("E2E", latency_text(seen.e2e)),
        ("queue", _queue(seen)),
        ("KV cache", _kv_cache(seen)),
    ]
    odd = {reason: ended for reason, ended in counters.finished.items() if reason not in {"stop", "length"}}
    if any(odd.values()):
        words = ", ".join(f"{ended} {in_one_line(reason)}" for reason, ended in odd.items() if ended)
        rows.append(("ended by", f"{words}, of {counters.finished_requests} requests"))
    if len(seen.engines) > 1:
        rows += [
            (f"engine {in_one_line(name.engine)}", _engine(engine)) for name, engine in seen.engines.items()
        ]
    return rows + [("promise", promise_text(promise)) for promise in report.promises]


def models(seen: WatchFigures) -> list[str]:
    """The served names."""
    return list(dict.fromkeys(name.model_name for name in seen.engines))


def _measured(report: WatchReport, seen: WatchFigures) -> str:
    text = (
        f"over {seen.window_s:.0f} s: {seen.acceptance.drafts:,} drafts, "
        f"{seen.counters.finished_requests:,} requests finished"
    )
    if report.restarts:
        text += f"; {count(report.restarts, 'restart')} of the server"
    if report.trouble is not None:
        text += "; the last reading failed"
    return text


def _speculation(seen: WatchFigures) -> list[tuple[str, str]]:
    if seen.mean_acceptance_length is None:
        return [("acceptance", f"- (a figure needs 2 finished requests, or {NUMBER_DRAFTS} drafts)")]
    length = number(seen.mean_acceptance_length)
    interval = seen.mean_acceptance_length_interval
    if interval is not None:
        length += f" tokens per step (95 %: {interval[0]:.2f} to {interval[1]:.2f})"
    rows = [
        (
            "acceptance",
            f"{number(seen.acceptance_rate)} of the drafted tokens, {seen.drafts_per_s:.1f} drafts/s",
        ),
        ("mean length", length),
        ("per position", _shares(seen.per_position)),
        ("conditional", _shares(seen.conditional)),
    ]
    if seen.undrafted_share is not None and seen.undrafted_share >= 0.01:
        rows.append(("undrafted", f"{seen.undrafted_share:.0%} of the output tokens came without a draft"))
    return rows


def _queue(seen: WatchFigures) -> str:
    return (
        f"{seen.running_requests:.1f} running and {seen.waiting_requests:.1f} waiting on average, "
        f"at most {seen.most_running} and {seen.most_waiting}"
    )


def _kv_cache(seen: WatchFigures) -> str:
    usage = "unknown" if seen.most_kv_cache_usage is None else f"{seen.most_kv_cache_usage:.0%} at most"
    return f"{usage}, {count(seen.counters.preemptions, 'preemption')}"


def _engine(counters: Counters) -> str:
    counted = counters.acceptance
    enough = counted.drafts >= NUMBER_DRAFTS
    length = number(counted.mean_acceptance_length if enough else None)
    return f"mean length {length}, {counted.drafts:,} drafts, {counters.finished_requests:,} requests"


def promise_text(promise: JudgedPromise) -> str:
    """One promise: what became of it, what was promised, what was measured."""
    milliseconds = promise.key.endswith("_ms")
    digits, unit = (0, " ms") if milliseconds else (2, "")
    text = f"{promise.kept}: `{promise.key}` {promise.promised:g}{unit}"
    if promise.measured is not None:
        text += f", measured {promise.measured:.{digits}f}{unit}"
    if promise.interval is not None:
        low, high = promise.interval
        upper = f"to {high:.{digits}f}" if math.isfinite(high) else "or more"
        text += f" (95 %: {low:.{digits}f} {upper})"
    if promise.why:
        text += f"; {promise.why}"
    return f"{text} [{in_one_line(str(promise.span))}]"


def latency_text(latency: Latency) -> str:
    """The mean, and the quantiles that the requests suffice for; those are as coarse as vLLM's buckets."""
    parts = [f"mean {duration_ms(latency.mean_s)}"]
    parts += [
        f"p{share * 100:g} {duration_ms(value)}"
        for share, value in zip(QUANTILES, latency.quantiles_s, strict=True)
    ]
    return "  ".join(parts)


def _shares(values: Sequence[float | None]) -> str:
    return " ".join(map(number, values)) or NONE


def duration_ms(seconds: float | None) -> str:
    """Returns `9.1 ms`, `41 ms`, `1.25 s`."""
    if seconds is None:
        return NONE
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


def clock(report: WatchReport) -> str:
    """The time of day."""
    return datetime.datetime.fromtimestamp(report.at_s).strftime("%H:%M:%S")


def as_json(report: WatchReport, *, url: str, labels: dict[str, str]) -> dict[str, Any]:
    """Returns the same for programs, `version` 1; null if it is not known. `labels`: profile and fingerprint."""
    at = datetime.datetime.fromtimestamp(report.at_s, tz=datetime.UTC)
    error = report.trouble
    return {
        "version": VERSION,
        "at": at.isoformat(timespec="milliseconds"),
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
    values = {"mean": latency.mean_s}
    values |= {
        f"p{share * 100:g}": value for share, value in zip(QUANTILES, latency.quantiles_s, strict=True)
    }
    return {
        "count": latency.count,
        **{name: None if value is None else 1000 * value for name, value in values.items()},
    }


_BAR = 30


class Screen:
    """A picture that is drawn anew at each look; a context manager, which leaves the last one standing."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.__exit__(*exception)

    def show(self, report: WatchReport, *, url: str) -> None:
        """Draw it."""
        self._live.update(picture(report, url=url), refresh=True)


def picture(report: WatchReport, *, url: str) -> Any:
    """What is drawn."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column()
    for label, text in block(report, url=url):
        bars = _bars(report.figures) if label == "per position" and report.figures is not None else []
        if bars:
            for index, bar in enumerate(bars):
                rows.add_row(label if index == 0 else "", bar)
        elif label != "conditional" or not report.figures or not report.figures.per_position:
            rows.add_row(label, Text(text))
    head, *advice = verdict_lines(report)
    state, _, sentence = head.partition(": ")
    colour = STYLES.get(TONES.get(state, ""), "default")
    verdict = Text.assemble((state, f"bold {colour}"), ": ", sentence)
    foot = Text(clock(report) if report.is_final else f"{clock(report)}  Ctrl-C ends it", style="dim")
    # first what matters most: a window that is too small cuts off the end
    return Group(verdict, *(Text(line) for line in advice), Text(), rows, foot)


def _bars(seen: WatchFigures) -> list[Any]:
    """One line per draft position: its number, a bar, the share, and the share given the position before."""
    from rich.text import Text

    lines = []
    for index, (share, given) in enumerate(zip(seen.per_position, seen.conditional, strict=True)):
        full = round(_BAR * min(share, 1.0))
        lines.append(
            Text.assemble(
                f"{index + 1:>2} ",
                ("━" * full, "green"),
                ("─" * (_BAR - full), "dim"),
                f" {number(share)}",
                (f"   {number(given)} given the one before" if index else "", "dim"),
            )
        )
    return lines
