"""How many CUDA graphs a launch captures, and for which batches."""

from __future__ import annotations

import pytest

from specserve.vllm.batch import captured_graphs


@pytest.mark.parametrize(
    ("seqs", "more", "graphs", "largest"),
    [
        # in pieces for 51 sizes up to 512, whole for the 35 of them that 256 requests can have
        (256, {}, 51 + 35, 512),
        (1024, {}, 51 + 51, 512),
        (1024, {"blackwell": True}, 83 + 83, 1024),
        (1, {}, 2 + 1, 2),
        (100, {}, 29 + 16, 200),  # 100 is not a multiple of 8
        (256, {"whole": False}, 51, 512),
        # 1,024 tokens in a step leave 128 requests of 8 tokens
        (256, {"max_num_batched_tokens": 128}, 19 + 19, 128),
        # what the profile sets
        (256, {"sizes": (1, 2, 4)}, 3 + 3, 4),
        (256, {"largest": 16}, 5 + 5, 16),
    ],
)
def test_graphs_are_those_of_vllm(seqs: int, more: dict[str, object], graphs: int, largest: int) -> None:
    arguments: dict[str, object] = {"max_num_seqs": seqs, "max_num_batched_tokens": 8192, **more}
    assert captured_graphs(**arguments) == (graphs, largest)  # type: ignore[arg-type]


def test_with_speculation_a_decode_step_has_multiples_of_k_plus_1_and_the_draft_has_graphs_of_its_own() -> (
    None
):
    plain = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192)
    verified = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192, decode_tokens=4)
    drafted = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192, decode_tokens=4, drafts=True)
    assert plain == (11 + 7, 64)
    # 4, 8, 16, 32, 64, 96 and 128 tokens; of these 4 to 128 lie on the grid of sizes up to 256
    assert verified == (35 + 7, 256)
    assert drafted == (35 + 14, 256)


def test_tiers_of_a_schedule_have_graphs_each() -> None:
    one = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192, decode_tokens=4)
    two = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192, decode_tokens=4, tiers=2)
    assert two.graphs > one.graphs
