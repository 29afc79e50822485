"""YAML with comments: what is read back is what was meant, whatever the text."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specserve.deploy.yamltext import Block, Note, plain, yaml_text

TEXT = st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=30)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, VALUE, max_size=5), TEXT)
def test_a_reader_gets_the_same_value(value: dict[str, Any], comment: str) -> None:
    noted = {key: Note(comment, item) for key, item in value.items()}
    for given_value in (value, noted):
        assert yaml.safe_load(yaml_text(given_value, head=comment)) == (value or None)
        assert plain(given_value) == value


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "no",
        "on",
        "0x1F",
        "010",
        "1e3",
        "1_000",
        "12:30:45",
        "2026-01-01",
        "~",
        ".5",
        "null",
        "=",
        "<<",
        "-",
        "?",
    ],
)
def test_a_text_that_yaml_would_read_as_something_else_is_quoted(text: str) -> None:
    assert yaml.safe_load(yaml_text({"a": text, text: [text]})) == {"a": text, text: [text]}


def test_comments_stand_above_what_they_are_about() -> None:
    written = yaml_text(
        {"a": Note("why", {"b": [Note("which", {"c": Note("what", 1)})]})}, head="top\n\nmore"
    )
    assert written == "# top\n#\n# more\n# why\na:\n  b:\n  # which\n  # what\n  - c: 1\n"


def test_a_block_is_shown_line_by_line() -> None:
    assert yaml_text({"a": Block("x: 1\n\ny\n")}) == "a: |\n  x: 1\n\n  y\n"
    assert yaml.safe_load(yaml_text({"a": Block("x\n")}))["a"] == "x\n"
