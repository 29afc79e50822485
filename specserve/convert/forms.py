"""Containers of `docker inspect`, production-stack's values and KServe, in the words of compose or Kubernetes.

Sources: docs.docker.com/reference/cli/docker/inspect; helm/templates/deployment-vllm-multi.yaml of
vllm-project/production-stack; kserve.github.io, "ServingRuntime" and "InferenceService".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.convert.words import Word, placeholder

Mapped = Mapping[str, Any]
_OF_IMAGE = re.compile(
    r"PATH|HOME|HOSTNAME|LANG|LC_ALL|DEBIAN_FRONTEND|(CUDA|NCCL|PYTHON)_VERSION|PYTHON_SHA256|GPG_KEY|NV_\w+|NVARCH"
    r"|NVIDIA_\w+|UV_\w+|TORCH_CUDA_ARCH_LIST|VLLM_(USAGE_SOURCE|BUILD_\w+|IMAGE_\w+)|(LD_)?LIBRARY_PATH"
)
"""Variables that the images of vLLM and NVIDIA set themselves."""
_OF_CHART = {
    "enableLoRA": "--enable-lora", "enableTool": "--enable-auto-tool-choice", "toolCallParser": "--tool-call-parser",
    "chatTemplate": "--chat-template",
}  # fmt: skip
_OF_CONFIG = {
    "enableChunkedPrefill": "--enable-chunked-prefill", "enablePrefixCaching": "--enable-prefix-caching",
    "maxModelLen": "--max-model-len", "dtype": "--dtype", "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs", "gpuMemoryUtilization": "--gpu-memory-utilization", "maxLoras": "--max-loras",
}  # fmt: skip
_READ_OF_CHART = (
    *_OF_CHART,
    "repository",
    "tag",
    "modelURL",
    "vllmConfig",
    "requestGPU",
    "requestGPUType",
    "hf_token",
)
_OF_HUGGINGFACE = {"model_id": "model", "model_name": "served-model-name", "model_revision": "revision"}
"""Options of KServe's own server around vLLM."""
NO_CACHING = "--no-enable-prefix-caching"
IN_KSERVE = "/mnt/models"
"""Where KServe puts a model's files in a container."""


def at(value: Any, *keys: str) -> Any:
    """What lies under these keys, in the first item of a list; None if nothing does."""
    for key in keys:
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text_at(value: Any, *keys: str) -> str:
    """The text under these keys; empty if there is none."""
    found = at(value, *keys)
    return found.text if isinstance(found, Word) else ""


def items(value: Any) -> list[Any]:
    """A list as it is, nothing for everything else."""
    return value if isinstance(value, list) else []


def objects(root: Any) -> Iterator[Any]:
    """The objects of a document: those of a list, and of `kind: List`."""
    listed = root.get("items") if isinstance(root, dict) and text_at(root, "kind").endswith("List") else root
    yield from listed if isinstance(listed, list) else [root]


def inspected(root: Mapped) -> Mapped | None:
    """The container that an object of `docker inspect` describes, with compose's keys; None if it is none."""
    config, host = root.get("Config"), root.get("HostConfig")
    if not (isinstance(config, dict) and isinstance(config.get("Image"), Word)):
        return None
    place = config["Image"].span
    binds = [
        Word(f"{text_at(one, 'Source')}:{text_at(one, 'Destination')}", place)
        for one in items(root.get("Mounts"))
        if text_at(one, "Type") == "bind"
    ]
    named = [word for word in items(config.get("Env")) if isinstance(word, Word)]
    kept = [word for word in named if not _OF_IMAGE.fullmatch(word.text.partition("=")[0])]
    bound = at(host, "PortBindings") or {}
    made: dict[str, Any] = {
        "image": config["Image"], "entrypoint": config.get("Entrypoint"), "command": config.get("Cmd"),
        "environment": kept, "volumes": items(at(host, "Binds")) or binds,
        "ports": [
            Word(f"{text_at(one, 'HostPort')}:{port}", place)
            for port, hosts in bound.items() for one in items(hosts)
        ],
        "container_name": Word(text_at(root, "Name").lstrip("/"), place),
    }  # fmt: skip
    ids, count = at(host, "DeviceRequests", "DeviceIDs"), text_at(host, "DeviceRequests", "Count")
    if chosen := ",".join(word.text for word in items(ids)):
        made["gpus"] = Word(f"device={chosen}", place)
    elif count not in ("", "0"):
        made["gpus"] = Word(count.replace("-1", "all"), place)
    more = {"shm_size": text_at(host, "ShmSize"), "ipc": text_at(host, "IpcMode")}
    made |= {
        name: Word(text, place) for name, text in more.items() if text not in ("", "private", "67108864")
    }
    return made


def charted(root: Mapped) -> Iterator[tuple[Mapped, list[str]]]:
    """The container of each model of production-stack's values, and what the chart makes of nothing that it says."""
    for spec in items(at(root, "servingEngineSpec", "modelSpec")):
        model, config = at(spec, "modelURL"), at(spec, "vllmConfig")
        if not isinstance(model, Word):
            continue
        words = [Word("vllm", model.span), Word("serve", model.span), model]
        config = config if isinstance(config, dict) else {}
        for held, names in ((spec, _OF_CHART), (config, _OF_CONFIG)):
            for key, flag in names.items():
                value = held.get(key)
                if isinstance(value, Word):
                    words += _option(flag, value, negated=key.startswith("enable") and held is config)
        if config and "enablePrefixCaching" not in config:  # the chart's `else`
            words.append(Word(NO_CACHING, model.span))
        words += [word for word in items(config.get("extraArgs")) if isinstance(word, Word)]
        gpus, kind = spec.get("requestGPU"), text_at(spec, "requestGPUType") or "nvidia.com/gpu"
        env = items(spec.get("env"))
        if token := spec.get("hf_token"):
            place = token.span if isinstance(token, Word) else model.span
            env = [*env, {"name": Word("HF_TOKEN", place), "valueFrom": {}}]
        made = {key: value for key, value in spec.items() if key not in _READ_OF_CHART}
        image = Word(f"{text_at(spec, 'repository')}:{text_at(spec, 'tag')}".strip(":"), model.span)
        made |= {"command": words, "env": env, "resources": {"limits": {kind: gpus} if gpus else {}}}
        read = ("extraArgs", "v0", "v1", *_OF_CONFIG)  # vLLM has one engine
        open_keys = [f"vllmConfig.{key}" for key in config if key not in read]
        open_keys += [key for key in ("lmcacheConfig", "raySpec") if key in spec]
        yield ({**made, "image": image} if image.text else made), open_keys


def _option(flag: str, value: Word, *, negated: bool) -> list[Word]:
    """A value of the chart as words: a switch for true, its opposite or nothing for false."""
    if value.text.lower() == "false":
        return [Word(f"--no-{flag.removeprefix('--')}", value.span)] if negated else []
    text = f"/templates/{value.text}" if flag == "--chat-template" else value.text
    head = Word(flag, value.span)
    return [head] if value.text.lower() == "true" else [head, Word(text, value.span)]


def predicted(root: Mapped, documents: list[Any]) -> tuple[Mapped, bool] | None:
    """The container of KServe's InferenceService: its model over its runtime's; whether that is in the file too."""
    model = at(root, "spec", "predictor", "model")
    if text_at(root, "kind") != "InferenceService" or not isinstance(model, dict):
        return None
    name = text_at(model, "runtime")
    runtime: dict[str, Any] = next(
        (
            container for one in documents for container in items(at(one, "spec", "containers"))
            if text_at(one, "kind").endswith("ServingRuntime") and text_at(one, "metadata", "name") == name
        ),
        {},
    )  # fmt: skip
    image = runtime.get("image")
    is_kserves = "huggingface" in (text_at(model, "modelFormat", "name").lower(), name) or (
        isinstance(image, Word) and "huggingfaceserver" in image.text
    )
    args = [word for one in (runtime, model) for word in items(one.get("args")) if isinstance(word, Word)]
    if is_kserves:
        args = [Word(re.sub(r"^--(model[-_]\w+)", _of_vllm, word.text), word.span) for word in args]
    env = [*items(runtime.get("env")), *items(model.get("env"))]
    rest = {key: value for key, value in model.items() if key not in ("modelFormat", "runtime", "version")}
    image = Word("vllm/vllm-openai", root["kind"].span)  # unless the runtime says another
    made = {"image": image, **runtime, **rest, "args": args, "env": env}
    return made, bool(runtime) or is_kserves


def _of_vllm(found: re.Match[str]) -> str:
    return f"--{_OF_HUGGINGFACE.get(found[1].replace('-', '_'), found[1])}"


def filled(text: str, root: Mapped) -> str:
    """A text of KServe with the name of its InferenceService in its templates; a mark for what it does not say."""

    def value(found: re.Match[str]) -> str:
        known = text_at(root, "metadata", "name") if found[1] == "Name" else ""
        is_service = text_at(root, "kind") in ("InferenceService", "LLMInferenceService")
        return known if known and is_service else placeholder(found[1])

    return (
        re.sub(r"\{\{-?\s*\.([\w.]+)\s*-?\}\}", value, text)
        if "serving.kserve" in text_at(root, "apiVersion")
        else text
    )
