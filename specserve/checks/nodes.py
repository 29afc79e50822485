"""SD162, SD306, SD314: whether the ranks of a launch fit its nodes, and accelerators that specserve knows."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.figures import machine_words
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.runners import on_cpu
from specserve.checks.values import count
from specserve.diagnostics import Severity
from specserve.errors import UsageError
from specserve.plan.nodes import node_count
from specserve.profile.schema import Profile, ranks_started, world_size

_ONE_NODE_EACH = ("mp", "uni")
"""Executors that start their ranks on the accelerators of the node; Ray and others may take them elsewhere."""


@rule("SD162", "uneven-nodes", Severity.ERROR)
def uneven_nodes(ctx: Context) -> Iterator[Hit]:
    """The ranks do not divide into the nodes.

    ## Why is this bad?
    vLLM puts the same number of ranks on each node, and refuses what does not divide. Pipeline stages over the nodes
    are the usual way; Ray, as the executor, spreads the ranks as it likes.

    ## Example
        target: {model: ./model, tensor_parallel_size: 8}
        hardware: {count: 4, nodes: 3}

    ## Use instead
        target: {model: ./model, tensor_parallel_size: 4, pipeline_parallel_size: 3}
        hardware: {count: 4, nodes: 3}

    ## Source
    vllm/engine/arg_utils.py (from 0.27), `must evenly divide the total `
    """
    nodes, ranks = node_count(ctx.profile), world_size(ctx.profile)
    if nodes > 1 and ranks % nodes:
        yield Hit(
            "hardware.nodes",
            f"{ranks} rank{'s do' if ranks > 1 else ' does'} not divide into {nodes} nodes",
            related=(("target.tensor_parallel_size", "ranks that share each layer"),),
            help=f"`pipeline_parallel_size: {nodes}` puts a stage on each",
        )


@rule("SD314", "unknown-accelerator", Severity.ERROR)
def unknown_accelerator(ctx: Context) -> Iterator[Hit]:
    """The name in `hardware.accelerator` is not in the list of accelerators.

    ## Why is this bad?
    The memory and the features of an unknown accelerator cannot be judged, so `check` proves nothing about them.
    `specserve gpus` lists the names.

    ## Example
        target: {model: ./llama, max_model_len: 2048}
        hardware: {accelerator: B9000}

    ## Use instead
        target: {model: ./llama, max_model_len: 2048}
        hardware: {accelerator: B200-180GB}

    ## Source
    specserve, hardware/accelerators.toml
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

    ## Why is this bad?
    vLLM starts a worker per rank, and the first one without a GPU ends the launch. `hardware.count` is per node. Ray
    and other executors may find accelerators elsewhere: `check` counts those of the machine, `lint` leaves them out.

    ## Example
        target: {model: ./llama, max_model_len: 2048, tensor_parallel_size: 2}
        hardware: {accelerator: L4-24GB, count: 1}

    ## Use instead
        target: {model: ./llama, max_model_len: 2048, tensor_parallel_size: 2}
        hardware: {accelerator: L4-24GB, count: 2}

    ## Source
    vllm/v1/worker/gpu_worker.py, `DP adjusted local rank {self.local_rank} is out of `
    """
    machine, hardware, ranks = ctx.machine, ctx.profile.hardware, ranks_started(ctx.profile)
    if machine is not None:
        nodes, there, is_cpu = machine.nodes, machine.count * machine.nodes, machine.is_cpu
    elif hardware is not None and _says_all(ctx.profile):
        nodes = max(hardware.nodes, count(ctx.profile.engine.get("nnodes")) or 1)
        there, is_cpu = hardware.count * nodes, on_cpu(ctx.profile)
    else:
        return
    if is_cpu:
        return
    devices = hardware.devices if hardware else None
    if devices and ranks > len(devices) * nodes:
        words = f"the launch takes {ranks} accelerators, and `devices` names {len(devices)}"
        yield Hit("hardware.devices", words + (" per node" if nodes > 1 else ""))
        return
    if ranks <= there:
        return
    target = ctx.profile.target
    path = "target.tensor_parallel_size"
    if target.tensor_parallel_size <= there and target.pipeline_parallel_size > 1:
        path = "target.pipeline_parallel_size"
    elif target.tensor_parallel_size * target.pipeline_parallel_size <= there:
        path = "engine.data_parallel_size"
    counted = machine is None or machine.basis == "profile"
    yield Hit(
        path,
        f"the launch takes {ranks} accelerators, and there {'is' if there == 1 else 'are'} {there}",
        label=machine_words(machine) if machine else "",
        related=(("hardware.count", "counted here"),) if counted else (),
        help="split it over fewer, or use a machine with more",
    )


def _says_all(profile: Profile) -> bool:
    """Whether the profile alone says how many accelerators its launch can use."""
    said = profile.hardware is not None and (
        profile.hardware.accelerator is not None or "hardware.count" in profile.spans
    )
    return said and profile.engine.get("distributed_executor_backend", "mp") in _ONE_NODE_EACH
