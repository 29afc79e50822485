"""SD005, SD006, SD102, SD105: vLLM's arguments, and what its tables show of the file."""

from __future__ import annotations

from functools import lru_cache

from specserve.checks.rule import ERROR, WARNING, Context, Violation, Violations, rule
from specserve.errors import UsageError
from specserve.plan.arguments import problems
from specserve.vllm.arguments import ArgumentProblem
from specserve.vllm.versions import known_versions, table

_SCHEDULE = "num_speculative_tokens_per_batch_size"


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
        rows = sorted(variant.get(_SCHEDULE) or ())
        ends = [0, *(last for _, last, _ in rows)]
        pairs = zip(ends, rows, strict=False)
        is_late = bool(rows) and rows[0][0] > 1
        if is_late or any(not end < first <= last for end, (first, last, _) in pairs):
            text = "the ranges of batch sizes overlap, or do not start at 1"
            help_ = "write `[first, last, K]` for each, both ends included, from batch size 1 on"
            yield variant.violation(_SCHEDULE, text, help=help_)
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
