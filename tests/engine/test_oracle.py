"""The oracle's answers about command lines."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from specserve.checks.oracle import VllmQuestion, VllmToAsk, ask, named
from specserve.hardware.accelerators import assume
from specserve.models.facts import ModelFacts
from specserve.models.hub import read_model
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm import versions
from specserve.vllm.versions import table

pytestmark = pytest.mark.vllm
DEMO = Path(__file__).parents[2] / "demo"
TARGET, DRAFT = "target", "draft"
Judge = Callable[..., dict[str, Any]]


ONE_BY_ONE = """
from specserve.engine import oracle
answer = oracle.answer
def one_by_one(parser, requests, lines):
    for request in requests:
        oracle._LIMIT_S = request.get("limit_s", 120)
        answer(parser, [request], lines)
oracle.answer = one_by_one
oracle.main()
"""
"""The child, which answers before its input ends."""
GPU = {"name": "NVIDIA H100-80GB", "capability": [9, 0], "total_bytes": 85_520_809_984}
BLOCK = {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 4}
SPECULATION = ["--speculative-config", json.dumps(BLOCK)]
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 512,
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 2048,
}  # fmt: skip
HEAD = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 512}


class Child:
    """A running child, which is asked one question after the other."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-P", "-c", ONE_BY_ONE, "--gpu", json.dumps(GPU)]
        self.folder, self.asked = folder, 0
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, text=True
        )

    def answer(self, request: dict[str, Any], models: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.asked += 1
        place = self.folder / str(self.asked)
        for name, config in models.items():
            (place / name).mkdir(parents=True)
            (place / name / "config.json").write_text(json.dumps(config))
        self.process.stdin.write(json.dumps({**request, "id": self.asked, "folder": str(place)}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert found.pop("id") == self.asked
        return dict(json.loads(json.dumps(found).replace(f"{place}/", "")))


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """vLLM for eight pretended H100: it is imported once for all tests."""
    started = Child(tmp_path_factory.mktemp("child"))
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.fixture
def judge(child: Child) -> Judge:
    """Asks about a launch of the demo pair, or of the models that are given."""
    pair = {name: read_model(str(DEMO / name), offline=True).config for name in (TARGET, DRAFT)}

    def ask(
        *argv: str, models: Mapping[str, Any] = pair, env: Mapping[str, str] | None = None, **build: Any
    ) -> dict[str, Any]:
        return child.answer({"argv": [TARGET, *argv], "env": env or {}, "build": build}, models)

    return ask


def test_vllm_judges_a_launch_for_a_gpu_that_is_not_here(judge: Judge) -> None:
    found = judge("--max-model-len", "512", *SPECULATION)["effective"]
    assert found["max_model_len"] == 512
    assert (found["model_runner"], found["attention_backends"]) == ("V2", ["FLASH_ATTN"])
    assert found["cudagraph_mode"] == "FULL_AND_PIECEWISE"


def test_vllm_refuses_in_its_words_with_the_line(judge: Judge) -> None:
    too_long = judge("--max-model-len", "9999")
    assert "max_model_len (9999)" in too_long["refused"]
    assert too_long["at"].startswith("vllm/config/model.py:")
    assert "divisible by tensor parallel size (3)" in judge("--tensor-parallel-size", "3")["refused"]
    assert judge("--max-num-seqs", "many") == {
        "refused": "argument --max-num-seqs: invalid int value: 'many'"
    }
    assert judge("--unheard-of")["refused"] == "unrecognized arguments: --unheard-of"
    assert judge("--help") == {"not_judged": "vLLM ended without an answer"}


def test_what_vllm_runs_otherwise_stands_beside_what_is_asked_for(judge: Judge) -> None:
    found = judge(
        "--max-num-seqs", "64", "--max-cudagraph-capture-size", "100", "--served-model-name", "demo"
    )
    (item,) = found["changed"]
    said = {"argument": "max_cudagraph_capture_size", "value": 100, "effective": 96}
    assert said.items() <= item.items() and "max_cudagraph_capture_size" in item["why"][0]


def test_a_schedule_leaves_the_v1_runner_piecewise_graphs_alone(judge: Judge) -> None:
    block = BLOCK | {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 256, 1]]}
    schedule = ["--speculative-config", json.dumps(block)]
    modes = {
        runner: judge(*schedule, env={"VLLM_USE_V2_MODEL_RUNNER": runner})["effective"]["cudagraph_mode"]
        for runner in "01"
    }
    assert modes == {"0": "PIECEWISE", "1": "FULL_AND_PIECEWISE"}


def test_the_plainest_launches_have_no_warning_left(
    judge: Judge, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "cache"))
    block = "{method: eagle3, model: org/head, num_speculative_tokens: 2}"
    profile = load_profile(write(f"target: {{model: org/m}}\nspeculation: {block}\n"))
    installed = versions.installed()
    assert installed is not None
    target, head = (ModelFacts(f"org/{name}", "hub", each) for name, each in (("m", LLAMA), ("head", HEAD)))
    machine, vllm = assume("1xH100-80GB"), VllmToAsk(installed.version)
    plan = partial(launch, table=table(installed.version), platform="cuda", version=installed.version)
    plans = [plan(named(each, draft=True)) for each in (profile, replace(profile, speculation=None))]
    questions = [
        VllmQuestion(plans[0], machine, vllm, target, head, "eagle3", (20 << 30, 10 << 30)),
        VllmQuestion(plans[1], machine, vllm, target),
    ]
    for found in ask(questions):
        assert (found.refused, found.not_judged, found.warnings, found.skipped) == (None, None, (), {})
    low, high = ask(questions[:1])[0].build["plans"]  # kept
    assert 0 < low["tokens"] < high["tokens"] and low["kv_bytes"] == high["kv_bytes"] - (10 << 30)


def test_models_are_built_with_the_bytes_of_their_checkpoints(judge: Judge) -> None:
    found = judge(*SPECULATION)
    for name in (TARGET, DRAFT):
        tensors = read_model(str(DEMO / name), offline=True).tensors or {}
        assert found["build"][name] >= sum(2 * math.prod(each.shape) for each in tensors.values())
    assert (found["build"]["kv"], found["skipped"]) == (["FullAttentionSpec"], {})


def test_of_pipeline_stages_the_last_is_built_which_has_the_draft(judge: Judge) -> None:
    whole, last = (judge("--pipeline-parallel-size", str(stages), *SPECULATION)["build"] for stages in (1, 2))
    assert 0 < last["target"] < whole["target"] and 0 < last["draft"] <= whole["draft"]


def test_a_table_that_a_head_shares_with_its_target_is_counted_once(judge: Judge) -> None:
    block = json.dumps({"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 2})
    models = {TARGET: LLAMA, DRAFT: HEAD}
    own, shared = (
        judge("--speculative-config", block, models=models, draft_lacks=lacks)["build"]
        for lacks in ([], ["embed_tokens"])
    )
    table = 2 * 512 * 128
    assert own["draft"] - shared["draft"] == table


def test_a_launch_that_only_the_speculator_refuses_is_refused(judge: Judge) -> None:
    block = {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 2}
    gpt2 = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "torch_dtype": "bfloat16", "n_embd": 128,
        "n_head": 2, "n_layer": 8, "n_positions": 2048, "vocab_size": 512,
    }  # fmt: skip
    found = judge("--speculative-config", json.dumps(block), models={TARGET: gpt2, DRAFT: HEAD})
    assert "refused" in found or found["skipped"]
    assert "EAGLE" in found.get("refused", "").upper()


def test_an_interleaved_cache_of_context_parallel_ranks_is_refused_with_speculation(judge: Judge) -> None:
    """vllm-project/vllm#28407: an assertion of the model runner, after loading."""
    block = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    sizes = "--tensor-parallel-size 2 --decode-context-parallel-size 2 --cp-kv-cache-interleave-size 16"
    models = {TARGET: LLAMA | {"num_key_value_heads": 1}}
    found = judge(*sizes.split(), "--speculative-config", json.dumps(block), models=models)
    assert "cp_kv_cache_interleave_size > 1 is not supported" in found["refused"]


def test_a_cache_that_no_gpu_could_hold_is_refused_by_the_planner(judge: Judge) -> None:
    long = {**LLAMA, "max_position_embeddings": 1 << 28, "num_hidden_layers": 64}
    found = judge(models={TARGET: long})
    assert (found["step"], "KV cache" in found["refused"]) == ("KV cache", True)


def test_what_needs_the_gpu_is_skipped_with_its_reason(judge: Judge) -> None:
    custom = {**LLAMA, "quantization_config": {"quant_method": "no-such-method"}}
    assert "no-such-method" in judge(models={TARGET: custom})["refused"]
    block = {"method": "suffix", "num_speculative_tokens": 4}
    found = judge("--speculative-config", json.dumps(block))
    assert "refused" not in found and ("Arctic" in found.get("not_judged", "") or found["effective"])


def test_no_answer_depends_on_what_was_asked_before(judge: Judge) -> None:
    """vLLM fills the default of an argument, which every later launch gets, and warns of some things once."""
    launches: list[tuple[list[str], dict[str, str]]] = [
        (["--max-model-len", "512"], {}),
        (["--load-format", "tensorizer"], {}),
        (["--max-model-len", "9999"], {}),
        (["--compilation-config", '{"cudagraph_mode": "PIECEWISE"}', *SPECULATION], {}),
        (["--kv-cache-dtype", "fp8"], {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    ]
    first = [judge(*argv, env=env) for argv, env in launches]
    assert [judge(*argv, env=env) for argv, env in reversed(launches)] == first[::-1]
    assert "refused" not in first[0] and "refused" in first[2]


def test_a_late_question_is_not_judged_the_next_one_is_and_nothing_is_left(
    judge: Judge, child: Child
) -> None:
    config = read_model(str(DEMO / TARGET), offline=True).config
    late = child.answer({"argv": [TARGET], "limit_s": 0.001}, {TARGET: config})
    assert late == {"not_judged": "vLLM did not answer in time"}
    assert "effective" in judge()
    process = psutil.Process(child.process.pid)
    assert (process.num_threads(), process.children(recursive=True)) == (1, [])
