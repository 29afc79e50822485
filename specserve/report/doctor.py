"""What `specserve doctor` shows: the number of faults, and a line per fact with its fix."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from specserve.hardware.accelerators import Gpu, Machine, catalogue, kind
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


def accelerators_text(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """Returns what is here, and the names of the catalogue; memory is what is usable of it."""
    here = [
        (str(gpu.index), kind(gpu).name, gib(kind(gpu).total_bytes), gib(gpu.free_bytes))
        for gpu in found
    ]
    here.append(("-", "cpu", gib(cpu.accelerator.total_bytes), gib(sum(cpu.free_bytes or ()))))
    rows = []
    for item in catalogue():
        capability = ".".join(map(str, item.compute_capability or ()))
        rate = item.bandwidth_bytes_per_s
        flops = item.flops
        cells = (f"{rate / 1e9:,.0f}" if rate else "-", f"{flops / 1e12:,.0f}" if flops else "-")
        rows.append((item.name, gib(item.total_bytes), capability or "-", *cells))
    name = Column("name", "name")
    mine = (Column("index"), name, Column("GiB"), Column("free GiB"))
    numbers = (Column(each) for each in ("GiB", "capability", "GB/s", "TFLOPS"))
    return "\n".join(
        [
            "Found here" if found else "Found here: no NVIDIA GPU",
            *Table(mine, here, keys=2).text(),
            "",
            "Names for `--assume` and `hardware.accelerator`, with usable memory;",
            "those with rates (a datasheet's peaks, in 16 bits) also for `tune --estimate`",
            *Table((name, *numbers), rows, keys=1).text(),
        ]
    )
