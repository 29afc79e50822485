"""What watching a server found: a live screen, a line a look in a pipe, the answer, JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from specserve.measure.watch.verdict import promise_words, shown
from specserve.measure.watch.watch import WatchedServer, WatchReport
from specserve.report.console import in_one_line, is_terminal, out, say, styled
from specserve.report.page import Items, text_lines
from specserve.report.text import VERSION, answer_line, count, decimals, json_values


def answer(report: WatchReport) -> tuple[str, str]:
    """Return the verdict's word, and its sentence with what to do."""
    advice = f". What to do: {report.advice.sentence}" if report.advice is not None else ""
    return report.verdict.word, in_one_line(f"{report.verdict.sentence}{advice}")


def clock(report: WatchReport) -> str:
    """Return the time of day."""
    return datetime.fromtimestamp(report.at_s).strftime("%H:%M:%S")


def line(report: WatchReport) -> str:
    """Return one look in 80 columns, for a pipe."""
    seen = report.window
    if seen is None:
        return f"{clock(report)}  {in_one_line(report.verdict.sentence)}"
    length, rate = seen.mean_acceptance_length, seen.acceptance_rate
    return (
        f"{clock(report)}  length {decimals(length.value if length else None):>4}"
        f"  accepted {decimals(rate.value if rate else None):>4}"
        f"  {seen.counted.generation_tokens / seen.seconds:>6,.0f} tokens/s"
        f"  running {report.running_requests:>3}  waiting {report.waiting_requests:>3}"
    )


def rows(report: WatchReport) -> list[tuple[str, str]]:
    """Return all figures, as label and text."""
    seen = report.window
    if seen is None:
        return []
    counted, drafts = seen.counted, seen.counted.acceptance
    requests = count(counted.finished_requests, "finished request")
    tokens = f"{counted.generation_tokens / seen.seconds:.1f} tokens/s"
    if seen.undrafted_share:
        tokens += f", {seen.undrafted_share:.0%} of them without a draft"
    load = f"{seen.running_requests:.1f} running on average, {report.waiting_requests} waiting now"
    found = [
        ("measured", f"over {seen.seconds:.0f} s: {drafts.drafts:,} drafts, {requests}"),
        ("mean length", shown(seen.mean_acceptance_length)),
        ("acceptance", shown(seen.acceptance_rate)),
        ("per position", " ".join(map(decimals, drafts.per_position)) or "-"),
        ("output", tokens),
        ("P99", f"TTFT {shown(seen.ttft_p99_ms, ' ms')}, TPOT {shown(seen.tpot_p99_ms, ' ms')}"),
        ("load", f"{load}, {count(counted.preemptions, 'preemption')}"),
    ]
    for promise in report.promises:
        why = f": {promise.why}" if promise.why else ""
        found.append((promise.kept.value, f"{promise_words(promise)}{why}"))
    return found


def as_json(report: WatchReport, watched: WatchedServer) -> dict[str, Any]:
    """Return the same for programs; null if it is not known."""
    record, profile = watched.record, watched.profile
    return {
        "version": VERSION,
        "url": watched.endpoint.root,
        "profile": profile.name if profile else record and record.name,
        "fingerprint": record and record.fingerprint,
        **json_values(report),
    }


def figures_text(report: WatchReport) -> str:
    """Return the answer, and below it all figures."""
    lines = text_lines(Items(rows(report)), sys.stdout)
    return "\n".join([answer_line(*answer(report), stream=sys.stdout), *lines])


def show_watch(
    watched: WatchedServer,
    reports: Iterable[WatchReport],
    *,
    is_json: bool,
    only_last: bool,
    verbose: bool,
) -> WatchReport:
    """Show each report, or the last alone; return the last one. A live screen is left standing."""
    before: WatchReport | None = None
    warning = f"{styled('warning', 'yellow')}:"
    say(f"watching {watched.endpoint.root}")
    if watched.no_promises is not None:
        say(f"{warning} no promises are judged: {in_one_line(watched.no_promises)}")
    can_redraw = is_terminal(sys.stdout) and os.environ.get("TERM") not in {None, "", "dumb"}
    if can_redraw and not is_json and not only_last:
        return _draw(reports)
    for report in reports:
        trouble, was = report.trouble, before.trouble if before is not None else None
        if trouble is not None and was is None:
            say(f"{warning} {in_one_line(trouble.message)}; waiting for the server")
        elif trouble is None and was is not None:
            say("the server answers again")
        if is_json and not only_last:
            out(json.dumps(as_json(report, watched)))
        elif trouble is None and not only_last:
            out(line(report))
            if before is None or report.verdict.word != before.verdict.word:
                out(answer_line(*answer(report), lead=f"{clock(report)}  ", stream=sys.stdout))
        before = report
    if only_last and is_json:
        out(json.dumps(as_json(report, watched)))
    elif only_last:
        out(figures_text(report) if verbose else answer_line(*answer(report), stream=sys.stdout))
    return report


def _draw(reports: Iterable[WatchReport]) -> WatchReport:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as screen:
        for report in reports:
            # what matters most comes first: a window that is too small cuts off the end
            shown = f"{figures_text(report)}\n{clock(report)}  Ctrl-C ends it"
            screen.update(Text.from_ansi(shown), refresh=True)
    return report
