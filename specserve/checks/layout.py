"""SD1xx about ranks that vLLM cannot lay out: data, context and expert parallelism against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specserve.checks.rule import Context, Hit, rule
from specserve.checks.values import count
from specserve.diagnostics import Severity


@rule("SD161", "refused-layout", Severity.ERROR)
def refused_layout(ctx: Context) -> Iterator[Hit]:
    """Sizes or switches of parallelism that vLLM refuses together.

    ## Why is this bad?
    vLLM ends while it builds its configuration: the ranks of decode context parallelism must divide those of tensor
    parallelism, a node holds no more data-parallel ranks than there are, hybrid load balancing needs their number,
    and load balancing of experts needs expert parallelism over more than one rank.

    ## Example
        target: {model: ./model, tensor_parallel_size: 4}
        engine: {decode_context_parallel_size: 3}

    ## Use instead
        target: {model: ./model, tensor_parallel_size: 4}
        engine: {decode_context_parallel_size: 2}

    ## Source
    vllm/config/parallel.py, `must be divisible by dcp_size=`
    """
    engine, tensor = ctx.profile.engine, ctx.profile.target.tensor_parallel_size
    contexts, prefill = (
        _size(ctx, "decode_context_parallel_size"),
        _size(ctx, "prefill_context_parallel_size"),
    )
    if prefill == 1 and tensor % contexts:
        yield Hit(
            "engine.decode_context_parallel_size",
            f"{contexts} context-parallel ranks do not divide {tensor} tensor-parallel ones",
            related=(("target.tensor_parallel_size", "tensor-parallel ranks"),),
            help=f"one of {', '.join(str(size) for size in range(1, tensor + 1) if tensor % size == 0)}",
        )
    ranks, here = _size(ctx, "data_parallel_size"), count(engine.get("data_parallel_size_local"))
    if here is not None and here > ranks:
        yield Hit(
            "engine.data_parallel_size_local",
            f"{here} data-parallel ranks on this node, of {ranks} in all",
            related=(("engine.data_parallel_size", "ranks in all"),),
        )
    if engine.get("data_parallel_hybrid_lb") is True and here is None:
        text = "`data_parallel_hybrid_lb` needs `data_parallel_size_local`, the number of ranks on this node"
        yield Hit("engine.data_parallel_hybrid_lb", text)
    yield from _experts(ctx, others=tensor * prefill * ranks)


def _experts(ctx: Context, *, others: int) -> Iterator[Hit]:
    """Load balancing of experts."""
    engine = ctx.profile.engine
    config = engine.get("eplb_config")
    spare = count(config.get("num_redundant_experts")) if isinstance(config, Mapping) else None
    if engine.get("enable_eplb") is True:
        if engine.get("enable_expert_parallel") is not True:
            yield Hit("engine.enable_eplb", "`enable_eplb` needs `enable_expert_parallel`")
        elif others <= 1:
            yield Hit("engine.enable_eplb", "`enable_eplb` has one rank only, and nothing to balance")
    elif spare:
        text = f"{spare} redundant experts need `enable_eplb`"
        yield Hit("engine.eplb_config.num_redundant_experts", text, help="write `enable_eplb: true`")


def _size(ctx: Context, name: str) -> int:
    return count(ctx.profile.engine.get(name)) or 1
