"""SD1xx about vLLM's arguments: names, places and values, those it leaves behind, and settings in two places."""

from __future__ import annotations

from specserve.checks.rule import ERROR, WARNING, Context, Hit, Hits, rule
from specserve.plan.arguments import problems
from specserve.profile.source import COMMAND
from specserve.vllm.arguments import ArgumentProblem, Section
from specserve.vllm.versions import known_versions, table, versions_with


def _problems(ctx: Context, *kinds: str) -> Hits:
    """Each problem of these kinds once, with the versions that have it."""
    seen: dict[str, tuple[ArgumentProblem, list[str]]] = {}
    for version in ctx.judged:
        for problem in _by_version(ctx, version):
            if problem.kind in kinds:
                seen.setdefault(problem.path, (problem, []))[1].append(version)
    for path, (problem, versions) in seen.items():
        message, help_ = problem.message, problem.help
        if problem.kind == "unknown":
            help_ = _elsewhen(path) or help_
            if len(versions) > 1:
                message = message.replace(f"vLLM {versions[0]} has", "vLLM has", 1)
        elif problem.kind in ("value", "plug-in") and (newer := _accepting(ctx, path, versions)):
            way = (
                "see the profile's `vllm` range"
                if ctx.profile.vllm
                else f'write `vllm: ">={newer[0]}"` for it'
            )
            help_ = f"vLLM {', '.join(newer)} accepts it: {way}"
        yield Hit(
            path,
            message,
            versions=versions,
            help=help_,
            at_key=problem.kind not in ("value", "plug-in") and not path.endswith(".method"),
            severity=WARNING if problem.kind == "plug-in" else None,
            policy=problem.kind in ("elsewhere", "refused"),
        )


def _by_version(ctx: Context, version: str) -> list[ArgumentProblem]:
    """The problems that a version has with the arguments; three rules share them."""
    if version not in ctx.argument_problems:
        known = table(version)
        found = list(problems(ctx.profile, known))
        if ctx.profile.file == COMMAND:
            from specserve.convert.arguments import refused_spellings

            found += refused_spellings(ctx.profile, known)
        ctx.argument_problems[version] = found
    return ctx.argument_problems[version]


def _accepting(ctx: Context, path: str, refusing: list[str]) -> list[str]:
    """The judged versions, and the newer known ones, that have no problem at this path."""
    known, last = known_versions(), refusing[-1]
    newer = known[known.index(last) + 1 :] if last in known else ()
    wanted = [version for version in known if version in newer or version in ctx.judged]
    return [version for version in wanted if all(item.path != path for item in _by_version(ctx, version))]


def _elsewhen(path: str) -> str | None:
    """The known versions that do have this argument."""
    head, _, name = path.rpartition(".")
    if head.startswith(("engine.", "frontend.")):
        return None
    section: Section = "engine" if head == "engine" else "frontend" if head == "frontend" else "speculation"
    versions = versions_with(section, name)
    return f"vLLM {', '.join(versions)} has it: see the profile's `vllm` range" if versions else None


@rule("SD102", ERROR)
def unknown_argument(ctx: Context) -> Hits:
    """The profile allows a vLLM version that does not have this argument.

    vLLM ends with a usage error, or with pydantic's `Unexpected keyword argument`.
    Example: engine: {max_num_sequences: 64}
    Use instead: engine: {max_num_seqs: 64}
    Source: vllm/engine/arg_utils.py, `class EngineArgs`
    """
    return _problems(ctx, "unknown", "spelling")


@rule("SD103", ERROR)
def misplaced_argument(ctx: Context) -> Hits:
    """An argument under `engine` that has its own key in a profile, or that a profile does not accept.

    Each argument has exactly one place in a profile. If it were given in two places, vLLM would get its flag twice and
    use the later one, and the profile would not show which that is. vLLM's `shutdown_timeout` is the time for running
    requests. `server.shutdown_timeout_s` is 5 s longer, because the process needs time to end. In a vLLM command (`lint
    -- vllm serve …`), an argument that a profile does not accept is only a warning.
    Example: engine: {shutdown_timeout: 60}
    Use instead: server: {shutdown_timeout_s: 65}
    Source: specserve, plan/arguments.py, `ELSEWHERE`
    """
    return _problems(ctx, "elsewhere", "refused")


@rule("SD105", ERROR)
def wrong_argument_value(ctx: Context) -> Hits:
    """A value that vLLM does not accept: of another type, out of bounds, or not one of its choices.

    vLLM ends with a usage error, or with an error of pydantic. If the value names a parser, quantization method, load
    format or attention backend that vLLM does not have, this is only a warning: a plug-in may add it.
    Example: engine: {max_num_seqs: many}
    Use instead: engine: {max_num_seqs: 64}
    Source: vllm/engine/arg_utils.py, `class EngineArgs`
    """
    return _problems(ctx, "value", "plug-in")


@rule("SD142", WARNING)
def deprecated_argument(ctx: Context) -> Hits:
    """An argument whose removal vLLM has announced.

    The next version may refuse to start with it. Some of these arguments already do nothing.
    Example:
        vllm: ">=0.32"
        engine: {disable_cascade_attn: true}
    Use instead: vllm: ">=0.32"
    Source: vllm/engine/arg_utils.py (from 0.32), `is deprecated and has no effect since `
    """
    for section, values in (("engine", ctx.engine), ("frontend", ctx.profile.frontend)):
        for name in values:
            known = {version: getattr(table(version), section).get(name) for version in ctx.judged}
            said = {version: item.deprecated for version, item in known.items() if item and item.deprecated}
            if said:
                last, words = list(said.items())[-1]
                yield Hit(
                    f"{section}.{name}",
                    f"vLLM {last} calls `{name}` deprecated",
                    notes=(f"vLLM: {words}",),
                    versions=list(said),
                    help="leave it out, or use the replacement that vLLM names",
                    at_key=True,
                )
