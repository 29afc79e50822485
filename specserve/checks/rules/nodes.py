"""SD1xx about ranks that vLLM cannot lay out, and whether those of a launch fit its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specserve.checks.arms import count, on_cpu
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.rules.memory import machine_words
from specserve.diagnostics import Severity
from specserve.errors import UsageError
from specserve.plan.nodes import node_count
from specserve.profile.schema import Profile, ranks_started, world_size


@rule("SD161", "refused-layout", Severity.ERROR)
def refused_layout(ctx: Context) -> Iterator[Hit]:
    """Settings of parallelism that vLLM refuses together.

    vLLM ends while it builds its configuration. `decode_context_parallel_size` must divide `tensor_parallel_size`.
    `data_parallel_size_local` cannot exceed `data_parallel_size`, and must be set for `data_parallel_hybrid_lb`.
    `enable_eplb` needs expert parallelism over more than one rank, and redundant experts need `enable_eplb`.
    Example:
        target: {model: ./model, tensor_parallel_size: 4}
        engine: {decode_context_parallel_size: 3}
    Instead: engine: {decode_context_parallel_size: 2}
    Source: vllm/config/parallel.py, `must be divisible by dcp_size=`
    """
    engine, tensor = ctx.profile.engine, ctx.profile.target.tensor_parallel_size
    contexts, prefill, ranks = (
        count(engine.get(f"{name}_size")) or 1
        for name in ("decode_context_parallel", "prefill_context_parallel", "data_parallel")
    )
    if prefill == 1 and tensor % contexts:
        yield Hit(
            "engine.decode_context_parallel_size",
            f"{contexts} context-parallel ranks do not divide {tensor} tensor-parallel ones",
            related=(("target.tensor_parallel_size", "tensor-parallel ranks"),),
            help=(
                f"use one of {', '.join(str(size) for size in range(1, tensor + 1) if tensor % size == 0)}"
            ),
        )
    here = count(engine.get("data_parallel_size_local"))
    if here is not None and here > ranks:
        text = f"{here} data-parallel ranks on this node, of {ranks} in all"
        related = (("engine.data_parallel_size", "ranks in all"),)
        yield Hit("engine.data_parallel_size_local", text, related=related)
    if engine.get("data_parallel_hybrid_lb") is True and here is None:
        text = "`data_parallel_hybrid_lb` needs `data_parallel_size_local`, the number of ranks on this node"
        yield Hit("engine.data_parallel_hybrid_lb", text)
    config = engine.get("eplb_config")
    spare = count(config.get("num_redundant_experts")) if isinstance(config, Mapping) else None
    if engine.get("enable_eplb") is True:
        if engine.get("enable_expert_parallel") is not True:
            yield Hit("engine.enable_eplb", "`enable_eplb` needs `enable_expert_parallel`")
        elif tensor * prefill * ranks <= 1:
            yield Hit("engine.enable_eplb", "`enable_eplb` has nothing to balance: there is only one rank")
    elif spare:
        text = f"{spare} redundant experts need `enable_eplb`"
        yield Hit("engine.eplb_config.num_redundant_experts", text, help="write `enable_eplb: true`")


@rule("SD162", "uneven-nodes", Severity.ERROR)
def uneven_nodes(ctx: Context) -> Iterator[Hit]:
    """The ranks do not divide evenly into the nodes.

    vLLM puts the same number of ranks on each node, and refuses any other split. Usually, each node holds its own
    pipeline stages. With Ray as the executor, Ray distributes the ranks, and this finding does not appear.
    Example:
        target: {model: ./model, tensor_parallel_size: 8}
        hardware: {count: 4, nodes: 3}
    Instead: target: {model: ./model, tensor_parallel_size: 4, pipeline_parallel_size: 3}
    Source: vllm/engine/arg_utils.py (from 0.27), `must evenly divide the total `
    """
    nodes, ranks = node_count(ctx.profile), world_size(ctx.profile)
    if nodes > 1 and ranks % nodes:
        yield Hit(
            "hardware.nodes",
            f"{ranks} rank{'s do' if ranks > 1 else ' does'} not divide into {nodes} nodes",
            related=(("target.tensor_parallel_size", "ranks that share each layer"),),
            help=f"set `pipeline_parallel_size: {nodes}` to put one stage on each node",
        )


@rule("SD314", "unknown-accelerator", Severity.ERROR)
def unknown_accelerator(ctx: Context) -> Iterator[Hit]:
    """The name in `hardware.accelerator` is not in the list of accelerators.

    The memory and the features of an unknown accelerator cannot be judged, so `check` proves nothing about them.
    `specserve gpus` lists the names.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        hardware: {accelerator: B9000}
    Instead: hardware: {accelerator: B200-180GB}
    Source: specserve, hardware/accelerators.toml
    """
    hardware = ctx.profile.hardware
    if hardware is None or hardware.accelerator is None or on_cpu(ctx.profile):
        return
    from specserve.hardware.accelerators import accelerator

    try:
        accelerator(hardware.accelerator)
    except UsageError as error:
        yield Hit("hardware.accelerator", error.message, help=error.hint)


@rule("SD306", "too-few-accelerators", Severity.ERROR)
def too_few_accelerators(ctx: Context) -> Iterator[Hit]:
    """The model is split over more accelerators than there are.

    vLLM starts a worker per rank, and the first one without a GPU ends the launch. `hardware.count` is per node. Ray
    and other executors may also use accelerators of machines that the profile does not name. If such an executor is
    set, `lint` reports nothing, but `check` still reports an error if the machine that it checks for has too few.
    Example:
        target: {model: ./llama, max_model_len: 2048, tensor_parallel_size: 2}
        hardware: {accelerator: L4-24GB, count: 1}
    Instead: hardware: {accelerator: L4-24GB, count: 2}
    Source: vllm/v1/worker/gpu_worker.py, `DP adjusted local rank {self.local_rank} is out of `
    """
    machine, hardware, ranks = ctx.machine, ctx.profile.hardware, ranks_started(ctx.profile)
    if machine is not None:
        nodes, there, is_cpu = machine.nodes, machine.count * machine.nodes, machine.is_cpu
    elif hardware is not None and _says_all(ctx.profile):
        nodes = max(hardware.nodes, count(ctx.profile.engine.get("nnodes")) or 1)
        there, is_cpu = hardware.count * nodes, on_cpu(ctx.profile)
    else:
        return
    devices = hardware.devices if hardware else None
    if is_cpu:
        return
    if devices and ranks > len(devices) * nodes:
        words = f"the launch takes {ranks} accelerators, and `devices` names {len(devices)}"
        yield Hit("hardware.devices", words + (" per node" if nodes > 1 else ""))
    elif ranks > there:
        target, path = ctx.profile.target, "target.tensor_parallel_size"
        if target.tensor_parallel_size <= there and target.pipeline_parallel_size > 1:
            path = "target.pipeline_parallel_size"
        elif target.tensor_parallel_size * target.pipeline_parallel_size <= there:
            path = "engine.data_parallel_size"
        counted = machine is None or machine.basis == "profile"
        yield Hit(
            path,
            f"the launch takes {ranks} accelerators, and there {'is' if there == 1 else 'are'} {there}",
            label=machine_words(machine) if machine else "",
            related=(("hardware.count", "counted here"),) * counted,
            help="split the model over fewer accelerators, or use a machine with more",
        )


def _says_all(profile: Profile) -> bool:
    """Whether the profile alone says how many accelerators its launch can use: Ray may take them elsewhere."""
    said = profile.hardware is not None and (
        profile.hardware.accelerator is not None or "hardware.count" in profile.spans
    )
    return said and profile.engine.get("distributed_executor_backend", "mp") in ("mp", "uni")
