"""How many accelerators a launch takes: every rank has one of its own."""

from __future__ import annotations

import pytest

from specserve.profile.load import load_profile
from specserve.profile.schema import world_size
from tests.profile.conftest import Write


@pytest.mark.parametrize(
    ("target", "engine", "ranks"),
    [
        ("", "{}", 1),
        (", tensor_parallel_size: 2, pipeline_parallel_size: 3", "{}", 6),
        (", tensor_parallel_size: 2", "{data_parallel_size: 4}", 8),
        ("", "{data_parallel_size: 2, prefill_context_parallel_size: 2}", 4),
    ],
)
def test_replicas_and_parts_are_all_counted(write: Write, target: str, engine: str, ranks: int) -> None:
    profile = write(f"target: {{model: m{target}}}\nengine: {engine}\n")
    assert world_size(load_profile(profile)) == ranks
