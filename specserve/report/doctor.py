"""What `specserve doctor` shows: the number of faults, and a line per fact with its fix."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from specserve.hardware.accelerators import Accelerator, catalogue
from specserve.report.page import Document, Items
from specserve.report.text import GIB, Column, Table, count

if TYPE_CHECKING:
    from specserve.checks.doctor import Line


def doctor_text(lines: Sequence[Line], *, stream: TextIO | None = None) -> str:
    """Returns the screen; its first line says whether anything breaks a launch."""
    states = [line.state for line in lines]
    bad, notes = states.count("bad"), states.count("note")
    answer = f"{count(bad, 'thing')} will break a launch here"
    answer = answer if bad else "nothing here breaks a launch"
    answer = f"{answer}; {count(notes, 'note')}" if notes else answer
    rows = []
    for line in lines:
        fix = f"; fix: {line.fix}" if line.fix else ""
        rows.append((line.state, f"{line.name}: {line.text}{fix}"))
    return Document("doctor", "", [Items(rows)], [("", answer)]).text(stream or sys.stdout)


def accelerators_text(found: Sequence[Accelerator]) -> str:
    """Returns what is here, and the names of the catalogue; memory is what is usable of it."""
    rows = []
    for item in catalogue():
        rate = f"{item.bandwidth_bytes_per_s / 1e9:,.0f}" if item.bandwidth_bytes_per_s else "-"
        flops = f"{item.flops / 1e12:,.0f}" if item.flops else "-"
        capability = ".".join(map(str, item.compute_capability or ())) or "-"
        rows.append((item.name, f"{item.total_bytes / GIB:.2f}", capability, rate, flops))
    names = (Column(each) for each in ("GiB", "capability", "GB/s", "TFLOPS"))
    about = (
        "Names for `--assume` and `hardware.accelerator`, with usable memory; those with rates (a "
        "datasheet's peaks, in 16 bits) also for `tune --estimate`"
    )
    here = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in found)
    answer = f"Found here: {here or 'no NVIDIA GPU'}"
    table = Table((Column("name", "name"), *names), rows)
    return Document("doctor", "", [about, table], [("", answer)]).text(sys.stdout)
