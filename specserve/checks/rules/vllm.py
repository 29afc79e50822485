"""SD005, SD006, SD102, SD105, SD402, SD5xx: what vLLM refuses, by tables and by its own code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Violation, Violations, rule
from specserve.errors import UsageError
from specserve.plan.arguments import problems
from specserve.vllm.arguments import ArgumentProblem
from specserve.vllm.speculation import SCHEDULE
from specserve.vllm.versions import known_versions, table

if TYPE_CHECKING:
    from specserve.checks.oraclechild import VllmVerdict

_FLAG = r"--?([a-z][a-z_-]{3,})|\b([a-z]+(?:_[a-z]+)+)\b"
_LONGEST = 300
"""Characters of vLLM's words that are shown."""


def _problems(ctx: Context, *kinds: str) -> Violations:
    """Each problem of these kinds once, with the versions that have it."""
    seen: dict[str, tuple[ArgumentProblem, list[str]]] = {}
    for version in ctx.target_versions:
        for problem in _by_version(ctx, version):
            if problem.kind in kinds:
                seen.setdefault(problem.path, (problem, []))[1].append(version)
    known = known_versions() if seen else ()
    refused = {v: {each.path for each in _by_version(ctx, v)} for v in known}
    for path, (problem, versions) in seen.items():
        message, help_ = problem.message, problem.help
        if problem.kind == "unknown" and len(versions) > 1:
            message = message.replace(f"vLLM {versions[0]} has", "vLLM has", 1)
        takes = [version for version, paths in refused.items() if path not in paths]
        if takes and problem.kind in ("unknown", "value", "plug-in"):
            verb = "has" if problem.kind == "unknown" else "accepts"
            is_newer = ctx.profile.vllm is None and takes[-1] == known_versions()[-1]
            way = f'write `vllm: ">={takes[0]}"`' if is_newer else "see the profile's `vllm` range"
            help_ = f"vLLM {', '.join(takes)} {verb} it: {way}"
        yield Violation(
            path,
            message,
            versions=versions,
            help=help_,
            at_key=problem.kind not in ("value", "plug-in") and not path.endswith(".method"),
            severity=WARNING if problem.kind == "plug-in" else None,
            policy=problem.kind in ("elsewhere", "refused"),
        )


@lru_cache(maxsize=8)
def _by_version(ctx: Context, version: str) -> list[ArgumentProblem]:
    """The problems that a version has with the arguments; three rules share them."""
    return list(problems(ctx.profile, table(version)))


@rule("SD005", ERROR)
def unknown_key(ctx: Context) -> Violations:
    """An argument under `engine` has its own key in a profile, or a profile does not accept it."""
    return _problems(ctx, "elsewhere", "refused")


@rule("SD006", ERROR)
def wrong_value(ctx: Context) -> Violations:
    """A schedule of K that vLLM refuses, or an accelerator that specserve does not know."""
    for variant in ctx.variants:
        rows = sorted(variant.get(SCHEDULE) or ())
        ends = [0, *(last for _, last, _ in rows)]
        pairs = zip(ends, rows, strict=False)
        is_late = bool(rows) and rows[0][0] > 1
        if is_late or any(not end < first <= last for end, (first, last, _) in pairs):
            text = "the ranges of batch sizes overlap, or do not start at 1"
            help_ = "write `[first, last, K]` for each, both ends included, from batch size 1 on"
            yield variant.violation(SCHEDULE, text, help=help_)
    if ctx.platform == "gpu" and ctx.profile.hardware is not None:
        from specserve.hardware.accelerators import accelerator

        try:
            accelerator(ctx.profile.hardware.accelerator or "")
        except UsageError as error:
            yield Violation("hardware.accelerator", error.message, help=error.hint)


@rule("SD102", ERROR)
def unknown_argument(ctx: Context) -> Violations:
    """The profile allows a vLLM version that does not have this argument."""
    return _problems(ctx, "unknown")


@rule("SD105", ERROR)
def wrong_argument_value(ctx: Context) -> Violations:
    """A value that vLLM refuses: of another type, out of bounds, or none of its choices."""
    return _problems(ctx, "value", "plug-in")


@rule("SD402", INFO)
def unknown_vllm(ctx: Context) -> Violations:
    """The profile's `vllm` range contains no version that this specserve knows."""
    if not ctx.versions:
        yield Violation(
            "vllm",
            f"`{ctx.profile.vllm}` contains no vLLM version that this specserve knows",
            notes=(f"the arguments are judged as those of vLLM {known_versions()[-1]}",),
            help=f"this specserve knows vLLM {', '.join(known_versions())}",
        )


@rule("SD501", ERROR, needs="vllm")
def refused_by_vllm(ctx: Context) -> Violations:
    """vLLM's own code refuses the launch."""
    for judged in ctx.vllm:
        memory = ctx.memory.get(judged.path or "target")
        is_too_large = (
            judged.step == "KV cache" and memory is not None and memory.verdict == "does_not_fit"
        )
        if judged.refused is None or is_too_large:
            continue
        at = f"{judged.at}, {judged.step}" if judged.step else judged.at
        notes = [f"basis: {judged.basis}, {at}"]
        if judged.without is not None and judged.without.refused is None:
            notes.append("vLLM accepts the same launch without speculation")
        path = _place(ctx, judged, judged.refused, loc=judged.loc)
        yield Violation(path, f"vLLM refuses this: {_short(judged.refused)}", notes=tuple(notes))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


@rule("SD502", WARNING, needs="vllm")
def changed_by_vllm(ctx: Context) -> Violations:
    """vLLM runs the launch with another value than the profile asks for."""
    for judged in ctx.vllm:
        for item in judged.changed:
            if where := _written(ctx, judged, item.argument):
                text = f"the profile asks for `{item.value}`, and vLLM will run `{item.effective}`"
                said = [f"vLLM: {_short(text)}" for text in item.why]
                yield Violation(where, text, notes=(*said, f"basis: {judged.basis}"))


@rule("SD503", INFO, needs="vllm")
def warned_by_vllm(ctx: Context) -> Violations:
    """vLLM warns about the launch."""
    for judged in ctx.vllm:
        changed = [item.argument.rpartition(".")[2] for item in judged.changed]
        usual = judged.without.warnings if judged.without else ()
        for text in judged.warnings:
            is_told = text in _by_schedule(judged)
            if not is_told and not any(name in text for name in changed):
                notes = [] if text in usual or judged.without is None else ["only with speculation"]
                notes.append(f"basis: {judged.basis}")
                place = _place(ctx, judged, text)
                yield Violation(place, f"vLLM warns: {_short(text)}", notes=tuple(notes))


@rule("SD504", INFO, needs="vllm")
def changed_by_schedule(ctx: Context) -> Violations:
    """A schedule of K changes more than K: vLLM runs other CUDA graphs, or another runner."""
    for judged in ctx.vllm:
        before, now = judged.fixed.effective if judged.fixed else {}, judged.effective
        words = [
            f"{len(now[name])} graph sizes instead of {len(was)}"
            if isinstance(was, list)
            else f"`{name}` is {now[name]} instead of {was}"
            for name, was in before.items()
            if now.get(name, was) != was
        ]
        if words:
            said = [f"vLLM: {_short(text)}" for text in _by_schedule(judged)]
            if now.get("cudagraph_mode") == "PIECEWISE" != before["cudagraph_mode"]:
                said.append("it cost 14 % at one request in vllm-project/vllm#49548")
            text = f"the schedule changes more than K: {'; '.join(words)}"
            basis = f"basis: {judged.basis}, asked with the schedule and without"
            yield Violation(f"{judged.path}.{SCHEDULE}", text, notes=(*said, basis))


def _by_schedule(judged: VllmVerdict) -> list[str]:
    """What vLLM warns of because of a schedule that changes how it runs."""
    if judged.fixed is None or judged.fixed.effective == judged.effective:
        return []
    return [text for text in judged.warnings if text not in judged.fixed.warnings]


def _place(ctx: Context, judged: VllmVerdict, text: str, *, loc: Iterable[str] = ()) -> str:
    """The place in the profile that vLLM's words are about, as far as they name it."""
    named = ((match[1] or match[2]).replace("-", "_") for match in re.finditer(_FLAG, text))
    for name in (*loc, *named):
        if found := _written(ctx, judged, name):
            return found
    without = judged.without
    is_usual = without is None or text in (*without.warnings, without.refused)
    return "target.model" if is_usual else f"{judged.path}.method"


def _written(ctx: Context, judged: VllmVerdict, argument: str) -> str | None:
    """The path of an argument that the profile says."""
    key = argument.rpartition(".")[2]
    places = [f"{judged.path}.{key}"] if judged.path else []
    if not argument.startswith("speculative_config."):
        sections = ("target", "engine", "frontend", "server")
        places = [*(f"{section}.{key}" for section in sections), *places]
    return next((place for place in places if place in ctx.profile.nodes), None)
