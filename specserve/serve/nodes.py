"""Whether the nodes of one launch still hold together, seen from one of them. Asks no other node."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import psutil

from specserve.errors import LaunchError
from specserve.plan.launchplan import LaunchPlan

Link = tuple[Any, Any]
_LOOKS = 2
"""A link is lost when it is missed so many times: one look may fall between two of vLLM's own steps."""


class Links:
    """The connections to node 0's store, which every rank of the others holds for as long as it lives.

    vLLM's ranks notice a loss only in their next step, and idle ones never do: node 0 would go on to answer /health.
    Source: vllm/distributed/parallel_state.py 0.32, `init_distributed_environment`; torch's TCPStore.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._port = int(str(plan.engine_kwargs["master_port"]))
        self._held: frozenset[Link] = frozenset()
        self._missed = 0

    def look(self, processes: Sequence[psutil.Process], *, complete: bool) -> None:
        """Raises LaunchError where the other side of a link is gone. `complete`: all nodes are there by now."""
        links = _links(processes, self._port)
        lost = self._held - links if complete else (self._held if not links else frozenset())
        self._missed = self._missed + 1 if lost else 0
        if self._missed >= _LOOKS:
            raise self._error()
        if not lost:
            self._held = (self._held | links) if complete else links

    @property
    def is_joined(self) -> bool:
        """Whether it is linked with another node."""
        return bool(self._held)

    def _error(self) -> LaunchError:
        rank, nodes = self._plan.node_rank, self._plan.engine_kwargs["nnodes"]
        where = f"{self._plan.engine_kwargs.get('master_addr')}:{self._port}"
        who = f"node 0 ({where}) is" if rank else "another node is"
        return LaunchError(
            f"{who} gone: its connection to this node, {rank} of {nodes}, was closed, and this one was stopped",
            causes=("vLLM there ended, or its host went down: the log there tells why",),
            hint="the ranks of one model live and die together: start all nodes anew",
        )


def _links(processes: Sequence[psutil.Process], port: int) -> frozenset[Link]:
    """Connections by the port of node 0 with processes that are not of this launch, by both ends."""
    found: set[Link] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            for one in process.net_connections(kind="tcp"):
                if one.status == psutil.CONN_ESTABLISHED and port in (one.laddr.port, one.raddr.port):
                    found.add((tuple(one.laddr), tuple(one.raddr)))
    return frozenset(link for link in found if (link[1], link[0]) not in found)
