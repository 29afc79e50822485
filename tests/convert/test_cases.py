"""Classes of public launch files, each by a reduced file of tests/data/convert, with the right answer."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from specserve.cli.app import _run

DATA = Path(__file__).parents[1] / "data" / "convert"
CASES: dict[str, tuple[int, str, list[str]]] = {
    "docker-inspect.json": (
        0, "{vllm: '>=0.32,<0.33', target: {model: /srv/models/qwen, tensor_parallel_size: 2}, "
        "speculation: {method: ngram, num_speculative_tokens: 3}, hardware: {count: 2}, env: "
        "{VLLM_LOGGING_LEVEL: DEBUG, CUDA_VISIBLE_DEVICES: '2,3'}}",
        ["`HF_TOKEN` is left out", "it is `/models/qwen` in the source's container", "`ipc: host`",
         "`mem_limit: 68719476736`", "`restart: always`"],
    ),
    "offline-draft.py": (
        1, "{target: {model: meta-llama/Llama-3.1-70B-Instruct, tensor_parallel_size: 4}, speculation: "
        "{method: draft_model, model: Qwen/Qwen2-7B-Instruct, num_speculative_tokens: 5}, engine: "
        "{gpu_memory_utilization: 0.9}}",
        ["`speculation.model`: formerly `speculative_model`"],
    ),
    "api-server.sh": (
        0, "{target: {model: meta-llama/Llama-3.1-70B-Instruct, tensor_parallel_size: 4}, speculation: "
        "{method: draft_model, model: meta-llama/Llama-3.2-1B-Instruct, num_speculative_tokens: 5, "
        "draft_tensor_parallel_size: 1}, server: {host: 127.0.0.1, port: 8000}, env: "
        "{CUDA_VISIBLE_DEVICES: '0,1,2,3'}}",
        ["listens on every interface (`--host 0.0.0.0`)"],
    ),
    "sglang-eagle.sh": (
        0, "{target: {model: meta-llama/Llama-2-7b-chat-hf, max_model_len: 4096}, speculation: {method: "
        "eagle, model: lmsys/sglang-EAGLE-llama2-chat-7B, num_speculative_tokens: 5}, engine: "
        "{enable_prefix_caching: false}, server: {api_key_env: SGLANG_KEY, port: 30000}, frontend: "
        "{tool_call_parser: hermes, enable_auto_tool_choice: true}}",
        ["which counts a tree", "`--speculative-token-map` is left out", "export it as `SGLANG_KEY`"],
    ),
    "docker-ngram.sh": (
        0, "{target: {model: mistralai/Mistral-7B-Instruct-v0.2}, speculation: {method: ngram, "
        "num_speculative_tokens: 5, prompt_lookup_max: 4}, engine: {enable_chunked_prefill: false, "
        "enable_log_requests: false, attention_backend: FLASH_ATTN}, server: {api_key_env: "
        "VLLM_API_KEY}, hardware: {count: 2}, env: {CUDA_VISIBLE_DEVICES: '0,1'}}",
        ["`VLLM_USE_V1` is left out: vLLM has a single engine", "`HUGGING_FACE_HUB_TOKEN` is left out",
         "names no vLLM that specserve knows", "`--runtime nvidia`, `-p 8000:8000`, `--ipc=host`",
         "`--enable-chunked-prefill False` is `--no-enable-chunked-prefill` today"],
    ),
    "compose-eagle3.yaml": (
        0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 32768}, server: {served_model_name: qwen}, "
        "speculation: {method: eagle3, model: AngelSlim/Qwen3-8B_eagle3, num_speculative_tokens: 3}, "
        "env: {VLLM_LOGGING_LEVEL: DEBUG}}",
        ["`service proxy`", "`HF_TOKEN` is left out", "one name: `qwen3-8b` is left out"],
    ),
    "vllm-config.yaml": (
        0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 8192}, speculation: {method: ngram, "
        "num_speculative_tokens: 3}, server: {host: 127.0.0.1, port: 8001}, engine: "
        "{enable_prefix_caching: false, enable_chunked_prefill: false, trust_remote_code: true, "
        "compilation_config: {cudagraph_mode: PIECEWISE}}}",
        [],
    ),
    "array-changed-in-if.sh": (
        1, "{target: {model: Qwen/Qwen3-8B, max_model_len: 4096}}",
        ['adds `$X` only if `[ -n "${EXTRA:-}" ]`'],
    ),
    "bash-lc.yaml": (
        0, "{target: {model: Qwen/Qwen2.5-Coder-7B-Instruct, tensor_parallel_size: 2}}",
        ["`ulimit -n 65536`", "vllm/vllm-openai:v0.7.1"],
    ),
    "braces-in-a-comment.yml": (0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 8192}}", []),
    "comment-behind-option.sh": (
        0, "{target: {model: Qwen/Qwen3-8B}, speculation: {method: ngram, num_speculative_tokens: 3}, "
        "engine: {max_num_seqs: 2}, server: {served_model_name: qwen}}",
        [],
    ),
    "comment-in-array.sh": (0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 4096}}", []),
    "comment-with-backslash.sh": (0, "{target: {model: Qwen/Qwen3-0.6B}, server: {port: 8000}}", []),
    "docker-model-in-variable.sh": (1, "{target: {max_model_len: 4096}}", ["reads `$MODEL_HANDLE`"]),
    "function.sh": (
        0, "{target: {model: org/m}, speculation: {method: mtp, num_speculative_tokens: 2}, engine: "
        "{trust_remote_code: true, kv_cache_dtype: fp8}, server: {host: 127.0.0.1, port: 8001}}",
        ["nothing in the source calls its function `run`"],
    ),
    "hf-home.yml": (
        0, "{vllm: '>=0.32,<0.33', target: {model: Qwen/Qwen3-8B}, env: {HF_HUB_OFFLINE: '1'}}",
        ["`HF_HOME` is left out: `/data/hf`", "`./hf` on the host", "`--download-dir /models` is left out"],
    ),
    "if-else-two-starts.sh": (
        0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 8192}, speculation: {method: ngram, "
        "num_speculative_tokens: 3}}",
        ["2 engines: 1", 'line 4 if `[ "$SPEC" = 1 ] fails`', "`--pick`"],
    ),
    "image-default.yml": (
        0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 8192}}",
        ["is the default of a variable", "`specserve render --image vllm/vllm-openai:v0.27.1"],
    ),
    "image-patch-version.yml": (
        0, "{target: {model: Qwen/Qwen3-8B}}",
        ["`specserve render --image vllm/vllm-openai:v0.27.1-cu129`"],
    ),
    "kserve-runtime-alone.yaml": (
        1, "{vllm: '>=0.32,<0.33', target: {model: /mnt/models, max_model_len: 4096}}",
        ["reads `<Name>`", "`/mnt/models` is a path of the source's container"],
    ),
    "kubectl-list.yaml": (
        0, "{vllm: '>=0.32,<0.33', target: {model: Qwen/Qwen3-8B, max_model_len: 4096}, hardware: "
        "{count: 1, accelerator: H100-80GB}, env: {VLLM_LOGGING_LEVEL: DEBUG}}",
        ["`HF_TOKEN` is left out", "`Service llm ClusterIP`"],
    ),
    "kserve-llmisvc.yaml": (
        0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 4096}, server: {served_model_name: qwen}}",
        [],
    ),
    "leaderworkerset.yaml": (
        0, "{target: {model: org/m, tensor_parallel_size: 8, pipeline_parallel_size: 2}, hardware: "
        "{nodes: 2, count: 8, accelerator: H100-80GB}}",
        ["multi-node-serving.sh"],
    ),
    "no-secrets.sh": (
        0, "{vllm: '>=0.32,<0.33', target: {model: Qwen/Qwen3-8B}, env: {MAX_NUM_BATCHED_TOKENS: '8192', "
        "ROUTING_KEY: abc, TOKENIZERS_PARALLELISM: 'false', LMCACHE_KEY_PREFIX: x, AIBRIX_META_KEY: "
        "kvcache_nodes}}",
        [],
    ),
    "production-stack.yaml": (
        0, "{vllm: '>=0.32,<0.33', target: {model: Qwen/Qwen3-8B, max_model_len: 8192, "
        "tensor_parallel_size: 2}, speculation: {method: ngram, num_speculative_tokens: 3}, engine: "
        "{enable_chunked_prefill: false, enable_prefix_caching: false}, hardware: {count: 2}, env: "
        "{VLLM_LOGGING_LEVEL: DEBUG}}",
        ["2 engines: 1 `small`", "`HF_TOKEN` is left out", "`replicaCount: 2`"],
    ),
    "production-stack-lmcache.yaml": (
        1, "{target: {model: Qwen/Qwen3-8B, max_model_len: 4096}, engine: {enable_prefix_caching: true}, "
        "hardware: {count: 1}}",
        ["what the chart of its version makes of `lmcacheConfig` is not in the source"],
    ),
    "quote-in-bracket.sh": (0, "{target: {model: Qwen/Qwen3-8B}}", []),
    "service-environment-file.service": (
        1, "{target: {model: Qwen/Qwen3-8B, max_model_len: 8192}}",
        ["reads `$PORT`", "the variables in `/etc/vllm.env` are not read"],
    ),
    "setup-before-serve.yml": (
        0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 8192}}",
        ['`pip install "transformers>=5.4"`', "`ulimit -n 65536`", "`python patch.py`; `render` cannot do it"],
    ),
    "sglang-unquant.sh": (
        0, "{target: {model: Qwen/Qwen3-8B}, server: {port: 30000}, speculation: {method: eagle3, model: "
        "AngelSlim/Qwen3-8B_eagle3, num_speculative_tokens: 3}}",
        ["`--speculative-draft-model-quantization unquant` is left out"],
    ),
    "subprocess-list.py": (0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 4096}}", []),
    "unset-variable-before-model.sh": (
        1, "{target: {model: Qwen/Qwen3-8B, max_model_len: 4096}}",
        ['adds `--disable-custom-all-reduce` only if `[ "$NV" = "1" ] fails`'],
    ),
    "vllm.service": (
        0, "{target: {model: Qwen/Qwen3-8B, max_model_len: 8192}, speculation: {method: ngram, "
        "num_speculative_tokens: 3}, frontend: {chat_template: /opt/vllm/chat.jinja}, env: {HF_HOME: "
        "/srv/hf, VLLM_LOGGING_LEVEL: DEBUG, MODEL: Qwen/Qwen3-8B, ARGS: --seed 1 --max-num-seqs 8}, "
        "engine: {seed: 1, max_num_seqs: 8}}",
        ["the variables in `/etc/vllm.env` are not read", "`/usr/bin/nvidia-smi`", "`User=vllm`"],
    ),
    "variable-changed-in-if.sh": (
        1, "{target: {model: Qwen/Qwen3-8B, max_model_len: 4096}}",
        ['adds `$F` only if `[ -n "$F" ]`'],
    ),
}  # fmt: skip
"""By file: the exit code, the profile, and parts of its notes."""


def test_every_file_has_an_answer() -> None:
    assert {file.name for file in DATA.iterdir()} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_launch_file_gives_the_profile_and_the_notes_of_its_class(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, profile, said = CASES[name]
    assert _run(["convert", str(DATA / name)]) == code
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == yaml.safe_load(profile)
    head = " ".join(line.strip(" #") for line in out.splitlines() if line.strip().startswith("#"))
    assert not re.search("hf_[a-z]{10}|sk-0123", out + err)
    for text in said:
        assert text in head and text in err.replace("\n", " ")


def test_the_verdicts_on_public_files_are_those_of_the_documentation() -> None:
    rows = yaml.safe_load((DATA.parent / "convert_public.yaml").read_text(encoding="utf-8"))
    said = (DATA.parents[2] / "docs" / "measurements.md").read_text(encoding="utf-8")
    first, after = (Counter(row[name] for row in rows) for name in ("first", "after"))
    assert sum(first.values()) == 60 and after.keys() == {"complete", "TODO", "refused rightly"}
    assert f"{first['complete']} complete with exit code 0, {first['TODO']} with a `TODO`" in said
    assert (
        f"{after['complete']} complete, {after['TODO']} with a `TODO`, {after['refused rightly']} refused"
        in said
    )
