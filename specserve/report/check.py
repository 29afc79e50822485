"""What `check` and `doctor` show: a line that answers, what it rests on, what has to be mended."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from specserve import __version__
from specserve.checks.check import Checked
from specserve.checks.oraclechild import VllmVerdict
from specserve.diagnostics import Finding, ProfileVerdict, Report, Severity
from specserve.hardware.accelerators import Accelerator, catalogue
from specserve.memory.estimate import MemoryEstimate
from specserve.memory.reserve import Bounds
from specserve.memory.starts import Start
from specserve.profile.secrets import hushed, redacted
from specserve.report.console import escaped, styled, wrapped
from specserve.report.findings import remark, render
from specserve.report.page import Block, Document, Items, Section, text_lines
from specserve.report.text import GIB, Column, Table, answer_line, count, json_document

if TYPE_CHECKING:
    from specserve.checks.doctor import Line

_BASES = {
    "measured": "measured at the start of {} here",
    "vllm": "vLLM's own planner",
    "headers": "the bytes of the safetensors headers, divided",
    "published": "what is published of the model, divided",
}
_ADDRESS = re.compile(
    r"(?i)\b[a-z][a-z0-9+]*://[^\s'\"<>]+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|\[[\da-f]*:[\da-f:]+\](?::\d+)?|\b(?:[\w-]+\.)+(?!py\b)[a-z]{2,}:\d+"
    r"|\b(?:[\w-]+\.)+(?:ai|cloud|com|corp|dev|internal|intra|io|lan|local|net|org)\b"
)
_PATH = re.compile(r"(?<![\w)>:-])(?:~|\.{1,2})?(?:/[\w.@%+=~-]+){2,}/?|~/[\w.@%+=~-]+")
_FITS = {
    "fit": "fits",
    "tight": "may not fit",
    "unknown": "not known whether it fits",
    "does_not_fit": "does not fit",
}


def check_text(report: Report, *, is_verbose: bool = False, shown: Report | None = None) -> str:
    """Returns a line for each profile, then for each its findings and what was skipped.

    `shown`: what is on the screen already, before vLLM answered.
    """
    known = set(shown.findings if shown else ())
    stream, is_one = sys.stdout, len(report.verdicts) == 1
    answers, parts = [], []
    for verdict in report.verdicts:
        found = [each for each in report.findings if each.span.file == verdict.file]
        if isinstance(verdict, Checked) and verdict.verdict != "invalid":
            # a rule may have found something in a file that the profile extends
            found += verdict.findings
        found = sorted(dict.fromkeys(found), key=lambda each: (_is_by_vllm(each), each.sort_key))
        lead = "" if is_one else f"{escaped(verdict.name or verdict.file)}: "
        word, *rest = _answer(verdict, found)
        answers.append(answer_line(word, "; ".join(rest), lead=lead, stream=stream))
        if new := [each for each in found if each not in known]:
            parts.append(render(new, stream=stream).rstrip("\n"))
        if isinstance(verdict, Checked):
            parts += _skipped(verdict)
        if isinstance(verdict, Checked) and is_verbose:
            tables = [_effective(each) for each in verdict.vllm[:1] if each.effective]
            if verdict.memory:
                tables.insert(0, _memory({"launch": verdict.memory, **verdict.alternatives}))
            parts += ["\n".join(text_lines(table, stream)) for table in tables]
    return "\n\n".join(["\n".join(answers), *parts]) + "\n"


def _is_by_vllm(finding: Finding) -> bool:
    return finding.code.startswith("SD5")


def _answer(verdict: ProfileVerdict, findings: list[Finding]) -> list[str]:
    """A verdict's words, then what makes it: room, cost of speculation, tokenizers."""
    errors = sum(item.severity is Severity.ERROR for item in findings if item.code != "SD301")
    to_fix = count(errors, "error")
    if not isinstance(verdict, Checked) or verdict.verdict == "invalid":
        return ["not checked", f"{to_fix} in the profile"]
    memory, machine = verdict.memory, verdict.machine
    words = []
    if memory is None or machine is None:
        unknown = "not known whether it fits"
        words = ["not ready", f"{to_fix} to fix", unknown] if errors else [unknown]
        words += [item.reason for item in verdict.skipped if item.group == "hardware"]
    elif memory.verdict == "does_not_fit":
        words = [_FITS[memory.verdict], memory.reason]
        words += [f"may fit with `{path}: {value}`" for path, value in memory.fixes.items()]
        words += [f"{to_fix} besides"] if errors else []
    else:
        fits = _FITS[memory.verdict]
        words = ["not ready", f"{to_fix} to fix", f"otherwise: {fits}"] if errors else [fits]
        words += [memory.reason] if memory.reason else []
        if memory.max_concurrency.high:
            many = _range(memory.max_concurrency, between=" to ")
            many = many if memory.basis in ("measured", "vllm") else f"about {many}"
            where = "the CPU" if machine.is_cpu else machine
            length = f"{memory.max_model_len:,} tokens"
            words.append(f"maximum concurrency {many} for requests of {length} on {where}")
            words += [_basis(memory)] if memory.measured_on else []
        if memory.draft_cost and not memory.draft_cost.is_little:
            what = "the draft" if memory.per_gpu_bytes.draft_weights else "speculation"
            about = "" if memory.basis == "vllm" else "about "
            words.append(f"{what} costs {about}{memory.draft_cost}")
    if verdict.tokenizer:
        found = verdict.tokenizer.verdict.replace("not_checked", "not compared")
        words.append(f"tokenizers {found}")
    return words


def _skipped(verdict: Checked) -> list[str]:
    """The reasons for which not all was checked, and the ways out that they share; or nothing."""
    items = list(dict.fromkeys(verdict.skipped))
    lines = list[str]()
    for at, item in enumerate(items):
        word = f"skipped[{item.group}]"
        shown = f"{styled(word, 'yellow', stream=sys.stdout)}: "
        lines.append(
            wrapped(escaped(item.reason), lead=f"{word}: ", shown=shown, stream=sys.stdout)
        )
        if item.help and item.help not in [later.help for later in items[at + 1 :]]:
            lines.append(remark("help", item.help, " ", sys.stdout))
    return ["\n".join(lines)] if lines else []


def _memory(estimates: Mapping[str, MemoryEstimate]) -> Section:
    """The figures of each launch on its fullest GPU; a range for what is bounded, not known."""
    rows = [
        [
            "verdict",
            "weights",
            "of the draft",
            "activations, graphs, libraries",
            "KV cache",
            "limit",
            "tokens",
        ]
    ]
    for estimate in estimates.values():
        sizes = estimate.per_gpu_bytes
        row = [f"{size / GIB:.2f}" for size in (sizes.target_weights, sizes.draft_weights)]
        row += [_range(each, GIB) for each in (sizes.reserve, sizes.kv_cache)]
        tokens = _range(estimate.kv_cache_tokens) if estimate.kv_cache_tokens.high else "-"
        rows.append([_FITS[estimate.verdict], *row, f"{sizes.budget / GIB:.2f}", tokens])
    first, columns = estimates["launch"], [Column("GiB", "name"), *map(Column, estimates)]
    notes = [*first.notes, f"basis: {_basis(first)}"]
    table = Table(columns, list(zip(*rows, strict=True)))
    return Section("Memory per GPU or rank", [table, Items([("", note) for note in notes])])


def _basis(memory: MemoryEstimate) -> str:
    return _BASES[memory.basis].format(memory.measured_on)


def _range(bounds: Bounds, unit: int = 1, *, between: str = "-") -> str:
    """Both ends of a range in this unit, or one if they read the same."""
    low, high = (
        f"{int(value):,}" if unit == 1 else f"{value / unit:.2f}"
        for value in (bounds.low, bounds.high)
    )
    return low if low == high else f"{low}{between}{high}"


def _effective(judged: VllmVerdict) -> Section:
    """What vLLM runs otherwise than asked, and what it runs otherwise because of speculation."""
    rows: dict[str, str] = {}
    for item in judged.changed:
        why = "".join(f": {reason}" for reason in item.why)
        rows[item.argument] = f"{item.value} becomes {item.effective}{why}"
    for name, before in judged.without.effective.items() if judged.without else ():
        now = judged.effective.get(name)
        if None not in (before, now) and before != now:
            other = f"{before} becomes {now} by speculation"
            rows[name] = f"{rows[name]}; without speculation {before}" if name in rows else other
    lines = list(rows.items())
    lines += [("not judged", f"{step}: {reason}") for step, reason in judged.skipped.items()]
    shown = Items(lines or [("", "nothing is changed")])
    return Section(f"Effective configuration by {judged.basis}", [shown])


def start_point(start: Start) -> dict[str, Any]:
    """What a start tells others: the launch without private names, the prediction, the log."""
    asked = dict(start.asked or {})
    for role, each in asked.pop("models", {}).items():
        known = {key: value for key, value in each.items() if key != "is"}
        asked[role] = known | {"model": each.get("model") or "a local folder"}
    told = {"verdict": start.verdict, "said": start.cause or str(start), "day": start.at[:10]}
    figures = {"predicted": dict(start.predicted), "logged": dict(start.logged)}
    about = {"specserve": __version__, "vllm": start.vllm, "took_s": start.took_s}
    point: dict[str, Any] = _hidden({**told, **about, "asked": asked, **figures}, start.names)
    return point


def start_report(start: Start, *, log: Sequence[str], lines: Sequence[Line], cause: str) -> str:
    """Returns a block of Markdown for an issue; its JSON is what `scripts/gpu_report.py` reads.

    `log`: its last lines; `lines`: what `doctor` found; `cause`: how the server ended later.
    """
    point = start_point(start)
    told, logged = point["predicted"], point["logged"]
    rows = [("the check", told["verdict"], "fails" if start.cause else "serves")] if told else []
    for name in dict.fromkeys([*told, *logged]):
        form = "{:.2f}" if name.endswith(("_gib", "concurrency")) else "{:,.0f}"
        if not isinstance(ends := told.get(name, ()), str):
            what = name.replace("kv_", "KV cache_").replace("_gib", ", GiB").replace("_", " ")
            words = "-".join(dict.fromkeys(map(form.format, ends)))
            rows.append((what, words or "-", form.format(logged[name]) if name in logged else "-"))
    plain, about = {"specserve": __version__, "vllm": start.vllm}, list[tuple[str, str]]()
    for part, value in point["asked"].items():
        if isinstance(value, dict) and value:
            about.append((part, ", ".join(f"{key}: {each}" for key, each in value.items())))
        elif value:
            plain[part] = " ".join(map(str, value)) if isinstance(value, list) else value
    about.insert(0, ("launch", ", ".join(f"{key} {value}" for key, value in plain.items())))
    causes = [cause, *(f"{each.name}: {each.text}" for each in lines if each.state != "ok")]
    about += [("found", _hidden(each, start.names)) for each in causes if each]
    columns = [Column("", "name"), Column("predicted"), Column("logged")]
    blocks: list[Block] = [Table(columns, rows), Items(about)]
    title, answer = f"vLLM {start.vllm} on {point['day']}", (point["verdict"], point["said"])
    parts = [Document("start", title, blocks, [answer]).markdown().rstrip("\n")]
    shown = "\n".join(escaped(_hidden(line, start.names)).replace("```", "~~~") for line in log)
    folded = {"text": ("last lines of the log", shown)}
    folded["json"] = ("for scripts", json_document(point, indent=None))
    parts += [
        f"<details>\n<summary>{title}</summary>\n\n```{kind}\n{text}\n```\n\n</details>"
        for kind, (title, text) in folded.items()
    ]
    return "\n\n".join(parts)


def _hidden(value: Any, names: Iterable[str]) -> Any:
    """The same without names, paths, addresses and secrets of this machine."""
    if isinstance(value, Mapping):
        return {key: _hidden(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_hidden(each, names) for each in value]
    if not isinstance(value, str):
        return value
    text = hushed(redacted(value, shapes=True))
    for name in sorted(filter(None, {*names, socket.gethostname()}), key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "(name)", text)
    text = _ADDRESS.sub("(address)", text)
    return _PATH.sub(lambda found: found[0].partition("site-packages/")[2] or "(path)", text)


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
