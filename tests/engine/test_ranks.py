"""One server over two ranks, on one node and on two: they write what one rank writes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil
import pytest

from specserve.hardware.host import free_port
from tests.engine.conftest import started, tiny_profile
from tests.engine.server import Server, unstarted
from tests.engine.texts import acceptance, demo_prompts, near_ties, write

pytestmark = [pytest.mark.engine, pytest.mark.soak]
PROMPTS = demo_prompts(8)


def serves_like(tiny_server: Server, up: Server) -> None:
    texts = write(up, PROMPTS, concurrency=2)
    assert (acceptance(up).acceptance_rate or 0) > 0.3
    # the ranks' sums round in another order
    assert near_ties(texts, write(tiny_server, PROMPTS, concurrency=2, top=5)) <= 1


def test_two_tensor_parallel_ranks_on_two_cores(tiny_server: Server, tmp_path: Path) -> None:
    with started(tmp_path, "--set", "target.tensor_parallel_size=2") as up:
        up.wait_ready()
        names = [" ".join(process.cmdline()).strip() for process in up.members.values()]
        assert sorted(name[-3:] for name in names if "Worker" in name) == ["TP0", "TP1"]
        serves_like(tiny_server, up)
        assert up.stop() == 0


def test_two_nodes_of_one_rank_each(tiny_server: Server, tmp_path: Path) -> None:
    """vLLM's own executor, both nodes on this host: node 0 answers, node 1 has loaded its share."""
    port = free_port()
    changes: dict[str, dict[str, Any]] = {
        "target": {"tensor_parallel_size": 2},
        "engine": {"master_addr": "127.0.0.1", "master_port": free_port()},
        "server": {"shutdown_timeout_s": 10},
        "hardware": {"accelerator": "cpu", "nodes": 2},
    }
    profile = tiny_profile(tmp_path, port=port, changes=changes)
    cores = sorted(psutil.Process().cpu_affinity())
    with contextlib.ExitStack() as stack:
        nodes: list[Server] = []
        for rank in (0, 1):
            place = tmp_path / f"node{rank}"
            place.mkdir()
            bind = f"env.VLLM_CPU_OMP_THREADS_BIND={cores[rank % len(cores)]}"
            options = ["--node-rank", str(rank), "--set", bind]
            nodes.append(stack.enter_context(unstarted(place)))
            nodes[-1].port = port
            nodes[-1].up(*options, profile=str(profile), small=False)
        first, second = nodes
        first.wait_ready()
        second.wait_ready()
        serves_like(tiny_server, first)
        assert (first.stop(), second.stop()) == (0, 0)
        for node in nodes:
            node.leaves_nothing()
