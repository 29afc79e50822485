"""What `verify` and `watch` found on a running server: the answer, what it rests on, progress."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TextIO

from specserve.measure.verdict import INCONCLUSIVE
from specserve.measure.verify.judge import LOSSY, NO_FAULT_FOUND, Verification
from specserve.measure.watch import WatchedServer, WatchReport, promise_words, shown, trend_words
from specserve.report.console import LiveLine, in_one_line, is_terminal, out, say, styled
from specserve.report.page import Items, text_lines
from specserve.report.text import answer_line, count, duration, figure, json_document, json_values

_SHOWN = 3


class VerifyProgress(LiveLine):
    """Shows how far `verify` is: a live line on a terminal, a line now and then in a pipe."""

    def __init__(self, *, limit_s: float) -> None:
        super().__init__(every_s=10.0)
        self._limit_s = limit_s

    def __call__(self, elapsed_s: float | None, tokens: int) -> None:
        """Show it, if it is time to. `elapsed_s` None: during the warm-up."""
        if elapsed_s is None:
            self.show("  warm-up requests, not counted")
        else:
            clock = f"{elapsed_s:.0f} s (planned: {self._limit_s:.0f} s)"
            self.show(f"  {tokens:,} tokens compared, {clock}")


def verify_text(
    found: Verification, *, is_verbose: bool = False, stream: TextIO | None = None
) -> str:
    """Return the answer, with what is wrong; `is_verbose`: and all that was measured."""
    stream = stream or sys.stdout
    outcomes = Counter(item.outcome for item in found.smoke)
    counts = [f"{number} {outcome}" for outcome, number in outcomes.items()]
    scorer = f", scored by {found.against}" if found.against else ""
    smoke_tests = f"; smoke tests: {', '.join(counts)}" if counts else ""
    tokens = f"{sum(each.tokens for each in found.temperatures):,} tokens"
    measured = f"{tokens} in {duration(found.elapsed_s)}{scorer}{smoke_tests}"
    lines = [("measured", f"`{found.model}` at {found.url}: {measured}")]
    wrong = [token for each in found.temperatures for token in each.wrong]
    lines += [("wrong", text) for text in wrong[: None if is_verbose else _SHOWN]]
    if len(wrong) > _SHOWN and not is_verbose:
        lines.append(("", f"and {len(wrong) - _SHOWN} more (`-v` shows them)"))
    for smoke in found.smoke:
        if is_verbose or smoke.outcome == "not ok":
            lines.append((smoke.outcome, f"{smoke.name}: {smoke.detail}"))
    lines += [
        ("left out", f"the prompt `{name}`: {why}") for name, why in found.unused_prompts.items()
    ]
    for each in found.temperatures if is_verbose else ():
        measured = f"{each.tokens:,} tokens of {count(each.answers, 'answer')}"
        lines.append((f"T = {each.temperature:g}", f"{each.verdict.word}: {measured}"))
    answer = answer_line(found.verdict.word, " ".join(_verdict(found)), stream=stream)
    return "\n".join([answer, *text_lines(Items(lines), stream)])


def _verdict(found: Verification) -> Iterator[str]:
    """Yield what was found, its bound, and what to do."""
    if found.verdict.word == LOSSY:
        yield f"{found.verdict.sentence}."
        if found.against:
            yield "Without `--against`, `verify` says whether speculation is to blame."
        else:
            without = "`specserve up PROFILE --alternative baseline`"
            yield f"Serve it without speculation ({without}) until that is mended."
        return
    if found.verdict.word == INCONCLUSIVE:
        yield "too little was measured. Give it more `--seconds`."
    else:
        yield "no difference seen."
    if found.verdict.sentence:
        yield f"Excluded with 99 % confidence: {found.verdict.sentence}."
    if found.verdict.word == NO_FAULT_FOUND:
        loose = [each for each in found.temperatures if each.verdict.word == NO_FAULT_FOUND]
        prompts = " and `--prompts`" if loose[0].temperature == 0 else ""
        yield f"More `--seconds`{prompts} exclude smaller faults."


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
    if report.trend is not None:
        shares = (report.trend.first.per_position, report.trend.newest.per_position)
        each = [f"{figure(before)}>{figure(now)}" for before, now in zip(*shares, strict=False)]
        found.append(("trend", f"{trend_words(report.trend)}; per position {' '.join(each)}"))
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
