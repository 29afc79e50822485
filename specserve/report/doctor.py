"""What `specserve doctor` shows: the number of faults, and a line per fact with its fix."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from specserve.hardware.accelerators import Gpu, Machine, catalogue, kind
from specserve.report.console import in_one_line, styled, wrapped
from specserve.report.text import GIB, Column, Table, count, json_document, json_values

if TYPE_CHECKING:
    from specserve.checks.doctor.limits import Line

_COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}
_NAME = 12
"""Columns of a fact's name."""


def doctor_text(lines: Sequence[Line], *, stream: TextIO | None = None) -> str:
    """Returns the screen; its first line says whether anything breaks a launch."""
    stream, states = stream or sys.stdout, [str(line.state) for line in lines]
    bad, notes = states.count("bad"), states.count("note")
    answer = (
        f"{count(bad, 'thing')} will break a launch here" if bad else "nothing here breaks a launch"
    )
    rows = [f"{answer}; {count(notes, 'note')}" if notes else answer, ""]
    for line in lines:
        tail = f"{' ' * (6 - len(line.state))}{in_one_line(line.name):<{_NAME}}"
        lead, shown = (
            line.state + tail,
            styled(line.state, _COLOURS[line.state], stream=stream) + tail,
        )
        rows.append(wrapped(in_one_line(line.text), lead=lead, shown=shown, stream=stream))
        if line.fix:
            fix = f"fix: {in_one_line(line.fix)}"
            rows.append(wrapped(fix, lead=" " * len(lead), stream=stream))
    return "\n".join(rows)


def doctor_json(lines: Sequence[Line]) -> str:
    """Returns the same for programs."""
    states = [str(line.state) for line in lines]
    summary = {state: states.count(state) for state in ("ok", "note", "bad")}
    return json_document({"lines": lines, "summary": summary})


def accelerators_text(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """Returns both tables for a person: usable memory, not the nameplate's."""

    def gib(size_bytes: int) -> str:
        return f"{size_bytes / GIB:.2f} GiB"

    here = [
        (
            str(gpu.index),
            kind(gpu).name,
            gib(kind(gpu).total_bytes),
            gib(gpu.free_bytes),
            "; ".join(gpu.holders),
        )
        for gpu in found
    ]
    here.append(
        ("-", "cpu", gib(cpu.accelerator.total_bytes), gib((cpu.free_bytes or (0,))[0]), "")
    )
    rows = []
    for item in catalogue():
        capability = ".".join(map(str, item.compute_capability or ())) or "-"
        rate = (
            f"{item.bandwidth_bytes_per_s / 1e9:,.0f} GB/s" if item.bandwidth_bytes_per_s else "-"
        )
        flops = f"{item.flops / 1e12:,.0f} TFLOPS" if item.flops else "-"
        rows.append((item.name, gib(item.total_bytes), capability, rate, flops))
    name, holders = Column("name", "name"), Column("held by", "text")
    columns = (Column("index"), name, Column("memory"), Column("free"), holders)
    numbers = (Column(each) for each in ("memory", "capability", "bandwidth", "compute"))
    return "\n".join(
        [
            "Found here" if found else "Found here: no NVIDIA GPU",
            *Table(columns, here, keys=2).text(stream=sys.stdout),
            "",
            "Names for `--assume` and `hardware.accelerator`, with usable memory;",
            "those with rates (a datasheet's peaks, in 16 bits) also for `tune --estimate`",
            *Table((name, *numbers), rows, keys=1).text(stream=sys.stdout),
        ]
    )


def accelerators_json(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """Returns the same for programs."""
    here = [json_values(gpu) | {"accelerator": kind(gpu).name} for gpu in found]
    return json_document({"found": here, "cpu": cpu, "catalogue": catalogue()})
