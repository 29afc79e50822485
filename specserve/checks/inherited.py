"""SD166 and SD167 about what a draft takes over from its target, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity

_POSITIONS = ("rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings")


@rule("SD166", "inherited-tensors", Severity.ERROR)
def inherited_tensors(ctx: Context) -> Iterator[Hit]:
    """The draft is loaded from the file of the target's tensors.

    ## Why is this bad?
    The draft is loaded as the target is, unless `draft_load_config` says otherwise. With `tensorizer` that means
    from the target's own file: loading fails on the first tensor that differs (vllm-project/vllm#12725).

    ## Example
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3}
        engine: {load_format: tensorizer}

    ## Use instead
        speculation:
          {method: draft_model, model: ./draft, num_speculative_tokens: 3, draft_load_config: {load_format: auto}}
        engine: {load_format: tensorizer}

    ## Source
    vllm/model_executor/model_loader/utils.py, `return speculative_config.draft_load_config`
    """
    if ctx.profile.engine.get("load_format") != "tensorizer":
        return
    for path, block in blocks(ctx):
        if block.model is not None and block.keys.get("draft_load_config") is None:
            yield Hit(
                f"{path}.model",
                "the draft is loaded with `tensorizer` too, from the target's tensors",
                related=(("engine.load_format", "asked for here"),),
                help="write `draft_load_config: {load_format: auto}`",
            )


@rule("SD167", "unshared-overrides", Severity.WARNING)
def unshared_overrides(ctx: Context) -> Iterator[Hit]:
    """The target's positions are changed by `hf_overrides`, which do not reach its prediction layers.

    ## Why is this bad?
    vLLM applies overrides that are a mapping to the target alone. The layers that draft for `mtp` read config.json
    as it is: beyond the context it names, they draft with other positions than the target has, and what they draft
    is rejected (vllm-project/vllm#58080).

    ## Example
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {hf_overrides: {rope_parameters: {rope_type: yarn, factor: 4.0, rope_theta: 1000000}}}

    ## Use instead
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}

    ## Source
    vllm/config/speculative.py, `Dict overrides are target-specific key patches and are not applied`
    """
    overrides = ctx.profile.engine.get("hf_overrides")
    if not isinstance(overrides, Mapping):
        return
    inner = overrides.get("text_config")
    found = [key for key in _POSITIONS if key in overrides]
    found += [key for key in _POSITIONS if isinstance(inner, Mapping) and key in inner]
    for path, block in blocks(ctx):
        if found and block.method == "mtp" and block.model in (None, ctx.profile.target.model):
            yield Hit(
                "engine.hf_overrides",
                f"`{found[0]}` does not reach the layers that draft for `mtp`",
                related=((f"{path}.method", "drafts with the target's own layers"),),
                help="change config.json of the checkpoint instead, in a copy of it",
            )
