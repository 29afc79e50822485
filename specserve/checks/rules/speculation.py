"""SD1xx about speculation: how much is drafted, and what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.arms import count, on_gpu
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.profile.schema import Speculation
from specserve.vllm.facts import V2_REFUSES_BLOCK_STAGES
from specserve.vllm.speculation import BLOCK_DRAFTS, retyped

MAX_K = 128
_NGRAM = ("ngram", "ngram_gpu")
_NO_MODEL = (*_NGRAM, "suffix", "custom_class")


@rule("SD101", "retyped-draft", Severity.ERROR)
def retyped_draft(ctx: Context) -> Iterator[Hit]:
    """vLLM changes the method because of the draft's name.

    vLLM looks for `eagle-`, `eagle3`, `dflash` and `dspark` in the lower-cased name or path of the draft, and runs that
    method even if the profile says `draft_model`. The names of parent directories count, too. The server then fails to
    load the draft, or every draft token is rejected.
    Example: speculation: {method: draft_model, model: ./eagle3-tests/llama-1b, num_speculative_tokens: 4}
    Use instead: speculation: {method: draft_model, model: ./drafts/llama-1b, num_speculative_tokens: 4}
    Source: vllm/config/speculative.py, `"eagle3" in self.draft_model_config.model.lower()`
    """
    for path, block in ctx.blocks:
        model = block.model or (ctx.profile.target.model if block.method == "mtp" else None)
        change = retyped(block.method, model) if model else None
        if change:
            yield Hit(
                f"{path}.model" if block.model else "target.model",
                f"vLLM would run this draft as `{change[0]}`: its name contains `{change[1]}`",
                related=((f"{path}.method", f"the profile says `{block.method}`"),),
                help=(
                    f"move or rename the directory, or write `method: {change[0]}` if it is that kind of head"
                ),
            )


@rule("SD104", "split-draft", Severity.ERROR)
def split_draft(ctx: Context) -> Iterator[Hit]:
    """The draft's tensor parallelism is not the target's.

    vLLM accepts 1 or the target's size in the configuration. With 1, the V1 runner refuses `draft_model` after the
    weights are loaded. The V2 runner and all other methods ignore the value: they split the draft over the target's
    ranks in any case (vllm-project/vllm#31886). If every judged version serves the launch with the V2 runner, this
    finding is a warning. Any other size is refused immediately.
    Example:
        target: {model: ./target, tensor_parallel_size: 4}
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5, draft_tensor_parallel_size: 1}
    Instead:
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5, draft_tensor_parallel_size: 4}
    Source: vllm/v1/spec_decode/draft_model.py, `must be the same. Got {draft_tp} and {tgt_tp}`
    """
    size = ctx.profile.target.tensor_parallel_size
    for path, block in ctx.blocks:
        draft = block.keys.get("draft_tensor_parallel_size")
        ignored = draft == 1 and block.method != "draft_model"
        if draft is not None and draft != size and not ignored:
            is_dropped = draft == 1 and _runs_on_v2(ctx, block)
            yield Hit(
                f"{path}.draft_tensor_parallel_size",
                "draft tensor parallelism is not the target's",
                label=f"draft asks for {draft}",
                related=(("target.tensor_parallel_size", f"target runs on {size}"),),
                notes=("the V2 runner ignores it: the draft runs on the target's ranks",) * is_dropped,
                help=f"write `draft_tensor_parallel_size: {size}`, or leave it out",
                severity=Severity.WARNING if is_dropped else None,
            )


def _runs_on_v2(ctx: Context, block: Speculation) -> bool:
    """Whether every judged version serves this launch with the V2 model runner."""
    return on_gpu(ctx.profile) and ctx.on("V2", block) == list(ctx.judged)


@rule("SD109", "too-many-speculative-tokens", Severity.ERROR)
def too_many_speculative_tokens(ctx: Context) -> Iterator[Hit]:
    """More than 128 tokens are drafted per step.

    The server starts, but at the first request the V1 runner's rejection sampler asserts that K is at most 128, and the
    server dies. The V2 runner has no such limit, but verifies all draft tokens in every step, and no acceptance rate
    makes up for that cost.
    Example: speculation: {method: ngram, num_speculative_tokens: 300, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Use instead: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source: vllm/v1/sample/rejection_sampler.py, `MAX_SPEC_LEN = 128`
    """
    for path, block in ctx.blocks:
        k = block.num_speculative_tokens
        if k is not None and k > MAX_K:
            on_v2 = _runs_on_v2(ctx, block)
            text = f"vLLM drafts at most {MAX_K} tokens per step; found {k}"
            yield Hit(
                f"{path}.num_speculative_tokens",
                f"{k} tokens are drafted and verified in every step" if on_v2 else text,
                help="3 to 8 is usual; `ngram` and `suffix` go up to 32",
                severity=Severity.WARNING if on_v2 else None,
            )


@rule("SD115", "missing-speculative-tokens", Severity.ERROR)
def missing_speculative_tokens(ctx: Context) -> Iterator[Hit]:
    """Speculation is asked for without a number of draft tokens.

    vLLM looks for the layers of `mtp` and `dspark` in the target only if the profile gives K. Without K, vLLM refuses
    to start. If `model` names the layers of `mtp`, the start ends with a TypeError (`'>' not supported between
    instances of 'NoneType' and 'int'`), although these layers have a default (vllm-project/vllm#55323). The
    configuration of an `eagle`, `eagle3` or `dflash` head may give K as `n_predict`. `check` reads this configuration;
    if it cannot be read, as in `lint`, this finding is a warning.
    Example:
        target: {model: ./model}
        speculation: {method: mtp}
    Instead: speculation: {method: mtp, num_speculative_tokens: 1}
    Source:
        vllm/config/speculative.py, `num_speculative_tokens must be provided with `
        vllm/config/speculative.py, `self.num_speculative_tokens > 1`
    """
    for path, block in ctx.blocks:
        needs = f"`{block.method}` needs `num_speculative_tokens`"
        if block.num_speculative_tokens is not None:
            continue
        if block.method == "mtp" or (block.method == "dspark" and block.model is None):
            help_ = "for `mtp`, 1 is a good value to start with"
            unless = "" if block.method == "mtp" else " if it has no `model` of its own"
            yield Hit(f"{path}.method", needs + unless, help=help_)
        elif block.method in ("eagle", "eagle3", "dflash") and block.model:
            head = next((arm.draft for arm in ctx.arms if arm.path == path), None)
            if head is None or "n_predict" not in head.config:
                why = ", which its head does not give" if head else " if its head does not give it"
                severity = None if head else Severity.WARNING
                help_ = "most heads are used with 3"
                yield Hit(f"{path}.method", needs + why, help=help_, severity=severity)


@rule("SD116", "surprising-ngram-window", Severity.WARNING)
def surprising_ngram_window(ctx: Context) -> Iterator[Hit]:
    """The n-gram window has only one size, because one or both of its bounds are left out.

    vLLM's documentation gives `prompt_lookup_min` a default of 1. But its code sets a missing bound to the given one,
    and both to 5 if both are missing. Then only matches of exactly that length count, and hardly anything is drafted.
    Example: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_max: 4}
    Use instead: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source: vllm/config/speculative.py, `self.prompt_lookup_min = self.prompt_lookup_max`
    """
    for path, block in ctx.blocks:
        low, high = block.keys.get("prompt_lookup_min"), block.keys.get("prompt_lookup_max")
        size = high or low or 5
        # a window of one size as short as 2 finds matches all the same
        if block.method not in _NGRAM or (low is not None and high is not None) or size <= 2:
            continue
        given = "prompt_lookup_max" if high else "prompt_lookup_min" if low else "method"
        yield Hit(
            f"{path}.{given}",
            f"only matches of exactly {size} tokens will be looked up",
            notes=("vLLM sets a missing bound to the given one, and both to 5 if both are missing",),
            help=f"write both: `prompt_lookup_min: 2`, `prompt_lookup_max: {size}`",
        )


@rule("SD117", "empty-ngram-window", Severity.ERROR)
def empty_ngram_window(ctx: Context) -> Iterator[Hit]:
    """The shortest n-gram is longer than the longest.

    vLLM refuses to start.
    Example: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 5, prompt_lookup_max: 4}
    Use instead: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source: vllm/config/speculative.py, `be <= prompt_lookup_max=`
    """
    for path, block in ctx.blocks:
        low, high = block.keys.get("prompt_lookup_min"), block.keys.get("prompt_lookup_max")
        if block.method in _NGRAM and low and high and low > high:
            text = f"`prompt_lookup_min` is {low}, above `prompt_lookup_max`"
            related = ((f"{path}.prompt_lookup_max", f"which is {high}"),)
            yield Hit(f"{path}.prompt_lookup_min", text, related=related)


@rule("SD139", "unadapted-draft", Severity.WARNING)
def unadapted_draft(ctx: Context) -> Iterator[Hit]:
    """Adapters change the target, but not the draft.

    vLLM applies LoRA adapters to the target only. The output stays right, but the draft predicts what the base model
    would write. Acceptance falls for each adapter that differs much from the base model.
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {enable_lora: true}
    Instead: speculation: {method: ngram, num_speculative_tokens: 3, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source:
        vllm/v1/worker/gpu/spec_decode/eagle/utils.py (from 0.30), `The drafter does not use the target's LoRA adapter.`
    """
    for path, block in ctx.blocks if ctx.profile.engine.get("enable_lora") is True else ():
        if block.method not in _NO_MODEL:
            yield Hit(
                f"{path}.method",
                f"adapters are not applied to the drafts of `{block.method}`",
                related=(("engine.enable_lora", "adapters are served"),),
                help=(
                    "watch the acceptance rate of each adapter, or use `ngram` or `suffix`, which draft from the "
                    "text itself"
                ),
            )


@rule("SD140", "pipelined-prediction-layers", Severity.WARNING)
def pipelined_prediction_layers(ctx: Context) -> Iterator[Hit]:
    """Pipeline parallelism is combined with a drafter that reads the target's hidden states.

    `mtp` drafts on the last stage, but needs the embedding of the first stage. Several models refuse this after they
    are loaded; other models were reported to hang or crash (vllm-project/vllm#49355, vllm-project/vllm#52069,
    vllm-project/vllm#57755). `eagle3` was reported to write wrong text without asynchronous scheduling
    (vllm-project/vllm#52071), and vLLM before 0.30 refuses `dflash` and `dspark` (vllm-project/vllm#52761). Use tensor
    parallelism with these methods.
    Example:
        target: {model: ./model, pipeline_parallel_size: 2}
        speculation: {method: mtp, num_speculative_tokens: 1}
    Instead: target: {model: ./model, tensor_parallel_size: 2}
    Source: vllm/v1/worker/gpu/spec_decode/eagle/utils.py (from 0.30), `but it is unavailable on this PP stage`
    """
    target = ctx.profile.target
    stages = target.pipeline_parallel_size
    for path, block in ctx.blocks if stages > 1 else ():
        refused = []
        if block.method in BLOCK_DRAFTS:
            stopped = ctx.during(V2_REFUSES_BLOCK_STAGES)
            refused = [version for version in ctx.on("V2", block, by_target=True) if version in stopped]
        in_turns = block.method == "eagle3" and ctx.profile.engine.get("async_scheduling") is False
        if refused:
            text = f"the V2 runner refuses `{block.method}` over {stages} pipeline stages"
        elif in_turns or block.method == "mtp":
            text = f"`{block.method}` is not reliable over {stages} pipeline stages"
        else:
            continue
        yield Hit(
            f"{path}.method",
            text,
            related=(("target.pipeline_parallel_size", "stages"),),
            versions=refused,
            help=f"write `tensor_parallel_size: {stages * target.tensor_parallel_size}` instead",
            severity=Severity.ERROR if refused else None,
        )


@rule("SD141", "data-parallel-prediction-layers", Severity.INFO)
def data_parallel_prediction_layers(ctx: Context) -> Iterator[Hit]:
    """Data and expert parallelism are combined with the target's own prediction layers.

    The ranks wait for each other in every step, and hangs near the end of the context were reported for this
    combination (vllm-project/vllm#44185, vllm-project/vllm#44954). Large deployments do run it. Give the server a
    liveness check that asks for a token.
    Example:
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {data_parallel_size: 8, enable_expert_parallel: true}
    Instead:
        target: {model: ./model, tensor_parallel_size: 8}
        engine: {enable_expert_parallel: true}
    Source: vllm/distributed/device_communicators/shm_broadcast.py, `No available shared memory broadcast block found`
    """
    ranks = count(ctx.profile.engine.get("data_parallel_size")) or 1
    if ranks < 2 or ctx.profile.engine.get("enable_expert_parallel") is not True:
        return
    for path, block in ctx.blocks:
        if block.method == "mtp":
            text = "hangs were reported for `mtp` under data and expert parallelism"
            yield Hit(f"{path}.method", text, related=(("engine.data_parallel_size", f"{ranks} ranks"),))


@rule("SD169", "interleaved-drafts", Severity.WARNING)
def interleaved_drafts(ctx: Context) -> Iterator[Hit]:
    """The profile speculates, and interleaves the KV cache over context-parallel ranks by more than one token.

    Only a few sparse MLA kernels can verify draft tokens over such a cache. With any other kernel, the start ends with
    an assertion after the model is loaded (vllm-project/vllm#28407).
    Example:
        target: {model: ./model, tensor_parallel_size: 2}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {decode_context_parallel_size: 2, cp_kv_cache_interleave_size: 16}
    Instead: engine: {decode_context_parallel_size: 2}
    Source: vllm/v1/worker/cp_utils.py, `"MTP with cp_kv_cache_interleave_size > 1 is not "`
    """
    engine = ctx.profile.engine
    sizes = [engine.get(f"{part}_context_parallel_size") for part in ("decode", "prefill")]
    if all((count(size) or 1) == 1 for size in sizes):
        return
    names = ("cp_kv_cache_interleave_size", "dcp_kv_cache_interleave_size")
    name = next((name for name in names if (count(engine.get(name)) or 1) > 1), None)
    for path, _ in ctx.blocks if name else ():
        text = "most attention kernels cannot verify draft tokens over a cache that is interleaved like this"
        yield Hit(f"engine.{name}", text, related=((f"{path}.method", "speculation"),), help="leave it out")
