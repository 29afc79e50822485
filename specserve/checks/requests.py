"""SD225 about the sampling defaults that a model brings along. Knows no request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity

_LEAST = 1e-5
"""Below this vLLM takes a sampling parameter for zero (sampling_params.py)."""


@rule("SD225", "refused-model-default", Severity.ERROR, needs="models")
def refused_model_default(ctx: Context) -> Iterator[Hit]:
    """The model's own sampling defaults are refused with speculation.

    ## Why is this bad?
    vLLM applies generation_config.json to every request that does not say otherwise, and answers 400 to `min_p`
    while it speculates: the server is up, and plain requests fail.

    ## Example
        target: {model: ./llama-min-p}
        speculation: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}

    ## Use instead
        target: {model: ./llama-min-p}
        speculation: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}
        engine: {override_generation_config: {min_p: 0.0}}

    ## Source
    vllm/sampling_params.py, `The min_p and logit_bias sampling parameters `
    """
    engine = ctx.profile.engine
    overrides = engine.get("override_generation_config")
    overridden = isinstance(overrides, Mapping) and "min_p" in overrides
    if engine.get("generation_config", "auto") != "auto" or overridden or not (ctx.arms and ctx.target):
        return
    value = (ctx.target.generation_config or {}).get("min_p")
    if isinstance(value, int | float) and not isinstance(value, bool) and value > _LEAST:
        yield Hit(
            "target.model",
            f"every request would ask for min_p = {value:g}, which vLLM refuses with speculation",
            label="its generation_config.json says so",
            related=((f"{ctx.arms[0].path}.method", "speculation"),),
            help="`engine: {override_generation_config: {min_p: 0.0}}` serves; the model's authors meant it to be used",
        )
