"""One server over two ranks of vLLM's own executor, both on this host: same text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from specserve.hardware.host import free_port
from tests.engine.conftest import Up, tiny_profile, up_on
from tests.engine.texts import acceptance, demo_prompts, near_ties, write

pytestmark = [pytest.mark.engine, pytest.mark.soak]


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Up, Up]]:
    """Both nodes, up: node 0 answers, node 1 has loaded its share."""
    port = free_port()
    changes: dict[str, dict[str, Any]] = {
        "target": {"tensor_parallel_size": 2},
        "engine": {"master_addr": "127.0.0.1", "master_port": free_port()},
        "server": {"shutdown_timeout_s": 10},
        "hardware": {"accelerator": "cpu", "nodes": 2},
    }
    profile = tiny_profile(folder, port=port, changes=changes)
    cores = sorted(psutil.Process().cpu_affinity())
    with contextlib.ExitStack() as stack:
        nodes = []
        for rank in (0, 1):
            place = folder / f"node{rank}"
            place.mkdir()
            bind = f"env.VLLM_CPU_OMP_THREADS_BIND={cores[rank % len(cores)]}"
            options = ["--node-rank", str(rank), "--set", bind]
            nodes.append(stack.enter_context(up_on(place, profile, *options, port=port)))
        nodes[0].wait_ready()
        nodes[1].wait_for(lambda: "ready in" in nodes[1].err)
        yield nodes[0], nodes[1]


def nothing_is_left(processes: list[psutil.Process]) -> bool:
    gone, alive = psutil.wait_procs(processes, timeout=10)
    return not alive and len(gone) == len(processes)


def test_two_ranks_say_what_one_process_says_and_speculate(tiny_server: Up, tmp_path: Path) -> None:
    prompts = demo_prompts(8)
    references = write(tiny_server, prompts, concurrency=2, top=5)
    with two_nodes(tmp_path) as (first, second):
        texts = write(first, prompts, concurrency=2)
        found = acceptance(first)
        members = [*first.members(), *second.members()]
        assert first.stop() == 0
        assert second.stop() == 0
        assert nothing_is_left(members)
    assert near_ties(texts, references) <= 1  # the ranks' sums round in another order
    assert (found.acceptance_rate or 0) > 0.3
