"""Several nodes: one command each, by vLLM's own executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.errors import UsageError
from specserve.plan.launch import launch
from specserve.plan.launchplan import LaunchPlan
from specserve.plan.nodes import LaunchNode, on_node, value_at
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.vllm.versions import known_versions, table

LLAMA = Path(__file__).parents[2] / "configs" / "llama70b-8b.yaml"
TWO = ("hardware.nodes=2", "target.pipeline_parallel_size=2")


def profile_of(*settings: str) -> Profile:
    return load_profile(str(LLAMA), settings=settings)


def planned(
    profile: Profile, rank: int, *, version: str = "0.33", address: str | None = "10.0.0.1"
) -> LaunchPlan:
    plan = launch(profile, table=table(version), platform="cuda")
    return on_node(plan, LaunchNode(rank, address), profile=profile, table=table(version))


@pytest.mark.parametrize(
    "version", [version for version in known_versions() if "master_addr" in table(version).engine]
)
def test_each_node_has_its_number_and_only_the_first_answers(version: str) -> None:
    first, second = (planned(profile_of(*TWO), rank, version=version) for rank in (0, 1))
    assert first.argv[-8:] == (
        "--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1", "--master-port", "29501",
    )  # fmt: skip
    assert second.argv[-1] == "--headless"
    assert (first.answers, second.answers) == (True, False)
    assert [plan.argv[value_at(plan, "node_rank")] for plan in (first, second)] == ["0", "1"]
    assert first.engine_kwargs["nnodes"] == 2


def test_the_address_may_stand_in_the_profile_and_the_command_line_is_above_it() -> None:
    profile = profile_of(*TWO, "engine.master_addr=10.0.0.9", "engine.master_port=4000")
    own = planned(profile, 1, address=None)
    assert own.argv[own.argv.index("--master-addr") + 1] == "10.0.0.9"
    assert own.argv[own.argv.index("--master-port") + 1] == "4000"
    given = planned(profile, 1)
    assert given.argv[given.argv.index("--master-addr") + 1] == "10.0.0.1"
    assert given.argv.count("--master-addr") == 1


@pytest.mark.parametrize(
    ("settings", "rank", "message"),
    [
        ((), 0, "is for one node"),
        (("hardware.nodes=2", "engine.distributed_executor_backend=ray"), 0, "is for one node"),
        (TWO, 2, "there is no node 2"),
        (("hardware.nodes=3",), 0, "4 ranks do not divide evenly into 3 nodes"),
        ((*TWO, "engine.data_parallel_size=2"), 0, ": specserve does not plan data parallelism across nodes"),
    ],
)
def test_what_no_command_could_run_is_refused(settings: tuple[str, ...], rank: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(profile_of(*settings), rank)


def test_the_nodes_must_know_where_the_first_is() -> None:
    with pytest.raises(UsageError, match=": each node needs the address of node 0") as caught:
        planned(profile_of(*TWO), 1, address=None)
    assert "--set engine.master_addr=" in (caught.value.hint or "")
