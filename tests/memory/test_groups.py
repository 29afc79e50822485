"""Which layers share a block table: vLLM's rules, on layers made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.memory.kv import LayerKv
from specserve.memory.pool import group_layers

FULL = LayerKv("full", 16, 4096, (8, 128, 128, 4096))
SLIDING = LayerKv("sliding", 16, 4096, (8, 128, 128, 4096), 1024)
WIDE = LayerKv("full", 16, 8192, (16, 128, 128, 8192))
LATENT = LayerKv("mla", 16, 1152, (1, 576, 0, 1152))
INDEXER = LayerKv("indexer", 16, 132, (1, 132, 0, 1))
STATE = LayerKv("state", 16, state_bytes=60_000, padded_bytes=65_536)


def sizes(*layers: LayerKv, is_hybrid_off: bool = False) -> list[int]:
    named = {str(place): layer for place, layer in enumerate(layers)}
    return [len(group) for group in group_layers(named, is_hybrid_off=is_hybrid_off)]


def test_latent_layers_share_a_table_with_their_indexers_and_a_plain_draft() -> None:
    assert sizes(*[LATENT, INDEXER] * 4) == [8]
    assert sizes(*[LATENT] * 4, FULL) == [5]


def test_pages_that_do_not_divide_are_padded() -> None:
    odd = LayerKv("sliding", 16, 3072, (6, 128, 128, 3072), 1024)
    (first, second) = group_layers({"0": FULL, "1": odd})
    assert (first["0"].page_bytes, second["1"].page_bytes) == (65_536, 65_536)
    assert second["1"].block_size == 16


def test_windows_count_as_full_where_the_hybrid_manager_is_off() -> None:
    assert sizes(*[SLIDING] * 10, *[FULL] * 2, is_hybrid_off=True) == [12]


def test_windows_beside_latent_layers_of_another_size_count_as_full() -> None:
    window = LayerKv("sliding", 16, 1500, (6, 125, 125, 1500), 1024)
    assert sizes(*[LATENT] * 4, window) == [5]


def test_a_chunk_beside_latent_layers_is_refused_as_vllm_refuses_it() -> None:
    chunk = LayerKv("chunked", 16, 5000, (4, 128, 128, 5000), 1024)
    with pytest.raises(ValueError, match="cannot be padded"):
        sizes(LATENT, chunk)


_LAYERS = st.sampled_from(
    [FULL, SLIDING, WIDE, STATE, LayerKv("sliding", 16, 3072, (6, 128, 128, 3072), 512)]
)


@given(st.lists(_LAYERS, min_size=1, max_size=40))
def test_every_layer_lies_in_exactly_one_table_and_tables_are_of_one_page_size(layers: list[LayerKv]) -> None:
    named = {str(place): layer for place, layer in enumerate(layers)}
    groups = group_layers(named)
    assert sorted(name for group in groups for name in group) == sorted(named)
    if len(groups) > 1:
        assert len({layer.page_bytes for group in groups for layer in group.values()}) == 1
