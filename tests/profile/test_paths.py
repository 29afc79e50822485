"""A relative path is seen from the file that wrote it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.profile.load import load_profile

Write = Callable[..., Path]


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
