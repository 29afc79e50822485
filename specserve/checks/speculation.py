"""SD1xx about speculation: what the profile alone shows to be refused or changed by vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.runners import choice, on_gpu
from specserve.checks.versions import judged
from specserve.diagnostics import Severity
from specserve.profile.schema import Speculation
from specserve.vllm.speculation import retyped

MAX_K = 128


@rule("SD101", "retyped-draft", Severity.ERROR)
def retyped_draft(ctx: Context) -> Iterator[Hit]:
    """vLLM changes the method because of the draft's name.

    ## Why is this bad?
    vLLM looks for `eagle-`, `eagle3`, `dflash` and `dspark` in the lower-cased name or path of the draft, and
    runs that method even where the profile says `draft_model`; directories above the draft count too. The
    server then fails to load the draft, or drafts nonsense that is rejected every time.

    ## Example
        speculation: {method: draft_model, model: ./eagle3-tests/llama-1b, num_speculative_tokens: 4}

    ## Use instead
        speculation: {method: draft_model, model: ./drafts/llama-1b, num_speculative_tokens: 4}

    ## Source
    vllm/config/speculative.py, `"eagle3" in self.draft_model_config.model.lower()`
    """
    for path, block in blocks(ctx):
        model = block.model or (ctx.profile.target.model if block.method == "mtp" else None)
        change = retyped(block.method, model) if model else None
        if change:
            where = f"{path}.model" if block.model else "target.model"
            yield Hit(
                where,
                f"vLLM would run this draft as `{change[0]}`: its name contains `{change[1]}`",
                related=((f"{path}.method", f"the profile says `{block.method}`"),),
                help=f"move or rename the directory, or write `method: {change[0]}` if it is such a head",
            )


@rule("SD104", "split-draft", Severity.ERROR)
def split_draft(ctx: Context) -> Iterator[Hit]:
    """The draft's tensor parallelism is not the target's.

    ## Why is this bad?
    vLLM accepts 1 or the target's size in the configuration. With 1 the V1 runner then refuses `draft_model`
    after the weights are loaded, and everything else ignores the value: layers are split over the target's
    ranks in any case (vllm-project/vllm#31886). If every judged version serves the launch with the V2 runner, this
    finding is a warning. Any other size is refused at once.

    ## Example
        target: {model: ./target, tensor_parallel_size: 4}
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5, draft_tensor_parallel_size: 1}

    ## Use instead
        target: {model: ./target, tensor_parallel_size: 4}
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5, draft_tensor_parallel_size: 4}

    ## Source
    vllm/v1/spec_decode/draft_model.py, `must be the same. Got {draft_tp} and {tgt_tp}`
    """
    size = ctx.profile.target.tensor_parallel_size
    for path, block in blocks(ctx):
        draft = block.keys.get("draft_tensor_parallel_size")
        ignored = draft == 1 and block.method != "draft_model"
        if draft is not None and draft != size and not ignored:
            is_dropped = draft == 1 and _runs_on_v2(ctx, block, path)
            yield Hit(
                f"{path}.draft_tensor_parallel_size",
                "draft tensor parallelism is not the target's",
                label=f"draft asks for {draft}",
                related=(("target.tensor_parallel_size", f"target runs on {size}"),),
                notes=("the V2 runner ignores it: the draft runs on the target's ranks",)
                if is_dropped
                else (),
                help=f"write `draft_tensor_parallel_size: {size}`, or leave it out",
                severity=Severity.WARNING if is_dropped else None,
            )


def _runs_on_v2(ctx: Context, block: Speculation, path: str) -> bool:
    """Whether every judged version serves this launch with the V2 model runner."""
    choices = [choice(ctx.profile, block, path, version=version) for version in judged(ctx)]
    return on_gpu(ctx.profile) and all(taken is not None and taken.runner == "V2" for taken in choices)


@rule("SD109", "too-many-speculative-tokens", Severity.ERROR)
def too_many_speculative_tokens(ctx: Context) -> Iterator[Hit]:
    """More than 128 tokens are drafted per step.

    ## Why is this bad?
    The V1 runner's rejection sampler asserts at most 128, at the first request: the server starts, and then dies.
    The V2 runner knows no such limit, but verifies all of them in every step, which no acceptance pays for.

    ## Example
        speculation: {method: ngram, num_speculative_tokens: 300, prompt_lookup_min: 2, prompt_lookup_max: 4}

    ## Use instead
        speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}

    ## Source
    vllm/v1/sample/rejection_sampler.py, `MAX_SPEC_LEN = 128`
    """
    for path, block in blocks(ctx):
        count = block.num_speculative_tokens
        if count is not None and count > MAX_K:
            on_v2 = _runs_on_v2(ctx, block, path)
            text = f"vLLM drafts at most {MAX_K} tokens per step; found {count}"
            yield Hit(
                f"{path}.num_speculative_tokens",
                f"{count} tokens are drafted and verified in every step" if on_v2 else text,
                help="3 to 8 is usual; `ngram` and `suffix` go to 32",
                severity=Severity.WARNING if on_v2 else None,
            )
