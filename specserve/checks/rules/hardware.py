"""SD306: whether the accelerators suffice."""

from __future__ import annotations

from specserve.checks.rule import ERROR, Context, Violation, Violations, rule
from specserve.profile.schema import Profile, count_of, world_size


@rule("SD306", ERROR)
def too_few_accelerators(ctx: Context) -> Violations:
    """The model is split over more accelerators than there are."""
    machine, hardware, ranks = ctx.machine, ctx.profile.hardware, _ranks_started(ctx.profile)
    spans, backend = ctx.profile.spans, ctx.engine.get("distributed_executor_backend", "mp")
    is_said = hardware and (hardware.accelerator or "hardware.count" in spans)
    if machine is not None:
        nodes, there, is_cpu = machine.nodes, machine.count * machine.nodes, machine.is_cpu
    elif hardware and is_said and backend in ("mp", "uni"):  # Ray may look elsewhere
        nodes = max(hardware.nodes, ctx.count("nnodes") or 1)
        there, is_cpu = hardware.count * nodes, ctx.platform == "cpu"
    else:
        return
    devices = hardware.devices if hardware else None
    if is_cpu:
        return
    if devices and ranks > len(devices) * nodes:
        words = f"the launch takes {ranks} accelerators, and `devices` names {len(devices)}"
        yield Violation("hardware.devices", words + (" per node" if nodes > 1 else ""))
    elif ranks > there:
        verb = "is" if there == 1 else "are"
        yield Violation(
            "target.tensor_parallel_size",
            f"the launch takes {ranks} accelerators, and there {verb} {there}",
            label=f"the machine has {machine}" if machine else "",
            help="split the model over fewer accelerators, or use a machine with more",
        )


def _ranks_started(profile: Profile) -> int:
    """The ranks that this launch starts itself: others may hold the rest of data parallelism.

    Source: vllm/engine/arg_utils.py, `data_parallel_size_local` and `data_parallel_rank`.
    """
    engine, ranks = profile.engine, world_size(profile)
    local = engine.get("data_parallel_size_local")
    if engine.get("data_parallel_rank") is not None or engine.get("data_parallel_backend") == "ray":
        local = 1
    if local is None:
        return ranks
    return ranks // count_of(engine.get("data_parallel_size")) * count_of(local)
