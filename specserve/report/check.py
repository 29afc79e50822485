"""A check as text: a line for each profile that answers, the findings, what the answer rests on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.check import Checked
from specserve.checks.oraclechild import Judged, VllmAnswer, VllmArgument
from specserve.checks.rules.memory import is_fixed, too_large_because
from specserve.checks.rules.site import reasons
from specserve.diagnostics import Finding, ProfileVerdict, Report, Severity
from specserve.hardware.accelerators import Machine
from specserve.memory.constants import Bounds
from specserve.memory.estimate import MemoryEstimate
from specserve.report.console import escaped, styled, wrapped
from specserve.report.findings import help_line, render
from specserve.report.page import Block, Document, Items, Paragraph, Section
from specserve.report.text import Column, Table, answer_line, count, gib, low_to_high, percent

_BASIS = {"found": "found here", "assumed": "assumed", "profile": "as the profile says"}
_TOKENIZERS = {
    "identical": "tokenizers identical",
    "padding_only": "tokenizers identical but for padding",
    "special_tokens_differ": "special tokens differ",
    "overlap": "tokenizers differ",
    "incompatible": "tokenizers incompatible",
    "not_checked": "tokenizers not compared",
}
_FITS = {"fit": "fits", "tight": "may not fit", "does_not_fit": "does not fit"}
_COMPUTED_BY = {
    "vllm": "computed by vLLM's own planner",
    "formula": "computed by formula",
    "published": "computed by formula from the models' config.json that ship with specserve",
}
_UNKNOWN = "not known whether it fits"
_SMALL = 0.005
"""A share of the KV cache that rounds to nothing."""


def check_text(report: Report, *, is_verbose: bool = False) -> str:
    """Returns a line for each profile, then for each its findings and what was skipped."""
    stream, is_one = sys.stdout, len(report.verdicts) == 1
    answers, blocks = [], []
    for verdict in report.verdicts:
        findings = _findings(verdict, report)
        lead = "" if is_one else f"{escaped(verdict.name or verdict.file)}: "
        word, *rest = _answer(verdict, findings)
        answers.append(answer_line(word, "; ".join(rest), lead=lead, stream=stream))
        if findings:
            blocks.append(render(findings, stream=stream).rstrip("\n"))
        if isinstance(verdict, Checked):
            blocks += _skipped(verdict)
        if is_verbose and isinstance(verdict, Checked) and verdict.groups:
            blocks.append(_document(verdict).text(stream).rstrip("\n"))
    return "\n\n".join(["\n".join(answers), *blocks]) + "\n"


def _findings(verdict: ProfileVerdict, report: Report) -> list[Finding]:
    """Those of this profile: in its own file, or by one of its rules in a file that it extends."""
    own = [finding for finding in report.findings if finding.span.file == verdict.file]
    if isinstance(verdict, Checked) and verdict.verdict != "invalid":
        own += [finding for group in verdict.groups for finding in group.findings]
    return sorted(dict.fromkeys(own), key=lambda finding: finding.sort_key)


def _answer(verdict: ProfileVerdict, findings: list[Finding]) -> Iterator[str]:
    """A verdict's words, then what makes it: room, cost of speculation, tokenizers."""
    errors = sum(item.severity is Severity.ERROR for item in findings if item.code != "SD301")
    if not isinstance(verdict, Checked) or verdict.verdict == "invalid":
        yield from ("not checked", f"{count(errors, 'error')} in the profile")
        return
    memory, machine = verdict.memory, verdict.machine
    fits = _fits(memory) if memory else _UNKNOWN
    if memory and machine and memory.verdict == "does_not_fit":
        yield from (fits, too_large_because(memory, machine))
        yield from (f"fits with {knob.setting}" for knob in memory.knobs if knob.verdict == "fit")
        if errors:
            yield f"{count(errors, 'other error')} to fix"
    else:
        otherwise = f"otherwise it {fits}" if memory else fits
        yield from (
            ("not ready", f"{count(errors, 'error')} to fix", otherwise) if errors else (fits,)
        )
    if memory is None:
        hardware = (
            item for group in verdict.groups for item in group.skipped if item.group == "hardware"
        )
        yield from (item.reason for item in hardware)
    if memory and machine and memory.verdict != "does_not_fit":
        if memory.reason and not memory.is_only_in_doubt:
            yield memory.reason
        if memory.is_kv_known:
            room = memory.max_concurrency
            many = low_to_high(f"{int(room.low):,}", f"{int(room.high):,}", between=" to ")
            requests = "request" if many == "1" else "requests"
            where = f"at once on {_machine_words(machine)}"
            yield f"room for {many} {requests} of {memory.max_model_len:,} tokens {where}"
        if memory.speculation_cost >= _SMALL:
            what = "the draft" if memory.per_gpu_bytes.draft_weights else "speculation"
            yield f"{what} costs {percent(memory.speculation_cost)} of the KV cache"
    if verdict.tokenizer and verdict.tokenizer.verdict in _TOKENIZERS:
        yield _TOKENIZERS[verdict.tokenizer.verdict]


def _fits(memory: MemoryEstimate) -> str:
    if memory.is_only_in_doubt and memory.unknown_draft:
        return "fits without the draft, whose size is not known"
    return _FITS[memory.verdict]


def _skipped(verdict: Checked) -> list[str]:
    """A block for each reason for which rules did not run, and the way out that they share."""
    blocks = []
    items = [item for group in verdict.groups for item in group.skipped]
    for item in dict.fromkeys(items):
        lead = f"skipped[{item.group}]: "
        shown = f"{styled(f'skipped[{item.group}]', 'yellow', stream=sys.stdout)}: "
        text = escaped(f"{count(len(item.codes), 'rule')}: {item.reason}")
        blocks.append(wrapped(text, lead=lead, shown=shown, stream=sys.stdout))
    ways = dict.fromkeys(item.help for item in items if item.help)
    return ["\n".join([*blocks, *(help_line(way, sys.stdout) for way in ways)])] if blocks else []


def _document(verdict: Checked) -> Document:
    """What the answer rests on: rules, tokenizers, memory, vLLM's configuration."""
    on = ""
    if verdict.machine:
        on = f" on {_machine_words(verdict.machine)} ({_BASIS[verdict.machine.basis]})"
    versions = f" with vLLM {', '.join(verdict.versions)}" if verdict.versions else ""
    rows = []
    for group in verdict.groups:
        skipped = len({code for item in group.skipped for code in item.codes})
        numbers = [sum(item.severity is each for item in group.findings) for each in Severity]
        rows.append((group.name, *(str(number) for number in (group.rules, *numbers, skipped))))
    names = ("rules", *(f"{each}s" for each in Severity), "skipped")
    blocks: list[Block] = [
        Paragraph(f"Checked `{verdict.name or verdict.file}`{on}{versions}"),
        Table([Column("needs", "name"), *map(Column, names)], rows),
    ]
    comparison = verdict.tokenizer
    if comparison and comparison.reasons:
        share = comparison.overlap
        notes = [("", reason) for reason in comparison.reasons]
        if comparison.verdict == "overlap" and share is not None:
            notes.append(("", f"the target has {share:.1%} of the draft's tokens"))
        blocks.append(Section("Tokenizers", [Items(notes)]))
    if verdict.memory and verdict.machine:
        blocks.append(_memory(verdict.memory, verdict.machine, verdict.alternatives))
    if verdict.vllm:
        blocks += _effective(verdict.vllm[0])
    return Document("check", verdict.name or verdict.file, blocks, has_answer=True)


def _machine_words(machine: Machine) -> str:
    """`2 nodes of 8 x H100-80GB`."""
    nodes = f"{machine.nodes} nodes of " if machine.nodes > 1 else ""
    kind = "the CPU" if machine.is_cpu else f"{machine.count} x {machine.accelerator.name}"
    return f"{nodes}{kind}"


def _memory(
    estimate: MemoryEstimate, machine: Machine, alternatives: Mapping[str, MemoryEstimate]
) -> Section:
    """The figures of the fullest GPU; a range for a term that is bounded, not known."""
    where = "Memory per GPU"
    if machine.is_cpu:
        where = "Memory of this host"
        where = f"Memory of each of {estimate.ranks} ranks" if estimate.ranks > 1 else where
    sizes = estimate.per_gpu_bytes
    rows = [("target weights", gib(sizes.target_weights), "")]
    if sizes.draft_weights:
        rows.append(("draft weights", gib(sizes.draft_weights), ""))
    for name, term in (("activations", sizes.activation), ("other", sizes.other)):
        note = "" if term.logs is None else f"estimated from {count(term.logs, 'log')}"
        rows.append(
            (name, _range(term), "assumed: no public log shows it" if term.logs == 0 else note)
        )
    tokens = (
        f"{_tokens(estimate.kv_cache_tokens)} tokens" if estimate.is_kv_known else "tokens unknown"
    )
    rows.append(("KV cache", _range(sizes.kv_cache), tokens))
    limit = "capacity" if is_fixed(estimate) else "vLLM's budget"  # a fixed cache takes no share
    of = "" if is_fixed(estimate) else f"of {gib(sizes.total)}"
    rows.append((limit, gib(sizes.total if is_fixed(estimate) else sizes.budget), of))
    notes = list(estimate.notes)
    alone = estimate.without_speculation_kv_cache_tokens
    if alone and alone.high > 0:
        notes.append(f"KV cache without speculation: {_tokens(alone)} tokens")
    helpful = [knob for knob in estimate.knobs if knob.verdict != estimate.verdict]
    is_length = any(knob.path == "target.max_model_len" for knob in helpful)
    if estimate.is_kv_known and (is_length or estimate.verdict != "does_not_fit"):
        notes.append(f"largest max_model_len that fits: {_tokens(estimate.largest_max_model_len)}")
    for knob in helpful:
        notes.append(f"{_FITS[knob.verdict]} with {knob.setting}, all else unchanged")
    for name, other in alternatives.items():
        held = f"; KV cache {_tokens(other.kv_cache_tokens)} tokens" if other.is_kv_known else ""
        notes.append(f"with the alternative `{name}`: {_fits(other)}{held}")
    if is_fixed(estimate):
        who = "specserve" if estimate.is_kv_cache_default else "the profile"
        notes.append(f"{who} fixes the size of the KV cache")
    notes.append(f"{_COMPUTED_BY[estimate.basis]}, for {estimate.regime}")
    columns = (Column("", "name"), Column("GiB"), Column("", "text"))
    return Section(where, [Table(columns, rows), Items([("", note) for note in notes])])


def _range(term: Bounds) -> str:
    return low_to_high(gib(term.low), gib(term.high))


def _tokens(interval: Bounds) -> str:
    return low_to_high(f"{int(interval.low):,}", f"{int(interval.high):,}")


_ROWS = (
    ("model runner", "model_runner"),
    ("attention backends", "attention_backends"),
    ("context length", "model_config.max_model_len"),
    ("tokens per step", "scheduler_config.max_num_batched_tokens"),
    ("concurrent requests", "scheduler_config.max_num_seqs"),
    ("async scheduling", "scheduler_config.async_scheduling"),
    ("prefix caching", "cache_config.enable_prefix_caching"),
    ("KV cache dtype", "cache_config.cache_dtype"),
    ("CUDA graphs", "compilation_config.cudagraph_mode"),
    ("largest CUDA graph", "compilation_config.max_cudagraph_capture_size"),
    ("draft method", "speculative_config.method"),
    ("draft tokens", "speculative_config.num_speculative_tokens"),
    ("draft context length", "draft.max_model_len"),
    ("draft tensor parallel", "draft.tensor_parallel_size"),
)


def effective_text(judged: Judged) -> str:
    """Returns what vLLM runs beside what is asked, and why; what speculation changes is marked."""
    document = Document("configuration", judged.basis, _effective(judged), has_answer=True)
    return document.text(sys.stdout) if judged.answer.effective else ""


def _effective(judged: Judged) -> list[Block]:
    answer = judged.answer
    if not answer.effective:
        return []
    asked = {item.place: item for item in answer.asked}
    rows = []
    for title, place in _effective_rows(answer):
        item, value = asked.get(place), answer.effective[place]
        wanted = _shown(item.value) if item else ""
        rows.append((title, wanted, _shown(value), _mark(judged, place, item)))
    columns = (Column("", "name"), *(Column(name, "text") for name in ("asked", "effective", "")))
    notes = [
        f"{item.argument}: {text}" for item in answer.changed for text in reasons(judged, item)
    ]
    notes += [f"not judged: {step}: {reason}" for step, reason in answer.skipped.items()]
    title = f"Effective configuration by {judged.basis}"
    return [Section(title, [Table(columns, rows), Items([("", note) for note in notes])])]


def _effective_rows(answer: VllmAnswer) -> Iterator[tuple[str, str]]:
    """The rows that are always shown, and every other value that vLLM changes."""
    yield from ((title, place) for title, place in _ROWS if answer.effective.get(place) is not None)
    shown = {place for _, place in _ROWS}
    yield from ((item.argument, item.place) for item in answer.changed if item.place not in shown)


def _mark(judged: Judged, place: str, item: VllmArgument | None) -> str:
    before = judged.without.effective.get(place) if judged.without else None
    if before is not None and before != judged.answer.effective[place]:
        return f"{_shown(before)} without speculation"
    return "changed by vLLM" if item and item.is_changed else ""


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
