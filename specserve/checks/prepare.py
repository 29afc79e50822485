"""From a profile's path and the options of a command to the profile and its launch plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from specserve.diagnostics import Finding, NoNotices, Notices, Severity
from specserve.errors import CheckFailed, FactError, UsageError
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Hardware, Profile
from specserve.vllm.table import VllmTable

if TYPE_CHECKING:
    from specserve.checks.rule import Need
    from specserve.hardware.accelerators import Machine
    from specserve.plan.host import Host
    from specserve.plan.nodes import LaunchNode

_UNHEARD = NoNotices()


class LaunchOptions(TypedDict, total=False):
    """The options of a command that launches: the keywords of `prepare` that such commands share."""

    port: int | None
    devices: str | None
    alternative: str | None
    baseline: bool
    check: bool
    starts: bool
    use_lock: bool
    locked: bool
    passed: Collection[str]
    node: LaunchNode | None


def prepare(
    path: str,
    *,
    settings: Iterable[str] = (),
    port: int | None = None,
    devices: str | None = None,
    alternative: str | None = None,
    baseline: bool = False,
    check: bool = True,
    vllm: str | None = None,
    starts: bool = True,
    use_lock: bool = True,
    locked: bool = False,
    passed: Collection[str] = (),
    node: LaunchNode | None = None,
    whole: bool = False,
    machine: Machine | None = None,
    notices: Notices = _UNHEARD,
) -> tuple[Profile, LaunchPlan]:
    """The profile and the plan of its launch: by the installed vLLM on this machine, or by a named version.

    `starts`: the plan is to be run here, so a vLLM must be installed and port 0 becomes a free one. `use_lock`: the
    models are those of the lock beside the profile; `locked`: it must be there, and so must all that it names.
    `passed`: codes of errors that do not stop it. `node`: which of several this is. `whole`: where none
    is named, the plan of all without the flags of nodes; else that is an error. `machine`: what the plan is for,
    instead of the profile's `hardware`. A plan that is not to be run here, and whose machine has another kind of
    accelerator than the installed vLLM, is the one of that machine. `notices`: hears the warnings.
    Raises ProfileError for a bad profile, CheckFailed where a rule finds an error, UsageError and FactError.
    """
    from specserve.plan.launch import launch, with_port
    from specserve.plan.locking import at_lock, without_hub
    from specserve.profile.load import load_profile, with_alternative

    profile = with_alternative(load_profile(path, settings=settings), alternative, baseline=baseline)
    if devices is not None:
        profile = on_devices(profile, devices)
    if check:
        _run_rules(for_machine(profile, machine), starts=starts, passed=passed, notices=notices)
    profile, lock = at_lock(profile, use_lock=use_lock, needed=locked)
    meant = for_machine(profile, machine)
    is_elsewhere = vllm is not None or (not starts and _is_elsewhere(meant))
    here = None if is_elsewhere else _installed(profile, needed=starts)
    if here is None:
        table, version, platform = _named(meant, vllm)
        plan = launch(profile, table=table, platform=platform, version=version, port=port)
        plan = _on_node(plan, meant, table, node, whole=whole)
    else:
        from specserve.plan.host import localize, this_host
        from specserve.vllm.versions import installed

        found, host = installed(), this_host()
        assert found is not None
        plan = launch(profile, table=here, platform=found.platform, version=found.version, port=port)
        plan = _on_node(plan, meant, here, node, whole=whole)
        plan = localize(plan, installed=found, host=host)
        plan = without_hub(plan, profile=profile, lock=lock, needed=locked and starts)
        if check and starts:
            from specserve.plan.host import seen_from

            # the port is looked at when it is about to be taken
            host = replace(seen_from(host, plan), taken_ports={})
            _run_rules(profile, plan=plan, host=host, passed=passed, notices=notices)
    if devices is not None and plan.platform == "cpu":
        notices.warn("`--devices` has no effect: this launch runs on the CPU")
    if starts and plan.port == 0:
        from specserve.hardware.host import free_port

        plan = with_port(plan, free_port(plan.host))
    return meant, plan


def _on_node(
    plan: LaunchPlan, profile: Profile, table: VllmTable, node: LaunchNode | None, *, whole: bool
) -> LaunchPlan:
    """The share of one node. Raises UsageError where there are several and none is named, or the other way round."""
    hardware = profile.hardware
    if node is None and (hardware is None or hardware.nodes == 1):
        return plan
    from specserve.plan.nodes import node_count, on_node, unnamed

    if node is not None:
        return on_node(
            plan,
            node.rank,
            profile=profile,
            table=table,
            master_addr=node.master_addr,
            master_port=node.master_port,
        )
    if not whole and node_count(profile) > 1:
        raise unnamed(profile)
    return plan


def _run_rules(
    profile: Profile,
    *,
    starts: bool = True,
    plan: LaunchPlan | None = None,
    host: Host | None = None,
    passed: Collection[str] = (),
    notices: Notices,
) -> None:
    """Run the static rules, or with a plan those about this machine. Raises CheckFailed for errors."""
    from specserve.checks.run import examined

    needs: tuple[Need, ...] = ("nothing",) if plan is None else ("host",)
    everything, _ = examined(profile, plan=plan, host=host, here=starts, needs=needs)
    # an arm that is not launched cannot stop the launch
    findings = [
        finding
        for finding in everything
        if not finding.span.path.startswith("alternatives.") and finding.code not in passed
    ]
    refuse_errors(findings, file=profile.file, starts=starts, notices=notices)


def refuse_errors(findings: Sequence[Finding], *, file: str, starts: bool, notices: Notices) -> None:
    """Raises CheckFailed if one of the findings is an error; else shows the warnings."""
    from specserve.checks.run import can_be_passed

    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if errors:
        message = f"`{file}` did not pass its check: {errors} error{'s' if errors > 1 else ''}"
        hint = "`--no-check` starts it all the same" if starts and can_be_passed(findings) else None
        raise CheckFailed(message, findings=tuple(findings), hint=hint)
    warnings = [finding for finding in findings if finding.severity is Severity.WARNING]
    if warnings:
        notices.show(warnings)


def on_devices(profile: Profile, text: str) -> Profile:
    """The profile with `--devices` over its `hardware.devices`. Raises UsageError."""
    devices = tuple(
        int(part) if part.isdigit() else part for part in text.replace(" ", "").split(",") if part
    )
    if not devices:
        raise UsageError("`--devices` names no device", hint="write it like `--devices 0,1`")
    return replace(profile, hardware=replace(profile.hardware or Hardware(), devices=devices))


def for_machine(profile: Profile, machine: Machine | None) -> Profile:
    """The profile with an assumed machine as its `hardware`; None: as it is."""
    if machine is None:
        return profile
    hardware = replace(
        profile.hardware or Hardware(),
        accelerator=machine.accelerator.name,
        count=machine.count,
        nodes=machine.nodes,
    )
    return replace(profile, hardware=hardware)


def _is_elsewhere(profile: Profile) -> bool:
    """Whether `hardware` names a kind of accelerator that the installed vLLM does not run on."""
    from specserve.vllm.versions import installed

    found, hardware = installed(), profile.hardware
    if found is None or hardware is None or hardware.accelerator is None:
        return False
    return _is_for_cpu(profile) != (found.platform == "cpu")


def _is_for_cpu(profile: Profile) -> bool:
    named = profile.hardware.accelerator if profile.hardware else None
    return named is not None and named.strip().lower() == "cpu"


def _installed(profile: Profile, *, needed: bool) -> VllmTable | None:
    """The table of the installed vLLM; None where none is, and none is needed. Raises FactError."""
    from specserve.checks.oraclechild import installed_table
    from specserve.vllm.versions import contains, installed

    found = installed()
    if found is None:
        if not needed:
            return None
        hint = "in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)"
        raise FactError("no vLLM is installed beside specserve", hint=hint)
    if profile.vllm and not contains(profile.vllm, found.version):
        if not needed:
            return None
        text = f"vLLM {found.version} is installed, and the profile is for `{profile.vllm}`"
        raise FactError(f"{profile.span('vllm')}: {text}", hint="install another vLLM, or widen the range")
    return installed_table()


def _named(profile: Profile, vllm: str | None) -> tuple[VllmTable, str, str]:
    """Table, version and platform of a plan that is not for this machine's vLLM."""
    from specserve.vllm.versions import in_range, known_versions, table

    version = vllm or (in_range(profile.vllm or "") or known_versions())[-1]
    cpu = "+cpu" in version or _is_for_cpu(profile)
    return table(version), version, "cpu" if cpu else "cuda"
