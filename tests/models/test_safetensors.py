"""A header is read without the weights behind it, and one that vLLM could not open is told from one it could."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.models.facts import Tensor, read_header, tensors_of
from specserve.models.hub import read_model
from tests.models.tiny import TENSORS, raw, safetensors, write_model


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header(**entries: Any) -> bytes:
    return json.dumps(entries).encode()


def test_types_and_shapes_are_those_of_the_file_and_the_weights_are_not_read(tmp_path: Path) -> None:
    file, size = tmp_path / "m.safetensors", 1 << 40
    file.write_bytes(safetensors(metadata={"format": "pt"}))
    assert read_header(file) == {name: Tensor(dtype, shape) for name, (dtype, shape) in TENSORS.items()}
    content = raw(header(w=entry("U8", [size], [0, size])))
    with file.open("wb") as stream:
        stream.write(content)
        stream.truncate(len(content) + size)
    assert read_header(file)["w"].size_bytes == size


def test_an_empty_tensor_and_half_bytes_are_fine() -> None:
    entries = {"a": entry("F32", [0, 7], [0, 0]), "b": entry("F4", [3, 2], [0, 3])}
    assert tensors_of(entries, name="m", room_bytes=3)["b"] == Tensor("F4", (3, 2))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "` is truncated, a Git LFS pointer, or not"),
        (raw(b"{}", length=1 << 60), "` is truncated, a Git LFS pointer, or not"),
        (raw(b"{}", length=3), "` is truncated, a Git LFS pointer, or not"),
        (safetensors()[:-1], "truncated: 1 of 1312 bytes of its tensors are missing"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "Git LFS pointer"),
        (raw(b"[]"), "is not a JSON object"),
        (raw(b"{"), "not valid JSON: Expecting property name"),
        (raw(b'{"a": ' + b"1" * 5000 + b"}"), "4300 digits"),
        (raw(header(a=[])), "type, shape and bytes of `a` do not agree"),
        (raw(header(a=entry("F32", ["2"], [0, 8])), body=8), "type, shape and bytes of `a` do not agree"),
        (raw(header(a=entry("F32", [2], [8, 0])), body=8), "type, shape and bytes of `a` do not agree"),
        (raw(header(a=entry("F32", [3], [0, 8])), body=8), "type, shape and bytes of `a` do not agree"),
        (raw(header(a=entry("F32", [1 << 61] * 50, [0, 8])), body=8), "do not agree"),
    ],
)  # fmt: skip
def test_a_file_that_vllm_could_not_open_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(content)
    with pytest.raises(FactError) as error:
        read_header(file)
    assert words in error.value.message
    assert "`m.safetensors`" in error.value.message


def test_a_type_of_tomorrow_is_unknown_and_not_broken(tmp_path: Path) -> None:
    write_model(tmp_path, files={"model.safetensors": raw(header(a=entry("F3", [8], [0, 3])), body=3)})
    facts = read_model(str(tmp_path))
    assert (facts.tensors, facts.broken) == (None, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "F4", "X9", ""]) | JSON,
        "shape": st.lists(st.integers(-2, 1 << 70), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-2, 1 << 70), max_size=3) | JSON,
    },
)


@given(st.dictionaries(st.text(max_size=5), ENTRY | JSON, max_size=4), st.integers(0, 1 << 65))
@example({"\ud800": {"dtype": 1}}, 0)
def test_whatever_a_header_says_it_is_tensors_or_a_clear_error(content: Any, room_bytes: int) -> None:
    try:
        tensors_of(content, name="m", room_bytes=room_bytes)
    except FactError as error:
        error.message.encode()
