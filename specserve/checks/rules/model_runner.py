"""SD1xx about vLLM's two model runners: what the one that will serve does not know."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.arms import SWITCH, on_cpu, switch
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.errors import quoted
from specserve.vllm.facts import V2_CAPTURES_EAGER_DRAFTS, V2_IGNORED_KEYS
from specserve.vllm.runner import ignores_other_vocabulary
from specserve.vllm.speculation import BLOCK_DRAFTS, refuses_async


@rule("SD122", "unsupported-runner", Severity.ERROR)
def unsupported_runner(ctx: Context) -> Iterator[Hit]:
    """The model runner that will serve does not support what the profile asks for.

    vLLM has two model runners. V2 is the default on GPUs since 0.32. V1 serves on CPUs. On GPUs, V1 serves if the
    environment asks for it, or if the launch needs a feature that V2 lacks. If the runner that serves lacks a feature
    that the launch needs, the start ends with `Model Runner V2 does not yet support` or a similar message.
    Example:
        speculation: {method: suffix, num_speculative_tokens: 16}
        env: {VLLM_USE_V2_MODEL_RUNNER: 1}
    Use instead: speculation: {method: suffix, num_speculative_tokens: 16}
    Source: vllm/config/vllm.py, `Model Runner V2 does not yet support: `
    """
    written, is_chosen = ctx.profile.env.get(SWITCH), switch(ctx.profile) is not None
    if written is not None and not is_chosen:
        text = f"`{SWITCH}` must be 0 or 1; found {quoted(written)}, which vLLM cannot read"
        yield Hit(f"env.{SWITCH}", text)
    for path, block in ctx.blocks:
        found: dict[tuple[str, str, str], tuple[str, list[str]]] = {}
        for version, taken in ctx.choices(block).items():
            for lack in taken.lacks if taken else ():
                assert taken is not None
                place = f"{path if lack.section == 'speculation' else lack.section}.{lack.key}"
                found.setdefault((lack.what, place, taken.runner), (taken.reason, []))[1].append(version)
        for (what, place, name), (reason, versions) in found.items():
            yield Hit(
                place,
                f"the {name} model runner does not support {what}",
                related=((f"env.{SWITCH}", "the runner is chosen here"),) * is_chosen,
                notes=(f"it is {name}: {reason}",),
                versions=versions,
                help=f"leave `{SWITCH}` out, and vLLM chooses" if is_chosen else None,
            )


@rule("SD123", "unsupported-async-scheduling", Severity.ERROR)
def unsupported_async_scheduling(ctx: Context) -> Iterator[Hit]:
    """The profile requires asynchronous scheduling, but vLLM cannot combine it with this speculation.

    If `async_scheduling` is left out, vLLM enables it when it can. If it is `true`, vLLM refuses to start with `ngram`,
    `suffix`, `custom_class` or `disable_padded_drafter_batch`, and with pipeline parallelism on the V1 runner. Since
    0.33, the V2 runner accepts `ngram`.
    Example:
        speculation: {method: suffix, num_speculative_tokens: 16}
        engine: {async_scheduling: true}
    Use instead: speculation: {method: suffix, num_speculative_tokens: 16}
    Source:
        vllm/config/vllm.py (from 0.33), `v1_async_sched_incompat: str | None = None`
        vllm/config/vllm.py (to 0.32), `Currently, async scheduling is only supported `
    """
    for path, block in ctx.blocks if ctx.profile.engine.get("async_scheduling") is True else ():
        found: dict[str, list[str]] = {}
        for version, taken in ctx.choices(block).items():
            reason = refuses_async(
                version,
                method=block.method,
                runner=taken.runner if taken else None,
                unpadded=block.keys.get("disable_padded_drafter_batch") is True,
                stages=ctx.profile.target.pipeline_parallel_size > 1,
                on_cpu=on_cpu(ctx.profile),
            )
            if reason:
                found.setdefault(reason, []).append(version)
        for reason, versions in found.items():
            what, place = {
                "method": (f"`{block.method}`", f"{path}.method"),
                "disable_padded_drafter_batch": (f"`{reason}`", f"{path}.{reason}"),
                "stages": ("pipeline parallelism on the V1 runner", "target.pipeline_parallel_size"),
            }[reason]
            yield Hit(
                "engine.async_scheduling",
                f"vLLM refuses asynchronous scheduling with {what}",
                related=((place, "set here"),),
                versions=versions,
                help="leave it out: vLLM enables it if it can",
            )


@rule("SD124", "unpadded-drafter-batch", Severity.WARNING)
def unpadded_drafter_batch(ctx: Context) -> Iterator[Hit]:
    """The padding of the drafter's batch is switched off, as in old examples.

    This disables asynchronous scheduling, which costs throughput. The V2 runner does not read the key at all. On the V1
    runner, `draft_model` and parallel drafting refuse to start with it.
    Example:
        vllm: ">=0.32"
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3, disable_padded_drafter_batch: true}
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `supports padded drafter batch. Please unset `
    """
    for path, block in ctx.blocks:
        if block.keys.get("disable_padded_drafter_batch") is not True:
            continue
        is_padded = block.method == "draft_model" or block.keys.get("parallel_drafting") is True
        found, severity = ctx.on("V1", block) if is_padded else [], None
        text = "this key disables asynchronous scheduling, and has no other effect on the V2 runner"
        if found:
            severity = Severity.ERROR
            text = f"the V1 runner drafts with `{block.method}` in padded batches only, and refuses to start"
        place = f"{path}.disable_padded_drafter_batch"
        yield Hit(place, text, versions=found, help="leave it out", severity=severity)


@rule("SD125", "refused-logits-processor", Severity.ERROR)
def refused_logits_processor(ctx: Context) -> Iterator[Hit]:
    """The model runner cannot combine custom logits processors with speculation.

    The V1 runner refuses the combination at the start. The V2 runner, which serves most methods on GPUs since 0.32,
    accepts processors that were written for it.
    Example:
        vllm: ">=0.32"
        speculation: {method: suffix, num_speculative_tokens: 16}
        engine: {logits_processors: ["my_tools:Bans"]}  # specserve: ignore[SD111] our own
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source:
        vllm/v1/sample/logits_processor/__init__.py, `Custom logits processors are not supported when`
    """
    for path, block in ctx.blocks if ctx.profile.engine.get("logits_processors") else ():
        found = ctx.on("V1", block)
        if found:
            yield Hit(
                "engine.logits_processors",
                f"the V1 runner, which will serve `{block.method}`, takes no logits processors with speculation",
                related=((f"{path}.method", "speculation"),),
                versions=found,
                help="leave one of them out",
            )


@rule("SD126", "eager-draft", Severity.INFO)
def eager_draft(ctx: Context) -> Iterator[Hit]:
    """The draft model will run without CUDA graphs, on the V2 runner.

    A small draft spends its time launching kernels, and CUDA graphs would remove most of that. The V1 runner uses them
    for drafts and may be faster (vllm-project/vllm#55990). The profile promises a speed, so try both runners.
    Example:
        vllm: ">=0.32"
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5}
        hardware: {accelerator: H100-80GB}
        expect: [{concurrency: 1, min_speedup: 1.5}]
    Instead: env: {VLLM_USE_V2_MODEL_RUNNER: 0}
    Source: vllm/v1/worker/gpu/spec_decode/standalone_ar/speculator.py (from 0.32), `CUDA graph not yet supported`
    """
    promised = any(promise.min_speedup or promise.max_tpot_p99_ms for promise in ctx.profile.expect)
    if not promised or ctx.profile.engine.get("enforce_eager") is True or switch(ctx.profile) is not None:
        return
    for path, block in ctx.blocks:
        found = ctx.on("V2", block) if block.method == "draft_model" else []
        if found and block.keys.get("enforce_eager") is not True:
            help_ = f'bench it with `env: {{{SWITCH}: "0"}}` too'
            text = "the V2 runner drafts without CUDA graphs"
            yield Hit(f"{path}.method", text, versions=found, help=help_)


@rule("SD168", "unmapped-vocabulary", Severity.ERROR)
def unmapped_vocabulary(ctx: Context) -> Iterator[Hit]:
    """The draft has another vocabulary, but the runner ignores `use_heterogeneous_vocab`.

    The V2 runner of vLLM 0.31 runs draft models, but leaves out the map between the two vocabularies, without a
    message. The draft's token ids are read as the target's, and nearly all of them are rejected. Before 0.31, V1 served
    such a draft; later versions use V1 again.
    Example:
        vllm: "==0.31.*"
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3, use_heterogeneous_vocab: true}
    Instead: env: {VLLM_USE_V2_MODEL_RUNNER: 0}
    Source: vllm/config/vllm.py (0.32), `"heterogeneous-vocabulary draft models"`
    """
    for path, block in ctx.blocks:
        if block.keys.get("use_heterogeneous_vocab") is not True:
            continue
        v1 = ctx.on("V1", block)
        found = [v for v in ctx.judged if v not in v1 and ignores_other_vocabulary(v)]
        if found and not ctx.is_past(found):
            text, help_ = (
                "the V2 runner, which will serve this, maps no vocabulary",
                f'write `env: {{{SWITCH}: "0"}}`',
            )
            yield Hit(f"{path}.use_heterogeneous_vocab", text, versions=found, help=help_)


_HEADS = frozenset({"mtp", "eagle", "eagle3"})


@rule("SD170", "ignored-draft-key", Severity.WARNING)
def ignored_draft_key(ctx: Context) -> Iterator[Hit]:
    """A key of the draft that the model runner does not read.

    The V2 runner captures CUDA graphs for the draft even if the block sets `enforce_eager` (vllm-project/vllm#54423).
    Up to 0.29 it also loads prediction layers and EAGLE heads with the target's `moe_backend` and attention backend. If
    the target's experts are quantized and the draft's are not, vLLM then refuses the draft's experts while it loads
    them, even if the block names a backend for the draft (vllm-project/vllm#54788).
    Example:
        vllm: "==0.29.*"
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 3, moe_backend: flashinfer_cutlass}
        engine: {moe_backend: flashinfer_trtllm}
    Instead: env: {VLLM_USE_V2_MODEL_RUNNER: 0}
    Source: vllm/v1/worker/gpu/model_runner.py, `self.speculator.init_cudagraph_manager(cudagraph_mode)`
    """
    engine = ctx.profile.engine
    for path, block in ctx.blocks:
        on_v2 = ctx.on("V2", block)
        for key in ("moe_backend", "attention_backend") if block.method in _HEADS else ():
            value = block.keys.get(key)
            found = [version for version in on_v2 if key in V2_IGNORED_KEYS.at(version)]
            if value is not None and value != engine.get(key) and found:
                yield _ignored(f"{path}.{key}", "uses the target's", found)
        captured = [version for version in on_v2 if V2_CAPTURES_EAGER_DRAFTS.at(version)]
        has_graphs = block.method in _HEADS | BLOCK_DRAFTS and engine.get("enforce_eager") is not True
        if block.keys.get("enforce_eager") is True and has_graphs and captured:
            yield _ignored(f"{path}.enforce_eager", "is captured in CUDA graphs", captured)


def _ignored(path: str, instead: str, versions: list[str]) -> Hit:
    key = path.rpartition(".")[2]
    text = f"the V2 runner ignores the draft's `{key}`: the draft {instead}"
    help = f'leave it out, or write `env: {{{SWITCH}: "0"}}` if the V1 runner serves the method'
    return Hit(path, text, versions=versions, help=help)


@rule("SD160", "gpu-only-speculation", Severity.ERROR)
def gpu_only_speculation(ctx: Context) -> Iterator[Hit]:
    """A way to speculate that needs a GPU, in a profile for the CPU.

    `ngram_gpu` asks for pinned memory and ends the start with `pin_memory=True requires a CUDA or other accelerator
    backend`. `fly` has no CPU implementation. `ngram` needs no GPU.
    Example:
        speculation: {method: ngram_gpu, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}
        hardware: {accelerator: cpu}
    Instead: speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source: vllm/v1/worker/gpu_model_runner.py, `dtype=torch.int32, pin_memory=True`
    """
    related = (("hardware.accelerator", "the profile is for the CPU"),)
    for path, block in ctx.blocks if on_cpu(ctx.profile) and switch(ctx.profile) is not True else ():
        if block.method == "ngram_gpu":
            yield Hit(
                f"{path}.method", "`ngram_gpu` needs a GPU", related=related, help="write `method: ngram`"
            )
        if block.keys.get("rejection_sample_method") == "fly":
            place = f"{path}.rejection_sample_method"
            yield Hit(place, "`fly` needs a GPU", related=related, help="leave it out")
