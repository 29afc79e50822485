"""The oracle's answers about command lines."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from specserve.checks.oracle import VllmQuestion, VllmToAsk, ask
from specserve.hardware.accelerators import assume
from specserve.models.facts import ModelFacts
from specserve.models.read import read_model
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm import versions
from specserve.vllm.versions import table

pytestmark = pytest.mark.vllm
DEMO = Path(__file__).parents[2] / "demo"
TARGET, DRAFT = "target", "draft"
Judge = Callable[..., dict[str, Any]]


def test_each_request_has_an_answer_in_the_words_of_vllm() -> None:
    lines = [
        ["org/m", "--max-num-seqs", "8", "--speculative-config.method", "mtp"],
        ["--model", "org/m", "--max-num-seqs", "many"],
        ["org/m", "--unheard-of"],
        ["--help"],
    ]
    text = "".join(json.dumps({"id": number, "argv": argv}) + "\n" for number, argv in enumerate(lines))
    child = subprocess.run(
        [sys.executable, "-P", "-m", "specserve.engine.oracle"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    taken, wrong, unknown, help_text = map(json.loads, child.stdout.splitlines())
    assert taken["arguments"]["model_tag"] == "org/m" and taken["arguments"]["max_num_seqs"] == 8
    assert taken["arguments"]["speculative_config"] == {"method": "mtp"}
    assert wrong == {"id": 1, "refused": "argument --max-num-seqs: invalid int value: 'many'"}
    assert unknown["refused"] == "unrecognized arguments: --unheard-of"
    assert "refused" in help_text


GPU = {"name": "NVIDIA H100-80GB", "capability": [9, 0], "total_bytes": 85_520_809_984}
BLOCK = {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 4}
SPECULATION = ["--speculative-config", json.dumps(BLOCK)]
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 512,
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 2048,
}  # fmt: skip
HEAD = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 512}


def headers(folder: Path) -> list[tuple[str, str, list[int]]]:
    """What the safetensors headers of a model say."""
    facts = read_model(str(folder), offline=True)
    return [(name, item.dtype, list(item.shape)) for name, item in (facts.tensors or {}).items()]


class Child:
    """A running child, which is asked one question after the other."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-P", "-m", "specserve.engine.oracle", "--gpu", json.dumps(GPU)]
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
    assert found["max_model_len"] == found["draft.max_model_len"] == 512
    assert (found["model_runner"], found["attention_backends"]) == ("V2", ["FLASH_ATTN"])
    assert found["num_speculative_tokens"] == 4
    assert found["cudagraph_mode"] == "FULL_AND_PIECEWISE"


def test_vllm_refuses_in_its_words_with_the_line(judge: Judge) -> None:
    too_long = judge("--max-model-len", "9999")
    assert "max_model_len (9999)" in too_long["refused"]
    assert too_long["at"].startswith("vllm/config/model.py:")
    assert "divisible by tensor parallel size (3)" in judge("--tensor-parallel-size", "3")["refused"]


def test_what_vllm_runs_otherwise_stands_beside_what_is_asked_for(judge: Judge) -> None:
    found = judge(
        "--max-num-seqs", "64", "--max-cudagraph-capture-size", "100", "--served-model-name", "demo"
    )
    (item,) = found["changed"]
    said = {"argument": "max_cudagraph_capture_size", "value": 100, "effective": 96}
    assert said.items() <= item.items() and "max_cudagraph_capture_size" in item["why"][0]


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
    plans = [
        launch(each, table=table(installed.version), platform="cuda", version=installed.version)
        for each in (profile, replace(profile, speculation=None))
    ]
    questions = [
        VllmQuestion(plans[0], machine, vllm, target, head, "eagle3", (20 << 30, 10 << 30)),
        VllmQuestion(plans[1], machine, vllm, target),
    ]
    for found in ask(questions):
        assert (found.refused, found.not_judged, found.warnings, found.skipped) == (None, None, (), {})
    low, high = ask(questions[:1])[0].build["plans"]  # kept
    assert 0 < low["tokens"] < high["tokens"] and low["kv_bytes"] == high["kv_bytes"] - (10 << 30)


def test_models_are_built_and_their_tensors_are_tried(judge: Judge) -> None:
    tensors = {name: headers(DEMO / name) for name in (TARGET, DRAFT)}
    found = judge(*SPECULATION, draft_tensors=tensors[DRAFT])
    (stage,) = found["build"]["stages"]
    for name, role in ((TARGET, "target"), (DRAFT, "draft")):
        sizes = [2 * math.prod(shape) for _, _, shape in tensors[name]]
        assert stage[role]["parameters"] >= sum(sizes)
    assert {layer["draft"] for layer in stage["kv"]} == {True, False}
    assert found["skipped"] == {}
    tensors[DRAFT][0] = ("nonsense.weight", *tensors[DRAFT][0][1:])
    wrong = judge(*SPECULATION, draft_tensors=tensors[DRAFT])
    assert "no module or parameter named 'nonsense'" in wrong["refused"]
    assert wrong["step"] == "weights of the draft"


def test_a_table_that_a_head_shares_with_its_target_is_counted_once(judge: Judge) -> None:
    block = json.dumps({"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 2})
    models = {TARGET: LLAMA, DRAFT: HEAD}
    own, shared = (
        judge("--speculative-config", block, models=models, draft_lacks=lacks)["build"]["stages"][0]
        for lacks in ([], ["embed_tokens"])
    )
    table = 2 * 512 * 128
    assert own["draft"]["parameters"] - shared["draft"]["parameters"] == table


def test_a_launch_that_only_the_speculator_refuses_is_refused(judge: Judge) -> None:
    block = {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 2}
    gpt2 = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "torch_dtype": "bfloat16", "n_embd": 128,
        "n_head": 2, "n_layer": 8, "n_positions": 2048, "vocab_size": 512,
    }  # fmt: skip
    found = judge("--speculative-config", json.dumps(block), models={TARGET: gpt2, DRAFT: HEAD})
    assert "refused" in found or found["skipped"]
    assert "EAGLE" in found.get("refused", "").upper()


def test_a_head_for_more_layers_than_vllm_reads_is_refused_by_its_tensors(judge: Judge) -> None:
    """vllm-project/vllm#54526: four auxiliary layers, and `fc` is built for three."""
    block = {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 2}
    models = {TARGET: LLAMA, DRAFT: {**HEAD, "eagle_aux_hidden_state_layer_ids": [1, 3, 5, 7]}}
    tensors = [("fc.weight", "BF16", [128, 512])]
    found = judge("--speculative-config", json.dumps(block), models=models, draft_tensors=tensors)
    assert "torch.Size([128, 512])" in found["refused"] and found["step"] == "weights of the draft"


def test_an_interleaved_cache_of_context_parallel_ranks_is_refused_with_speculation(judge: Judge) -> None:
    """vllm-project/vllm#28407: an assertion of the model runner, after loading."""
    block = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    words = [
        "--tensor-parallel-size",
        "2",
        "--decode-context-parallel-size",
        "2",
        "--cp-kv-cache-interleave-size",
        "16",
    ]
    found = judge(
        *words, "--speculative-config", json.dumps(block), models={TARGET: LLAMA | {"num_key_value_heads": 1}}
    )
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


EXTRA = "--model-loader-extra-config"
OWN_KEYS = {
    "runai_streamer": {"concurrency": 16, "memory_limit": 1 << 30},
    "sharded_state": {"pattern": "model-{rank}-{part}.safetensors"},
    "runai_streamer_sharded": {"pattern": "model-{rank}-{part}.safetensors"},
    "tensorizer": {"tensorizer_config": {"tensorizer_uri": "s3://bucket/model.tensors"}},
    "dummy": {},
    "fastsafetensors": {},
    "auto": {"enable_multithread_load": True, "num_threads": 2},
}


@pytest.mark.parametrize("name", OWN_KEYS)
def test_every_load_format_takes_its_own_keys_and_no_others(name: str, judge: Judge) -> None:
    words, tensors = ["--load-format", name, *SPECULATION], headers(DEMO / DRAFT)
    found = judge(*words, EXTRA, json.dumps(OWN_KEYS[name]), draft_tensors=tensors)
    assert "refused" not in found, found
    wrong = judge(*words, EXTRA, '{"no_such_key": 1}', draft_tensors=tensors)
    # the constructor of the last hands them to a library that is not here
    assert "refused" in wrong or name == "tensorizer"


def test_a_draft_that_is_loaded_in_another_way_is_judged_by_that_one(judge: Judge) -> None:
    tensors = headers(DEMO / DRAFT)
    tensors[0] = ("nonsense.weight", *tensors[0][1:])
    words = ["--load-format", "dummy", "--speculative-config"]
    assert "refused" not in judge(*words, json.dumps(BLOCK), draft_tensors=tensors)
    block = json.dumps({**BLOCK, "draft_load_config": {"load_format": "safetensors"}})
    assert "nonsense" in judge(*words, block, draft_tensors=tensors)["refused"]


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
    for _ in range(9):
        again = [judge(*argv, env=env) for argv, env in launches]
        assert again == first
    assert "refused" not in first[0] and "refused" in first[2]


def test_a_question_leaves_no_process_and_no_thread(judge: Judge, child: Child) -> None:
    judge()
    process = psutil.Process(child.process.pid)
    assert (process.num_threads(), process.children(recursive=True)) == (1, [])


def test_a_question_that_takes_too_long_is_not_judged_and_the_next_one_is(judge: Judge, child: Child) -> None:
    config = read_model(str(DEMO / TARGET), offline=True).config
    late = child.answer({"argv": [TARGET], "limit_s": 0}, {TARGET: config})
    assert late == {"not_judged": "vLLM did not answer in time"}
    assert "effective" in judge()
