"""Two tensor-parallel ranks on two cores: they serve, and write what one rank writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engine.texts import acceptance, demo_prompts, near_ties, write

if TYPE_CHECKING:
    from tests.engine.conftest import StartUp, Up

pytestmark = pytest.mark.engine


def test_two_ranks_serve_and_write_what_one_rank_writes(tiny_server: Up, start_up: StartUp) -> None:
    prompts = demo_prompts(8)
    references = write(tiny_server, prompts, concurrency=2, top=5)
    with start_up("--set", "target.tensor_parallel_size=2") as up:
        up.wait_ready()
        names = [" ".join(process.cmdline()).strip() for process in up.members()]
        assert sorted(name[-3:] for name in names if "Worker" in name) == ["TP0", "TP1"]
        texts = write(up, prompts, concurrency=2)
        found = acceptance(up)
        assert up.stop() == 0
    assert near_ties(texts, references) <= 1  # the ranks' sums round in another order
    assert (found.acceptance_rate or 0) > 0.3
