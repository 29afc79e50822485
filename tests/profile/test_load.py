"""A file to a profile, or to all that is wrong with it; never to an exception of another kind."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.errors import ProfileError, UsageError
from specserve.profile import source
from specserve.profile.load import examine, load_profile, with_alternative
from specserve.profile.schema import SECTIONS, Profile, defaults_of
from specserve.profile.source import MAX_BYTES
from specserve.profile.validate import EVERY_KEY, TOP
from specserve.vllm.speculation import METHODS

Problems = Callable[..., list[str]]
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


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_KEPT", {})


def test_stdin_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a: 1")))
    assert source.read("-") == source.read("-") == b"a: 1"


def test_of_a_large_file_only_so_much_is_read_and_nothing_of_a_device(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    with file.open("wb") as stream:
        stream.truncate(1 << 30)
    assert len(source.read(str(file))) == MAX_BYTES + 1
    with pytest.raises(OSError, match="not a regular file"):
        source.read("/dev/zero")


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
