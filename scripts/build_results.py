"""Writes docs/results/measured.md from the results and reports beside it; with --check, says if it is stale."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpureport.contributed import reports

from specserve.errors import FactError, SpecserveError
from specserve.measure.bench.result import ArmInfo, Comparison, Result, read_result
from specserve.measure.bench.sharing import redacted
from specserve.report.bench import load, machine, sections
from specserve.report.text import code_cell, markdown, markdown_table, number, rate, spread

FOLDER = Path(__file__).parents[1] / "docs" / "results"
HEAD = """\
# Measured speedups
Written by `scripts/build_results.py` from the files of this folder: [how to give yours](README.md). Each speedup is
output tokens/s over the same server without speculation, same prompts, with its 95 % interval. Each row was measured
once, by whoever gave it, with the versions that it names.
"""
NAME = re.compile(r"[A-Za-z0-9][\w.-]*\.json", re.ASCII)


def main() -> int:
    """Exit code 1 with --check where the page is stale, 2 where a file is none that was shared."""
    try:
        text = document(FOLDER)
    except SpecserveError as error:
        print(f"error: {error}")
        return 2
    page = FOLDER / "measured.md"
    if "--check" in sys.argv[1:]:
        fresh = page.exists() and page.read_text(encoding="utf-8") == text
        print(f"{page.name} is {'up to date' if fresh else 'stale: run scripts/build_results.py'}")
        return 0 if fresh else 1
    page.write_text(text, encoding="utf-8")
    return 0


def document(folder: Path) -> str:
    """The page. Raises FactError for a file that is no shared result."""
    results = {file.name: read(file) for file in sorted(folder.glob("*.json"))}
    ordered = sorted(results.items(), key=lambda item: (targets(item[1]), machine(item[1]), item[0]))
    rows = [row for name, result in ordered for row in overview(name, result)]
    head = ("target", "speculation", "machine", "vLLM", "speedup", "launches", "measured", "file")
    parts = [HEAD.rstrip(), markdown_table(head, rows) if rows else "No result yet."]
    parts += [part for name, result in ordered for part in details(name, result)]
    parts += reports(folder / "reports")
    return "\n\n".join(parts) + "\n"


def read(file: Path) -> Result:
    """A result as it was shared. Raises FactError where it holds more than may be in one."""
    if not NAME.fullmatch(file.name):
        raise FactError(
            f"`{file.name}` has a name of other characters than letters, digits, `.`, `_` and `-`"
        )
    result = read_result(file)
    if redacted(result) != result:
        raise FactError(
            f"`{file.name}` holds more than a shared result has: it was not written by `bench --share`"
        )
    return result


def overview(name: str, result: Result) -> Iterator[tuple[str, ...]]:
    """One row for each arm."""
    for arm in result.arms:
        speedups = [item.speedup for item in result.comparisons if item.arm == arm.name and item.speedup]
        if speedups:
            low, high = (number(each(item.value for item in speedups)) for each in (min, max))
            yield (
                code_cell(arm.model),
                method(arm),
                markdown(machine(result)),
                markdown(result.versions.get("vllm", "-")),
                f"{low}x to {high}x" if low != high else f"{low}x",
                str(result.launches),
                markdown(result.created),
                f"[{markdown(result.name)}]({name})",
            )


def method(arm: ArmInfo) -> str:
    """`eagle3 K=3`, and the draft."""
    return markdown(arm.name) + (f", {code_cell(arm.draft_model)}" if arm.draft_model else "")


def details(name: str, result: Result) -> Iterator[str]:
    """A table of one file: a row for each arm on each workload, a column for each load."""
    loads = sorted(
        {item.point for item in result.comparisons}, key=lambda at: at.concurrency or at.request_rate or 0
    )
    names = list(dict.fromkeys(map(load, loads)))
    found = {(item.arm, item.point): item for item in result.comparisons}
    rows = []
    for section in sections(result):
        for arm in section.arms:
            mine = [item for (who, _), item in found.items() if who == arm]
            here = {
                load(item.point): item for item in mine if any(row.comparison is item for row in section.rows)
            }
            if here:
                rows.append(
                    (
                        markdown(section.title),
                        markdown(arm),
                        *(cell(result, here.get(each)) for each in names),
                    )
                )
    if rows:
        yield f"## {markdown(result.name)}\n{markdown(machine(result))}, {facts(result)}; [{name}]({name})"
        yield markdown_table(("workload", "speculation", *names), rows)


def cell(result: Result, item: Comparison | None) -> str:
    """The speedup, its interval, the verdict, and both rates."""
    if item is None:
        return ""
    if item.speedup is None:
        return "invalid"
    rates = {
        each.arm: each.figures.output_tokens_per_s
        for each in result.cells
        if each.point == item.point and each.figures
    }
    both = f"{rate(rates.get(item.against))} → {rate(rates.get(item.arm))} tok/s"
    return f"**{number(item.speedup.value)}x** ({spread(item.speedup)}) {item.verdict.value}; {both}"


def facts(result: Result) -> str:
    """Versions, launches, settings."""
    known: Sequence[str] = [f"{key} {value}" for key, value in {**result.versions, **result.settings}.items()]
    within = "within one launch" if result.launches == 1 else f"{result.launches} launches of each arm"
    return f"{markdown(', '.join(known))}, {within}; columns: load"


def targets(result: Result) -> str:
    """What the results are ordered by."""
    return ", ".join(sorted({arm.model for arm in result.arms}))


if __name__ == "__main__":
    sys.exit(main())
