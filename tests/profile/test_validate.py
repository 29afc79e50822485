"""The whole of a profile: its name, its schema number, its version range, and all problems at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.diagnostics import Span
from specserve.profile.load import load_profile
from specserve.profile.validate import name_of

Problems = Callable[..., list[str]]
Write = Callable[..., Path]

_BAD = """\
schema: 1
nmae: demo
vllm: newest
target:
  model: org/model
  tensor_parallel_size: "4"
  dtype: false
speculation:
  method: eagle3
  modle: org/head
  num_speculative_tokens: 010
engine:
  max_num_seqs: 64
  max_num_seqs: 32
  seed: [1, .nan]
server: {host: , port: 70000}
expect:
  - {workload: chat, concurency: 16}
env: {1X: a}
"""


def test_all_problems_of_a_file_come_in_one_run_in_file_order(problems: Problems) -> None:
    assert [line.partition(" ")[0] + line.partition("`")[1] + line.split("`")[1] for line in problems(_BAD)] == [
        "2:1`nmae", "3:7`vllm", "6:25`target.tensor_parallel_size", "7:10`target.dtype", "10:3`modle",
        "11:27`speculation.num_speculative_tokens", "14:3`max_num_seqs", "15:13`engine.seed[1]", "16:24`server.port",
        "18:22`concurency", "19:7`env",
    ]  # fmt: skip


def test_every_value_knows_where_it_was_written(write: Write) -> None:
    profile = load_profile(
        write("target:\n  model: x\nexpect:\n  - {workload: chat}\nengine: {a: {b: [1, 22]}}\n")
    )

    assert profile.span("target.model") == Span("demo.yaml", 2, 10, 2, 11, "target.model")
    assert str(profile.span("expect[0].workload")) == "demo.yaml:4:16"
    assert str(profile.span("engine.a.b[1]")) == "demo.yaml:5:21"


def test_the_place_of_a_default_is_the_section_around_it_or_the_file(write: Write) -> None:
    profile = load_profile(write("\ntarget: {model: x}\n"))

    assert str(profile.span("target.dtype")) == "demo.yaml:2:9"
    assert str(profile.span("server.port")) == "demo.yaml:1:1"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("llama70b-8b.yaml", "llama70b-8b"), ("Llama 3.1 (70B).yml", "llama-3-1-70b"), ("_base.yaml", "base"),
        ("a/b/c.d.yaml", "c-d"), ("-", "stdin"), ("日本.yaml", "profile"), ("x", "x"), ("__a__b__", "a-b"),
    ],
)  # fmt: skip
def test_the_name_is_the_stem_in_lower_case_with_dashes(file: str, name: str) -> None:
    assert name_of(file) == name


@pytest.mark.parametrize("name", ["My_Model", "a--b", "-a", "ä", "a b"])
def test_another_name_is_refused(problems: Problems, name: str) -> None:
    assert problems(f"target: {{model: x}}\nname: {name}\n") == [
        f"2:7 SD006 `name` must be lower-case letters, digits and single dashes; found `{name}`"
    ]


@pytest.mark.parametrize("text", ["0.32", "latest", "'>=0.32 <0.34'", "'>='", "^0.32"])
def test_anything_else_is_no_range_of_versions(problems: Problems, text: str) -> None:
    (told,) = problems(f"target: {{model: x}}\nvllm: {text}\n")
    assert told.startswith("2:7 SD006 `vllm` must be a range of versions such as `>=0.32,<0.34`; found ")


def test_null_is_vllms_default_as_if_the_key_were_not_there(write: Write) -> None:
    profile = load_profile(write("target: {model: x}\nengine: {a: null, b: {c: null}}\nfrontend: {d: ~}\n"))

    assert profile.engine == {"b": {"c": None}}
    assert profile.frontend == {}
