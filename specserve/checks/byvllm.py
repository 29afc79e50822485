"""SD501-SD503: what vLLM's own configuration code says of the launch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specserve.checks.oracle import Answer
from specserve.checks.rule import Context, Hit, Judged, rule
from specserve.diagnostics import Severity

_FLAG = re.compile(r"--?([a-z][a-z_-]{3,})|\b([a-z]+(?:_[a-z]+)+)\b")
_ALWAYS = re.compile(r"accept `intermediate_tensors`|Triton|triton|NVML|pynvml|custom_ops|PYTORCH|tokenizer")
"""Warnings about this machine or about vLLM's own code, not about the launch."""


@rule("SD501", "refused-by-vllm", Severity.ERROR, needs="vllm")
def refused_by_vllm(ctx: Context) -> Iterator[Hit]:
    """The configuration code of vLLM refuses the launch.

    ## Why is this bad?
    vLLM raises this at its start, before any weight is loaded. The sentence is vLLM's own, from the version and for
    the machine that stand beside it.

    ## Example
        target: {model: ./llama, max_model_len: 999999}

    ## Use instead
        target: {model: ./llama, max_model_len: 2048}

    ## Source
    vllm/engine/arg_utils.py, `def create_engine_config(`
    """
    for judged in ctx.vllm:
        answer = judged.answer
        if answer.refused is None:
            continue
        alone = judged.without is not None and judged.without.refused is None
        notes = [f"basis: {judged.basis}, {answer.at}"]
        notes += ["without speculation vLLM takes the same launch"] if alone else []
        yield Hit(_path(ctx, judged, answer), f"vLLM refuses this: {answer.refused}", notes=tuple(notes))


@rule("SD502", "changed-by-vllm", Severity.WARNING, needs="vllm")
def changed_by_vllm(ctx: Context) -> Iterator[Hit]:
    """The configuration code of vLLM runs the launch with another value than the profile asks for.

    ## Why is this bad?
    The server starts, and serves something else than the profile says: a shorter context, other graph sizes, another
    draft length.

    ## Example
        target: {model: ./llama, max_model_len: 2048}
        engine: {max_num_seqs: 256, max_cudagraph_capture_size: 300}

    ## Use instead
        target: {model: ./llama, max_model_len: 2048}
        engine: {max_num_seqs: 256, max_cudagraph_capture_size: 256}

    ## Source
    vllm/config/vllm.py, `def __post_init__(self):`
    """
    for judged in ctx.vllm:
        for item in judged.answer.changed:
            where = _written(ctx, judged, item.argument)
            if where is None:
                continue
            why = [text for text in judged.answer.warnings if item.argument.rpartition(".")[2] in text]
            yield Hit(
                where,
                f"the profile asks for `{item.asked}`, and vLLM will run `{item.effective}`",
                notes=(*(f"vLLM: {text}" for text in why[:2]), f"basis: {judged.basis}"),
            )


@rule("SD503", "warned-by-vllm", Severity.INFO, needs="vllm")
def warned_by_vllm(ctx: Context) -> Iterator[Hit]:
    """The configuration code of vLLM warns about the launch.

    ## Why is this bad?
    The warning scrolls by among hundreds of lines when the server starts.

    ## Example
        target: {model: ./llama, max_model_len: 2048}
        engine: {kv_cache_dtype: fp8_e5m2}

    ## Use instead
        target: {model: ./llama, max_model_len: 2048}
        engine: {kv_cache_dtype: fp8}

    ## Source
    vllm/config/vllm.py, `logger.warning`
    """
    for judged in ctx.vllm:
        changed = [item.argument.rpartition(".")[2] for item in judged.answer.changed]
        usual = judged.without.warnings if judged.without else ()
        for text in judged.answer.warnings:
            if _ALWAYS.search(text) or any(name in text for name in changed):
                continue
            notes = [] if text in usual or judged.without is None else ["only with speculation"]
            where = _path(ctx, judged, Answer(refused=text))
            yield Hit(where, f"vLLM warns: {text}", notes=(*notes, f"basis: {judged.basis}"))


def _path(ctx: Context, judged: Judged, answer: Answer) -> str:
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
