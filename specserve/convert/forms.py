"""What describes a container in other words than compose and Kubernetes do, in theirs.

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
UNSAID = "vllm/vllm-openai"
"""The image where the source names none."""
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


def described(root: Any, documents: list[Any]) -> list[tuple[Mapped, list[str]]]:
    """The containers that an object describes otherwise than as such, each with what it leaves open about it."""
    if not isinstance(root, dict):
        return []
    if isinstance(at(root, "Config", "Image"), Word):
        return [(_inspected(root), [])]
    if text_at(root, "kind") == "InferenceService" and isinstance(
        at(root, "spec", "predictor", "model"), dict
    ):
        return _predicted(root, documents)
    specs = items(at(root, "servingEngineSpec", "modelSpec"))
    return [_charted(spec) for spec in specs if isinstance(at(spec, "modelURL"), Word)]


def _inspected(root: Mapped) -> Mapped:
    """The container of `docker inspect`, with compose's keys."""
    config, host = root["Config"], root.get("HostConfig")
    named = [word for word in items(config.get("Env")) if isinstance(word, Word)]
    ids, count = at(host, "DeviceRequests", "DeviceIDs"), text_at(host, "DeviceRequests", "Count")
    chosen = ",".join(word.text for word in items(ids))
    texts = {
        "gpus": f"device={chosen}" if chosen else count.replace("-1", "all"),
        "shm_size": text_at(host, "ShmSize"), "ipc": text_at(host, "IpcMode"),
        "container_name": text_at(root, "Name").lstrip("/"),
    }  # fmt: skip
    place, unset = config["Image"].span, ("", "0", "private", "67108864")
    return {
        "image": config["Image"], "entrypoint": config.get("Entrypoint"), "command": config.get("Cmd"),
        "environment": [word for word in named if not _OF_IMAGE.fullmatch(word.text.partition("=")[0])],
        "volumes": [
            Word(f"{text_at(one, 'Source')}:{text_at(one, 'Destination')}", place)
            for one in items(root.get("Mounts")) if text_at(one, "Type") == "bind"
        ],
        "ports": [
            Word(f"{text_at(one, 'HostPort')}:{port}", place)
            for port, hosts in (at(host, "PortBindings") or {}).items() for one in items(hosts)
        ],
        **{key: Word(text, place) for key, text in texts.items() if text not in unset},
    }  # fmt: skip


def _charted(spec: Mapped) -> tuple[Mapped, list[str]]:
    """The container that production-stack's chart makes of one of its models."""
    rest = dict(spec)
    model, config, token = (rest.pop(key, None) for key in ("modelURL", "vllmConfig", "hf_token"))
    config = dict(config) if isinstance(config, dict) else {}
    place = model.span
    if config:  # the chart switches it off unless it is said
        config.setdefault("enablePrefixCaching", Word("false", place))
    words = [Word("vllm", place), Word("serve", place), model]
    for held, flags in ((rest, _OF_CHART), (config, _OF_CONFIG)):
        for key, flag in flags.items():
            value = held.pop(key, None)
            if not isinstance(value, Word):
                continue
            head, said = Word(flag, value.span), value.text.lower()
            if key == "chatTemplate":
                value = Word(f"/templates/{value.text}", value.span)
            if said == "false":
                head = Word(f"--no-{flag.removeprefix('--')}", value.span)
            if said != "false" or held is config:
                words += [head] if said in ("true", "false") else [head, value]
    words += [word for word in items(config.pop("extraArgs", None)) if isinstance(word, Word)]
    env = [*items(rest.get("env")), *([{"name": Word("HF_TOKEN", place), "valueFrom": {}}] if token else [])]
    image = ":".join(
        word.text for key in ("repository", "tag") if isinstance(word := rest.pop(key, None), Word)
    )
    gpus, kind = rest.pop("requestGPU", None), text_at(spec, "requestGPUType") or "nvidia.com/gpu"
    rest |= {"image": Word(image, place), "command": words, "env": env, "resources": {"limits": {kind: gpus}}}
    keys = [f"vllmConfig.{key}" for key in config if key not in ("v0", "v1")]  # vLLM has one engine
    keys += [key for key in ("lmcacheConfig", "raySpec") if key in spec]
    return rest, [f"what the chart of its version makes of `{key}` is not in the source" for key in keys]


def _predicted(root: Mapped, documents: list[Any]) -> list[tuple[Mapped, list[str]]]:
    """The container of a KServe service: its model over its runtime's, if that is in the file too."""
    model = root["spec"]["predictor"]["model"]
    name, place = text_at(model, "runtime"), root["kind"].span
    runtimes = [
        container for one in documents for container in items(at(one, "spec", "containers"))
        if text_at(one, "kind").endswith("ServingRuntime") and text_at(one, "metadata", "name") == name
    ]  # fmt: skip
    if not runtimes and "vllm" not in f"{name} {text_at(model, 'modelFormat', 'name')}".lower():
        return []
    runtime = runtimes[0] if runtimes else {"image": Word(UNSAID, place)}
    made = {key: value for key, value in model.items() if key not in ("modelFormat", "runtime", "version")}
    for key in ("args", "env"):
        made[key] = [*items(runtime.get(key)), *items(model.get(key))]
    text = f"the source does not say the options of its ServingRuntime, `{name}`: convert them in one file"
    return [({**runtime, **made}, [] if runtimes else [text])]


def filled(text: str, root: Mapped) -> str:
    """A text of KServe with its service's name in its templates; a mark for what it does not say."""

    def value(found: re.Match[str]) -> str:
        is_service = text_at(root, "kind").endswith("InferenceService")
        return (
            text_at(root, "metadata", "name") if found[1] == "Name" and is_service else placeholder(found[1])
        )

    of_kserve = "serving.kserve" in text_at(root, "apiVersion")
    return re.sub(r"\{\{-?\s*\.([\w.]+)\s*-?\}\}", value, text) if of_kserve else text
