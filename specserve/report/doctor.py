"""What `specserve doctor` shows: the number of faults, and a line per fact with its fix."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from specserve.hardware.accelerators import Gpu, catalogue, kind
from specserve.report.console import in_one_line, styled, wrapped
from specserve.report.text import Column, Table, count, gib

if TYPE_CHECKING:
    from specserve.checks.doctor.limits import Line

_COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}
_NAME = 12
"""Columns of a fact's name."""


def doctor_text(lines: Sequence[Line], *, stream: TextIO | None = None) -> str:
    """Returns the screen; its first line says whether anything breaks a launch."""
    stream = stream or sys.stdout
    states = [line.state for line in lines]
    bad, notes = states.count("bad"), states.count("note")
    answer = f"{count(bad, 'thing')} will break a launch here"
    answer = answer if bad else "nothing here breaks a launch"
    rows = [f"{answer}; {count(notes, 'note')}" if notes else answer, ""]
    for line in lines:
        name = f"{' ' * (6 - len(line.state))}{in_one_line(line.name):<{_NAME}}"
        lead = f"{line.state}{name}"
        shown = f"{styled(line.state, _COLOURS[line.state], stream=stream)}{name}"
        rows.append(wrapped(in_one_line(line.text), lead=lead, shown=shown, stream=stream))
        if line.fix:
            fix = f"fix: {in_one_line(line.fix)}"
            rows.append(wrapped(fix, lead=" " * len(lead), stream=stream))
    return "\n".join(rows)


def accelerators_text(found: Sequence[Gpu]) -> str:
    """Returns what is here, and the names of the catalogue; memory is what is usable of it."""
    rows = []
    for item in catalogue():
        capability = ".".join(map(str, item.compute_capability or ())) or "-"
        rate = f"{(item.bandwidth_bytes_per_s or 0) / 1e9:,.0f}"
        flops = f"{(item.flops or 0) / 1e12:,.0f}"
        cells = ("-" if rate == "0" else rate, "-" if flops == "0" else flops)
        rows.append((item.name, gib(item.total_bytes), capability, *cells))
    names = (Column(each) for each in ("GiB", "capability", "GB/s", "TFLOPS"))
    here = ", ".join(f"{gpu.index}: {kind(gpu).name}" for gpu in found)
    lines = [
        f"Found here: {here or 'no NVIDIA GPU'}",
        "",
        "Names for `--assume` and `hardware.accelerator`, with usable memory;",
        "those with rates (a datasheet's peaks, in 16 bits) also for `tune --estimate`",
    ]
    return "\n".join([*lines, *Table((Column("name", "name"), *names), rows, keys=1).text()])
