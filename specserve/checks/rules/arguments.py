"""SD005, SD006, SD102, SD105, SD142: vLLM's arguments, and what its tables show of the file."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from specserve.checks.rule import ERROR, WARNING, Context, Violation, Violations, rule
from specserve.errors import UsageError
from specserve.plan.arguments import problems
from specserve.profile.source import COMMAND
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
    for path, (problem, versions) in seen.items():
        message, help_ = problem.message, problem.help
        if problem.kind == "unknown" and len(versions) > 1:
            message = message.replace(f"vLLM {versions[0]} has", "vLLM has", 1)
        takes = [version for version in known_versions() if version not in versions]
        takes = [v for v in takes if all(item.path != path for item in _by_version(ctx, v))]
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
    known = table(version)
    found = list(problems(ctx.profile, known))
    if ctx.profile.file == COMMAND:
        from specserve.convert.arguments import refused_spellings

        found += refused_spellings(ctx.profile, known)
    return found


@rule("SD005", ERROR)
def unknown_key(ctx: Context) -> Violations:
    """An argument under `engine` has its own key in a profile, or a profile does not accept it."""
    return _problems(ctx, "elsewhere", "refused")


@rule("SD006", ERROR)
def wrong_value(ctx: Context) -> Violations:
    """A schedule of K that vLLM refuses, or an accelerator that specserve does not know."""
    for variant in ctx.variants:
        if found := schedule_problem(variant.get(_SCHEDULE) or ()):
            help_ = "write `[first, last, K]`, both ends included, from batch size 1 on"
            yield variant.violation(f"{_SCHEDULE}[{found[1]}]", found[0], help=help_)
    if ctx.platform == "gpu" and ctx.profile.hardware is not None:
        from specserve.hardware.accelerators import accelerator

        try:
            accelerator(ctx.profile.hardware.accelerator or "")
        except UsageError as error:
            yield Violation("hardware.accelerator", error.message, help=error.hint)


def schedule_problem(rows: tuple[tuple[int, int, int], ...]) -> tuple[str, int] | None:
    """What vLLM refuses in a schedule, and in which row, counted from 0; None if it takes it."""
    for index, (first, last, _) in enumerate(rows):
        if first < 1 or last < 1:
            return "batch sizes start at 1", index
        if first > last:
            return f"the range starts at {first} and ends at {last}", index
    order = sorted(range(len(rows)), key=lambda index: rows[index][0])
    for before, after in pairwise(order):
        if rows[after][0] <= rows[before][1]:
            return f"the range overlaps the one that ends at {rows[before][1]}", after
    if rows and rows[order[0]][0] != 1:
        return f"the first range starts at {rows[order[0]][0]}, not at 1", order[0]
    return None


@rule("SD102", ERROR)
def unknown_argument(ctx: Context) -> Violations:
    """The profile allows a vLLM version that does not have this argument."""
    return _problems(ctx, "unknown", "spelling")


@rule("SD105", ERROR)
def wrong_argument_value(ctx: Context) -> Violations:
    """A value that vLLM refuses: of another type, out of bounds, or none of its choices."""
    return _problems(ctx, "value", "plug-in")


@rule("SD142", WARNING)
def deprecated_argument(ctx: Context) -> Violations:
    """An argument whose removal vLLM has announced."""
    for section, values in (("engine", ctx.engine), ("frontend", ctx.profile.frontend)):
        for name in values:
            known = {
                version: getattr(table(version), section).get(name)
                for version in ctx.target_versions
            }
            said = {
                version: item.deprecated
                for version, item in known.items()
                if item and item.deprecated
            }
            if said:
                last, words = list(said.items())[-1]
                yield Violation(
                    f"{section}.{name}",
                    f"vLLM {last} calls `{name}` deprecated",
                    notes=(f"vLLM: {words}",),
                    versions=list(said),
                    help="leave it out, or use the replacement that vLLM names",
                    at_key=True,
                )
