"""SGLang's flags as vLLM's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specserve.convert.convert import converted
from specserve.convert.launch import Launch
from specserve.convert.reading import read
from specserve.convert.translate import translated
from specserve.profile.tree import Node
from specserve.vllm.versions import known_versions, table

START = "python -m sglang.launch_server --model-path a/b "


def of(flags: str) -> Launch:
    return translated(
        read(START + flags, file="x.sh", folder=Path("nowhere"))[0], table=table(known_versions()[-1])
    )


def settings(flags: str) -> dict[str, Any]:
    return {
        name: plain(setting.node)
        for name, setting in of(flags).settings.items()
        if name not in ("model", "speculative_config")
    }


def plain(node: Node) -> Any:
    return [item.value for item in node.value] if isinstance(node.value, list) else node.value


def speculation(flags: str) -> dict[str, Any]:
    config = of(flags).settings["speculative_config"].node.mapping or {}
    return {name: node.value for name, node in config.items()}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--tp 4 --dp-size 2", {"tensor_parallel_size": 4, "data_parallel_size": 2}),
        ("--tp 8 --dp-size 8 --enable-dp-attention", {"tensor_parallel_size": 8}),
        ("--disable-cuda-graph --disable-radix-cache", {"enforce_eager": True, "enable_prefix_caching": False}),
        ("--tool-call-parser llama3", {"tool_call_parser": "llama3_json", "enable_auto_tool_choice": True}),
        ("--trust-remote-code --kv-cache-dtype fp8_e5m2", {"trust_remote_code": True, "kv_cache_dtype": "fp8_e5m2"}),
        ("--ep-size 8 --tp 8", {"tensor_parallel_size": 8, "enable_expert_parallel": True}),
        ("--lora-paths a=b c=d --preferred-sampling-params x y --crash-dump-folder x y", {}),
        ("--mem-fraction-static 0.8 --chunked-prefill-size 4096",
         {"gpu_memory_utilization": 0.8, "max_num_batched_tokens": 4096}),
        ("--chunked-prefill-size -1", {}),
        ("--disable-decode-cuda-graph --disable-prefill-cuda-graph", {"enforce_eager": True}),
    ],
)  # fmt: skip
def test_flags_become_arguments_and_the_rest_is_left_out(flags: str, expected: dict[str, Any]) -> None:
    assert settings(flags) == expected


@pytest.mark.parametrize(
    ("options", "method", "model", "k"),
    [
        ("algorithm=EAGLE3 draft-model-path=a/h num-steps=3 eagle-topk=1 num-draft-tokens=4", "eagle3", "a/h", 3),
        ("algorithm=STANDALONE draft-model-path=a/d num-draft-tokens=5", "draft_model", "a/d", 4),
        ("algorithm=EAGLE num-steps=1 num-draft-tokens=2", "mtp", None, 1),
        ("algorithm=NEXTN", "mtp", None, 3),
        ("algorithm=NGRAM num-draft-tokens=8", "ngram", None, 7),
        ("algorithm=DFLASH draft-model-path=a/d num-steps=1 num-draft-tokens=16", "dflash", "a/d", 15),
        ("algorithm=DFLASH draft-model-path=a/d dflash-block-size=8", "dflash", "a/d", 7),
        ("algorithm=DSPARK draft-model-path=a/d dspark-block-size=7", "dspark", "a/d", 7),
    ],
)  # fmt: skip
def test_speculation_becomes_a_block_with_a_method_and_k(
    options: str, method: str, model: str | None, k: int
) -> None:
    made = speculation(" ".join(f"--speculative-{option}" for option in options.split()))
    expected = {"method": method, "model": model, "num_speculative_tokens": k}
    assert made == {name: value for name, value in expected.items() if value is not None}


def test_the_samplers_of_drafts_are_keys_of_the_block() -> None:
    flags = "--speculative-use-rejection-sampling --speculative-use-block-verification"
    made = speculation(f"--speculative-algorithm EAGLE3 --speculative-draft-model-path a/h {flags}")
    assert (made["draft_sample_method"], made["rejection_sample_method"]) == ("probabilistic", "block")


def test_each_flag_that_is_left_out_is_noted_with_the_reason() -> None:
    notes = [
        note.text for note in of("--mem-fraction-static 0.8 --stream-output --speculative-eagle-topk 4").notes
    ]
    assert "`--stream-output` is left out: vLLM has nothing of the kind" in notes
    (note,) = [one.text for one in of("--speculative-algorithm X").notes if one.path == "speculation.method"]
    assert note == "`--speculative-algorithm X` is left out: vLLM has no such method"
    given = of("--tool-call-parser unheard")
    assert "tool_call_parser" not in given.settings and "vLLM does not have `unheard`" in given.notes[0].text
    assert "`--speculative-eagle-topk` is left out: vLLM drafts along a chain, which is a top-k of 1" in notes
    assert any(note.startswith("SGLang counts weights and KV cache in its share") for note in notes)


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ("--tool-call-parser $P", "frontend.tool_call_parser"),
        ("--ep-size $N", "engine.enable_expert_parallel"),
        ("--speculative-algorithm $A --speculative-draft-model a/d --speculative-num-steps 3", "speculation.method"),
        ("--speculative-algorithm EAGLE3 --speculative-draft-model-path a/d --speculative-num-steps $N",
         "speculation.num_speculative_tokens"),
    ],
)  # fmt: skip
def test_what_the_source_does_not_say_is_refused(flags: str, path: str) -> None:
    result = converted(read(START + flags, file="x.sh", folder=Path("nowhere"))[0], origin="x")
    assert [path in finding.message for finding in result.unresolved] == [True]
