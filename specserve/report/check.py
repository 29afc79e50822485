"""A check as text: what ran, the findings, tokenizers, memory, the configuration that vLLM makes of the launch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from specserve.checks.check import Checked, RuleGroup
from specserve.checks.oraclechild import Judged, VllmAnswer, VllmArgument
from specserve.checks.rules.memory import is_fixed
from specserve.checks.rules.site import reasons
from specserve.diagnostics import ProfileVerdict, Report, Severity
from specserve.hardware.accelerators import Accelerator, Gpu, Machine, catalogue, kind
from specserve.memory.constants import Bounds as Interval
from specserve.memory.estimate import MemoryEstimate
from specserve.models.tokenizercompare import TokenizerComparison
from specserve.report.console import escaped, styled, wrapped
from specserve.report.findings import COLOURS, render
from specserve.report.text import GIB, Column, Table, count, fields_of, gib, json_document, low_to_high

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
    """Returns every profile with its groups, then its findings, tokenizers and memory."""
    parts = []
    for verdict in report.verdicts:
        own = [finding for finding in report.findings if finding.span.file == verdict.file]
        blocks = []
        if isinstance(verdict, Checked) and verdict.verdict != "invalid":
            blocks.append(_head(verdict))
            own += [finding for group in verdict.groups for finding in group.findings]
        if own:
            unique = sorted(dict.fromkeys(own), key=lambda finding: finding.sort_key)
            blocks.append(render(unique, stream=sys.stdout).rstrip("\n"))
        if isinstance(verdict, Checked):
            blocks += _facts(verdict)
        parts.append("\n\n".join(filter(None, blocks)))
    if any(_is_assumed(verdict) for verdict in report.verdicts):
        parts.append(_filled("no public vLLM log shows it, so its bounds are wide", "assumed: "))
    return "\n\n".join(filter(None, parts)) + "\n"


def _is_assumed(verdict: ProfileVerdict) -> bool:
    """Whether a table of memory has a part that is only assumed."""
    if not isinstance(verdict, Checked) or not verdict.memory:
        return False
    sizes = verdict.memory.per_gpu_bytes
    return sizes.activation.logs == 0 or sizes.other.logs == 0


def _filled(text: str, lead: str, shown: str | None = None) -> str:
    return wrapped(escaped(text), lead=lead, shown=shown, stream=sys.stdout)


def _head(verdict: Checked) -> str:
    """What is checked, and a line for each group of rules."""
    on = f" on {_machine_words(verdict.machine)}" if verdict.machine else ""
    versions = f" with vLLM {', '.join(verdict.versions)}" if verdict.versions else ""
    lines = [f"Checking `{escaped(verdict.name or verdict.file)}`{on}{versions}", ""]
    for group in verdict.groups:
        lead = f"  {_TITLES[group.name]:<10}{group.rules:>3} rules  "
        lines.append(wrapped(_state(group), lead=lead, stream=sys.stdout))
    ways = dict.fromkeys(item.reason.partition("; ")[2] for group in verdict.groups for item in group.skipped)
    shown = f"  {styled('help', 'cyan', stream=sys.stdout)}: "
    lines += ["", *(_filled(way, "  help: ", shown) for way in ways if way)]
    return "\n".join(lines).rstrip()


def _machine_words(machine: Machine) -> str:
    """`2 nodes of 8 x H100-80GB (assumed)`."""
    nodes = f"{machine.nodes} nodes of " if machine.nodes > 1 else ""
    kind = "the CPU" if machine.is_cpu else f"{machine.count} x {machine.accelerator.name}"
    return f"{nodes}{kind} ({_BASIS[machine.basis]})"


def _state(group: RuleGroup) -> str:
    words = []
    for severity in Severity:
        number = sum(finding.severity is severity for finding in group.findings)
        counted = f"{number} info" if severity is Severity.INFO else count(number, severity)
        words += [styled(counted, COLOURS[severity], stream=sys.stdout)] if number else []
    if group.skipped:
        number = len({code for item in group.skipped for code in item.codes})
        whole = "partly skipped" if group.findings else "skipped"
        text = whole if number == group.rules else f"{number} skipped"
        # the ways out stand below the table
        reasons = _of_several(item.reason.partition("; ")[0] for item in group.skipped)
        words.append(styled(f"{text}: {escaped('; '.join(reasons))}", "yellow", stream=sys.stdout))
    return ", ".join(words) or styled("ok", "green", stream=sys.stdout)


def _of_several(reasons: Iterable[str]) -> list[str]:
    """Each reason once; those that differ in the model alone name all their models."""
    models: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        parts = reason.split("`", 2)
        before, model, after = parts if len(parts) == 3 else (reason, "", "")
        models.setdefault((before, after), []).append(f"`{model}`" if model else "")
    merged = []
    for (before, after), each in models.items():
        names = list(dict.fromkeys(each))
        rest = after.replace(" is ", " are ", 1) if len(names) > 1 and after.startswith(" is ") else after
        merged.append(before + " and ".join(names) + rest)
    return merged


def _facts(verdict: Checked) -> Iterator[str]:
    if verdict.tokenizer:
        yield "\n".join(_tokenizers(verdict.tokenizer))
    elif any(item.published for item in verdict.unread):
        yield "Tokenizers: not checked"
    if verdict.memory and verdict.machine:
        yield "\n".join(_memory(verdict.memory, verdict.machine, verdict.alternatives))
    if verdict.vllm:
        yield effective_text(verdict.vllm[0])


def _tokenizers(comparison: TokenizerComparison) -> Iterator[str]:
    share = ""
    if comparison.verdict == "overlap" and comparison.overlap is not None:
        share = f"; the target has {comparison.overlap:.1%} of the draft's tokens"
    yield f"Tokenizers: {_VERDICTS.get(comparison.verdict, comparison.verdict)}{share}"
    yield from (_filled(reason, "  ") for reason in comparison.reasons)


_SMALL = 0.005
"""A share of the KV cache that rounds to nothing."""
_COMPUTED_BY = {
    "vllm": "computed by vLLM's own planner",
    "formula": "computed by formula",
    "published": "computed by formula from the copy of the models' config.json that ships with specserve",
}


def _memory(
    estimate: MemoryEstimate, machine: Machine, alternatives: Mapping[str, MemoryEstimate]
) -> Iterator[str]:
    """The figures of the fullest GPU; a range for a term that is bounded, not known."""
    where = "Memory per GPU"
    if machine.is_cpu:
        where = f"Memory of each of {estimate.ranks} ranks" if estimate.ranks > 1 else "Memory of this host"
    yield f"{where}, GiB: {_fits(estimate)}"
    for name, size, share, note in _terms(estimate):
        yield f"  {name:<15}{size:>13}  {share:>4}  {note}".rstrip()
    alone = estimate.without_speculation_kv_cache_tokens
    if alone and alone.high > 0:
        cost = f"; speculation costs {estimate.speculation_cost:.0%}"
        same = "about the same" if estimate.speculation_cost < _SMALL else f"{_tokens(alone)} tokens{cost}"
        yield f"  KV cache without speculation: {same}"
    yield from _alternatives(alternatives)
    helpful = [knob for knob in estimate.knobs if knob.verdict != estimate.verdict]
    is_length = any(knob.path == "target.max_model_len" for knob in helpful)
    if estimate.is_kv_known and (is_length or estimate.verdict != "does_not_fit"):
        largest = estimate.largest_max_model_len
        why = ", the models' own limit" if estimate.kv_cache_tokens.low >= 2 * largest.high else ""
        yield f"  largest max_model_len that fits: {_tokens(largest)}{why}"
    for knob in helpful:
        value = str(knob.value).lower() if isinstance(knob.value, bool) else knob.value
        yield f"  {_MEMORY[knob.verdict][0]} with `{knob.path}: {value}`, all else unchanged"
    if is_fixed(estimate):
        yield f"  {'specserve' if estimate.is_kv_cache_default else 'the profile'} fixes the size of the KV cache"
    yield _filled(f"{_COMPUTED_BY[estimate.basis]}, for {estimate.regime}", "  ")
    yield from (_filled(note, "  ") for note in estimate.notes)


def _fits(estimate: MemoryEstimate) -> str:
    words, colour = _MEMORY[estimate.verdict]
    if estimate.is_only_in_doubt and estimate.unknown_draft:
        words = "fits without the draft, whose size is not known"
    return styled(words, colour, stream=sys.stdout)


def _alternatives(estimates: Mapping[str, MemoryEstimate]) -> Iterator[str]:
    """What each alternative would leave for the KV cache, in the place of `speculation`."""
    for name, estimate in estimates.items():
        held = f"; KV cache {_tokens(estimate.kv_cache_tokens)} tokens" if estimate.is_kv_known else ""
        lead = f"  with the alternative `{escaped(name)}`: "
        yield wrapped(f"{_fits(estimate)}{held}", lead=lead, stream=sys.stdout)


def _terms(estimate: MemoryEstimate) -> Iterator[tuple[str, str, str, str]]:
    """What takes memory: its name, GiB, share of the GPU, and a remark."""
    sizes = estimate.per_gpu_bytes

    def share(size_bytes: float) -> str:
        return f"{size_bytes / sizes.total:.0%}" if sizes.total else ""

    yield "target weights", gib(sizes.target_weights), share(sizes.target_weights), ""
    if sizes.draft_weights:
        yield "draft weights", gib(sizes.draft_weights), share(sizes.draft_weights), ""
    if estimate.unknown_draft:
        yield "draft", "not known", "", "not counted"
    for name, term in (("activations", sizes.activation), ("other", sizes.other)):
        estimated = (
            f"estimated, {term.support}" if term.logs else "assumed" if term.logs == 0 else "estimated"
        )
        yield name, low_to_high(gib(term.low), gib(term.high)), "", estimated
    held = "tokens not computed"
    if estimate.is_kv_known:
        many = low_to_high(f"{estimate.max_concurrency.low:.1f}", f"{estimate.max_concurrency.high:.1f}")
        held = f"{_tokens(estimate.kv_cache_tokens)} tokens = {many} sequences of {estimate.max_model_len:,}"
    yield "KV cache", low_to_high(gib(sizes.kv_cache.low), gib(sizes.kv_cache.high)), "", held
    if is_fixed(estimate):  # vLLM then takes no share of what there is
        yield "capacity", gib(sizes.total), "", ""
    else:
        yield "vLLM's budget", gib(sizes.budget), share(sizes.budget), f"of {gib(sizes.total)} GiB"


def _tokens(interval: Interval) -> str:
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
_COLUMNS = "  {:<23}{:<20}{:<20}{}"


def effective_text(judged: Judged) -> str:
    """What the profile asks for beside what vLLM runs, and why; what speculation changes is marked."""
    answer = judged.answer
    if not answer.effective:
        return ""
    asked = {item.place: item for item in answer.asked}
    head = _COLUMNS.format("", "asked", "effective", "").rstrip()
    lines = [f"Effective configuration by {escaped(judged.basis)}:", head]
    for title, place in _effective_rows(answer):
        item, value = asked.get(place), answer.effective[place]
        wanted = _shown(item.value) if item else ""
        lines.append(_COLUMNS.format(title, wanted, _shown(value), _marks(judged, place, item)).rstrip())
    for item in answer.changed:
        lines += [_because(item.argument, text) for text in reasons(judged, item)]
    lines += [_because(f"not judged here: {step}", reason) for step, reason in answer.skipped.items()]
    return "\n".join(lines)


def _effective_rows(answer: VllmAnswer) -> Iterator[tuple[str, str]]:
    """The rows that are always shown, and every other value that vLLM changes."""
    yield from ((title, place) for title, place in _ROWS if answer.effective.get(place) is not None)
    shown = {place for _, place in _ROWS}
    yield from ((item.argument, item.place) for item in answer.changed if item.place not in shown)


def _marks(judged: Judged, place: str, item: VllmArgument | None) -> str:
    marks = ["changed by vLLM"] if item and item.is_changed else []
    before = judged.without.effective.get(place) if judged.without else None
    if before is not None and before != judged.answer.effective[place]:
        marks.append(f"{_shown(before)} without speculation")
    return ", ".join(marks)


def _because(name: str, text: str) -> str:
    return wrapped(escaped(text), lead=f"  {escaped(name)}: ", stream=sys.stdout)


def effective_json(judged: tuple[Judged, ...]) -> list[dict[str, Any]]:
    """What vLLM said of every arm, with the whole configuration that is looked at."""
    return [
        {
            "arm": item.path or None,
            "basis": item.basis,
            **fields_of(item.answer, "refused", "not_judged", "skipped", "effective"),
            "caused_by_speculation": dict(_caused(item)),
            "asked_otherwise": [
                {
                    "argument": change.argument,
                    "asked": change.value,
                    "effective": change.effective,
                    "because": list(reasons(item, change)),
                }
                for change in item.answer.changed
            ],
            "warnings": list(item.answer.warnings),
        }
        for item in judged
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else escaped(str(value))


def _caused(judged: Judged) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is another value with speculation than without it."""
    without = judged.without.effective if judged.without else {}
    for name, value in judged.answer.effective.items():
        if name in without and without[name] != value:
            yield name, {"without": without[name], "with": value}


def accelerators_text(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """Returns both tables for a person: usable memory, not the nameplate's."""
    lines = ["Found here"]
    for gpu in found:
        memory = f"{_usable(kind(gpu))}  {gpu.free_bytes / GIB:.1f} GiB free"
        lines.append(f"  {gpu.index}  {escaped(kind(gpu).name):<22} {memory}  {escaped(gpu.name)}")
        lines += [f"     {escaped(holder)}" for holder in gpu.holders]
    if not found:
        lines.append("  no NVIDIA GPU")
    free_bytes = (cpu.free_bytes or (0,))[0]
    lines.append(f"  -  {'cpu':<22} {_usable(cpu.accelerator)}  {free_bytes / GIB:.1f} GiB free")
    lines += ["", "Names for `--assume` and `hardware.accelerator`, with usable memory;"]
    lines += ["those with rates (a datasheet's peaks, in 16 bits) also for `tune --estimate`"]
    rows = []
    for item in catalogue():
        capability = ".".join(map(str, item.compute_capability or ())) or "-"
        rate = f"{item.bandwidth_bytes_per_s / 1e9:,.0f} GB/s" if item.bandwidth_bytes_per_s else "-"
        flops = f"{item.flops / 1e12:,.0f} TFLOPS" if item.flops else "-"
        rows.append((item.name, _usable(item).strip(), capability, rate, flops))
    numbers = (Column(name) for name in ("memory", "capability", "bandwidth", "compute"))
    return "\n".join([*lines, *Table((Column("name", "name"), *numbers), rows).text()])


def _usable(item: Accelerator) -> str:
    return f"{item.total_bytes / GIB:7.2f} GiB"


def accelerators_json(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """Returns the same for scripts."""

    def row(item: Accelerator) -> dict[str, object]:
        rates = ("bandwidth_bytes_per_s", "flops")
        return fields_of(item, "name", "vendor", "total_bytes", "compute_capability", *rates)

    here = [
        {
            **fields_of(gpu, "index", "uuid"),
            "device": gpu.name,
            **row(kind(gpu)),
            **fields_of(gpu, "free_bytes", "holders"),
        }
        for gpu in found
    ]
    memory = {"total_bytes": cpu.accelerator.total_bytes, "free_bytes": (cpu.free_bytes or (None,))[0]}
    return json_document({"found": here, "cpu": memory, "catalogue": list(map(row, catalogue()))})
