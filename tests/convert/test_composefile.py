"""Containers in YAML as words."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.convert.composefile import Container, containers
from specserve.convert.words import CLOSE, OPEN
from specserve.errors import UsageError


def only(text: str) -> Container:
    (found,) = containers(text, file="x.yaml")
    return found


def words(text: str) -> list[str]:
    return [word.text for word in only(text).words]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("[--model, a/b, --seed, 1]", ["--model", "a/b", "--seed", "1"]),
        (">-\n      --model a/b\n      --x '{\"a\": 1}'", ["--model", "a/b", "--x", '{"a": 1}']),
        ("[--model, '${MODEL:-a/b}', --x, $$1]", ["--model", "a/b", "--x", "$1"]),
        ("[--model, '$MODEL']", ["--model", f"{OPEN}MODEL{CLOSE}"]),
        ("[--model, $(MODEL)]", ["--model", f"{OPEN}MODEL{CLOSE}"]),
        ("[--flag, true]", ["--flag", "true"]),
    ],
)
def test_commands_in_both_forms_become_words(command: str, expected: list[str]) -> None:
    assert words(f"services:\n  a:\n    image: vllm/vllm-openai:latest\n    command: {command}\n") == expected


@pytest.mark.parametrize(
    "text",
    [
        "{services: {a: {image: vllm/vllm-openai, environment: {A: 1, B: $B}}}}",
        "{services: {a: {image: vllm/vllm-openai, environment: [A=1, B=$B]}}}",
        "{image: vllm/vllm-openai, env: [{name: A, value: 1}, {name: B, valueFrom: {secretKeyRef: {name: x}}}]}",
    ],
)
def test_variables_in_every_form(text: str) -> None:
    assert {name: word.text for name, word in only(text).env.items()} == {"A": "1", "B": f"{OPEN}B{CLOSE}"}


def test_containers_of_other_images_are_passed_over() -> None:
    text = "{services: {a: {image: nginx, command: x}, b: {image: vllm/vllm-openai}, c: {image: lmsysorg/sglang}}}"
    assert [container.image.text for container in containers(text, file="x.yaml")] == [
        "vllm/vllm-openai",
        "lmsysorg/sglang",
    ]


def test_a_shell_in_a_container_has_a_script() -> None:
    assert (
        only("{image: vllm/vllm-openai, command: [sh, -c], args: [vllm serve a/b]}").script
        == "vllm serve a/b"
    )


def test_every_document_of_a_file_counts() -> None:
    text = "kind: Service\n---\nspec: {containers: [{image: vllm/vllm-openai, args: [--model, a/b]}]}\n"
    assert words(text) == ["--model", "a/b"]


@pytest.mark.parametrize("text", ["a: [", "a: !x {", "[" * 500, "&a [*a]: x", "a: " + "[" * 60 + "]" * 60])
def test_what_is_no_yaml_is_a_clear_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"`x\.yaml` is not YAML"):
        containers(text, file="x.yaml")


@given(st.text(alphabet="imagecond: \n-[]{}&*!|>'\"#,x", max_size=60))
def test_any_text_becomes_containers_or_a_clear_error(text: str) -> None:
    try:
        containers(f"image: vllm/vllm-openai\n{text}", file="x.yaml")
    except UsageError as error:
        assert "is not YAML" in error.message


def test_the_values_of_the_production_stack_s_chart_are_the_words_it_makes_of_them() -> None:
    text = """
        servingEngineSpec:
          modelSpec:
          - name: qwen
            repository: vllm/vllm-openai
            tag: v0.8.5
            modelURL: org/m
            enableTool: true
            toolCallParser: hermes
            env: [{name: A, value: "1"}]
            vllmConfig:
              v0: "1"
              tensorParallelSize: 2
              maxModelLen: 8192
              enableChunkedPrefill: false
              gpuMemoryUtilization: 0.9
              extraArgs: ["--enforce-eager"]
    """
    (container,) = containers(dedent(text), file="values.yaml")
    assert [word.text for word in container.words] == [
        "vllm", "serve", "org/m", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        "--tensor-parallel-size", "2", "--max-model-len", "8192", "--no-enable-chunked-prefill",
        "--gpu-memory-utilization", "0.9", "--enforce-eager",
    ]  # fmt: skip
    assert container.env["A"].text == "1"
