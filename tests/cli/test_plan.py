"""`specserve plan`: data on stdout, what is added on stderr, and no key in either."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run
from tests.cli.conftest import Told

Captured = pytest.CaptureFixture[str]
Write = Callable[..., Path]
TEXT = """
target: {model: org/target}
speculation: {method: draft_model, model: org/draft, num_speculative_tokens: 3}
alternatives: {look: {method: ngram, num_speculative_tokens: 2}}
server: {api_key_env: MY_KEY}
"""


def planned(capsys: Captured, *arguments: str | Path) -> tuple[str, str]:
    assert _run(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr()


def test_the_launch_is_data_and_what_is_added_is_talk(write: Write, capsys: Captured) -> None:
    stdout, stderr = planned(capsys, write(TEXT), "--vllm", "0.33")
    assert stdout.startswith('VLLM_API_KEY="${MY_KEY:?}" \\\nvllm serve org/target \\\n')
    assert stderr.startswith("# for vLLM 0.33 (cuda)\n# added --host: ")


def test_alternatives_and_overrides_change_the_plan(write: Write, capsys: Captured) -> None:
    file = write(TEXT)
    assert (
        "--speculative-config" not in planned(capsys, file, "--vllm", "0.33", "--alternative", "baseline")[0]
    )
    assert "ngram" in planned(capsys, file, "--vllm", "0.33", "--alternative", "look")[0]
    assert "--seed 7" in planned(capsys, file, "--vllm", "0.33", "--set", "engine.seed=7")[0]


def test_a_profile_that_the_rules_object_to_is_not_planned(write: Write, told: Told) -> None:
    file = write("target: {model: a/b}\nenv: {HF_TOKEN: zz-very-secret-zz, LD_PRELOAD: y}")
    stdout, stderr = told(1, "plan", file)
    assert stdout == "" and "did not pass its check: 1 error" in stderr and "warning[SD111]" in stderr
    assert "--no-check" not in stderr and "very-secret" not in stderr


def test_an_error_in_another_variant_does_not_stop_this_one(write: Write, capsys: Captured) -> None:
    text = TEXT.replace("num_speculative_tokens: 2", "num_speculative_tokens: 200")
    file = write(text)
    assert "org/draft" in planned(capsys, file, "--vllm", "0.33")[0]


def test_a_profile_for_another_vllm_than_the_installed_is_planned_by_the_newest_it_names(
    write: Write, capsys: Captured
) -> None:
    _, stderr = planned(capsys, write('target: {model: a/b}\nvllm: "~=0.31.0"'))
    assert stderr.startswith("# for vLLM 0.31 (cuda)")


SGLANG = """
target: {model: org/target, tensor_parallel_size: 2}
speculation: {method: draft_model, model: org/draft, num_speculative_tokens: 3}
engine: {max_num_seqs: 8}
"""


def test_the_command_for_sglang_is_data_and_what_to_mind_is_talk(write: Write, capsys: Captured) -> None:
    stdout, stderr = planned(capsys, write(SGLANG), "--engine", "sglang", "--set", "server.port=31000")
    assert stdout.startswith("sglang serve \\\n  --model-path org/target \\\n  --tp-size 2 \\\n")
    assert "--speculative-algorithm STANDALONE" in stdout and "--port 31000" in stdout
    assert "specserve has never started SGLang" in stderr and "# K = 3 is --speculative-num-steps 3" in stderr


def test_what_sglang_cannot_be_told_has_its_place(write: Write, told: Told) -> None:
    file = write(SGLANG.replace("max_num_seqs: 8", "runner: generate"))
    _, err = told(2, "plan", file, "--engine", "sglang")
    assert "no counterpart for 1 setting" in err and re.search(r":4:\d+: `engine.runner`: ", err)
    assert "--set engine.runner=null" in err


NODES = """
    target: {model: org/target, tensor_parallel_size: 2}
    hardware: {accelerator: L4-24GB, count: 1, nodes: 2}
"""


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "each of 2 nodes needs a command"),
        (["--node-rank", "0"], ": each node needs the address of node 0"),
        (["--node-rank", "2", "--set", "engine.master_addr=10.0.0.1"], "there is no node 2"),
        (["--node-rank", "1", "--detach"], "`--node-rank` and `--detach` cannot be combined"),
    ],
)
def test_one_of_several_nodes_is_started_by_its_number(
    write: Write, options: list[str], message: str, told: Told
) -> None:
    assert message in told(2, "up", str(write(NODES)), *options)[1]


def test_the_plan_shows_the_command_of_every_node(write: Write, capsys: Captured) -> None:
    file = str(write(NODES))
    _run(["plan", file, "--vllm", "0.33"])
    said = capsys.readouterr()
    assert said.out.count("--master-addr ADDRESS_OF_NODE_0") == 2
    assert "# `up --node-rank N --set engine.master_addr=ADDRESS_OF_NODE_0` starts each node" in said.err
    asked = ["plan", file, "--vllm", "0.33", "--set", "engine.master_addr=10.0.0.1"]
    _run(asked)
    shown = capsys.readouterr().out
    assert shown.startswith("# node 0\nvllm serve org/target")
    assert shown.count("vllm serve") == 2 and shown.rstrip().endswith("--headless")
    _run([*asked, "--format", "json"])
    content = json.loads(capsys.readouterr().out)
    assert [node["argv"][-1] for node in content["nodes"]] == ["29501", "--headless"]
    assert content["argv"] == content["nodes"][0]["argv"]
