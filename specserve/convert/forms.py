"""What describes a container in other words than compose and Kubernetes do, in theirs.

Sources: docs.docker.com/reference/cli/docker/inspect; helm/templates/deployment-vllm-multi.yaml of
vllm-project/production-stack; kserve.github.io, "ServingRuntime" and "InferenceService".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specserve.convert.words import Word, placeholder

Mapped = Mapping[str, Any]
UNSAID = "vllm/vllm-openai"
"""The image where the source names none."""
_OF_IMAGE = re.compile(
    r"PATH|HOME|HOSTNAME|LANG|LC_ALL|DEBIAN_FRONTEND|(CUDA|NCCL|PYTHON)_VERSION|PYTHON_SHA256|GPG_KEY"
    r"|(NV|NVIDIA|UV)_\w+|NVARCH|TORCH_CUDA_ARCH_LIST|VLLM_(USAGE_SOURCE|(BUILD|IMAGE)_\w+)"
    r"|(LD_)?LIBRARY_PATH"
)
"""Variables that the images of vLLM and NVIDIA set themselves."""
_OF_CHART = ("enableLoRA", "enableTool", "toolCallParser", "chatTemplate")
_OF_CONFIG = (
    "enableChunkedPrefill",
    "enablePrefixCaching",
    "maxModelLen",
    "dtype",
    "tensorParallelSize",
    "maxNumSeqs",
    "gpuMemoryUtilization",
    "maxLoras",
)
_FLAGS = {"enableLoRA": "--enable-lora", "enableTool": "--enable-auto-tool-choice"}


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


def pairs(value: Any) -> list[tuple[str, Any]]:
    """The items of a mapping, nothing for everything else."""
    return list(value.items()) if isinstance(value, dict) else []


def objects(root: Any) -> list[Any]:
    """The objects of a document: those of a list, and of `kind: List`."""
    return items(root) or items(at(root, "items")) or [root]


def described(root: Any, documents: list[Any]) -> list[tuple[Mapped, list[str]]]:
    """The containers that an object describes in its own words, each with what it leaves open."""
    kind, specs = text_at(root, "kind"), items(at(root, "servingEngineSpec", "modelSpec"))
    config, model = at(root, "Config"), at(root, "spec", "predictor", "model")
    if isinstance(config, dict) and isinstance(at(config, "Image"), Word):
        return [(_inspected(root, config), [])]
    if kind == "InferenceService" and isinstance(model, dict):
        return _predicted(root, model, documents)
    return [_charted(spec) for spec in specs if isinstance(at(spec, "modelURL"), Word)]


def _inspected(root: Mapped, config: Mapped) -> Mapped:
    """The container of `docker inspect`, with compose's keys."""
    host = root.get("HostConfig")
    request = at(host, "DeviceRequests")
    chosen = ",".join(word.text for word in items(at(request, "DeviceIDs")))
    texts = {
        "gpus": f"device={chosen}" if chosen else text_at(request, "Count").replace("-1", "all"),
        "shm_size": text_at(host, "ShmSize"),
        "ipc": text_at(host, "IpcMode"),
        "container_name": text_at(root, "Name").lstrip("/"),
    }
    place, unset = config["Image"].span, ("", "0", "private", "67108864")
    named = [word for word in items(config.get("Env")) if isinstance(word, Word)]
    return {
        "image": config["Image"],
        "entrypoint": config.get("Entrypoint"),
        "command": config.get("Cmd"),
        "environment": [word for word in named if not _OF_IMAGE.fullmatch(word.text.split("=")[0])],
        "volumes": [
            Word(f"{text_at(one, 'Source')}:{text_at(one, 'Destination')}", place)
            for one in items(root.get("Mounts"))
            if text_at(one, "Type") == "bind"
        ],
        "ports": [
            Word(f"{text_at(one, 'HostPort')}:{port}", place)
            for port, hosts in pairs(at(host, "PortBindings"))
            for one in items(hosts)
        ],
        **{key: Word(text, place) for key, text in texts.items() if text not in unset},
    }


def _charted(spec: Mapped) -> tuple[Mapped, list[str]]:
    """The container that production-stack's chart makes of one of its models."""
    rest = dict(spec)
    model, config, token = (rest.pop(key, None) for key in ("modelURL", "vllmConfig", "hf_token"))
    config, place = dict(config) if isinstance(config, dict) else {}, model.span
    if config:  # the chart switches it off unless it is said
        config.setdefault("enablePrefixCaching", Word("false", place))
    words = [Word("vllm", place), Word("serve", place), model]
    for held, keys in ((rest, _OF_CHART), (config, _OF_CONFIG)):
        for key in keys:
            if not isinstance(value := held.pop(key, None), Word):
                continue
            spelled = re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", key)
            head, said = Word(_FLAGS.get(key, f"--{spelled}"), value.span), value.text.lower()
            if key == "chatTemplate":
                value = Word(f"/templates/{value.text}", value.span)
            if said != "false":
                words += [head] if said == "true" else [head, value]
            elif held is config:
                words.append(Word(f"--no-{spelled}", value.span))
    words += [word for word in items(config.pop("extraArgs", None)) if isinstance(word, Word)]
    env = [
        *items(rest.get("env")),
        *([{"name": Word("HF_TOKEN", place), "valueFrom": {}}] if token else []),
    ]
    image = f"{text_at(spec, 'repository') or UNSAID}:{text_at(spec, 'tag')}".rstrip(":")
    gpus = {text_at(spec, "requestGPUType") or "nvidia.com/gpu": rest.pop("requestGPU", None)}
    rest |= {
        "image": Word(image, place),
        "command": words,
        "env": env,
        "resources": {"limits": gpus},
    }
    open_keys = [
        f"vllmConfig.{key}" for key in config if key not in ("v0", "v1")
    ]  # vLLM has one engine
    open_keys += [key for key in ("lmcacheConfig", "raySpec") if key in spec]
    left = {key: value for key, value in rest.items() if key not in ("repository", "tag")}
    return left, [
        f"what the chart of its version makes of `{key}` is not in the source" for key in open_keys
    ]


def _predicted(root: Mapped, model: Mapped, documents: list[Any]) -> list[tuple[Mapped, list[str]]]:
    """The container of a KServe service: its model over its runtime's, if the file has that."""
    name, place = text_at(model, "runtime"), root["kind"].span
    runtimes = [
        container
        for one in documents
        for container in items(at(one, "spec", "containers"))
        if text_at(one, "kind").endswith("ServingRuntime")
        and text_at(one, "metadata", "name") == name
        if isinstance(container, dict)
    ]
    if not runtimes and "vllm" not in f"{name} {text_at(model, 'modelFormat', 'name')}".lower():
        return []
    runtime = runtimes[0] if runtimes else {"image": Word(UNSAID, place)}
    made = {
        key: value
        for key, value in model.items()
        if key not in ("modelFormat", "runtime", "version")
    }
    for key in ("args", "env"):
        made[key] = [*items(runtime.get(key)), *items(model.get(key))]
    text = f"the source does not say the options of its ServingRuntime, `{name}`"
    text += ": convert them in one file"
    return [({**runtime, **made}, [] if runtimes else [text])]


def filled(text: str, root: Mapped) -> str:
    """A text of KServe with its service's name in its templates; a mark for what is not said."""

    def value(found: re.Match[str]) -> str:
        is_known = found[1] == "Name" and text_at(root, "kind").endswith("InferenceService")
        return text_at(root, "metadata", "name") if is_known else placeholder(found[1])

    of_kserve = "serving.kserve" in text_at(root, "apiVersion")
    return re.sub(r"\{\{-?\s*\.([\w.]+)\s*-?\}\}", value, text) if of_kserve else text
