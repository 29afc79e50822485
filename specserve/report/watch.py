"""What watching a server found: a live screen, a line a look in a pipe, the answer, JSON lines."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable
from datetime import datetime

from specserve.measure.watch import WatchedServer, WatchReport, promise_words, shown
from specserve.report.console import in_one_line, is_terminal, out, say, styled
from specserve.report.page import Items, text_lines
from specserve.report.text import answer_line, count, figure, json_document, json_values


def answer(report: WatchReport) -> tuple[str, str]:
    """Return the verdict's word, and its sentence with what to do."""
    advice = f". What to do: {report.advice.sentence}" if report.advice is not None else ""
    return report.verdict.word, in_one_line(f"{report.verdict.sentence}{advice}")


def clock(report: WatchReport) -> str:
    """Return the time of day."""
    return datetime.fromtimestamp(report.at_s).strftime("%H:%M:%S")


def line(report: WatchReport) -> str:
    """Return one look, for a pipe."""
    seen = report.window
    if seen is None:
        return f"{clock(report)}  {report.verdict.word}"
    length = seen.mean_acceptance_length
    shown_length = figure(length.value if length else None)
    return (
        f"{clock(report)}  {report.verdict.word:<9}  length {shown_length:>4}"
        f"  {seen.counted.generation_tokens / seen.seconds:>6,.0f} tokens/s"
        f"  {report.running_requests:>3} running  {report.waiting_requests:>3} waiting"
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
        ("per position", " ".join(map(figure, drafts.per_position)) or "-"),
        ("output", tokens),
        ("P99", f"TTFT {shown(seen.ttft_p99_ms, ' ms')}, TPOT {shown(seen.tpot_p99_ms, ' ms')}"),
        ("load", f"{load}, {count(counted.preemptions, 'preemption')}"),
    ]
    for promise in report.promises:
        why = f": {promise.why}" if promise.why else ""
        found.append((promise.kept.value, f"{promise_words(promise)}{why}"))
    return found


def report_json(report: WatchReport, watched: WatchedServer) -> str:
    """Return one line for programs; null is what is not known."""
    record, profile = watched.record, watched.profile
    server = {
        "url": watched.endpoint.root,
        "profile": profile.name if profile else record and record.name,
    }
    return json_document({**server, **json_values(report)}, indent=None)


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
    """Show them as they come, or the last one; a live screen is left standing."""
    say(f"watching {watched.endpoint.root}")
    if watched.no_promises is not None:
        reason = in_one_line(watched.no_promises)
        say(f"{styled('warning', 'yellow')}: no promises are judged: {reason}")
    can_redraw = is_terminal(sys.stdout) and os.environ.get("TERM") not in {None, "", "dumb"}
    if can_redraw and not is_json and not only_last:
        return _draw(reports)
    if only_last:
        (report,) = deque(reports, maxlen=1)
        if report.trouble is not None:
            say(f"{styled('warning', 'yellow')}: {in_one_line(report.trouble.message)}")
        if is_json:
            out(report_json(report, watched))
        else:
            last = answer_line(*answer(report), stream=sys.stdout)
            out(figures_text(report) if verbose else last)
        return report
    word = ""
    for report in reports:
        out(report_json(report, watched) if is_json else line(report))
        if not is_json and report.verdict.word != word:
            out(answer_line(*answer(report), lead=" " * 10, stream=sys.stdout))
        word = report.verdict.word
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
