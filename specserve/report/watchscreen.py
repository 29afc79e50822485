"""The live screen of `specserve watch`: the verdict, figures, bars per position. Only for terminals."""

from __future__ import annotations

from typing import Any

from specserve.measure.watch.figures import Figures
from specserve.measure.watch.watch import Report
from specserve.report.watch import COLOURS, block, clock, number, verdict_lines

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

    def show(self, report: Report, *, url: str) -> None:
        """Draw it."""
        self._live.update(picture(report, url=url), refresh=True)


def picture(report: Report, *, url: str) -> Any:
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
    colour = COLOURS.get(report.verdict.state, "default")
    verdict = Text.assemble((state, f"bold {colour}"), ": ", sentence)
    foot = Text(clock(report) if report.is_final else f"{clock(report)}  Ctrl-C ends it", style="dim")
    # first what matters most: a window that is too small cuts off the end
    return Group(verdict, *(Text(line) for line in advice), Text(), rows, foot)


def _bars(seen: Figures) -> list[Any]:
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
