"""SD1xx about speculation beside LoRA, pipeline and data parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.values import count
from specserve.diagnostics import Severity

_NO_MODEL = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class"})


@rule("SD139", "unadapted-draft", Severity.WARNING)
def unadapted_draft(ctx: Context) -> Iterator[Hit]:
    """Adapters change the target, and the draft knows nothing of them.

    ## Why is this bad?
    vLLM applies LoRA adapters to the target alone. The output stays right, but the draft guesses what the base
    model would say: acceptance falls with every adapter that moves away from it.

    ## Example
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {enable_lora: true}

    ## Use instead
        speculation: {method: ngram, num_speculative_tokens: 3, prompt_lookup_min: 2, prompt_lookup_max: 4}
        engine: {enable_lora: true}

    ## Source
    vllm/v1/worker/gpu/spec_decode/eagle/utils.py (from 0.30), `The drafter does not use the target's LoRA adapter.`
    """
    if ctx.profile.engine.get("enable_lora") is not True:
        return
    for path, block in blocks(ctx):
        if block.method not in _NO_MODEL:
            yield Hit(
                f"{path}.method",
                f"adapters are not applied to the drafts of `{block.method}`",
                related=(("engine.enable_lora", "adapters are served"),),
                help="watch acceptance per adapter; `ngram` and `suffix` draft from the text itself",
            )


@rule("SD140", "pipelined-prediction-layers", Severity.WARNING)
def pipelined_prediction_layers(ctx: Context) -> Iterator[Hit]:
    """Pipeline parallelism with the target's own prediction layers.

    ## Why is this bad?
    The layers draft on the last stage, from the embedding of the first: several models refuse that once they are
    loaded, others were reported to hang or to crash (vllm-project/vllm#49355, vllm-project/vllm#52069,
    vllm-project/vllm#57755). Tensor parallelism is what `mtp` is used with.

    ## Example
        target: {model: ./model, pipeline_parallel_size: 2}
        speculation: {method: mtp, num_speculative_tokens: 1}

    ## Use instead
        target: {model: ./model, tensor_parallel_size: 2}
        speculation: {method: mtp, num_speculative_tokens: 1}

    ## Source
    vllm/v1/worker/gpu/spec_decode/eagle/utils.py (from 0.30), `but it is unavailable on this PP stage`
    """
    stages = ctx.profile.target.pipeline_parallel_size
    for path, block in blocks(ctx):
        if block.method == "mtp" and stages > 1:
            yield Hit(
                f"{path}.method",
                f"`mtp` is not reliable over {stages} pipeline stages",
                related=(("target.pipeline_parallel_size", "stages"),),
                help=f"write `tensor_parallel_size: {stages * ctx.profile.target.tensor_parallel_size}` instead",
            )


@rule("SD141", "data-parallel-prediction-layers", Severity.INFO)
def data_parallel_prediction_layers(ctx: Context) -> Iterator[Hit]:
    """Data and expert parallelism with the target's own prediction layers.

    ## Why is this bad?
    The ranks wait for each other in every step, and hangs near the end of the context were reported for this
    combination (vllm-project/vllm#44185, vllm-project/vllm#44954). Large deployments run it: give the server a
    liveness check that asks for a token.

    ## Example
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {data_parallel_size: 8, enable_expert_parallel: true}

    ## Use instead
        target: {model: ./model, tensor_parallel_size: 8}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {enable_expert_parallel: true}

    ## Source
    vllm/distributed/device_communicators/shm_broadcast.py, `No available shared memory broadcast block found`
    """
    ranks = count(ctx.profile.engine.get("data_parallel_size")) or 1
    if ranks < 2 or ctx.profile.engine.get("enable_expert_parallel") is not True:
        return
    for path, block in blocks(ctx):
        if block.method == "mtp":
            yield Hit(
                f"{path}.method",
                "hangs were reported for `mtp` under data and expert parallelism",
                related=(("engine.data_parallel_size", f"{ranks} ranks"),),
            )
