"""A launch over several nodes: one command each, by vLLM's own multi-node executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specserve.errors import UsageError
from specserve.profile.schema import Profile, count_of

if TYPE_CHECKING:
    from specserve.plan.launchplan import Json, LaunchPlan


def node_count(profile: Profile) -> int:
    """How many nodes take a command of their own: 1 where Ray spreads the ranks."""
    nodes = profile.hardware.nodes if profile.hardware else 1
    return 1 if profile.engine.get("distributed_executor_backend") == "ray" else nodes


def node_arguments(profile: Profile, rank: int) -> dict[str, Json]:
    """The arguments of one node's command. Raises UsageError for what vLLM would wait for."""
    nodes, engine = node_count(profile), profile.engine
    text = hint = ""
    if not rank < nodes > 1:
        text = f"there is no node {rank} in a launch of {nodes}"
        hint = "set `hardware.nodes`; Ray spreads the ranks by itself"
    elif count_of(engine.get("data_parallel_size")) > 1:
        text = "specserve does not plan data parallelism across nodes"
        hint = "use one profile per replica, with a router in front of them"
    elif not engine.get("master_addr"):
        text = "each node needs the address of node 0"
        hint = "set `engine.master_addr` in the profile, or by `--set engine.master_addr=ADDRESS`"
    if text:
        raise UsageError(f"{profile.span('hardware.nodes')}: {text}", hint=hint)
    # vllm/config/parallel.py, `master_port: int = 29501`
    places = {"master_addr": engine["master_addr"], "master_port": engine.get("master_port", 29501)}
    return {"nnodes": nodes, "node_rank": rank, **places}


def value_at(plan: LaunchPlan, name: str) -> int:
    """Where in the argv the value of an argument stands: no value begins with a dash there."""
    return plan.argv.index(f"--{name.replace('_', '-')}") + 1


def leader_at(plan: LaunchPlan, profile: Profile) -> int | None:
    """Where the address of node 0 stands, if the profile does not name it."""
    is_asked = plan.node_rank is not None and not profile.engine.get("master_addr")
    return value_at(plan, "master_addr") if is_asked else None
