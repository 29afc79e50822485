"""Containers in YAML as words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specserve.convert.convert import converted
from specserve.convert.launch import Launch
from specserve.convert.reading import read
from specserve.convert.services import accelerator_of, containers
from specserve.convert.words import unknown
from specserve.errors import UsageError


def only(text: str) -> Launch:
    (found,) = containers(text, file="x.yaml")
    return found


def words(text: str) -> list[str]:
    return [word.text for word in only(text).words]


@pytest.mark.parametrize(
    "text",
    [
        "{services: {a: {image: vllm/vllm-openai, environment: {A: 1, B: $B}}}}",
        "{services: {a: {image: vllm/vllm-openai, environment: [A=1, B=$B]}}}",
        "{image: vllm/vllm-openai, env: [{name: A, value: 1}, {name: B, valueFrom: {secretKeyRef: {name: x}}}]}",
    ],
)
def test_variables_in_every_form(text: str) -> None:
    assert {name: word.text for name, word in only(text).env.items()} == {"A": "1", "B": unknown("B")}


SERVICE = "services:\n  a:\n    image: vllm/vllm-openai:v0.26.0\n    "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{image: vllm/vllm-openai, command: [sh, -c], args: [vllm serve a/b]}", "a/b"),
        (SERVICE + "entrypoint: [bash, -c, 'exec vllm serve \"$$@\"', --]\n    command: a/b --seed 1", "a/b --seed 1"),
        ("{name: x, command: [bash, -c, 'exec vllm serve \"$@\"', --], args: [a/b, --x, c d]}", "a/b --x c d"),
        ("{image: vllm/vllm-openai, command: [bash, -c, 'vllm serve $M'], env: [{name: M, value: a/b}]}", "a/b"),
        ("{image: vllm/vllm-openai, args: [--model, $(M)], env: [{name: M, value: a/b}]}", "--model a/b"),
        ("{name: patch, command: [vllm, serve], args: [a/b, --seed, '1']}", "a/b --seed 1"),
        ("image: vllm/vllm-openai\nargs:\n- a/b\n# a comment\n- --seed=1 # one more", "a/b --seed=1"),
        ("command: [bash, -c]\nargs:\n- >\n  vllm serve a/b\n    --seed 1\n    --x 2", "a/b --seed 1 --x 2"),
        (SERVICE + "command: >\n      a/b\n        --seed 1\n      --x 2", "a/b --seed 1 --x 2"),
        (SERVICE + "command: [--model, '${MODEL:-a/b}', --x, $$1, --flag, true]", "--model a/b --x $1 --flag true"),
        (SERVICE + "command: [--model, '$MODEL', --x, $(X)]", f"--model {unknown('MODEL')} --x {unknown('X')}"),
        (SERVICE + "command: --model ${A:-${B:-a/b}} --x ${C:+y}", "--model a/b --x"),
        ("x: &x {environment: {A: b}}\nservices: {a: {<<: *x, image: vllm/vllm-openai, command: a/b}}", "a/b"),
    ],
)  # fmt: skip
def test_what_a_container_starts_is_the_engine_with_all_of_its_words(text: str, expected: str) -> None:
    assert " ".join(words(text)) == expected


POD = """
kind: Service
metadata: {name: llm}
spec: {type: LoadBalancer}
---
kind: Deployment
metadata: {name: x, namespace: ai}
spec:
  replicas: 2
  template:
    spec:
      runtimeClassName: nvidia
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, zone: b}
      initContainers: [{image: vllm/vllm-openai, command: [vllm, serve, no/model]}]
      containers:
      - image: vllm/vllm-openai:v0.32.0
        args: [/models/a, --download-dir, /tmp/x]
        env: [{name: HF_HOME, value: /models/hf}]
        resources: {limits: {nvidia.com/gpu: 4, memory: 8Gi}}
        volumeMounts: [{name: m, mountPath: /models}, {name: shm, mountPath: /dev/shm}]
      volumes: [{name: m, hostPath: {path: /data}}, {name: shm, emptyDir: {medium: Memory}}]
"""


def test_a_pod_becomes_hardware_paths_of_the_host_and_one_note() -> None:
    (start,) = read(POD, file="x.yaml", folder=Path("nowhere"))
    result = converted(start, origin="x.yaml")
    profile = yaml.safe_load(result.text)
    assert profile["target"] == {"model": "/data/a"} and "env" not in profile and "engine" not in profile
    assert profile["hardware"] == {"accelerator": "A100-80GB", "count": 4}
    (note,) = [note.text for note in result.notes if note.text.startswith("a profile has no place")]
    left = "volume /dev/shm`, `namespace: ai`, `replicas: 2`, `nodeSelector zone: b`, `runtimeClassName: nvidia`, "
    left += "`initContainers`, "
    left += "`memory: 8Gi`"
    assert f"`{left}, `Service llm LoadBalancer`" in note
    said = " ".join(note.text for note in result.notes)
    assert "`/models/hf` is a path of the container, `/data/hf` on the host" in said
    assert "`--download-dir /tmp/x` is left out" in said and not result.unresolved


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("nvidia-h100-80gb", "H100-80GB"),
        ("NVIDIA-L40S", "L40S-48GB"),
        ("Tesla-T4", "T4-16GB"),
        ("nvidia-tesla-a100", "A100-40GB"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-Ada-48GB"),
        ("habana-gaudi", None),
    ],
)
def test_a_label_of_a_node_names_an_accelerator(label: str, name: str | None) -> None:
    assert accelerator_of(label) == name


def test_a_template_in_a_value_is_left_open() -> None:
    text = "image: vllm/vllm-openai\nargs: ['--model', '{{ .Values.model }}', --seed, '1']\n"
    (start,) = read(text, file="x.yaml", folder=Path("nowhere"))
    (error,) = converted(start, origin="x.yaml").unresolved
    assert error.message == "the source does not say `target.model`: it reads `<Values.model>`"


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: !x {", "a: 1\na: 2", "? [a]\n: b", "[" * 500, "&a [*a]: x", "a: " + "[" * 5000 + "]" * 5000],
)
def test_what_is_no_yaml_is_a_clear_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"cannot read `x\.yaml` as YAML"):
        containers(text, file="x.yaml")


KEYS = st.sampled_from([
    "kind", "spec", "predictor", "model", "args", "uri", "deploy", "containers", "image", "command", "env", "name",
    "servingEngineSpec", "modelSpec", "modelURL", "vllmConfig", "extraArgs", "items", "metadata", "nodeSelector",
    "services", "volumes", "volumeMounts", "ports", "resources", "template", "hf_token",
])  # fmt: skip
TEXTS = st.sampled_from(
    [
        "vllm/vllm-openai",
        "LLMInferenceService",
        "List",
        "hf://a/b",
        "--model=a/b",
        "vllm serve a/b",
        "1",
    ]
)
SHAPES = st.recursive(
    TEXTS | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6)
)


@given(SHAPES)
def test_any_shape_of_a_manifest_becomes_containers_or_a_clear_error(shape: object) -> None:
    try:
        for found in read(yaml.safe_dump(shape), file="x.yaml", folder=Path()):
            converted(found, origin="x")
    except UsageError as error:
        assert error.message
