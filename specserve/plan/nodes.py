"""A launch over several nodes: one command each, by vLLM's own multi-node executor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specserve.errors import UsageError
from specserve.profile.schema import Profile
from specserve.vllm.arguments import VllmTable

if TYPE_CHECKING:
    from specserve.plan.launchplan import Json, LaunchPlan

MASTER_PORT = 29501
"""vLLM's own default. (vllm/config/parallel.py 0.32, `master_port`)"""


@dataclass(frozen=True, slots=True)
class LaunchNode:
    """Which node a command is for, and where node 0 is, if not as the profile says."""

    rank: int
    master_addr: str | None = None


def node_count(profile: Profile) -> int:
    """How many nodes take a command of their own: 1 where Ray spreads the ranks."""
    nodes = profile.hardware.nodes if profile.hardware else 1
    return 1 if profile.engine.get("distributed_executor_backend") == "ray" else nodes


def on_node(
    plan: LaunchPlan, node: LaunchNode, *, profile: Profile, table: VllmTable
) -> LaunchPlan:
    """The launch of one of a profile's nodes. Node 0 answers requests; the others only compute.

    The node's address stands above `engine.master_addr`. Raises UsageError.
    """
    nodes, rank = node_count(profile), node.rank
    _refuse(profile, nodes, rank, given=node.master_addr is not None)
    port = None if "master_port" in profile.engine else MASTER_PORT
    values = {
        "nnodes": nodes,
        "node_rank": rank,
        "master_addr": node.master_addr,
        "master_port": port,
    }
    said: dict[str, Json] = {name: value for name, value in values.items() if value is not None}
    for name, value in said.items():
        first = name == "nnodes"
        span = profile.spans.get("hardware.nodes") if first else None
        why = f"node {rank} of {nodes}: `hardware.nodes`" if first else ""
        plan = plan.with_option(str(table.engine[name].flag), str(value), span=span, why=why)
    if rank:
        plan = plan.with_option("--headless", "", why="only node 0 answers requests")
    return replace(plan, engine_kwargs={**plan.engine_kwargs, **said}, node_rank=rank)


def share_of_node(
    plan: LaunchPlan, profile: Profile, table: VllmTable, node: LaunchNode | None, *, whole: bool
) -> LaunchPlan:
    """The share of one node. Raises UsageError if there are several and none is named."""
    if node is not None:
        return on_node(plan, node, profile=profile, table=table)
    if whole or node_count(profile) == 1:
        return plan
    raise UsageError(
        f"{profile.span('hardware.nodes')}: each of {node_count(profile)} nodes needs a command",
        hint="run `specserve up … --node-rank 0 --set engine.master_addr=ADDRESS` on the first, "
        "with its own address; then the others, from `--node-rank 1` on",
    )


def value_at(plan: LaunchPlan, name: str) -> int:
    """Where in the argv the value of an argument stands: no value begins with a dash there."""
    return plan.argv.index(f"--{name.replace('_', '-')}") + 1


def leader_at(plan: LaunchPlan, profile: Profile) -> int | None:
    """Where the address of node 0 stands, if the profile does not name it."""
    is_asked = plan.node_rank is not None and not profile.engine.get("master_addr")
    return value_at(plan, "master_addr") if is_asked else None


def _refuse(profile: Profile, nodes: int, rank: int, *, given: bool) -> None:
    """Raises UsageError for what no command could run. Source: vllm/engine/arg_utils.py 0.32."""
    target, engine = profile.target, profile.engine
    world = target.tensor_parallel_size * target.pipeline_parallel_size
    replicas = int(engine.get("data_parallel_size") or 1)
    for is_wrong, text, hint in (
        (nodes < 2, "the profile is for one node", "set `hardware.nodes`, without Ray"),
        (not 0 <= rank < nodes, f"there is no node {rank}", f"use 0 to {nodes - 1}"),
        (
            world % nodes,
            f"{world} ranks do not divide evenly into {nodes} nodes",
            "raise `target.pipeline_parallel_size` or the tensor-parallel size",
        ),
        (
            replicas > 1,
            "specserve does not plan data parallelism across nodes",
            "use one profile per replica, with a router in front of them",
        ),
        (
            not given and not engine.get("master_addr"),
            "each node needs the address of node 0",
            "set `engine.master_addr` in the profile, or by `--set engine.master_addr=ADDRESS`",
        ),
    ):
        if is_wrong:
            raise UsageError(f"{profile.span('hardware.nodes')}: {text}", hint=hint)
