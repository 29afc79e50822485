"""Launches over several nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import of

Load = Callable[[str], Profile]


@pytest.mark.parametrize(
    ("target", "engine", "hardware", "hits"),
    [
        ("tensor_parallel_size: 4", "", "accelerator: H100-80GB, count: 2", 1),
        ("tensor_parallel_size: 2, pipeline_parallel_size: 2", "", "count: 2", 1),
        ("tensor_parallel_size: 4", "", "accelerator: H100-80GB, count: 2, nodes: 2", 0),
        ("tensor_parallel_size: 4", "", "accelerator: H100-80GB, count: 4", 0),
        ("tensor_parallel_size: 2", "data_parallel_size: 4", "accelerator: H100-80GB, count: 4", 1),
        ("tensor_parallel_size: 2", "data_parallel_size: 4, data_parallel_size_local: 2", "count: 4", 0),
        ("tensor_parallel_size: 2", "data_parallel_size: 4, data_parallel_rank: 0", "count: 2", 0),
        ("tensor_parallel_size: 2", "data_parallel_size: 4, data_parallel_backend: ray", "count: 2", 0),
        ("tensor_parallel_size: 4", "distributed_executor_backend: ray", "count: 2", 0),
        ("tensor_parallel_size: 4", "distributed_executor_backend: my.Executor", "count: 2", 0),
        ("tensor_parallel_size: 4", "distributed_executor_backend: mp", "count: 2", 1),
        ("tensor_parallel_size: 4", "nnodes: 2", "count: 2", 0),
        ("tensor_parallel_size: 2", "", "accelerator: cpu", 0),
        ("tensor_parallel_size: 2", "", "nodes: 2", 0),
        ("tensor_parallel_size: 4", "", "accelerator: H100-80GB, count: 4, devices: [0, 1]", 1),
    ],
)
def test_lint_sees_more_ranks_than_the_profile_s_hardware(
    profile: Load, target: str, engine: str, hardware: str, hits: int
) -> None:
    text = f"target: {{model: ./m, {target}}}\nengine: {{{engine}}}\nhardware: {{{hardware}}}"
    assert len(of("SD306", profile(text))) == hits
