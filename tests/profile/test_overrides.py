"""`--set key.path=value` lies over the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.errors import UsageError
from specserve.profile.load import examine, load_profile
from specserve.profile.schema import Profile

Write = Callable[..., Path]
Problems = Callable[..., list[str]]

_TEXT = """\
target: {model: x, max_model_len: 8192, revision: abc}
speculation: {method: suffix, num_speculative_tokens: 4}
engine: {seed: 1, deep: {a: 1, b: 2}}
"""


def _read(profile: Profile, path: str) -> Any:
    value: Any = profile
    for key in path.split("."):
        value = value[key] if hasattr(value, "keys") and key in value else getattr(value, key)
    return value


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("target.max_model_len=4096", "target.max_model_len", 4096),
        ("target.revision=null", "target.revision", None),
        ("target.revision=0123", "target.revision", "0123"),
        ("target.model=org/a=b", "target.model", "org/a=b"),
        ("engine.deep.a=3", "engine.deep", {"a": 3, "b": 2}),
        ("engine.deep={c: 3}", "engine.deep", {"c": 3}),
        ("engine.new.deeper.key=yes", "engine.new", {"deeper": {"key": True}}),
        ("speculation=null", "speculation", None),
        ("env.A=010", "env", {"A": "010"}),
    ],
)
def test_a_setting_replaces_one_value(write: Write, setting: str, path: str, value: Any) -> None:
    assert _read(load_profile(write(_TEXT), settings=[setting]), path) == value


def test_the_rest_stays_and_later_settings_win(write: Write) -> None:
    profile = load_profile(write(_TEXT), settings=["engine.seed=2", "engine.seed=3", "engine.deep.b=null"])

    assert profile.engine == {"seed": 3, "deep": {"a": 1, "b": None}}
    assert profile.target == load_profile(write(_TEXT)).target


def test_a_value_knows_that_it_came_from_the_command_line(write: Write) -> None:
    profile = load_profile(write(_TEXT), settings=["target.model=org/m", "engine.a.b={c: 1}"])

    assert str(profile.span("target.model")) == "--set target.model:1:1"
    assert profile.span("target.model").end_column == 6
    assert str(profile.span("engine.a.b.c")) == "--set engine.a.b:1:5"
    assert str(profile.span("engine.seed")) == "demo.yaml:3:16"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("server.port=x", "1:1 SD006 `server.port` must be an integer from 0 to 65535; found `x`"),
        ("server.prt=1", "1:1 SD005 unknown key `prt` in `server` | did you mean `port`?"),
        ("target.model=null", "1:1 SD006 `target.model` must be a name or a path; found nothing"),
        ("speculation={method: suffix, model: x}", "1:18 SD005 unknown key `model` in `speculation`"
         " (method `suffix`) | leave it out: it has no effect with this method"),
    ],
)  # fmt: skip
def test_a_problem_points_to_the_setting(problems: Problems, setting: str, told: str) -> None:
    assert problems(_TEXT, settings=[setting]) == [f"--set {setting.partition('=')[0]}:{told}"]


def test_a_relative_path_is_seen_from_the_working_directory(write: Write, folder: Path) -> None:
    profile = load_profile(
        write("target: {model: ./m}\n", "sub/demo.yaml"), settings=["target.tokenizer=./t", "env.HERE=./h"]
    )

    assert profile.target.model == f"{folder}/sub/m"
    assert profile.target.tokenizer == f"{folder}/t"
    assert profile.env == {"HERE": "./h"}


@pytest.mark.parametrize(
    "setting",
    ["", "=", "=1", "target", ".=1", "target.=1", "a." * 999 + "a=1", "a..b=1", " =1", "x.y", "a. .b=1"],
)
def test_another_form_is_a_usage_error(write: Write, setting: str) -> None:
    with pytest.raises(UsageError, match=r"`--set` takes `key.path=value`; found `"):
        examine(write(_TEXT), settings=[setting])
    with pytest.raises(UsageError, match=r"`--set engine.seed.x`: `1` has no keys"):
        examine(write(_TEXT), settings=["engine.seed.x=1"])
    with pytest.raises(UsageError, match="has no effect"):
        examine(write(_TEXT), settings=["extends=other.yaml"])


@pytest.mark.parametrize(
    "value", ["[1", "a: b: c", "*x", "\t@", "1\nother: 2", "!tag x", "'", "{a: 1, a: 2}", "\udcff"]
)
def test_a_value_that_is_no_yaml_is_a_usage_error(write: Write, value: str) -> None:
    with pytest.raises(UsageError, match=r"the value of `--set engine.x` is not YAML"):
        examine(write(_TEXT), settings=[f"engine.x={value}"])
