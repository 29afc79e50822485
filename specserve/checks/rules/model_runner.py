"""SD1xx about vLLM's two model runners: what the one that will serve does not know or read."""

from __future__ import annotations

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Hit, Hits, Variant, rule, variant_rule
from specserve.errors import quoted
from specserve.vllm.facts import V2_CAPTURES_EAGER_DRAFTS, V2_IGNORED_KEYS
from specserve.vllm.runner import SWITCH
from specserve.vllm.speculation import BLOCK_DRAFTS, HEADS, refuses_async


@rule("SD122", ERROR)
def unsupported_runner(ctx: Context) -> Hits:
    """The model runner that will serve does not support what the profile asks for.

    vLLM has two model runners. V2 is the default on GPUs since 0.32. V1 serves on CPUs, and on GPUs if the environment
    asks for it or if the launch needs a feature that V2 lacks. If the runner that serves lacks a feature that the
    launch needs, the start ends with `Model Runner V2 does not yet support` or a similar message.
    Example:
        speculation: {method: suffix, num_speculative_tokens: 16}
        env: {VLLM_USE_V2_MODEL_RUNNER: 1}
    Use instead: speculation: {method: suffix, num_speculative_tokens: 16}
    Source: vllm/config/vllm.py, `Model Runner V2 does not yet support: `
    """
    written, is_chosen = ctx.profile.env.get(SWITCH), ctx.runner_switch is not None
    if written is not None and not is_chosen:
        text = f"`{SWITCH}` must be 0 or 1; found {quoted(written)}, which vLLM cannot read"
        yield Hit(f"env.{SWITCH}", text)
    for variant in ctx.variants:
        found: dict[tuple[str, str, str, str], list[str]] = {}
        for version, taken in variant.runners.items():
            for lack in taken.lacks if taken else ():
                assert taken is not None
                place = (
                    variant.at(lack.key) if lack.section == "speculation" else f"{lack.section}.{lack.key}"
                )
                found.setdefault((lack.what, place, taken.runner, taken.reason), []).append(version)
        for (what, place, name, reason), versions in found.items():
            yield Hit(
                place,
                f"the {name} model runner does not support {what}",
                related={f"env.{SWITCH}": "the runner is chosen here"} if is_chosen else {},
                notes=(f"the runner is {name}, because {reason}",),
                versions=versions,
                help=f"leave `{SWITCH}` out, and vLLM chooses" if is_chosen else None,
            )


@variant_rule("SD123", ERROR)
def unsupported_async_scheduling(variant: Variant) -> Hits:
    """The profile requires asynchronous scheduling, but vLLM cannot combine it with this speculation.

    If `async_scheduling` is left out, vLLM enables it if it can. If it is `true`, vLLM refuses `suffix`, `custom_class`
    and `disable_padded_drafter_batch`, and `ngram` except on the V2 runner since 0.33. With `true`, the V1 runner
    refuses pipeline parallelism, too.
    Example:
        speculation: {method: suffix, num_speculative_tokens: 16}
        engine: {async_scheduling: true}
    Use instead: speculation: {method: suffix, num_speculative_tokens: 16}
    Source:
        vllm/config/vllm.py (from 0.33), `v1_async_sched_incompat: str | None = None`
        vllm/config/vllm.py (to 0.32), `Currently, async scheduling is only supported `
    """
    found: dict[str, list[str]] = {}
    for version, taken in (
        variant.runners.items() if variant.ctx.engine.get("async_scheduling") is True else ()
    ):
        reason = refuses_async(
            version,
            method=variant.method,
            runner=taken.runner if taken else None,
            unpadded=variant.get("disable_padded_drafter_batch") is True,
            stages=variant.ctx.profile.target.pipeline_parallel_size > 1,
            on_cpu=variant.ctx.on_cpu,
        )
        if reason:
            found.setdefault(reason, []).append(version)
    for reason, versions in found.items():
        what, place = {
            "method": (f"`{variant.method}`", variant.at("method")),
            "disable_padded_drafter_batch": (f"`{reason}`", variant.at(reason)),
            "stages": ("pipeline parallelism on the V1 runner", "target.pipeline_parallel_size"),
        }[reason]
        yield Hit(
            "engine.async_scheduling",
            f"vLLM refuses asynchronous scheduling with {what}",
            related={place: "set here"},
            versions=versions,
            help="leave it out: vLLM enables it if it can",
        )


@variant_rule("SD124", WARNING)
def unpadded_drafter_batch(variant: Variant) -> Hits:
    """The padding of the drafter's batch is switched off, as in old examples.

    vLLM then schedules without overlap (`async_scheduling` is off), which costs throughput. Apart from that, the V2
    runner ignores the key. On the V1 runner, `draft_model` and parallel drafting refuse to start with it.
    Example:
        vllm: ">=0.32"
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3, disable_padded_drafter_batch: true}
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/v1/spec_decode/llm_base_proposer.py, `supports padded drafter batch. Please unset `
    """
    key = "disable_padded_drafter_batch"
    if variant.get(key) is not True:
        return
    is_padded = variant.method == "draft_model" or variant.get("parallel_drafting") is True
    found = variant.on("V1") if is_padded else []
    text = "this key disables asynchronous scheduling; apart from that, the V2 runner ignores it"
    if found:
        text = f"the V1 runner drafts with `{variant.method}` in padded batches only, and refuses to start"
    yield variant.hit(key, text, versions=found, help=f"leave `{key}` out", severity=ERROR if found else None)


@variant_rule("SD125", ERROR)
def refused_logits_processor(variant: Variant) -> Hits:
    """The model runner cannot combine custom logits processors with speculation.

    The V1 runner refuses the combination at the start. The V2 runner accepts processors that were written for it. Since
    0.32, V2 serves most methods on GPUs, such as `eagle3`; `suffix` always runs on V1.
    Example:
        vllm: ">=0.32"
        speculation: {method: suffix, num_speculative_tokens: 16}
        engine: {logits_processors: ["my_tools:Bans"]}  # specserve: ignore[SD111] our own
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/v1/sample/logits_processor/__init__.py, `Custom logits processors are not supported when`
    """
    if variant.ctx.engine.get("logits_processors") and (found := variant.on("V1")):
        taken = variant.runners[found[-1]]
        text = "the V1 runner takes no logits processors with speculation"
        notes = (f"vLLM takes this runner because {taken.reason}",) if taken and taken.reason else ()
        related = {variant.at("method"): "speculation"}
        help_ = "leave `logits_processors` out, or do not speculate"
        yield Hit("engine.logits_processors", text, related=related, notes=notes, versions=found, help=help_)


@variant_rule("SD126", INFO)
def eager_draft(variant: Variant) -> Hits:
    """The draft model will run without CUDA graphs, on the V2 runner.

    A small draft spends its time launching kernels, and CUDA graphs would remove most of that. The V1 runner uses them
    for drafts and may be faster (vllm-project/vllm#55990). This is reported only if `expect` promises a speedup:
    measure both runners then.
    Example:
        vllm: ">=0.32"
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 5}
        hardware: {accelerator: H100-80GB}
        expect: [{concurrency: 1, min_speedup: 1.5}]
    Instead: env: {VLLM_USE_V2_MODEL_RUNNER: 0}
    Source: vllm/v1/worker/gpu/spec_decode/standalone_ar/speculator.py (from 0.32), `CUDA graph not yet supported`
    """
    is_promised = any(each.min_speedup or each.max_tpot_p99_ms for each in variant.ctx.profile.expect)
    is_eager = True in (variant.ctx.engine.get("enforce_eager"), variant.get("enforce_eager"))
    if (
        variant.method != "draft_model"
        or not is_promised
        or is_eager
        or variant.ctx.runner_switch is not None
    ):
        return
    if found := variant.on("V2"):
        help_ = f'bench it with `env: {{{SWITCH}: "0"}}` too'
        yield variant.hit("method", "the V2 runner drafts without CUDA graphs", versions=found, help=help_)


@variant_rule("SD170", WARNING)
def ignored_draft_key(variant: Variant) -> Hits:
    """A key of the draft that the model runner does not read.

    The V2 runner captures CUDA graphs for the draft even if the draft's `enforce_eager` is set
    (vllm-project/vllm#54423). Up to 0.29, it also ignores the draft's `moe_backend` and `attention_backend`: prediction
    layers and EAGLE heads use the target's backends. If the target's `moe_backend` cannot compute the draft's
    quantization, vLLM does not start (vllm-project/vllm#54788).
    Example:
        vllm: "==0.29.*"
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 3, moe_backend: flashinfer_cutlass}
        engine: {moe_backend: flashinfer_trtllm}
    Instead: env: {VLLM_USE_V2_MODEL_RUNNER: 0}
    Source: vllm/v1/worker/gpu/model_runner.py, `self.speculator.init_cudagraph_manager(cudagraph_mode)`
    """
    engine, on_v2, ignored = variant.ctx.engine, variant.on("V2"), dict[str, tuple[str, list[str]]]()
    for key in ("moe_backend", "attention_backend") if variant.method in HEADS else ():
        if variant.get(key) not in (None, engine.get(key)):
            found = [version for version in on_v2 if key in V2_IGNORED_KEYS.at(version)]
            ignored[key] = "uses the target's", found
    has_graphs = variant.method in HEADS | BLOCK_DRAFTS and engine.get("enforce_eager") is not True
    if variant.get("enforce_eager") is True and has_graphs:
        found = [version for version in on_v2 if V2_CAPTURES_EAGER_DRAFTS.at(version)]
        ignored["enforce_eager"] = "is captured in CUDA graphs", found
    for key, (instead, found) in ignored.items():
        if found:
            text = f"the V2 runner ignores the draft's `{key}`: the draft {instead}"
            help_ = f'leave it out, or write `env: {{{SWITCH}: "0"}}` if the V1 runner serves the method'
            yield variant.hit(key, text, versions=found, help=help_)
