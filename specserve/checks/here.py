"""The launch of a profile on the machine that runs this, for the rules about the host. Judges nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specserve.errors import SpecserveError
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.facts.accelerators import Machine
    from specserve.plan.host import Host
    from specserve.plan.launchplan import LaunchPlan


def on_this_machine(
    profile: Profile, *, machine: Machine | None
) -> tuple[LaunchPlan | None, Host | None, str]:
    """The plan and the host; or neither, and why the rules about the host do not apply."""
    from specserve.checks.installed import installed_table
    from specserve.plan.host import localize, this_host
    from specserve.plan.launch import launch
    from specserve.plan.site import seen_from
    from specserve.vllm.versions import contains, installed

    if machine is not None and machine.basis == "assumed":
        return None, None, "judged for another machine (`--assume`)"
    found = installed()
    if found is None:
        return None, None, "no vLLM is installed beside specserve"
    if machine is not None and machine.basis == "profile" and machine.is_cpu != (found.platform == "cpu"):
        return (
            None,
            None,
            f"the vLLM of this machine is for {found.platform}, and the profile is for another platform",
        )
    if profile.vllm and not contains(profile.vllm, found.version):
        return None, None, f"vLLM {found.version} is installed, and the profile is for `{profile.vllm}`"
    try:
        table = installed_table()
        assert table is not None
        plan = launch(profile, table=table, platform=found.platform, version=found.version)
        host = this_host()
        plan = localize(plan, installed=found, host=host)
        return plan, seen_from(host, plan), ""
    except SpecserveError as error:
        return None, None, f"no launch can be planned: {error.message}"
