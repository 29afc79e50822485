"""A profile over its parents, and the paths that each of them wrote."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.errors import ProfileError
from specserve.profile.load import examine, load_profile
from specserve.profile.schema import fingerprint

Problems = Callable[..., list[str]]
Write = Callable[..., Path]


_BASE = """\
vllm: ">=0.32,<0.34"
name: base
target: {model: org/m, tensor_parallel_size: 4, revision: abc}
speculation: {method: eagle3, model: org/h, num_speculative_tokens: 3}
alternatives: {ng: {method: ngram, num_speculative_tokens: 4}}
engine: {max_num_seqs: 64, hf_overrides: {a: 1, b: null}, list: [1, 2]}
env: {A: one, B: two}
expect: [{workload: chat}]
"""


def test_a_child_merges_over_its_parent_and_equals_the_same_profile_written_flat(write: Write) -> None:
    write(_BASE, "_base.yaml")
    child = write(
        """\
extends: _base.yaml
target: {tensor_parallel_size: 8, revision: null}
speculation: {num_speculative_tokens: 5}
engine: {max_num_seqs: null, hf_overrides: {a: null, c: 2}, list: [3]}
env: {B: null, C: three}
alternatives: {ng: {method: suffix}, two: {method: suffix}}
expect: null
"""
    )
    flat = write(
        """\
vllm: ">=0.32,<0.34"
target: {model: org/m, tensor_parallel_size: 8}
speculation: {method: eagle3, model: org/h, num_speculative_tokens: 5}
alternatives: {ng: {method: suffix}, two: {method: suffix}}
engine: {hf_overrides: {b: null, c: 2}, list: [3]}
env: {A: one, C: three}
""",
        "flat/demo.yaml",
    )
    inherited, written = load_profile(child), load_profile(flat)

    assert fingerprint(inherited) == fingerprint(written)
    assert replace(inherited, file=written.file) == written


def test_a_child_has_its_own_name_and_every_value_its_own_file(write: Write) -> None:
    write(_BASE, "bases/_base.yaml")
    profile = load_profile(write("extends: ./bases/_base.yaml\nengine: {max_num_seqs: 8}\n"))

    assert profile.name == "demo"
    assert str(profile.span("engine.max_num_seqs")) == "demo.yaml:2:24"
    assert str(profile.span("target.model")) == "bases/_base.yaml:3:17"
    assert str(profile.span("env.A")) == "bases/_base.yaml:7:10"


def test_problems_of_a_parent_point_into_the_parent(write: Write) -> None:
    write("target: {modle: x}\nengine: {a: 1, a: 2}\n", "bases/_base.yaml")
    _, findings = examine(write("extends: bases/_base.yaml\nserver: {prt: 1}\n"))

    assert [f"{finding.span} {finding.code}" for finding in findings] == [
        "bases/_base.yaml:1:10 SD005", "bases/_base.yaml:2:16 SD004", "demo.yaml:2:10 SD005",
    ]  # fmt: skip


def test_a_chain_has_an_end_also_if_it_is_a_circle(write: Write, problems: Problems) -> None:
    for number in range(20):
        write(f"extends: p{number + 1}.yaml\n", f"p{number}.yaml")
    text = "is one of more than 10, or they go round in a circle"
    assert problems("extends: p0.yaml\n") == [f"p9.yaml:1:10 SD009 the parent `p10.yaml` {text}"]
    assert problems("extends: demo.yaml\n") == [f"1:10 SD009 the parent `demo.yaml` {text}"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("gone.yaml", "`gone.yaml` cannot be read: no such file or directory"),
        ("sub", "`sub` cannot be read: is a directory"),
        ("pipe", "`pipe` cannot be read: it is not a regular file"),
        ("loop", "`loop` cannot be read: too many levels of symbolic links"),
        ("[a.yaml]", "a list is not the path of one file"),
        ("5", "`5` is not the path of one file"),
        ("''", "the text `` is not the path of one file"),
        ('"a\\0b"', "`a\\x00b` cannot be read: no such file or directory"),
    ],
    ids=["gone", "folder", "pipe", "loop", "list", "number", "empty", "zero"],
)
def test_a_parent_that_cannot_be_read_is_the_only_problem(
    problems: Problems, folder: Path, value: str, told: str
) -> None:
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")

    assert problems(f"extends: {value}\nspeculation: {{num_speculative_tokens: 2}}\n") == [
        f"1:10 SD009 the parent {told}"
    ]


@pytest.mark.parametrize(
    "outside", ["../outside.yaml", "{absolute}/outside.yaml", "link.yaml", "linked/outside.yaml"]
)
def test_a_parent_outside_of_the_folder_is_not_read(
    write: Write, folder: Path, tmp_path_factory: pytest.TempPathFactory, outside: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "outside.yaml").write_text("target: {model: hidden}\n")
    (folder.parent / "outside.yaml").write_text("target: {model: hidden}\n")
    (folder / "link.yaml").symlink_to(elsewhere / "outside.yaml")
    (folder / "linked").symlink_to(elsewhere)
    value = outside.format(absolute=elsewhere)

    _, findings = examine(write(f"extends: {value}\n"))
    assert [finding.code for finding in findings] == ["SD009"]
    assert "is outside of this profile's repository or folder" in findings[0].message
    assert "hidden" not in str(findings)


def test_a_parent_anywhere_in_the_same_repository_is_read(
    write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "repo" / ".git").mkdir(parents=True)
    write("target: {model: x}\n", "repo/bases/_base.yaml")
    write("target: {model: x}\n", "_outside.yaml")
    child = write("extends: ../../bases/_base.yaml\n", "repo/teams/a/x.yaml")
    stray = write("extends: ../../../_outside.yaml\n", "repo/teams/a/y.yaml")

    assert load_profile(child).target.model == "x"
    with pytest.raises(ProfileError):
        load_profile(stray)
    monkeypatch.chdir(folder / "repo" / "teams")
    assert load_profile("a/x.yaml").target.model == "x"


_SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"root:{_SECRET}:0:0:root:/root:/bin/bash\n", ": YAML of line 1 cannot be read"),
        (f"root: {_SECRET}: 0\n", ": YAML of line 1 cannot be read"),
        (f"a: !{_SECRET} b\n", ""),
        (f"{_SECRET}: 1\n{_SECRET}: 2\n", ""),
        (f"name: app\nservices: {{{_SECRET}: x}}\n", ""),
        (f"- {_SECRET}\n", ": YAML of line 1 cannot be read"),
        (f"\x00{_SECRET}\n", ": YAML of line 1 cannot be read"),
    ],
)
def test_a_parent_that_is_no_profile_is_never_quoted(
    write: Write, problems: Problems, text: str, reason: str
) -> None:
    write(text, "secret.txt")

    told = problems("extends: secret.txt\nspeculation: {num_speculative_tokens: 1}\n")
    assert told == [f"1:10 SD009 the parent `secret.txt` is not a profile{reason}"]
    _, findings = examine("demo.yaml")
    assert _SECRET not in str(findings)
    assert {finding.span.file for finding in findings} == {"demo.yaml"}
    assert not any(finding.related for finding in findings)


@pytest.mark.parametrize(
    ("written", "seen"),
    [("./m", "{folder}/sub/m"), ("../m", "{folder}/m"), (".", "{folder}/sub"), ("..", "{folder}"),
     ("./a/../b", "{folder}/sub/b"), ("'./m'", "{folder}/sub/m"), ("org/model", "org/model"), (".hidden", ".hidden"),
     ("/abs/m", "/abs/m"), ("...", "..."), ("s3://x/./y", "s3://x/./y")],
)  # fmt: skip
def test_it_begins_with_a_dot(write: Write, folder: Path, written: str, seen: str) -> None:
    profile = load_profile(write(f"target: {{model: {written}}}\n", "sub/demo.yaml"))

    assert profile.target.model == seen.format(folder=folder)


def test_it_may_stand_wherever_vllm_takes_a_path_and_nowhere_else(write: Write, folder: Path) -> None:
    text = """\
target: {model: ./m, tokenizer: ./t}
speculation: {method: draft_model, model: ./d, num_speculative_tokens: 2}
alternatives: {a: {method: eagle3, model: ../h}}
engine: {hf_config_path: ./c, list: [./a, {deep: ./b}]}
frontend: {chat_template: ./chat.jinja}
server: {served_model_name: ./name}
env: {HERE: ./env}
"""
    profile = load_profile(write(text))

    assert profile.target.tokenizer == f"{folder}/t"
    assert profile.speculation is not None
    assert profile.speculation.model == f"{folder}/d"
    assert profile.alternatives["a"].model == f"{folder.parent}/h"
    assert profile.engine == {
        "hf_config_path": f"{folder}/c",
        "list": (f"{folder}/a", {"deep": f"{folder}/b"}),
    }
    assert profile.frontend == {"chat_template": f"{folder}/chat.jinja"}
    assert profile.server.served_model_name == "./name"
    assert profile.env == {"HERE": "./env"}


def test_through_extends_each_is_seen_from_its_own_file(write: Write, folder: Path) -> None:
    (folder / ".git").mkdir()
    write("target: {model: ./m, tokenizer: ../t}\nengine: {a: ./a}\n", "bases/deep/_base.yaml")
    write("extends: deep/_base.yaml\nengine: {b: ./b}\n", "bases/_middle.yaml")
    profile = load_profile(write("extends: ../bases/_middle.yaml\nengine: {c: ./c}\n", "configs/x.yaml"))

    assert profile.target.model == f"{folder}/bases/deep/m"
    assert profile.target.tokenizer == f"{folder}/bases/t"
    assert profile.engine == {
        "a": f"{folder}/bases/deep/a", "b": f"{folder}/bases/b", "c": f"{folder}/configs/c",
    }  # fmt: skip
