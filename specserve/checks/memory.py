"""SD301-SD305, SD313: whether weights, draft and KV cache fit the machine, and what the draft costs of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.profile.schema import world_size

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import Bounds as Interval
    from specserve.memory.estimate import Knob, MemoryEstimate, MemoryVerdict


_GIB = 2**30
_VERDICTS: dict[MemoryVerdict, str] = {"fit": "FIT", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT"}


def gib(size: float) -> str:
    """Bytes for a reader: `15.3 GiB`, or `8.4 MiB` where it is little."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 or not size else f"{size / 2**20:.1f} MiB"


def span(interval: Interval) -> str:
    """Bounds for a reader: `0.6-2.9 GiB`."""
    low, high = f"{interval.low / _GIB:.1f}", f"{interval.high / _GIB:.1f}"
    return f"{low} GiB" if low == high else f"{low}-{high} GiB"


def machine_words(machine: Machine) -> str:
    """`2 nodes with 8 x H100-80GB each`, `1 x L4-24GB`, or `this machine's memory`."""
    if machine.is_cpu:
        return f"{gib(machine.accelerator.total_bytes)} of memory"
    each = f"{machine.count} x {machine.accelerator.name}"
    return f"{machine.nodes} nodes with {each} each" if machine.nodes > 1 else each


def is_fixed(memory: MemoryEstimate) -> bool:
    """Whether the KV cache has the size that the profile gives, so that vLLM takes no share of what there is."""
    per_gpu = memory.per_gpu_bytes
    return per_gpu.budget == per_gpu.total and per_gpu.kv_cache.low == per_gpu.kv_cache.high > 0


def parts(memory: MemoryEstimate, machine: Machine) -> str:
    """The parts of the fullest GPU, or of the host's memory where the CPU serves."""
    per_gpu = memory.per_gpu_bytes
    weights = gib(per_gpu.target_weights)
    if per_gpu.draft_weights:
        weights += f" + {gib(per_gpu.draft_weights)} of the draft"
    if memory.unknown_draft:
        weights += " without the draft"
    where, total = "per GPU", gib(per_gpu.total)
    if machine.is_cpu:
        where = f"each of {memory.ranks} ranks on this host" if memory.ranks > 1 else "on this host"
    if is_fixed(memory):
        head = f"{where} of {total}, estimated: "
    else:
        head = f"{where}, estimated: {gib(per_gpu.budget)} of {total}; "
    return (
        f"{head}weights {weights}, activations {_supported(per_gpu.activation)}, "
        f"other {_supported(per_gpu.other)}, KV cache {_supported(per_gpu.kv_cache)}"
    )


def _supported(interval: Interval) -> str:
    """A span, and how many logs it comes from."""
    return span(interval) + (f" ({interval.support})" if interval.support else "")


def capacity(memory: MemoryEstimate) -> str:
    """What the KV cache holds."""
    tokens = _range(memory.kv_cache_tokens)
    return f"the KV cache holds {tokens} tokens; one request may take {memory.max_model_len:,}"


def _range(interval: Interval) -> str:
    low, high = f"{interval.low:,.0f}", f"{interval.high:,.0f}"
    return low if low == high else f"{low}-{high}"


def advice(memory: MemoryEstimate) -> str | None:
    """The knobs that change the verdict, or the best of those that do not."""
    if not memory.knobs:
        return None
    better = [knob for knob in memory.knobs if knob.verdict != memory.verdict]
    turns = [f"{_turn(knob)} would {'give' if knob in better else 'free'} {_gain(knob, better)}" for knob in
             (better or memory.knobs)[:3]]  # fmt: skip
    return "; ".join(turns) + ("" if better else ", and none of them is enough alone")


def _turn(knob: Knob) -> str:
    value = str(knob.value).lower() if isinstance(knob.value, bool) else knob.value
    return f"`{knob.path}: {value}`"


def _gain(knob: Knob, better: list[Knob]) -> str:
    return _VERDICTS[knob.verdict] if knob in better else gib(knob.frees_bytes)


_COSTLY = 0.25
"""Share of the KV cache that a draft may take before it is worth a word."""
_LARGE = 2**30
_TENTH = 0.1


def estimates(ctx: Context) -> Iterator[tuple[str, MemoryEstimate]]:
    """Each arm's memory with the place that stands for it; the target alone where nothing speculates."""
    if ctx.memory:
        yield "target.model", ctx.memory
    for arm in ctx.arms:
        if arm.memory:
            yield f"{arm.path}.model" if arm.speculation.model else arm.path, arm.memory


def ranks(ctx: Context) -> int:
    """Accelerators that one launch takes, over all nodes."""
    return world_size(ctx.profile)


def lacking_free_bytes(ctx: Context, memory: MemoryEstimate) -> int | None:
    """What is free on the fullest accelerator found here if a launch needs more at once; SD312 reports it."""
    machine = ctx.machine
    if machine is None or machine.basis != "found":
        return None
    free = machine.least_free_bytes(ranks=ranks(ctx))
    return free if free is not None and free < needed_at_once(memory, machine).high else None


def needed_at_once(memory: MemoryEstimate, machine: Machine) -> Interval:
    """Bytes that must be free for a launch: what vLLM compares with it, and what all ranks on a CPU fill together."""
    from specserve.memory.estimate import Bounds as Interval

    per_gpu = memory.per_gpu_bytes
    if not is_fixed(memory):
        return Interval(per_gpu.budget, per_gpu.budget)
    weights, kv = per_gpu.target_weights + per_gpu.draft_weights, per_gpu.kv_cache.low
    sharing = memory.ranks if machine.is_cpu else 1
    return Interval(sharing * weights + kv, sharing * (weights + kv))


@rule("SD301", "insufficient-memory", Severity.ERROR, needs="hardware")
def insufficient_memory(ctx: Context) -> Iterator[Hit]:
    """The weights, or one request of `max_model_len`, do not fit the accelerator.

    vLLM loads every weight, profiles, and then ends with `No available memory for the cache blocks`, or says how much
    too small the KV cache is for one request. Where the verdict rests on fitted bounds, and not on weights or the upper
    bound of the KV cache, this finding is a warning.

    Example:
        target: {model: ./llama, max_model_len: 2048}
        engine: {kv_cache_memory_bytes: 32G}
        hardware: {accelerator: L4-24GB}
    Use instead:
        target: {model: ./llama, max_model_len: 2048}
        engine: {kv_cache_memory_bytes: 16G}
        hardware: {accelerator: L4-24GB}
    Source:
        vllm/v1/core/kv_cache_planning.py (from 0.33), `To serve at least one request with the model's max seq len `
        vllm/v1/core/kv_cache_utils.py (to 0.32), `To serve at least one request with the model's max seq len `
    """
    assert ctx.machine is not None
    for path, memory in estimates(ctx):
        if memory.verdict == "does_not_fit" and not memory.is_short_of_states_only:
            yield Hit(
                path,
                f"does not fit {machine_words(ctx.machine)}: {_reason(memory, ctx.machine)}",
                notes=(parts(memory, ctx.machine), *memory.notes),
                help=advice(memory),
                severity=None if memory.certain else Severity.WARNING,
            )


def _reason(memory: MemoryEstimate, machine: Machine) -> str:
    per_gpu = memory.per_gpu_bytes
    weights = per_gpu.target_weights + per_gpu.draft_weights
    if is_fixed(memory):
        if weights + per_gpu.kv_cache.low > per_gpu.total:
            return f"weights of {gib(weights)} and a KV cache of {gib(per_gpu.kv_cache.low)} are more than it has"
        return capacity(memory)
    if weights >= per_gpu.budget:
        each = "" if machine.is_cpu else " per GPU"
        return f"the weights take {gib(weights)}{each}, and vLLM may use {gib(per_gpu.budget)}"
    if not per_gpu.kv_cache.high:
        return "nothing is left for the KV cache"
    return capacity(memory)


@rule("SD302", "tight-memory", Severity.WARNING, needs="hardware")
def tight_memory(ctx: Context) -> Iterator[Hit]:
    """It may fit: what is needed lies within the bounds of what there is.

    Whether the server starts depends on what cannot be known before: activations, CUDA graphs, communication buffers.
    It also is tight if verifying drafts, which vLLM's profile run leaves out, needs more than lies outside of vLLM's
    share, or if a promised concurrency has no room. If only a model is not known, the draft or an architecture whose KV
    cache cannot be computed, this finding is an info.

    Example:
        target: {model: ./llama, max_model_len: 2048}
        engine: {gpu_memory_utilization: 0.99}
        hardware: {accelerator: L4-24GB}
    Use instead:
        target: {model: ./llama, max_model_len: 2048}
        engine: {gpu_memory_utilization: 0.9}
        hardware: {accelerator: L4-24GB}
    Source: specserve, memory/verdict.py
    """
    assert ctx.machine is not None
    for path, memory in estimates(ctx):
        is_told = memory.is_short_of_states_only or lacking_free_bytes(ctx, memory) is not None
        if memory.verdict == "tight" and not is_told:
            yield Hit(
                path,
                f"may not fit {machine_words(ctx.machine)}: {memory.reason or capacity(memory)}",
                notes=(parts(memory, ctx.machine), *memory.notes),
                help=advice(memory)
                if memory.is_kv_known
                else "`--ask-vllm` lets the installed vLLM compute it",
                severity=Severity.INFO if memory.is_only_in_doubt else None,
            )


@rule("SD303", "unreachable-concurrency", Severity.INFO, needs="hardware")
def unreachable_concurrency(ctx: Context) -> Iterator[Hit]:
    """More requests are to run at one time than the KV cache holds at `max_model_len`.

    Nothing is wrong where requests are shorter; long ones wait, or are preempted and computed again.

    Example:
        target: {model: ./llama, max_model_len: 2048}
        engine: {max_num_seqs: 128, kv_cache_memory_bytes: 8M}
        hardware: {accelerator: L4-24GB}
    Use instead:
        target: {model: ./llama, max_model_len: 2048}
        engine: {max_num_seqs: 2, kv_cache_memory_bytes: 8M}
        hardware: {accelerator: L4-24GB}
    Source: vllm/v1/core/kv_cache_utils.py, `Maximum concurrency for %s tokens per request: %.2fx`
    """
    wanted = ctx.profile.engine.get("max_num_seqs")
    for _, memory in estimates(ctx):
        most = memory.max_concurrency.high
        if not memory.is_kv_known or memory.verdict == "does_not_fit":
            continue
        if type(wanted) is int and most < wanted:
            yield Hit(
                "engine.max_num_seqs",
                f"at most {most:.1f} requests of {memory.max_model_len:,} tokens run at one time; "
                f"`max_num_seqs` is {wanted}",
                help="fine for shorter requests; else a smaller `max_model_len` holds more of them",
            )
            return


@rule("SD304", "costly-draft", Severity.INFO, needs="hardware")
def costly_draft(ctx: Context) -> Iterator[Hit]:
    """The draft takes more than a quarter of the KV cache that the target would have alone.

    Its weights, and its part of every cached token, are memory that requests no longer have: fewer run at one time. A
    smaller draft, or a head, costs less; only a measurement shows whether the speed is worth it.

    Example:
        target: {model: ./llama, max_model_len: 2048}
        speculation:
          method: draft_model
          model: ./llama-draft-big  # specserve: ignore[SD245] its size is another matter
          num_speculative_tokens: 3
        hardware: {accelerator: L4-24GB}
    Use instead:
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: ngram, num_speculative_tokens: 3, prompt_lookup_min: 2, prompt_lookup_max: 4}
        hardware: {accelerator: L4-24GB}
    Source: specserve, memory/judge.py
    """
    assert ctx.machine is not None
    for path, memory in estimates(ctx):
        alone = memory.without_speculation_kv_cache_tokens
        if alone is None or not alone.high or memory.verdict == "does_not_fit":
            continue
        kept = memory.kv_cache_tokens.high / alone.high
        if kept < 1 - _COSTLY:
            yield Hit(
                path,
                f"speculation costs {1 - kept:.0%} of the KV cache: {memory.kv_cache_tokens.high:,.0f} tokens "
                f"instead of {alone.high:,.0f}",
                notes=(parts(memory, ctx.machine),),
            )


@rule("SD305", "large-draft-buffer", Severity.INFO, needs="hardware")
def large_draft_buffer(ctx: Context) -> Iterator[Hit]:
    """Probabilistic drafts keep their logits, and these take a gibibyte, or a tenth of the KV cache.

    vLLM holds max_num_seqs x K x vocabulary logits all the time, whether requests sample or not. With fewer sequences,
    or greedy drafts, that memory goes to the KV cache.

    Example:
        target: {model: ./llama, max_model_len: 256}
        speculation:
          method: draft_model
          model: ./llama-draft
          num_speculative_tokens: 3
          draft_sample_method: probabilistic
        engine: {kv_cache_memory_bytes: 4M}
        hardware: {accelerator: L4-24GB}
    Use instead:
        target: {model: ./llama, max_model_len: 256}
        speculation:
          method: draft_model
          model: ./llama-draft
          num_speculative_tokens: 3
          draft_sample_method: probabilistic
        engine: {kv_cache_memory_bytes: 1G}
        hardware: {accelerator: L4-24GB}
    Source: vllm/v1/worker/gpu/spec_decode/speculator.py (from 0.28), `self.draft_logits = torch.full(`
    """
    assert ctx.machine is not None
    where = "the host's memory" if ctx.machine.is_cpu else "every GPU"
    for arm in ctx.arms:
        if arm.memory is None or arm.memory.verdict == "does_not_fit":
            continue
        size = arm.memory.draft_logits_bytes
        if size >= min(_LARGE, _TENTH * arm.memory.per_gpu_bytes.kv_cache.high) and size:
            yield Hit(
                f"{arm.path}.draft_sample_method",
                f"the logits of the drafts take {gib(size)} of {where}",
                help="a smaller `max_num_seqs` keeps fewer; `draft_sample_method: greedy` keeps none",
            )


@rule("SD313", "missing-state-blocks", Severity.ERROR, needs="hardware")
def missing_state_blocks(ctx: Context) -> Iterator[Hit]:
    """More requests may run than the KV cache has blocks for their recurrent states.

    Layers of Mamba, gated delta net and short convolutions keep a state for each request, and a state takes a whole
    block. vLLM counts the blocks when it captures CUDA graphs, after all weights are loaded, and aborts if
    `max_num_seqs` is larger; its default is 1024 on GPUs with 70 GiB and more. If the upper bound of the KV cache has
    enough blocks, this finding is a warning.

    Example:
        target: {model: ./lfm2, max_model_len: 2048}
        engine: {max_num_seqs: 1024, kv_cache_memory_bytes: 8M}
        hardware: {accelerator: L4-24GB}
    Use instead:
        target: {model: ./lfm2, max_model_len: 2048}
        engine: {max_num_seqs: 2, kv_cache_memory_bytes: 8M}
        hardware: {accelerator: L4-24GB}
    Source: vllm/config/compilation.py, `exceeds available Mamba cache `
    """
    for _, memory in estimates(ctx):
        states = memory.states
        if states is None or states.blocks.low >= states.max_num_seqs:
            continue
        low, high = int(states.blocks.low), int(states.blocks.high)
        blocks = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        turns = "; ".join(
            other for other in (advice(memory) or "").split("; ") if "max_num_seqs" not in other
        )
        is_sure = high < states.max_num_seqs and memory.certain
        yield Hit(
            "engine.max_num_seqs",
            f"{states.max_num_seqs:,} requests may run, and the KV cache has {blocks} blocks for their states",
            notes=memory.notes,
            help=_most_requests(states.largest_max_num_seqs, turns),
            severity=None if is_sure else Severity.WARNING,
        )
        return


def _most_requests(most: int, turns: str) -> str | None:
    """The largest `max_num_seqs` that boots, then what else would help."""
    if not most:
        return turns or None
    return f"write `max_num_seqs: {most}` or less" + (f"; {turns}" if turns else "")
