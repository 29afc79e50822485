"""SD306, SD309, SD310, SD314: how ranks are laid out, and whether the accelerators suffice."""

from __future__ import annotations

from specserve.checks.rule import ERROR, Context, Hit, Hits, rule
from specserve.checks.rules.memory import gib, machine_words
from specserve.errors import UsageError
from specserve.profile.schema import Profile, ranks_started, world_size

_LESS = 0.95
"""A GPU with less of the named one's memory than this is another one."""


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
