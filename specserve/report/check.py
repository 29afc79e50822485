"""A check as text: what ran, the findings, tokenizers and memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from specserve.checks.check import Checked, RuleGroup
from specserve.checks.memory import is_fixed
from specserve.diagnostics import Finding, Report, Severity
from specserve.hardware.accelerators import Accelerator, Machine, catalogue
from specserve.hardware.gpus import Gpu, kind
from specserve.memory.estimate import Bounds as Interval
from specserve.memory.estimate import MemoryEstimate
from specserve.models.tokenizercompare import TokenizerComparison
from specserve.report.console import clean, filled, styled
from specserve.report.effective import effective_text
from specserve.report.findings import COLOURS, render
from specserve.report.numbers import GIB, count, gib, low_to_high
from specserve.report.serializer import json_document, picked
from specserve.report.table import Column, Table

_TITLES = {"nothing": "profile", "models": "models", "hardware": "hardware", "host": "host", "vllm": "vLLM"}
_BASIS = {"found": "found here", "assumed": "assumed", "profile": "as the profile says"}
_VERDICTS = {
    "identical": "identical",
    "padding_only": "the same tokens; vocab_size differs by padding",
    "special_tokens_differ": "special tokens differ",
    "overlap": "different",
    "incompatible": "incompatible",
    "not_checked": "not checked",
}
_MEMORY = {"fit": ("fits", "green"), "tight": ("tight", "yellow"), "does_not_fit": ("does not fit", "red")}


def check_text(report: Report) -> str:
    """Every profile with its groups, then its findings, tokenizers and memory."""
    parts = []
    for verdict in report.verdicts:
        own = [finding for finding in report.findings if finding.span.file == verdict.file]
        blocks = []
        if isinstance(verdict, Checked) and verdict.verdict != "invalid":
            blocks.append(_head(verdict))
            own = [finding for group in verdict.groups for finding in group.findings] or own
            own += [item for item in report.findings if item not in own and item.span.file == verdict.file]
        if own:
            unique = sorted(dict.fromkeys(own), key=lambda finding: finding.sort_key)
            blocks.append(render(unique, stream=sys.stdout).rstrip("\n"))
        if isinstance(verdict, Checked):
            blocks += _facts(verdict)
        parts.append("\n\n".join(filter(None, blocks)))
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(verdict: Checked) -> str:
    on = f" on {machine_text(verdict.machine)}" if verdict.machine else ""
    versions = f" with vLLM {', '.join(verdict.versions)}" if verdict.versions else ""
    lines = [f"Checking `{clean(verdict.name or verdict.file)}`{on}{versions}", ""]
    lines += [
        filled(_state(group), lead=f"  {_TITLES[group.name]:<10}{group.rules:>3} rules  ", stream=sys.stdout)
        for group in verdict.groups
    ]
    ways = dict.fromkeys(group.skipped.partition("; ")[2] for group in verdict.groups if group.skipped)
    word = styled("help", "cyan", stream=sys.stdout)
    helps = (
        filled(clean(way), lead="  help: ", shown=f"  {word}: ", stream=sys.stdout) for way in ways if way
    )
    lines += ["", *helps]
    return "\n".join(lines).rstrip()


def machine_text(machine: Machine) -> str:
    """`2 nodes of 8 x H100-80GB (assumed)`."""
    nodes = f"{machine.nodes} nodes of " if machine.nodes > 1 else ""
    kind = "the CPU" if machine.is_cpu else f"{machine.count} x {machine.accelerator.name}"
    return f"{nodes}{kind} ({_BASIS[machine.basis]})"


def _state(group: RuleGroup) -> str:
    words = list(_counts(group.findings))
    if group.skipped:
        text = "skipped" if group.skipped_rules == group.rules else f"{group.skipped_rules} skipped"
        reason = group.skipped.partition("; ")[0]  # the way out stands below
        words.append(styled(f"{text}: {clean(reason)}", "yellow", stream=sys.stdout))
    return ", ".join(words) or styled("ok", "green", stream=sys.stdout)


def _counts(findings: tuple[Finding, ...]) -> Iterator[str]:
    for severity in Severity:
        number = sum(finding.severity is severity for finding in findings)
        if number:
            words = f"{number} info" if severity is Severity.INFO else count(number, severity)
            yield styled(words, COLOURS[severity], stream=sys.stdout)


def _facts(verdict: Checked) -> Iterator[str]:
    if verdict.tokenizer:
        yield _tokenizers(verdict.tokenizer)
    elif any(item.published for item in verdict.unread):
        yield "Tokenizers: not checked"
    if verdict.memory and verdict.machine:
        yield _memory_text(verdict.memory, verdict.machine)
    if verdict.vllm:
        yield effective_text(verdict.vllm[0])


def _tokenizers(comparison: TokenizerComparison) -> str:
    lines = [f"Tokenizers: {_VERDICTS.get(comparison.verdict, comparison.verdict)}"]
    if comparison.verdict == "overlap" and comparison.overlap is not None:
        lines[0] += f"; the target has {comparison.overlap:.1%} of the draft's tokens"
    reasons = (filled(clean(reason), lead="  ", stream=sys.stdout) for reason in comparison.reasons)
    return "\n".join([*lines, *reasons])


def _memory_text(estimate: MemoryEstimate, machine: Machine) -> str:
    """The figures of the fullest GPU; a range where a term is bounded, not known."""
    words, colour = _MEMORY[estimate.verdict]
    where = "Memory per GPU"
    if machine.is_cpu:
        where = f"Memory of each of {estimate.ranks} ranks" if estimate.ranks > 1 else "Memory of this host"
    per_gpu = estimate.per_gpu_bytes
    rows = [
        ("target weights", gib(per_gpu.target_weights), _share(per_gpu.target_weights, per_gpu.total), ""),
        ("draft weights", gib(per_gpu.draft_weights), _share(per_gpu.draft_weights, per_gpu.total), ""),
        ("draft", "not known", "", "not counted"),
        ("activations", _range(per_gpu.activation), "", _estimated(per_gpu.activation)),
        ("other", _range(per_gpu.other), "", _estimated(per_gpu.other)),
        ("KV cache", _range(per_gpu.kv_cache), "", _kv(estimate)),
        ("vLLM's budget", gib(per_gpu.budget), _share(per_gpu.budget, per_gpu.total), f"of {gib(per_gpu.total)} GiB"),
    ]  # fmt: skip
    if is_fixed(estimate):  # vLLM then takes no share of what there is
        who = "specserve's default" if estimate.is_kv_cache_default else "the profile"
        rows[-1] = ("capacity", gib(per_gpu.total), "", f"{who} fixes the KV cache")
    left_out = {"draft weights"} if not per_gpu.draft_weights else set()
    left_out |= {"draft"} if not estimate.unknown_draft else set()
    shown = [row for row in rows if row[0] not in left_out]
    lines = [f"{where}, GiB: {styled(words, colour, stream=sys.stdout)}"]
    lines += [f"  {name:<15}{size:>13}  {share:>4}  {note}".rstrip() for name, size, share, note in shown]
    alone = estimate.without_speculation_kv_cache_tokens
    if alone and alone.high > 0:
        lost = 1 - estimate.kv_cache_tokens.high / alone.high
        lines.append(f"  speculation costs {lost:.1%} of the KV cache's {_tokens(alone)} tokens without it")
    if estimate.is_kv_known:
        lines.append(f"  largest max_model_len that fits: {_tokens(estimate.largest_max_model_len)}")
    lines += [f"  {_knob(knob.path, knob.value)}: {_MEMORY[knob.verdict][0]}" for knob in estimate.knobs[:4]]
    basis = "published configuration" if estimate.basis == "published" else estimate.basis
    lines.append(filled(f"{basis}; {clean(estimate.calibration)}", lead="  basis: ", stream=sys.stdout))
    return "\n".join(
        [*lines, *(filled(clean(note), lead="  ", stream=sys.stdout) for note in estimate.notes)]
    )


def _estimated(interval: Interval) -> str:
    """`estimated, from 23 logs`; what no log supports is assumed."""
    return (
        interval.support if interval.logs == 0 else ", ".join(filter(None, ("estimated", interval.support)))
    )


def _knob(path: str, value: float | str | bool) -> str:
    return f"with `{path}: {str(value).lower() if isinstance(value, bool) else value}`"


def _kv(estimate: MemoryEstimate) -> str:
    if not estimate.is_kv_known:
        return "tokens not computed"
    sequences = estimate.max_concurrency
    many = low_to_high(f"{sequences.low:.1f}", f"{sequences.high:.1f}")
    return f"{_tokens(estimate.kv_cache_tokens)} tokens = {many} sequences of {estimate.max_model_len:,}"


def _tokens(interval: Interval) -> str:
    return low_to_high(f"{int(interval.low):,}", f"{int(interval.high):,}")


def _range(interval: Interval) -> str:
    return low_to_high(gib(interval.low), gib(interval.high))


def _share(size_bytes: float, total_bytes: float) -> str:
    return f"{size_bytes / total_bytes:.0%}" if total_bytes else ""


def accelerators_text(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """Both tables for a person: usable memory, not the nameplate's."""
    lines = ["Found here"]
    for gpu in found:
        name = kind(gpu).name
        free = f"{gpu.free_bytes / GIB:.1f} GiB free"
        lines.append(f"  {gpu.index}  {clean(name):<22} {_gpu_memory(kind(gpu))}  {free}  {clean(gpu.name)}")
        lines += [f"     {clean(holder)}" for holder in gpu.holders]
    if not found:
        lines.append("  no NVIDIA GPU")
    free_bytes = (cpu.free_bytes or (0,))[0]
    lines.append(f"  -  {'cpu':<22} {_gpu_memory(cpu.accelerator)}  {free_bytes / GIB:.1f} GiB free")
    lines += ["", "Names for `--assume` and `hardware.accelerator`, with usable memory;"]
    lines += ["those with rates (a datasheet's peaks, in 16 bits) also for `tune --estimate`"]
    rows = [
        (item.name, _gpu_memory(item).strip(), _capability(item), _bandwidth(item), _flops(item))
        for item in catalogue()
    ]
    numbers = (Column(name) for name in ("memory", "capability", "bandwidth", "compute"))
    return "\n".join([*lines, *Table((Column("name", "name"), *numbers), rows).text()])


def accelerators_json(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """The same for scripts."""
    here = [
        {
            **picked(gpu, "index", "uuid"),
            "device": gpu.name,
            **_row(kind(gpu)),
            **picked(gpu, "free_bytes", "holders"),
        }
        for gpu in found
    ]
    memory = {"total_bytes": cpu.accelerator.total_bytes, "free_bytes": (cpu.free_bytes or (None,))[0]}
    names = [_row(known) for known in catalogue()]
    return json_document({"found": here, "cpu": memory, "catalogue": names})


def _row(item: Accelerator) -> dict[str, object]:
    names = ("name", "vendor", "total_bytes", "compute_capability", "bandwidth_bytes_per_s", "flops")
    return picked(item, *names)


def _gpu_memory(item: Accelerator) -> str:
    return f"{item.total_bytes / GIB:7.2f} GiB"


def _capability(item: Accelerator) -> str:
    return ".".join(map(str, item.compute_capability)) if item.compute_capability else "-"


def _bandwidth(item: Accelerator) -> str:
    return f"{item.bandwidth_bytes_per_s / 1e9:,.0f} GB/s" if item.bandwidth_bytes_per_s else "-"


def _flops(item: Accelerator) -> str:
    return f"{item.flops / 1e12:,.0f} TFLOPS" if item.flops else "-"
