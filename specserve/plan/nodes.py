"""A launch over several nodes: one command each, by vLLM's own multi-node executor. Starts none of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.profile.schema import Profile
from specserve.vllm.arguments import VllmTable, tokens

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan

MASTER_PORT = 29501
"""vLLM's own default. (vllm/config/parallel.py 0.32, `master_port`)"""


@dataclass(frozen=True, slots=True)
class LaunchNode:
    """Which of a profile's nodes a command is for, and where node 0 is, as far as the command line says it."""

    rank: int
    master_addr: str | None = None
    master_port: int | None = None


def node_at(rank: int, address: str | None) -> LaunchNode:
    """A node by its rank and `ADDRESS` or `ADDRESS:PORT`. Raises UsageError for a port that is none."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # no port, or an IPv6 address
        return LaunchNode(rank, address)
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"`{address}` is not an address", hint="write it like `10.0.0.1`, or `10.0.0.1:29501`"
        )
    return LaunchNode(rank, host, int(port))


def node_count(profile: Profile) -> int:
    """How many nodes take a command of their own: 1 where Ray spreads the ranks, or one node does it."""
    nodes = profile.hardware.nodes if profile.hardware else 1
    return 1 if profile.engine.get("distributed_executor_backend") == "ray" else nodes


def on_node(
    plan: LaunchPlan,
    rank: int,
    *,
    profile: Profile,
    table: VllmTable,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> LaunchPlan:
    """The launch of one of a profile's nodes. Node 0 answers requests; the others only compute.

    `master_addr`: where the others find node 0; default: `engine.master_addr`. Raises UsageError.
    """
    from specserve.plan.launchplan import Added, Origin  # `lint` asks for `node_count` and needs no plan

    nodes = node_count(profile)
    _refuse(profile, nodes, rank, given=master_addr is not None)
    port = master_port or (None if "master_port" in profile.engine else MASTER_PORT)
    values: dict[str, object] = {"nnodes": nodes, "node_rank": rank}
    if master_addr is not None:
        values["master_addr"] = master_addr
    if port is not None:
        values["master_port"] = port
    argv, origins, kwargs = list(plan.argv), list(plan.origins), dict(plan.engine_kwargs)
    for name, value in values.items():
        argument = table.engine[name]
        words = tokens(argument, value)
        if argument.flag in argv:  # an address on the command line stands above the profile's
            argv[argv.index(argument.flag) + 1] = words[-1]
        else:
            argv += words
        origins = [origin for origin in origins if origin.key != argument.flag]
        span = profile.spans.get("hardware.nodes") if name == "nnodes" else None
        origins.append(Origin(str(argument.flag), str(value), span))
        kwargs[name] = value  # type: ignore[assignment]
    added = (*plan.added, Added("--nnodes", f"node {rank} of {nodes}: `hardware.nodes`"))
    if rank:
        argv.append("--headless")
        origins.append(Origin("--headless", "", None))
        added = (*added, Added("--headless", "only node 0 answers requests"))
    return replace(
        plan, argv=tuple(argv), origins=tuple(origins), engine_kwargs=kwargs, added=added, node_rank=rank
    )


def share_of_node(
    plan: LaunchPlan, profile: Profile, table: VllmTable, node: LaunchNode | None, *, whole: bool
) -> LaunchPlan:
    """The share of one node. Raises UsageError if there are several and none is named, or the other way round."""
    if node is not None:
        addr, port = node.master_addr, node.master_port
        return on_node(plan, node.rank, profile=profile, table=table, master_addr=addr, master_port=port)
    if whole or node_count(profile) == 1:
        return plan
    raise UsageError(
        (
            f"{_place(profile)}: `{profile.name}` is for {node_count(profile)} nodes, and "
            "each node needs its own command"
        ),
        hint=(
            "run `specserve up … --node-rank 0 --master-addr ADDRESS` on the first node, with its own "
            "address; then start the others, from `--node-rank 1` on"
        ),
    )


def _place(profile: Profile) -> Span:
    return profile.spans.get("hardware.nodes", Span(profile.file))


def rank_at(plan: LaunchPlan) -> int:
    """Where in the argv of one of several nodes its number stands, for whoever learns it later."""
    return plan.argv.index("--node-rank") + 1


def _refuse(profile: Profile, nodes: int, rank: int, *, given: bool) -> None:
    """Raises UsageError for what no command could run. Source: vllm/engine/arg_utils.py 0.32, `--nnodes`."""
    target = profile.target
    world = target.tensor_parallel_size * target.pipeline_parallel_size
    place = _place(profile)
    if nodes < 2:
        ray = profile.engine.get("distributed_executor_backend") == "ray"
        raise UsageError(
            f"{place}: `{profile.name}` is for one node" + (": Ray finds the others" if ray else ""),
            hint="set `hardware.nodes` for more nodes",
        )
    if not 0 <= rank < nodes:
        raise UsageError(
            f"{place}: there is no node {rank}: the profile has {nodes} nodes", hint=f"use 0 to {nodes - 1}"
        )
    if world % nodes:
        raise UsageError(
            f"{place}: {world} rank{'s do' if world > 1 else ' does'} not divide evenly into {nodes} nodes",
            hint=(
                "vLLM puts the same number on each node: raise `target.pipeline_parallel_size` or the "
                "tensor-parallel size"
            ),
        )
    if int(profile.engine.get("data_parallel_size") or 1) > 1:
        raise UsageError(
            (
                f"{profile.spans['engine.data_parallel_size']}: specserve does not plan data parallelism across "
                "nodes"
            ),
            hint="use one profile per replica, with a router in front of them",
        )
    if not given and not profile.engine.get("master_addr"):
        raise UsageError(
            f"{place}: each node needs the address of node 0",
            hint="pass `--master-addr ADDRESS`, or set `engine.master_addr` in the profile",
        )
