"""SD1xx about speculation beside LoRA, and pipeline, data and context parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.runners import choice
from specserve.checks.values import count
from specserve.checks.versions import judged, only_in, severity_in
from specserve.diagnostics import Severity
from specserve.profile.schema import Speculation
from specserve.vllm.facts import V2_REFUSES_BLOCK_STAGES
from specserve.vllm.speculation import BLOCK_DRAFTS

_NO_MODEL = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class"})
_INTERLEAVED = ("cp_kv_cache_interleave_size", "dcp_kv_cache_interleave_size")


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
    """Pipeline parallelism with a drafter that reads the target's hidden states.

    ## Why is this bad?
    `mtp` drafts on the last stage, from the embedding of the first: several models refuse that once they are
    loaded, others were reported to hang or to crash (vllm-project/vllm#49355, vllm-project/vllm#52069,
    vllm-project/vllm#57755). `eagle3` was reported to write wrong text without asynchronous scheduling
    (vllm-project/vllm#52071), and vLLM before 0.30 refuses `dflash` and `dspark` (vllm-project/vllm#52761). Tensor
    parallelism is what they are used with.

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
    for path, block in blocks(ctx) if stages > 1 else ():
        refused = _refused_stages(ctx, path, block)
        in_turns = block.method == "eagle3" and ctx.profile.engine.get("async_scheduling") is False
        if not refused and not in_turns and block.method != "mtp":
            continue
        text = f"`{block.method}` is not reliable over {stages} pipeline stages"
        yield Hit(
            f"{path}.method",
            f"the V2 runner refuses `{block.method}` over {stages} pipeline stages" if refused else text,
            related=(("target.pipeline_parallel_size", "stages"),),
            notes=only_in(ctx, refused) if refused else (),
            help=f"write `tensor_parallel_size: {stages * ctx.profile.target.tensor_parallel_size}` instead",
            severity=(severity_in(ctx, refused) or Severity.ERROR) if refused else None,
        )


def _refused_stages(ctx: Context, path: str, block: Speculation) -> list[str]:
    """The versions that end the start of a block head over pipeline stages."""
    config = ctx.target.config if ctx.target else None
    found = []
    for version in judged(ctx) if block.method in BLOCK_DRAFTS else ():
        taken = choice(ctx.profile, block, path, version=version, config=config)
        if taken and taken.runner == "V2" and V2_REFUSES_BLOCK_STAGES.at(version):
            found.append(version)
    return found


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


@rule("SD169", "interleaved-drafts", Severity.WARNING)
def interleaved_drafts(ctx: Context) -> Iterator[Hit]:
    """The KV cache is interleaved over context-parallel ranks by more than one token, beside speculation.

    ## Why is this bad?
    Only a few sparse MLA kernels verify drafts over such a cache. All others end the start with an assertion, once
    the model is loaded (vllm-project/vllm#28407).

    ## Example
        target: {model: ./model, tensor_parallel_size: 2}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {decode_context_parallel_size: 2, cp_kv_cache_interleave_size: 16}

    ## Use instead
        target: {model: ./model, tensor_parallel_size: 2}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {decode_context_parallel_size: 2}

    ## Source
    vllm/v1/worker/cp_utils.py, `"MTP with cp_kv_cache_interleave_size > 1 is not "`
    """
    engine = ctx.profile.engine
    ranks = [count(engine.get(f"{part}_context_parallel_size")) or 1 for part in ("decode", "prefill")]
    name = next((n for n in _INTERLEAVED if (count(engine.get(n)) or 1) > 1), None)
    for path, _ in blocks(ctx) if name and max(ranks) > 1 else ():
        yield Hit(
            f"engine.{name}",
            "most attention kernels verify no drafts over a cache that is interleaved like this",
            related=((f"{path}.method", "speculation"),),
            help="leave it out",
        )
