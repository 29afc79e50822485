"""One place knows what a secret looks like: `lint` reports it, no snippet shows it, `convert` leaves it out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run

Write = Callable[..., Path]
Captured = pytest.CaptureFixture[str]
WORD = "Qx7vZ2pL9w"
"""Stands for the secret in every text below."""
HARMLESS = "Harmless88"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (f"env: {{REDIS: 'redis://:{WORD}@h:1'}}", "env.REDIS"),
        (f"env: {{OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20{WORD}'}}", "env.OTEL_EXPORTER_OTLP_HEADERS"),
        (f"env: {{OTEL_EXPORTER_OTLP_HEADERS: 'a=b,x-api-key={WORD}'}}", "env.OTEL_EXPORTER_OTLP_HEADERS"),
        (f"env: {{AUTH_HEADER: Bearer {WORD}}}", "env.AUTH_HEADER"),
        (f"env: {{PGPASSWORD: {WORD}}}", "env.PGPASSWORD"),
        (f"env: {{SOME_CONFIG: '{{\"clientSecret\": \"{WORD}\"}}'}}", "env.SOME_CONFIG"),
        (f"engine: {{model_loader_extra_config: {{api_key: {WORD}}}}}", "engine.model_loader_extra_config.api_key"),
        (f"engine: {{additional_config: {{a: [{{access_key: {WORD}}}]}}}}", "engine.additional_config.a[0].access_key"),
        (f"engine: {{additional_config: {{tokens: [{WORD}]}}}}", "engine.additional_config.tokens[0]"),
        (
            "engine: {kv_transfer_config: {kv_connector: LMCacheConnectorV1, kv_role: kv_both, "
            f"kv_connector_extra_config: {{redis_url: 'redis://:{WORD}@h:1'}}}}}}",
            "engine.kv_transfer_config.kv_connector_extra_config.redis_url",
        ),
    ],
)  # fmt: skip
def test_a_secret_is_an_error_and_shown_by_no_command(
    text: str, path: str, write: Write, capsys: Captured
) -> None:
    profile = str(write(f"target: {{model: org/m}}\n{text}\n"))
    assert _run(["lint", profile, "--format", "json"]) == 1
    out = capsys.readouterr().out
    found = [item for item in json.loads(out)["findings"] if item["code"] == "SD107"]
    assert [item["span"]["path"] for item in found] == [path]
    shown = out
    for words in (["lint"], ["plan"], ["render", "--to", "compose"], ["lint", "--format", "sarif"]):
        assert _run([words[0], profile, *words[1:]]) in (1, 2)
        said = capsys.readouterr()
        shown += said.out + said.err
    assert WORD not in shown and f"`{path.removeprefix('env.')}` looks like a secret" in shown


@pytest.mark.parametrize(
    "text",
    [
        "env: {BROKER: 'redis://h:6379', PROXY: 'http://$USER:$PASS@h:1', MY_PASS: $MY_PASS}",
        "env: {TORCHINDUCTOR_CUSTOM_PASS: fuse_all_reduce, BYPASS: everything}",
        "env: {OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer ${TOKEN}', NOTE: bearer of news}",
        "engine: {compilation_config: {inductor_compile_config: {post_grad_custom_post_pass: my.passes.fuse}}}",
        "engine: {hf_overrides: {pad_token: pad, image_token: <image>, max_new_tokens: 32k}}",
        "frontend: {chat_template: \"{% set token = message %}{{ api_key = x }}\"}",
    ],
)  # fmt: skip
def test_what_is_named_like_a_secret_and_is_none(text: str, write: Write, capsys: Captured) -> None:
    _run(["lint", str(write(f"target: {{model: org/m}}\n{text}\n")), "--format", "concise"])
    assert "SD107" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        f"frontend: {{api_key: [{WORD}]}}",
        f"frontend: {{api_key: ['{HARMLESS}', \"{WORD}\"]}}",
        f"frontend: {{'api_key': words of {WORD}}}",
        f"frontend:\n  api_key:\n  - {WORD}\n  - *{WORD}",
        f"frontend:\n  api_key: [\n    {WORD}, }}",
        f"engine: {{additional_config: {{password: {WORD}, }}, }}, }}",
        f'env: {{VLLM_NCCL_SO_PATH: ./a.so, MY_API_KEY: "{WORD}"}}',
        f"env: {{VLLM_NCCL_SO_PATH: hf_{WORD}aaaaaaaaaaaaaaaa}}",
        f"server: {{api_key: {WORD}}}",
        f"server: {{api_key_env: {WORD}-99}}",
        f"env: {{DB_PASSWORD: {{a: {WORD}}}}}",
        f'env: {{DB_PASSWORD: "{WORD}\\0"}}',
    ],
)
def test_the_lines_of_an_error_hide_the_values_of_secrets(text: str, write: Write, capsys: Captured) -> None:
    profile = str(write(f"target: {{model: org/m}}\n{text}\n"))
    for words in (["plan"], ["lint", "--format", "concise"], ["lint"]):
        assert _run([*words, profile]) in (0, 1, 2)
        said = "".join(capsys.readouterr())
        assert WORD not in said
    assert " | " in said


COMPOSE = """
services:
  llm:
    image: vllm/vllm-openai:v0.32.0
    environment:
      - REDIS=redis://:{word}@h
      - OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer {word}
      - MY_PASS={word}
      - VLLM_LOGGING_LEVEL=INFO
    command: --model org/m --max-num-batched-tokens 8192 --model-loader-extra-config '{{"api_key":"{word}"}}'
"""
SHELL = """
export MY_PASS={word} BROKER=amqp://:{word}@h VLLM_LOGGING_LEVEL=INFO
vllm serve org/m --max-num-batched-tokens 8192 --additional-config.db.password {word} \\
  --kv-transfer-config '{{"kv_connector_extra_config": {{"tokens": ["{word}"], "url": "redis://:{word}@h"}}}}'
"""
PYTHON = """
LLM(model="org/m", max_num_batched_tokens=8192, hf_token="{word}", additional_config={{"accessKey": "{word}"}},
    model_loader_extra_config={{"headers": ["Authorization: Bearer {word}"]}})
"""


@pytest.mark.parametrize(
    ("name", "text", "left_out"), [("compose.yaml", COMPOSE, 4), ("run.sh", SHELL, 5), ("run.py", PYTHON, 2)]
)
def test_convert_writes_no_secret(
    name: str, text: str, left_out: int, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / name).write_text(text.format(word=WORD))
    assert _run(["convert", str(tmp_path / name)]) == 0
    said = capsys.readouterr()
    assert WORD not in said.out + said.err
    assert "max_num_batched_tokens: 8192" in said.out and said.err.count("is left out") == left_out
    assert ("VLLM_LOGGING_LEVEL" in said.out) is (name != "run.py")


KEYS = [f"--api-key {WORD}", f"--api-key={WORD}", f"--hf-token hf_{WORD}"]
OTHERS = [
    f'--additional-config \'{{"password": "{WORD}"}}\'',
    f"--additional-config.auth.password {WORD} --additional-config.auth.password {WORD}",
    f"--redis-password {WORD}",
]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        *((f"lint --format {form}", KEYS + OTHERS) for form in ("text", "json")),
        ("plan", KEYS),
        ("convert", KEYS + OTHERS),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_command_that_is_read_is_shown_without_its_secrets(
    command: str, options: list[str], capsys: Captured
) -> None:
    for option in options:
        _run([*command.split(), "--", *shlex.split(f"vllm serve org/m {option}")])
        said = "".join(capsys.readouterr())
        assert said and WORD not in said
        if command == "lint --format text":
            assert "error" in said or "SD107" in said
