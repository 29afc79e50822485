"""Several nodes: one command each, by vLLM's own executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.errors import UsageError
from specserve.plan.launch import launch
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.load import load_profile
from specserve.vllm.versions import known_versions, table

LLAMA = Path(__file__).parents[2] / "configs" / "llama70b-8b.yaml"
TWO = ("hardware.nodes=2", "target.pipeline_parallel_size=2")
LED = (*TWO, "engine.master_addr=10.0.0.1")


def planned(rank: int, *settings: str, version: str = "0.33") -> LaunchPlan:
    profile = load_profile(str(LLAMA), settings=settings)
    return launch(profile, table=table(version), platform="cuda", node=rank)


@pytest.mark.parametrize("version", known_versions())
def test_each_node_has_its_number_and_only_the_first_answers(version: str) -> None:
    first, second = (planned(rank, *LED, version=version) for rank in (0, 1))
    assert first.argv[-8:] == (
        "--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1", "--master-port", "29501",
    )  # fmt: skip
    assert second.argv[-7:-5] == ("--node-rank", "1") and second.argv[-1] == "--headless"
    assert (first.answers, second.answers) == (True, False)
    assert first.engine_kwargs["nnodes"] == 2
    assert planned(1, *LED, "engine.master_port=4000").argv[-3:-1] == ("--master-port", "4000")


@pytest.mark.parametrize(
    ("settings", "rank", "message"),
    [
        ((), 0, "there is no node 0 in a launch of 1"),
        (("hardware.nodes=2", "engine.distributed_executor_backend=ray"), 0, "there is no node 0"),
        (TWO, 2, "there is no node 2"),
        ((*TWO, "engine.data_parallel_size=2"), 0, ": specserve does not plan data parallelism across nodes"),
        (TWO, 1, ": each node needs the address of node 0"),
    ],
)
def test_what_no_command_could_run_is_refused(settings: tuple[str, ...], rank: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(rank, *settings)
