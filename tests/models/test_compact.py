"""Tensors are written in few lines and come back as they were; a hostile line is an error and no memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.models.facts import BITS, MAX_TENSORS, Tensor, compact, expand


def test_the_layers_of_a_model_are_one_line() -> None:
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": Tensor("BF16", (28, 8)) for n in range(80)}
    tensors |= {"model.norm.weight": Tensor("F32", (8,)), "scale": Tensor("F32", ())}

    assert compact(tensors) == {
        "model.layers.{0-79}.mlp.up_proj.weight": "BF16 28x8",
        "model.norm.weight": "F32 8",
        "scale": "F32 scalar",
    }


PART = st.integers(0, 30).map(str) | st.text("ab_{}0-9,", min_size=0, max_size=4) | st.text(max_size=3)
NAME = st.lists(PART, min_size=1, max_size=5).map(".".join)
TENSOR = st.builds(
    Tensor, st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 1 << 10), max_size=4).map(tuple)
)


@given(st.dictionaries(NAME, TENSOR, max_size=30))
def test_whatever_the_names_are_they_come_back(tensors: dict[str, Tensor]) -> None:
    assert expand(compact(tensors)) == tensors


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=60))
def test_any_set_of_layers_and_experts_comes_back(places: list[tuple[int, int]]) -> None:
    tensors = {f"l.{layer}.e.{expert}.w": Tensor("U8", (2,)) for layer, expert in places}
    assert expand(compact(tensors)) == tensors


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.{0-999999999}", "U8 1", "not a range"),
        ("a.{0-999999}.{0-999}.{0-999}", "U8 1", f"more than {MAX_TENSORS} tensors"),
        ("a.{9-3}", "U8 1", "not a range"),
        ("a.{,}", "U8 1", "not a range"),
        ("a.{--}", "U8 1", "not a range"),
        ("a", "U8", "a tensor must be written like `BF16 4096x4096`"),
        ("a", "U8 -1", "a tensor must be written like `BF16 4096x4096`"),
        ("a", "X8 1", "a tensor must be written like `BF16 4096x4096`"),
        ("a", "U8 " + "x".join(["9999999999999999999"] * 9), "impossible number of elements"),
    ],
)
def test_a_line_that_is_none_of_ours_is_an_error(name: str, text: str, words: str) -> None:
    with pytest.raises(FactError, match=words):
        expand({name: text})


@given(
    st.dictionaries(st.text("ab.{}0-9,", max_size=12), st.text("U8Fx0123456 scalar", max_size=12), max_size=5)
)
def test_any_lines_are_tensors_or_an_error(lines: dict[str, str]) -> None:
    try:
        assert len(expand(lines)) <= MAX_TENSORS
    except FactError as error:
        assert error.message
