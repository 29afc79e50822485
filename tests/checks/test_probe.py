"""`--ask-vllm`: what the parent asks, and what it makes of the child's answer. The child here is a few lines."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from specserve.checks.probe import ask
from specserve.errors import FactError
from specserve.memory.demand import Demand, demand
from specserve.memory.settings import Settings
from specserve.models.facts import ModelFacts, Tensor
from tests.plan.memory.recordings import ANSWERED, RECORDED, facts_of, settings_of

_CHILD = """
import json, pathlib, sys, time
request = json.loads(sys.stdin.readline())
log = pathlib.Path({log!r})
config = json.loads((pathlib.Path(request["engine_kwargs"]["model"]) / "config.json").read_text())
log.write_text((log.read_text() if log.exists() else "") + json.dumps([request, config]) + chr(10))
{body}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "cache"))


def child(tmp_path: Path, body: str) -> list[str]:
    """A child that notes what it is asked, then does this."""
    script = tmp_path / "child.py"
    script.write_text(_CHILD.format(log=str(tmp_path / "asked"), body=body))
    return [sys.executable, "-S", str(script)]


def asked(tmp_path: Path) -> list[Any]:
    return [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]


def answering(tmp_path: Path, answer: Mapping[str, Any]) -> list[str]:
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    return child(tmp_path, f"print(open({str(tmp_path / 'answer.json')!r}).read())")


def of(case: Mapping[str, Any], command: list[str], **changes: Any) -> Demand:
    speculation = case.get("speculation") or {}
    draft = facts_of(speculation["model"]) if "model" in speculation else None
    values: dict[str, Any] = {
        "settings": settings_of(case),
        "method": speculation.get("method"),
        "num_speculative_tokens": speculation.get("num_speculative_tokens", 0),
        "command": command,
        "version": "0.32.0",
    }
    return ask(facts_of(case["model"]), draft, **{**values, **changes})


def case_of(name: str) -> Mapping[str, Any]:
    (case,) = (case for case in ANSWERED if case["name"] == name)
    return case


@pytest.mark.parametrize(
    "name",
    ["llama-tp4", "llama+draft-tp2", "llama+eagle3-tp2", "gemma3-tp1", "gpt-oss+draft", "deepseek-v3+mtp-tp2",
     "llama4-tp2", "llama-tied-pp2", "mistral-window-tp2", "qwen3-moe-ep2", "gemma4+mtp-tp2", "qwen3.5+mtp-tp2"],
)  # fmt: skip
def test_vllms_answer_becomes_the_demand_with_vllm_as_its_basis(name: str, tmp_path: Path) -> None:
    case, answer = case_of(name), RECORDED[name]
    told = of(case, answering(tmp_path, answer))
    assert told.basis == "vllm"
    for mine, theirs in zip(told.stages, answer["stages"], strict=True):
        assert mine.target_weights_bytes == theirs["target"]["parameters"]
        assert mine.draft_weights_bytes == theirs["draft"]["parameters"]
    (plan,) = answer["plans"]
    assert told.tokens([plan["kv_bytes"]] * len(told.stages)) == plan["tokens"]


def test_an_answer_from_the_cpu_is_put_into_the_blocks_of_a_gpu(tmp_path: Path) -> None:
    case = case_of("llama-tp2")
    settings = Settings(
        max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=1024, tensor_parallel_size=2
    )
    told = of(case, answering(tmp_path, RECORDED["llama-tp2"]), settings=settings)
    formula = demand(facts_of("llama"), settings=settings)
    assert told.groups == formula.groups
    assert told.stages == formula.stages


def test_the_child_gets_config_json_and_nothing_that_could_be_run(tmp_path: Path) -> None:
    known = facts_of("llama")
    facts = ModelFacts(known.model, "hub", {**known.config, "auto_map": {"AutoConfig": "evil.Config"}})
    case = case_of("llama-tp1")
    ask(
        facts,
        settings=settings_of(case),
        command=answering(tmp_path, RECORDED["llama-tp1"]),
        version="0.32.0",
    )
    ((request, config),) = asked(tmp_path)
    assert config == known.config
    assert "trust_remote_code" not in request["engine_kwargs"]
    assert request["engine_kwargs"]["load_format"] == "dummy"
    assert not Path(request["engine_kwargs"]["model"]).exists()


def test_a_head_is_asked_for_with_what_its_checkpoint_lacks(tmp_path: Path) -> None:
    case = case_of("llama+eagle3-tp1")
    head = facts_of("eagle3-llama")
    tensors = {"embed_tokens.weight": Tensor("BF16", (32003, 512)), "fc.weight": Tensor("BF16", (512, 1536))}
    facts = ModelFacts(head.model, "hub", head.config, tensors=tensors)
    ask(
        facts_of("llama"), facts, settings=settings_of(case), method="eagle3", num_speculative_tokens=3,
        command=answering(tmp_path, RECORDED["llama+eagle3-tp1"]), version="0.32.0",
    )  # fmt: skip
    ((request, _),) = asked(tmp_path)
    assert request["draft_lacks"] == ["lm_head"]
    assert request["engine_kwargs"]["speculative_config"]["method"] == "eagle3"


def test_an_answer_is_asked_for_once_by_configuration_and_version(tmp_path: Path) -> None:
    case, command = case_of("llama-tp1"), answering(tmp_path, RECORDED["llama-tp1"])
    assert of(case, command) == of(case, command)
    assert len(asked(tmp_path)) == 1
    of(case, command, version="0.33.0")
    assert len(asked(tmp_path)) == 2


def test_a_damaged_answer_in_the_cache_is_asked_for_again(tmp_path: Path) -> None:
    case, command = case_of("llama-tp1"), answering(tmp_path, RECORDED["llama-tp1"])
    of(case, command)
    (file,) = (tmp_path / "cache" / "probe").iterdir()
    file.write_text("{")
    of(case, command)
    assert len(asked(tmp_path)) == 2


def test_what_vllm_refuses_is_said_in_its_words_and_not_remembered(tmp_path: Path) -> None:
    command = child(tmp_path, "print(json.dumps({'error': 'No supported config format found'}))")
    for _ in range(2):
        with pytest.raises(
            FactError, match=r"vLLM 0\.32\.0 could not build `llama`: No supported config format found"
        ):
            of(case_of("llama-tp1"), command)
    assert len(asked(tmp_path)) == 2


@pytest.mark.parametrize("body", ["", "print('nothing that is JSON')", "print('[1, 2]')", "sys.exit(3)"])
def test_a_child_that_says_nothing_is_an_error(body: str, tmp_path: Path) -> None:
    with pytest.raises(FactError, match="vLLM said nothing on what `llama` needs"):
        of(case_of("llama-tp1"), child(tmp_path, body))


def test_an_answer_of_another_shape_is_an_error(tmp_path: Path) -> None:
    command = child(tmp_path, "print(json.dumps({'stages': [{'kv': [{'kind': 'FullAttentionSpec'}]}]}))")
    with pytest.raises(FactError, match=r"the answer of vLLM 0\.32\.0 on `llama` does not make sense"):
        of(case_of("llama-tp1"), command)


def test_a_kind_of_layer_that_is_not_known_is_an_error(tmp_path: Path) -> None:
    answer = json.loads(json.dumps(RECORDED["llama-tp1"]).replace("FullAttentionSpec", "CrossAttentionSpec"))
    with pytest.raises(FactError, match="KV cache layers of kind `CrossAttentionSpec` are not known"):
        of(case_of("llama-tp1"), answering(tmp_path, answer))


def test_a_child_that_does_not_answer_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "pid"

    def time_is_up(process: subprocess.Popen[str], line: str, *, timeout: float) -> None:
        assert process.stdin is not None
        process.stdin.write(line)
        process.stdin.flush()
        while not noted.exists() or not noted.read_text():
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", time_is_up)
    body = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, file=open(log.with_name('pid'), 'w')); "
    command = child(tmp_path, body.replace("; ", "\n") + "\ntime.sleep(60)")
    with pytest.raises(FactError, match=r"vLLM did not say within 2 s what the models need"):
        of(case_of("llama-tp1"), command, limit_s=2.0)
    pid = int(noted.read_text())
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
