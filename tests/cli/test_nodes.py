"""A profile for several nodes on the command line: `up` starts one, `plan` shows all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.commands import run
from specserve.errors import UsageError

TEXT = """
    target: {model: org/target, tensor_parallel_size: 2}
    hardware: {accelerator: L4-24GB, count: 1, nodes: 2}
"""


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
    write: Callable[..., Path], options: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(["up", str(write(TEXT)), *options])


def test_the_plan_shows_the_command_of_every_node(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(TEXT))
    run(["plan", file, "--vllm", "0.33"])
    said = capsys.readouterr()
    assert said.out.count("--master-addr ADDRESS_OF_NODE_0") == 2
    assert "# `up --node-rank N --set engine.master_addr=ADDRESS_OF_NODE_0` starts each node" in said.err
    asked = ["plan", file, "--vllm", "0.33", "--set", "engine.master_addr=10.0.0.1"]
    run(asked)
    shown = capsys.readouterr().out
    assert shown.startswith("# node 0\nvllm serve org/target")
    assert shown.count("vllm serve") == 2 and shown.rstrip().endswith("--headless")
    run([*asked, "--format", "json"])
    content = json.loads(capsys.readouterr().out)
    assert [node["argv"][-1] for node in content["nodes"]] == ["29501", "--headless"]
    assert content["argv"] == content["nodes"][0]["argv"]


@pytest.mark.vllm
@pytest.mark.installed
def test_other_commands_say_that_they_are_for_one(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(UsageError, match="each of 2 nodes needs a command"):
        run(["generate", str(write(TEXT)), str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")])
