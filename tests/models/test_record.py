"""Facts come back from JSON as they were, and what a stranger wrote is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.models.facts import ModelFacts, ModelFile, Tensor, from_record, to_record

FACTS = ModelFacts(
    "org/m",
    "hub",
    {"architectures": ["L"], "deep": {"x": [1, None, 0.5]}},
    revision="main",
    commit="a" * 40,
    generation_config={"min_p": 0.1},
    files={"config.json": ModelFile(3, "b" * 64), "model.safetensors": ModelFile(9, header_sha256="c" * 64)},
    tensors={"w": Tensor("BF16", (2, 2))},
    notes=("a note",),
    weight_files=("model.safetensors",),
    broken={"x": "why"},
)


def test_facts_come_back_through_json() -> None:
    assert from_record(json.loads(json.dumps(to_record(FACTS))), origin="hub") == FACTS


def changed(**changes: Any) -> dict[str, Any]:
    return {**to_record(FACTS), **changes}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "`a model` is not a mapping"),
        ([], "`a model` is not a mapping"),
        (changed(model=1), "`model` is not text"),
        (changed(config=None), "`config` is not a mapping"),
        (changed(config_format="x"), "`config_format`"),
        (changed(commit="main"), "`commit` must be 40 hexadecimal digits"),
        (changed(commit=["a" * 40]), "`commit` must be 40 hexadecimal digits"),
        (changed(files=[]), "`files` is not a mapping"),
        (changed(files={"../etc/passwd": {}}), "is not a valid name of a file"),
        (changed(files={"/etc/passwd": {}}), "is not a valid name of a file"),
        (changed(files={"a": {"size": -1}}), "` is not a valid size"),
        (changed(files={"a": {"size": True}}), "` is not a valid size"),
        (changed(files={"a": {"sha256": "x"}}), "` is not a SHA-256 hash"),
        (changed(weight_files=["a/../../b"]), "is not a valid name of a file"),
        (changed(weight_files="abc"), "`weight_files` is not a list"),
        (changed(tensors=[]), "`tensors` is not a mapping"),
        (changed(notes=[1]), "`notes` is not text"),
        (changed(broken={"a": 1}), "`broken` is not text"),
    ],
)
def test_what_is_no_record_is_a_clear_error(record: object, words: str) -> None:
    with pytest.raises(FactError, match=words):
        from_record(record, origin="lock")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(to_record(FACTS))), JSON)
def test_any_value_in_any_place_is_facts_or_a_clear_error(key: str, value: Any) -> None:
    try:
        from_record(changed(**{key: value}), origin="lock")
    except FactError as error:
        assert error.message
