"""SD307-SD319: whether the accelerators are used, and of a kind that vLLM takes."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.arms import section
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.rules.memory import (
    estimates,
    gib,
    is_fixed,
    lacking_free_bytes,
    machine_words,
    needed_at_once,
)
from specserve.diagnostics import Severity
from specserve.errors import UsageError
from specserve.profile.schema import world_size

_LESS = 0.95
"""A GPU with less of the named one's memory than this is another one."""
_LEAST_CAPABILITY = {
    "awq": 75, "awq_marlin": 75, "auto_awq": 75, "fp8": 75, "torchao": 75, "modelopt_fp4": 75, "modelopt": 80,
    "mxfp4": 80, "fbgemm_fp8": 80, "experts_int8": 80, "fp_quant": 100, "compressed-tensors": 70, "quark": 70,
    "moe_wna16": 70, "bitsandbytes": 70,
}  # fmt: skip
"""The least of `get_min_capability` over vLLM 0.26-0.33, in vllm/model_executor/layers/quantization."""


@rule("SD307", "split-node", Severity.WARNING, needs="hardware")
def split_node(ctx: Context) -> Iterator[Hit]:
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


@rule("SD308", "idle-accelerators", Severity.INFO, needs="hardware")
def idle_accelerators(ctx: Context) -> Iterator[Hit]:
    """The profile's `hardware` has more accelerators than the launch uses.

    The others stay idle: vLLM takes tensor_parallel_size x pipeline_parallel_size x data_parallel_size of them.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        hardware: {accelerator: L4-24GB, count: 4}
    Instead: hardware: {accelerator: L4-24GB, count: 1}
    Source: specserve, checks/rules/hardware.py
    """
    machine, ranks = ctx.machine, world_size(ctx.profile)
    assert machine is not None
    there = machine.count * machine.nodes
    if machine.basis == "profile" and not machine.is_cpu and there > ranks:
        yield Hit("hardware.count", f"the launch takes {ranks} of {there} accelerators; the others stay idle")


@rule("SD309", "missing-hardware", Severity.ERROR, needs="hardware")
def missing_hardware(ctx: Context) -> Iterator[Hit]:
    """This machine has less than the profile's `hardware` asks for.

    The profile was checked, and its promises were measured, for other accelerators. On this machine, the server may
    fail to start or to keep the promises.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        hardware: {accelerator: H100-80GB, count: 1}
    Instead: hardware: {accelerator: L4-24GB, count: 1}
    Source: specserve, checks/rules/hardware.py
    """
    machine, wanted = ctx.machine, ctx.profile.hardware
    if machine is None or machine.basis != "found" or wanted is None or wanted.accelerator is None:
        return
    from specserve.hardware.accelerators import CPU, accelerator

    try:
        named = accelerator(wanted.accelerator)
    except UsageError:
        return  # SD314 reports it
    here = machine_words(machine)
    if (named.name == CPU) != machine.is_cpu:
        yield Hit(
            "hardware.accelerator", f"the profile is for `{wanted.accelerator}`, and vLLM here runs on {here}"
        )
    elif not machine.is_cpu and machine.accelerator.total_bytes < _LESS * named.total_bytes:
        sizes = gib(named.total_bytes), gib(machine.accelerator.total_bytes)
        text = f"the profile is for {named.name} ({sizes[0]}); this machine has {here} ({sizes[1]})"
        yield Hit("hardware.accelerator", text)
    elif not machine.is_cpu and machine.count < min(wanted.count, world_size(ctx.profile)):
        text = f"the profile is for {wanted.count} x {named.name}; this machine has {machine.count}"
        yield Hit("hardware.count", text)


@rule("SD310", "unsupported-dtype", Severity.ERROR, needs="hardware")
def unsupported_dtype(ctx: Context) -> Iterator[Hit]:
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


@rule("SD311", "unsupported-quantization", Severity.ERROR, needs="hardware")
def unsupported_quantization(ctx: Context) -> Iterator[Hit]:
    """The quantization has no kernels for this GPU.

    Each method requires a compute capability. vLLM refuses older GPUs when it builds its configuration.
    Example:
        target: {model: ./llama, max_model_len: 2048, quantization: fp8}
        hardware: {accelerator: V100-32GB}
    Instead: hardware: {accelerator: T4-16GB}
    Source: vllm/config/vllm.py, `if capability < quant_config.get_min_capability():`
    """
    assert ctx.machine is not None
    kind, asked = ctx.machine.accelerator, ctx.profile.target.quantization
    own = section(ctx.target.config if ctx.target else {}, "quantization_config").get("quant_method")
    method = (asked or (own if isinstance(own, str) else "")).lower()
    least, capability = _LEAST_CAPABILITY.get(method, 0), kind.compute_capability
    if capability and 10 * capability[0] + capability[1] < least:
        text = f"`{method}` needs compute capability {least / 10}; {kind.name} has {_dotted(capability)}"
        help_ = "use a checkpoint without this quantization, or another GPU"
        yield Hit("target.quantization" if asked else "target.model", text, help=help_)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


@rule("SD312", "occupied-memory", Severity.ERROR, needs="hardware")
def occupied_memory(ctx: Context) -> Iterator[Hit]:
    """Less memory is free on this machine than the launch needs now.

    vLLM compares its share, `gpu_memory_utilization` of the total memory, with the free memory. It refuses to start if
    other processes use too much: often the previous server, or what is left of it. If the KV cache has a fixed size,
    the launch needs free memory for the cache and the weights. On the CPU, each rank fills its KV cache while it
    serves. If one rank fits but all of them together do not, this finding is a warning.
    Example:
        target: {model: ./llama, max_model_len: 2048}
        engine: {gpu_memory_utilization: 0.9}
    Instead: engine: {gpu_memory_utilization: 0.4}
    Source: vllm/v1/worker/utils.py, `is less than desired GPU memory utilization `
    """
    machine = ctx.machine
    assert machine is not None
    for _, memory in estimates(ctx):
        free, total = lacking_free_bytes(ctx, memory), memory.per_gpu_bytes.total
        if free is None:
            continue
        need, help_ = needed_at_once(memory, machine), "stop the processes that hold the rest"
        path, words = "engine.gpu_memory_utilization", f"vLLM asks for {gib(need.high)}"
        share = int(100 * (free - 2**29) / total) / 100
        if is_fixed(memory):
            who = f"{memory.ranks} ranks take" if machine.is_cpu and memory.ranks > 1 else "the launch takes"
            path, words = "engine.kv_cache_memory_bytes", f"{who} {gib(need.high)}"
        elif share > 0:
            help_ += f", or write `gpu_memory_utilization: {share}`"
        yield Hit(
            path,
            f"{gib(free)} of {gib(total)} are free, and {words}",
            notes=machine.holders,
            help=help_,
            severity=None if free < need.low else Severity.WARNING,
        )
        return
