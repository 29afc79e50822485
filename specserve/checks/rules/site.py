"""SD4xx, SD5xx: vLLM versions, downloads, and what vLLM's own code says of a launch."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Violation, Violations, rule
from specserve.errors import gib
from specserve.vllm.versions import known_versions

if TYPE_CHECKING:
    from specserve.checks.oraclechild import VllmVerdict
    from specserve.models.facts import ModelFacts


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


@rule("SD405", ERROR, needs="models")
def full_disk(ctx: Context) -> Violations:
    """The weights to download do not fit on the disk of the cache."""
    if ctx.machine is None or ctx.machine.basis != "found":
        return
    from specserve.models.hub import hub_cache

    cache = hub_cache({**os.environ, **ctx.profile.env})
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    total, models = 0, [("target.model", ctx.target)]
    for variant in ctx.variants:
        if variant.path == "speculation" and variant.model:
            models.append((variant.at("model"), variant.draft))
    for path, facts in models:
        total += (missing := missing_bytes(facts) if facts else 0)
        if missing and total > free:
            text = f"{gib(total)} must be downloaded, and `{cache}` has {gib(free)} free"
            help_ = "free some space, or set `HF_HOME` to a folder on a larger disk"
            yield Violation(path, text, help=help_)


def missing_bytes(facts: ModelFacts) -> int:
    """The weights of a model of the Hub that do not lie on this machine."""
    if facts.origin != "hub":
        return 0
    weights: tuple[str, ...] = (".safetensors",)  # vLLM takes these alone, if there are any
    if not any(name.endswith(weights) for name in facts.files):
        weights = (".bin", ".pt", ".gguf")
    files = (file for name, file in facts.files.items() if name.endswith(weights))
    return sum(file.size_bytes or 0 for file in files if file.path is None)


_FLAG = r"--?([a-z][a-z_-]{3,})|\b([a-z]+(?:_[a-z]+)+)\b"
_LONGEST = 300
"""Characters of vLLM's words that are shown."""


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
            if not any(name in text for name in changed):
                notes = [] if text in usual or judged.without is None else ["only with speculation"]
                notes.append(f"basis: {judged.basis}")
                place = _place(ctx, judged, text)
                yield Violation(place, f"vLLM warns: {_short(text)}", notes=tuple(notes))


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
    return next((place for place in places if place in ctx.profile.spans), None)
