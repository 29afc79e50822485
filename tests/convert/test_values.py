"""JSON in a word: the same values as `json.loads`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.convert.words import NotJson, Word, argv_words, json_node, plain

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=80), inner),
    max_leaves=20,
)


def word(text: str) -> Word:
    return argv_words(["x", text])[1][1]


@given(VALUES, st.sampled_from([None, 1, "\t"]))
def test_any_json_reads_as_the_library_reads_it(value: Any, indent: int | str | None) -> None:
    text = json.dumps(value, indent=indent)
    assert plain(json_node(word(text))) == json.loads(text)


def test_nesting_has_an_end() -> None:
    with pytest.raises(NotJson, match="nested too deeply"):
        json_node(word("[" * 2000 + "]" * 2000))
