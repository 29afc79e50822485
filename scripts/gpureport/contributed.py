"""The reports of whole machines that were given away, as a section of docs/results/measured.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpureport import sharing, store
from gpureport.step import PARTS
from gpureport.summary import headline, results_of
from specserve.errors import FactError
from specserve.report.text import markdown, markdown_table

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*\.json", re.ASCII)
_HEAD = (
    "## Reports of whole machines\n"
    "Written by `scripts/gpu_report.py` ([how to give yours](README.md)): greedy texts equal with and without "
    "speculation; KV caches inside the bounds that `check` predicted; profiles judged as vLLM does; the best speedup "
    "of the demo pair."
)
_NONE = "No report of a GPU yet."


def reports(folder: Path) -> list[str]:
    """Heading and table; without a report of a GPU a sentence says so. Raises FactError for a file that is none."""
    found = {file.name: read(file) for file in sorted(folder.glob("*.json"))}
    head = ("machine", "vLLM", "measured", *PARTS, "file")
    rows = [tuple(_row(name, report)) for name, report in found.items()]
    has_gpu = any(not report["machine"]["is_small"] for report in found.values())
    return [_HEAD, *([] if has_gpu else [_NONE]), *([markdown_table(head, rows)] if rows else [])]


def read(file: Path) -> dict[str, Any]:
    """A report as it was shared. Raises FactError if it is none, or holds more than may be in one."""
    if not _NAME.fullmatch(file.name):
        raise FactError(
            f"`{file.name}` has a name of other characters than letters, digits, `.`, `_` and `-`"
        )
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        is_ours = report["kind"] == store.KIND and report["version"] == store.VERSION
    except (ValueError, KeyError, TypeError):
        is_ours = False
    if not is_ours:
        raise FactError(f"`{file.name}` is no report of scripts/gpu_report.py")
    if sharing.shared(report) != report:
        raise FactError(f"`{file.name}` holds more than a shared report has: it was not written by `--share`")
    return dict(report)


def _row(name: str, report: Mapping[str, Any]) -> Iterator[str]:
    machine = report["machine"]
    what = machine.get("device") or machine["accelerator"]
    yield markdown(f"{what}, tiny shapes" if machine["is_small"] else what)
    yield markdown(machine["versions"].get("vllm", "-"))
    yield markdown(str(report["created"])[:10])
    for part in PARTS:
        steps = [step for step in report["steps"] if step["part"] == part]
        yield markdown(headline(part, results_of(steps))[0])
    yield f"[{markdown(Path(name).stem)}](reports/{name})"
