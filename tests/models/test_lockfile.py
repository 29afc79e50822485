"""A lock gives back what was put in, names models as two clones do, and believes nothing that is not sound."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.models.facts import BITS, ModelFacts, ModelFile, Tensor
from specserve.models.lock import lock_path, lock_text, read_lock

COMMIT, OTHER = "a" * 40, "b" * 40
TENSORS = st.builds(
    Tensor, st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 1 << 10), max_size=4).map(tuple)
)
HUB = ModelFacts(
    "org/m",
    "lock",
    {"vocab_size": 9},
    commit=COMMIT,
    files={"config.json": ModelFile(3, "c" * 64)},
    tensors={f"layers.{n}.w": Tensor("BF16", (2, 2)) for n in range(4)},
    weight_files=("model.safetensors",),
)
TAGGED = replace(HUB, revision="v1", commit=OTHER)
LOCAL = replace(HUB, model="../models/draft", commit=None)


def text(*models: ModelFacts) -> str:
    return lock_text(models or (HUB, TAGGED, LOCAL))


def test_a_model_is_found_by_its_revision_and_by_its_commit(tmp_path: Path) -> None:
    assert lock_path("-") is None and lock_path("/a/de.mo.yml") == Path("/a/de.mo.lock.json")
    file = tmp_path / "p.lock.json"
    file.write_text(text())
    lock = read_lock(file)
    assert lock
    found = lock.find("org/m")
    assert found and (found.origin, found.commit, found.revision) == ("lock", COMMIT, None)
    assert found.config == HUB.config and found.tensors == HUB.tensors
    tagged = lock.find("org/m", revision="v1")
    assert tagged and tagged.commit == OTHER
    assert lock.find("org/m", revision=OTHER) == tagged
    assert lock.find("org/m", revision="v2") is None
    assert lock.find("org/other") is None


def change(**changes: Any) -> bytes:
    return json.dumps({**json.loads(text()), **changes}).encode()


def model(**changes: Any) -> bytes:
    content = json.loads(text())
    content["models"][0] |= changes
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<<<<<<< HEAD\n{}", "not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b"{}", "it lacks 'version'"),
        (change(version=0), "its format is not version 1"),
        (change(models=[3]), "is not a valid lock"),
        (change(models=None), "is not iterable"),
        (model(commit="main", model="org/m"), "the commit of `org/m` is not 40 hexadecimal digits"),
        (model(tensors="x"), "is not a valid lock"),
        (model(tensors="eJwDAAAAAAE="[:8]), "is not a valid lock"),
    ],
)
def test_what_is_no_lock_is_a_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "p.lock.json"
    file.write_bytes(content)
    with pytest.raises(FactError, match=words) as error:
        read_lock(file)
    assert "p.lock.json" in error.value.message
    assert error.value.hint == "`specserve lock` writes it again"


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=9), TENSORS, max_size=9))
def test_tensors_come_back_whatever_their_names_are(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Tensor]
) -> None:
    facts = replace(HUB, tensors=tensors)
    file = tmp_path_factory.mktemp("lock") / "p.lock.json"
    file.write_text(text(facts))
    found = read_lock(file)
    assert found and found.models == (facts,)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.sampled_from([change, model]),
    st.sampled_from(sorted({*json.loads(text()), *json.loads(text())["models"][0]})),
    JSON,
)
def test_any_value_in_any_place_is_a_lock_or_a_clear_error(
    tmp_path: Path, make: Any, key: str, value: Any
) -> None:
    file = tmp_path / "p.lock.json"
    file.write_bytes(make(**{key: value}))
    try:
        read_lock(file)
    except FactError as error:
        assert error.message
