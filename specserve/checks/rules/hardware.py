"""SD161, SD162, SD306-SD310, SD314: how ranks are laid out, and whether the accelerators suffice."""

from __future__ import annotations

from specserve.checks.config import section
from specserve.checks.rule import ERROR, WARNING, Context, Hit, Hits, count, rule
from specserve.checks.rules.memory import gib, machine_words
from specserve.errors import UsageError
from specserve.plan.nodes import node_count
from specserve.profile.schema import Profile, ranks_started, world_size

_LESS = 0.95
"""A GPU with less of the named one's memory than this is another one."""


@rule("SD161", ERROR)
def refused_layout(ctx: Context) -> Hits:
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
    engine, tensor = ctx.engine, ctx.profile.target.tensor_parallel_size
    names = ("decode_context_parallel", "prefill_context_parallel", "data_parallel")
    contexts, prefill, ranks = (ctx.count(f"{name}_size") or 1 for name in names)
    if prefill == 1 and tensor % contexts:
        sizes = ", ".join(str(size) for size in range(1, tensor + 1) if tensor % size == 0)
        text = f"{contexts} context-parallel ranks do not divide {tensor} tensor-parallel ones"
        related = {"target.tensor_parallel_size": "tensor-parallel ranks"}
        yield Hit("engine.decode_context_parallel_size", text, related=related, help=f"use one of {sizes}")
    here = ctx.count("data_parallel_size_local")
    if here is not None and here > ranks:
        text = f"{here} data-parallel ranks on this node, of {ranks} in all"
        related = {"engine.data_parallel_size": "ranks in all"}
        yield Hit("engine.data_parallel_size_local", text, related=related)
    if engine.get("data_parallel_hybrid_lb") is True and here is None:
        text = "`data_parallel_hybrid_lb` needs `data_parallel_size_local`, the number of ranks on this node"
        yield Hit("engine.data_parallel_hybrid_lb", text)
    spare = count(section(engine, "eplb_config").get("num_redundant_experts"))
    if engine.get("enable_eplb") is True:
        if engine.get("enable_expert_parallel") is not True:
            yield Hit("engine.enable_eplb", "`enable_eplb` needs `enable_expert_parallel`")
        elif tensor * prefill * ranks <= 1:
            yield Hit("engine.enable_eplb", "`enable_eplb` has nothing to balance: there is only one rank")
    elif spare:
        text = f"{spare} redundant experts need `enable_eplb`"
        yield Hit("engine.eplb_config.num_redundant_experts", text, help="write `enable_eplb: true`")


@rule("SD162", ERROR)
def uneven_nodes(ctx: Context) -> Hits:
    """The ranks do not divide evenly into the nodes.

    vLLM puts the same number of ranks on each node, and refuses any other split. A common split is one or more whole
    pipeline stages per node. With Ray as the executor, Ray distributes the ranks, and this finding does not appear.
    Example:
        target: {model: ./model, tensor_parallel_size: 8}
        hardware: {count: 4, nodes: 3}
    Instead: target: {model: ./model, tensor_parallel_size: 4, pipeline_parallel_size: 3}
    Source: vllm/engine/arg_utils.py (from 0.27), `must evenly divide the total `
    """
    nodes, ranks = node_count(ctx.profile), world_size(ctx.profile)
    if nodes > 1 and ranks % nodes:
        text = f"{ranks} rank{'s do' if ranks > 1 else ' does'} not divide into {nodes} nodes"
        related = {"target.tensor_parallel_size": "ranks that share each layer"}
        help_ = f"set `pipeline_parallel_size: {nodes}` to put one stage on each node"
        yield Hit("hardware.nodes", text, related=related, help=help_)


@rule("SD306", ERROR)
def too_few_accelerators(ctx: Context) -> Hits:
    """The model is split over more accelerators than there are.

    vLLM starts a worker per rank, and the first one without a GPU ends the launch. `hardware.count` is per node. With
    Ray and other executors, vLLM may also use other machines. `lint` then reports nothing. `check` knows of no other
    machine, so it reports an error all the same.
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
        nodes = max(hardware.nodes, ctx.count("nnodes") or 1)
        there, is_cpu = hardware.count * nodes, ctx.on_cpu
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
        is_counted = machine is None or machine.basis == "profile"
        yield Hit(
            path,
            f"the launch takes {ranks} accelerators, and there {'is' if there == 1 else 'are'} {there}",
            label=f"the machine has {machine_words(machine)}" if machine else "",
            related={"hardware.count": "counted here"} if is_counted else {},
            help="split the model over fewer accelerators, or use a machine with more",
        )


def _says_all(profile: Profile) -> bool:
    """Whether the profile alone says how many accelerators its launch can use: Ray may take them elsewhere."""
    said = profile.hardware is not None and (
        profile.hardware.accelerator is not None or "hardware.count" in profile.spans
    )
    return said and profile.engine.get("distributed_executor_backend", "mp") in ("mp", "uni")


@rule("SD307", WARNING, needs="hardware")
def split_node(ctx: Context) -> Hits:
    """Tensor parallelism spans several nodes.

    Every layer waits twice for the network between the nodes, which is far slower than a link inside a node. The usual
    setup is tensor parallelism inside a node and `pipeline_parallel_size` across the nodes.
    Example:
        target: {model: ./llama, max_model_len: 2048, tensor_parallel_size: 4}
        hardware: {accelerator: L4-24GB, count: 2, nodes: 2}
    Instead: target: {model: ./llama, max_model_len: 2048, tensor_parallel_size: 2, pipeline_parallel_size: 2}
    Source: specserve, checks/rules/hardware.py
    """
    machine, size = ctx.machine, ctx.profile.target.tensor_parallel_size
    assert machine is not None
    if machine.nodes > 1 and machine.count < size <= machine.count * machine.nodes:
        text = f"{size} ranks share each layer, and a node has {machine.count} accelerators"
        stages = -(-size // machine.count)
        help_ = f"`tensor_parallel_size: {machine.count}` with `pipeline_parallel_size: {stages}`"
        yield Hit("target.tensor_parallel_size", text, help=help_)


@rule("SD309", ERROR, needs="hardware")
def missing_hardware(ctx: Context) -> Hits:
    """This machine has less than the profile's `hardware` asks for.

    The memory was checked for the accelerators in `hardware`, and the figures in `expect` were measured on them. On
    this machine, the server may fail to start, or be slower. If the profile is for this machine, name its accelerators.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        hardware: {accelerator: H100-80GB, count: 1}
    Instead: hardware: {accelerator: L4-24GB, count: 1}
    Source: specserve, checks/rules/hardware.py
    """
    machine, wanted = ctx.machine, ctx.profile.hardware
    if machine is None or machine.basis != "found" or wanted is None or wanted.accelerator is None:
        return
    from specserve.hardware.accelerators import accelerator

    try:
        named = accelerator(wanted.accelerator)
    except UsageError:
        return  # SD314 reports it
    path, here = "hardware.accelerator", "the CPU" if machine.is_cpu else machine_words(machine)
    if ctx.is_for_other_platform:
        text = f"the profile is for `{wanted.accelerator}`, and vLLM here runs on {here}"
    elif not machine.is_cpu and machine.accelerator.total_bytes < _LESS * named.total_bytes:
        sizes = gib(named.total_bytes), gib(machine.accelerator.total_bytes)
        text = f"the profile is for {named.name} ({sizes[0]}); this machine has {here} ({sizes[1]})"
    elif not machine.is_cpu and machine.count < min(wanted.count, world_size(ctx.profile)):
        path = "hardware.count"
        text = f"the profile is for {wanted.count} x {named.name}; this machine has {machine.count}"
    else:
        return
    yield Hit(path, text)


@rule("SD310", ERROR, needs="hardware")
def unsupported_dtype(ctx: Context) -> Hits:
    """The dtype `bfloat16` is asked for on a GPU that does not support it.

    vLLM refuses it below compute capability 8.0. `auto` selects float16 there.
    Example:
        target: {model: ./llama, max_model_len: 2048, dtype: bfloat16}
        hardware: {accelerator: T4-16GB}
    Instead: target: {model: ./llama, max_model_len: 2048, dtype: float16}
    Source: vllm/platforms/cuda.py, `Bfloat16 is only supported on GPUs `
    """
    assert ctx.machine is not None
    kind = ctx.machine.accelerator
    own = kind.compute_capability
    if ctx.profile.target.dtype == "bfloat16" and own and own < (8, 0):
        text = f"{kind.name} has no bfloat16: its compute capability is {_dotted(own)}; 8.0 is needed"
        yield Hit("target.dtype", text, help="write `dtype: float16`, or `auto`")


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


@rule("SD314", ERROR)
def unknown_accelerator(ctx: Context) -> Hits:
    """The name in `hardware.accelerator` is not in the list of accelerators.

    The memory and the features of an unknown accelerator cannot be judged, so `check` proves nothing about them.
    `specserve doctor --accelerators` lists the names.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        hardware: {accelerator: B9000}
    Instead: hardware: {accelerator: B200-180GB}
    Source: specserve, hardware/accelerators.toml
    """
    if not ctx.on_gpu or ctx.profile.hardware is None:
        return
    from specserve.hardware.accelerators import accelerator

    try:
        accelerator(ctx.profile.hardware.accelerator or "")
    except UsageError as error:
        yield Hit("hardware.accelerator", error.message, help=error.hint)
