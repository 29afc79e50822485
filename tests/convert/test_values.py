"""JSON with places: the same values as `json.loads`, each at its characters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.convert.words import NotJson, Word, argv_words, json_node
from specserve.profile.values import Node

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=80), inner),
    max_leaves=20,
)


def word(text: str) -> Word:
    return argv_words(["x", text])[1][1]


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    return [plain(child) for child in node.value] if isinstance(node.value, list) else node.value


@given(VALUES, st.sampled_from([None, 1, "\t"]))
def test_any_json_reads_as_the_library_reads_it(value: Any, indent: int | str | None) -> None:
    text = json.dumps(value, indent=indent)
    assert plain(json_node(word(text))) == json.loads(text)


@given(st.text(alphabet="{}[]\",:0123456789.eE-+ \n\\truefalsn'x", max_size=30))
def test_what_the_library_refuses_is_refused_with_a_place_inside_of_the_text(text: str) -> None:
    try:
        expected = json.loads(text)
    except (ValueError, RecursionError):
        with pytest.raises(NotJson) as error:
            json_node(word(text))
        assert 0 <= error.value.position <= len(text)
    else:
        assert plain(json_node(word(text))) == expected


def test_a_key_that_yaml_cannot_hold_is_refused() -> None:
    with pytest.raises(NotJson, match="a key of over 1,024 characters"):
        json_node(word(json.dumps({"a" * 1025: None})))


def test_a_key_that_stands_twice_has_the_later_value() -> None:
    assert plain(json_node(word('{"a": 1, "a": 2}'))) == {"a": 2}


def test_each_value_and_key_has_its_own_columns() -> None:
    line, words = argv_words(["--x", '{"a": [10, "b"]}'])
    node = json_node(words[1])
    listed = (node.mapping or {})["a"]
    assert isinstance(listed.value, list) and listed.key is not None
    places = [listed.key, listed.span, *(item.span for item in listed.value)]
    assert [line[span.column - 1 : span.end_column - 1] for span in places] == [
        '"a"',
        '[10, "b"]',
        "10",
        '"b"',
    ]


def test_nesting_has_an_end() -> None:
    with pytest.raises(NotJson, match="nested too deeply"):
        json_node(word("[" * 2000 + "]" * 2000))
