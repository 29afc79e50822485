"""SD501-SD503: what vLLM's own code says of the launch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specserve.checks.rule import Context, Hit, rule
from specserve.checks.vllmanswer import Judged, VllmAnswer, VllmArgument
from specserve.diagnostics import Severity

_FLAG = re.compile(r"--?([a-z][a-z_-]{3,})|\b([a-z]+(?:_[a-z]+)+)\b")
_LONGEST = 300
"""Characters of vLLM's words that are shown."""


@rule("SD501", "refused-by-vllm", Severity.ERROR, needs="vllm")
def refused_by_vllm(ctx: Context) -> Iterator[Hit]:
    """vLLM's own code refuses the launch.

    vLLM raises the error at the start, while it makes its configuration, builds the models, plans the KV cache or reads
    the tensors of the checkpoint. The message quotes vLLM. A note names the version and the machine.
    Example: target: {model: ./llama, max_model_len: 999999}
    Use instead: target: {model: ./llama, max_model_len: 2048}
    Source: vllm/engine/arg_utils.py, `def create_engine_config(`
    """
    for judged in ctx.vllm:
        answer = judged.answer
        if answer.refused is None or (answer.step == "KV cache" and _is_too_large(ctx, judged)):
            continue
        alone = judged.without is not None and judged.without.refused is None
        at = f"{answer.at}, {answer.step}" if answer.step else answer.at
        notes = [f"basis: {judged.basis}, {at}"]
        notes += ["vLLM accepts the same launch without speculation"] if alone else []
        text = _short(answer.refused)
        yield Hit(_path(ctx, judged, answer), f"vLLM refuses this: {text}", notes=tuple(notes))


def _is_too_large(ctx: Context, judged: Judged) -> bool:
    """Whether the memory rules say that this launch does not fit."""
    estimates = [ctx.memory, *(arm.memory for arm in ctx.arms if arm.path == judged.path)]
    return any(memory is not None and memory.verdict == "does_not_fit" for memory in estimates)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


@rule("SD502", "changed-by-vllm", Severity.WARNING, needs="vllm")
def changed_by_vllm(ctx: Context) -> Iterator[Hit]:
    """vLLM runs the launch with another value than the profile asks for.

    The server starts, but serves something else than the profile says: a shorter context, other graph sizes, another
    draft length.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        engine: {max_num_seqs: 256, max_cudagraph_capture_size: 300}
    Instead: engine: {max_num_seqs: 256, max_cudagraph_capture_size: 256}
    Source: vllm/config/vllm.py, `def __post_init__(self):`
    """
    for judged in ctx.vllm:
        for item in judged.answer.changed:
            where = _written(ctx, judged, item.argument)
            if where is None:
                continue
            yield Hit(
                where,
                f"the profile asks for `{item.value}`, and vLLM will run `{item.effective}`",
                notes=(
                    *(f"vLLM: {_short(text)}" for text in reasons(judged, item)),
                    f"basis: {judged.basis}",
                ),
            )


def reasons(judged: Judged, item: VllmArgument) -> tuple[str, ...]:
    """What vLLM says about a value that it changes, if it says anything."""
    name = item.argument.rpartition(".")[2]
    return tuple(
        text for text in (*judged.answer.warnings, *judged.answer.infos) if name in text.replace("-", "_")
    )[:2]


@rule("SD503", "warned-by-vllm", Severity.INFO, needs="vllm")
def warned_by_vllm(ctx: Context) -> Iterator[Hit]:
    """vLLM warns about the launch.

    In the log of a start, this warning is one of hundreds of lines. Warnings that every launch gets are left out.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        engine: {kv_cache_dtype: fp8_e5m2}
    Instead: engine: {kv_cache_dtype: fp8}
    Source: vllm/config/vllm.py, `logger.warning`
    """
    for judged in ctx.vllm:
        changed = [item.argument.rpartition(".")[2] for item in judged.answer.changed]
        usual = judged.without.warnings if judged.without else ()
        for text in judged.answer.warnings:
            if any(name in text for name in changed):
                continue
            notes = [] if text in usual or judged.without is None else ["only with speculation"]
            where = _path(ctx, judged, VllmAnswer(refused=text))
            yield Hit(where, f"vLLM warns: {_short(text)}", notes=(*notes, f"basis: {judged.basis}"))


def _path(ctx: Context, judged: Judged, answer: VllmAnswer) -> str:
    """The place in the profile that vLLM's words are about, as far as they name it."""
    for name in answer.loc:
        if found := _written(ctx, judged, name):
            return found
    for match in _FLAG.finditer(answer.refused or ""):
        if found := _written(ctx, judged, (match[1] or match[2]).replace("-", "_")):
            return found
    usual = [*judged.without.warnings, judged.without.refused] if judged.without else [answer.refused]
    if answer.refused not in usual:
        return f"{judged.path}.method"
    return "target.model"


def _written(ctx: Context, judged: Judged, argument: str) -> str | None:
    """The path of an argument that the profile says."""
    key = argument.rpartition(".")[2]
    block = f"{judged.path}.{key}" if judged.path else None
    if argument.startswith("speculative_config."):
        return block if block in ctx.profile.spans else None
    places = [f"{section}.{key}" for section in ("target", "engine", "frontend", "server")]
    return next((place for place in [*places, block] if place and place in ctx.profile.spans), None)
