"""SD1xx about vLLM's arguments: names, places and values, for each version of the profile's range."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.rule import Context, Hit, rule
from specserve.checks.versions import judged, only_in
from specserve.convert.options import refused_spellings
from specserve.diagnostics import Severity
from specserve.plan.arguments import ArgumentProblem, problems
from specserve.vllm.table import Section
from specserve.vllm.versions import table, versions_with


def _hits(ctx: Context, *kinds: str) -> Iterator[Hit]:
    """Each problem once, with the versions that have it where they do not all have it."""
    seen: dict[str, tuple[ArgumentProblem, list[str]]] = {}
    for version in judged(ctx):
        known = table(version)
        for problem in (*problems(ctx.profile, known), *refused_spellings(ctx.profile, known)):
            if problem.kind in kinds:
                seen.setdefault(problem.path, (problem, []))[1].append(version)
    for path, (problem, found) in seen.items():
        message = problem.message
        if problem.kind == "unknown" and len(found) > 1:
            message = message.replace(f"vLLM {found[0]} has", "vLLM has", 1)
        help_text = (_elsewhen(path) if problem.kind == "unknown" else None) or problem.help
        at_key = problem.kind not in ("value", "plug-in") and not path.endswith(".method")
        severity = Severity.WARNING if problem.kind == "plug-in" else None
        yield Hit(
            path, message, notes=only_in(ctx, found), help=help_text, at_key=at_key, severity=severity,
            policy=problem.kind in ("elsewhere", "refused"),
        )  # fmt: skip


def _elsewhen(path: str) -> str | None:
    """The known versions that do have this argument."""
    head, _, name = path.rpartition(".")
    section: Section = "speculation"
    if head == "engine":
        section = "engine"
    elif head == "frontend":
        section = "frontend"
    elif head.startswith(("engine.", "frontend.")):
        return None
    versions = versions_with(section, name)
    return f"vLLM {', '.join(versions)} has it: see the profile's `vllm` range" if versions else None


@rule("SD102", "unknown-argument", Severity.ERROR)
def unknown_argument(ctx: Context) -> Iterator[Hit]:
    """An argument that a vLLM version of the profile's range does not have.

    ## Why is this bad?
    vLLM ends with a usage error, or with pydantic's `Unexpected keyword argument`.

    ## Example
        engine: {max_num_sequences: 64}

    ## Use instead
        engine: {max_num_seqs: 64}

    ## Source
    vllm/engine/arg_utils.py, `class EngineArgs`
    """
    return _hits(ctx, "unknown", "spelling")


@rule("SD103", "misplaced-argument", Severity.ERROR)
def misplaced_argument(ctx: Context) -> Iterator[Hit]:
    """An argument that has its own place in a profile, or none.

    ## Why is this bad?
    The same setting in two places is one too many: the later flag wins, and nobody sees which one that is. What has
    no place is outside of what specserve does, and a warning in a raw command: vLLM itself takes it.

    ## Example
        engine: {shutdown_timeout: 60}

    ## Use instead
        server: {shutdown_timeout_s: 65}

    ## Source
    specserve, plan/arguments.py, `ELSEWHERE`
    """
    return _hits(ctx, "elsewhere", "refused")


@rule("SD105", "wrong-argument-value", Severity.ERROR)
def wrong_argument_value(ctx: Context) -> Iterator[Hit]:
    """A value that vLLM does not take: of another type, out of bounds, or none of its choices.

    ## Why is this bad?
    vLLM ends with a usage error, or with pydantic's. Parsers, quantization methods, load formats and attention
    backends that vLLM does not bring are a warning: a plug-in may bring them.

    ## Example
        engine: {max_num_seqs: many}

    ## Use instead
        engine: {max_num_seqs: 64}

    ## Source
    vllm/engine/arg_utils.py, `class EngineArgs`
    """
    return _hits(ctx, "value", "plug-in")
