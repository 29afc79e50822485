"""A file to a profile, or to all that is wrong with it; never to an exception of another kind."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.errors import ProfileError
from specserve.profile.load import examine, load_profile, with_alternative
from specserve.profile.schema import BLOCK_KEYS, EVERY_KEY, KINDS, SECTIONS, TOP, Key, defaults_of, kind_of
from specserve.vllm.speculation import METHODS

Write = Callable[..., Path]
_quick = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_file_that_is_not_there_is_told_with_a_way_out() -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("gone.yaml")

    assert caught.value.message == "`gone.yaml` is not a valid profile: 1 problem"
    assert [finding.message for finding in caught.value.findings] == [
        "cannot read the file: no such file or directory"
    ]
    assert caught.value.exit_code == 2


def test_a_dash_is_stdin_whose_paths_begin_in_the_working_directory(
    write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("target: {model: ./m}\n", "sub/_base.yaml")
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"extends: sub/_base.yaml\nengine: {a: ./a}\n"))
    )
    profile = load_profile("-")

    assert (profile.name, profile.file) == ("stdin", "-")
    assert profile.target.model == f"{folder}/sub/m"
    assert profile.engine == {"a": f"{folder}/a"}
    assert str(profile.span("engine")) == "-:2:9"


_VARIANTS = """\
target: {model: m}
speculation: {method: suffix}
alternatives:
  ng: {method: ngram, num_speculative_tokens: 4}
  ng-2: {method: eagle3, model: h}
"""


def test_an_alternative_takes_the_place_of_speculation_with_its_places(write: Write) -> None:
    profile = with_alternative(load_profile(write(_VARIANTS)), "ng")

    assert profile.speculation is not None
    assert profile.speculation.keys == {"method": "ngram", "num_speculative_tokens": 4}
    assert str(profile.span("speculation.method")) == "demo.yaml:4:16"
    assert str(profile.span("alternatives.ng-2.model")) == "demo.yaml:5:33"


def test_an_unknown_alternative_names_those_there_are(write: Write) -> None:
    with pytest.raises(ProfileError, match=r"has no alternative `x`: it has `ng`, `ng-2`"):
        with_alternative(load_profile(write(_VARIANTS)), "x")
    with pytest.raises(ProfileError, match=r"has no alternative `x`: it has none"):
        with_alternative(load_profile(write("target: {model: m}\n")), "x")


def test_the_name_baseline_is_the_profile_without_speculation(write: Write) -> None:
    assert with_alternative(load_profile(write(_VARIANTS)), "baseline").speculation is None
    assert load_profile(write("target: {model: m}\n"), alternative="baseline").speculation is None


def test_no_alternative_is_called_baseline(write: Write) -> None:
    _, findings = examine(write("target: {model: m}\nalternatives:\n  'baseline': {method: suffix}\n"))
    assert [(each.code, str(each.span)) for each in findings] == [("SD006", "demo.yaml:3:3")]
    assert "and not `baseline`" in findings[0].message


def _judged(write: Write, data: str | bytes) -> None:
    """Examines a file and holds what is told against what every answer must be."""
    profile, findings = examine(write(data))
    assert (profile is None) == any(not finding.policy for finding in findings)
    places = [(finding.sort_key, finding.message) for finding in findings]
    assert places == sorted(set(places))
    for finding in findings:
        assert finding.message
        assert "\n" not in finding.message + (finding.help or "")
        assert finding.span.line >= 1
        assert finding.span.column >= 1
        assert (finding.span.end_line, finding.span.end_column) >= (finding.span.line, finding.span.column)


_WORDS = st.sampled_from(
    [*TOP, *(name for kind in SECTIONS.values() for name in defaults_of(kind)), *METHODS,
     *EVERY_KEY, "A", "x", "<<", "p50", "010", "1e-3", ".nan"]
)  # fmt: skip
_LINE = st.builds(
    lambda indent, key, gap, rest: " " * indent + key + gap + rest,
    st.integers(0, 4), _WORDS | st.sampled_from(["-", "- a", "&a", "*a", "? x", "!t", "'"]),
    st.sampled_from([": ", ":", " ", ":\t"]),
    _WORDS | st.sampled_from(["", "{", "[", "]", "{}", "|", ">", "'", '"', "&a", "*a", "{a: *a}", "#", "---", "@"]),
)  # fmt: skip


@_quick
@given(lines=st.lists(_LINE, max_size=10))
def test_no_half_written_file_makes_it_fail(write: Write, lines: list[str]) -> None:
    _judged(write, "\n".join(lines))


def _any_value(key: Key) -> st.SearchStrategy[Any]:
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "str": st.sampled_from(["x", "org/m"]), "int": st.integers(1, 64) | st.sampled_from(["2k"]),
        "length": st.sampled_from(["auto", 128, "8K", -1]), "float": st.floats(0.1, 0.9),
        "bool": st.booleans(), "list": st.just(None if "minItems" in key else []), "map": st.just({}),
    }  # fmt: skip
    values = st.sampled_from(key["enum"]) if "enum" in key else kinds[kind_of(key)]
    values = values.filter(lambda value: not isinstance(value, float) or value >= key.get("minimum", value))
    return values | st.none() if "type" not in key else values


def _section(keys: Mapping[str, Key]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: _any_value(key) for name, key in keys.items()})


@settings(_quick, max_examples=50)
@given(data=st.data())
def test_a_profile_of_right_values_is_always_taken(write: Write, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(list(METHODS)))
    block = data.draw(_section(BLOCK_KEYS[method])) | {"method": method, "num_speculative_tokens": 4}
    if "model" in BLOCK_KEYS[method]:
        block["model"] = "d"
    target = data.draw(_section(KINDS["target"]["properties"]))
    value = {"target": target | {"model": "m"}, "speculation": block, "alternatives": {"a": block}}

    profile = load_profile(write(yaml.safe_dump(value)))
    assert profile.speculation == profile.alternatives["a"]
    assert profile.speculation is not None
    assert set(profile.speculation.keys) == {key for key, item in block.items() if item is not None}
