"""The JSON Schema tells an editor what the loader would, and never refuses what the loader takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from specserve.profile.load import examine
from specserve.profile.schema import SECTIONS, Expectation, defaults_of
from specserve.profile.validate import BLOCK_KEYS
from specserve.profile.validate import SCHEMA as _SCHEMA
from specserve.vllm.speculation import METHODS

Write = Callable[..., Path]

_CONFIGS = Path(__file__).parents[2] / "configs"
_VALIDATOR = jsonschema.Draft202012Validator(_SCHEMA)


def _fits(text: str) -> bool:
    return bool(_VALIDATOR.is_valid(yaml.safe_load(text)))


@pytest.mark.parametrize("file", sorted(_CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_profile_fits(file: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(_SCHEMA)
    errors = list(_VALIDATOR.iter_errors(yaml.safe_load(file.read_text(encoding="utf-8"))))

    assert [error.message for error in errors] == []


@pytest.mark.parametrize(
    "text",
    [
        "target: {modle: x}", "targt: {model: x}", "target: {model: x, tensor_parallel_size: '4'}",
        "target: {model: x, tensor_parallel_size: 0}", "target: {model: x, dtype: true}", "target: {model: ''}",
        "target: {model: x}\nspeculation: {method: egle}", "engine: {}",
        "target: {model: x}\nspeculation: {method: ngram, model: x}",
        "target: {model: x}\nspeculation: {method: eagle3, draft_sample_method: greed}",
        "target: {model: x}\nalternatives: {a: {method: ngram, model: x}}",
        "target: {model: x}\nalternatives: {a b: {method: suffix}}",
        "target: {model: x}\nexpect: [{min_acceptance_rate: 2}]", "target: {model: x}\nserver: {port: 70000}",
        "target: {model: x}\nengine: {max_model_len: 5}", "target: {model: x}\nengine: [1]",
    ],
)  # fmt: skip
def test_it_refuses_what_the_loader_refuses(text: str, write: Write) -> None:
    assert not _fits(text)
    assert examine(write(text))[1]


_SCALARS = st.sampled_from(
    [None, True, 0, 1, 4, -1, 70000, 0.5, "x", "", "auto", "32k", "1.5K", "010", "1e-3", "greedy", "block"]
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["p50", "a"]), inner, max_size=2),
    max_leaves=4,
)


def _some(names: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(sorted(names)), _VALUES, max_size=1)


def _block(method: str) -> st.SearchStrategy[dict[str, Any]]:
    base = {"method": method, "num_speculative_tokens": 4} | (
        {"model": "d"} if "model" in BLOCK_KEYS[method] else {}
    )
    return _some(BLOCK_KEYS[method]).map(lambda more: base | more)


_PROFILES = st.fixed_dictionaries(
    {"target": _some(defaults_of(SECTIONS["target"])).map(lambda more: {"model": "m"} | more)},
    optional={
        "speculation": st.sampled_from(list(METHODS)).flatmap(_block),
        "server": _some(defaults_of(SECTIONS["server"])),
        "hardware": _some(defaults_of(SECTIONS["hardware"])),
        "expect": st.lists(_some(defaults_of(Expectation)), max_size=1),
        "engine": st.dictionaries(st.sampled_from(["a", "b", "port"]), _VALUES, max_size=2),
        "env": st.dictionaries(st.sampled_from(["A", "1X"]), _SCALARS, max_size=2),
    },
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(profile=_PROFILES)
@example(profile={"target": {"model": "m"}, "server": {"shutdown_timeout_s": "1e-3"}})
def test_what_the_loader_takes_the_schema_takes(write: Write, profile: dict[str, Any]) -> None:
    text = yaml.safe_dump(profile)
    _, findings = examine(write(text))

    if not findings:
        as_in_1_2 = text.replace("1e-3", "0.001")  # PyYAML reads YAML 1.1, where this is a text
        assert [error.message for error in _VALIDATOR.iter_errors(yaml.safe_load(as_in_1_2))] == []
