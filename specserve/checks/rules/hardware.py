"""SD306, SD309: how ranks are laid out, and whether the accelerators suffice."""

from __future__ import annotations

from specserve.checks.rule import ERROR, Context, Violation, Violations, rule
from specserve.errors import UsageError, gib
from specserve.profile.schema import Profile, ranks_started

_LESS = 0.95
"""A GPU with less of the named one's memory than this is another one."""


@rule("SD306", ERROR)
def too_few_accelerators(ctx: Context) -> Violations:
    """The model is split over more accelerators than there are."""
    machine, hardware, ranks = ctx.machine, ctx.profile.hardware, ranks_started(ctx.profile)
    if machine is not None:
        nodes, there, is_cpu = machine.nodes, machine.count * machine.nodes, machine.is_cpu
    elif hardware is not None and _says_all(ctx.profile):
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


def _says_all(profile: Profile) -> bool:
    """Whether the profile says how many accelerators there are: Ray may take them elsewhere."""
    said = profile.hardware is not None and (
        profile.hardware.accelerator is not None or "hardware.count" in profile.spans
    )
    return said and profile.engine.get("distributed_executor_backend", "mp") in ("mp", "uni")


@rule("SD309", ERROR, needs="hardware")
def missing_hardware(ctx: Context) -> Violations:
    """This machine has less than the profile's `hardware` asks for."""
    machine, wanted = ctx.machine, ctx.profile.hardware
    if machine is None or machine.basis != "found" or wanted is None or wanted.accelerator is None:
        return
    from specserve.hardware.accelerators import accelerator

    try:
        named = accelerator(wanted.accelerator)
    except UsageError:
        return  # SD006 reports it
    here = "the CPU" if machine.is_cpu else str(machine)
    if (ctx.platform == "cpu") != machine.is_cpu:
        text = f"the profile is for `{wanted.accelerator}`, and vLLM here runs on {here}"
    elif not machine.is_cpu and machine.accelerator.total_bytes < _LESS * named.total_bytes:
        sizes = gib(named.total_bytes), gib(machine.accelerator.total_bytes)
        text = f"the profile is for {named.name} ({sizes[0]}); this machine has {here} ({sizes[1]})"
    else:
        return
    yield Violation("hardware.accelerator", text)
