"""What describes a container in words of its own: production-stack's chart, `docker inspect`.

Sources: helm/templates/deployment-vllm-multi.yaml of vllm-project/production-stack;
docs.docker.com/reference/cli/docker/inspect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specserve.convert.words import Word

Mapped = Mapping[str, Any]
_OF_CONFIG = (
    "enableChunkedPrefill enablePrefixCaching maxModelLen dtype tensorParallelSize maxNumSeqs "
    "gpuMemoryUtilization maxLoras"
).split()
_OPEN = "enableLoRA enableTool toolCallParser chatTemplate lmcacheConfig raySpec".split()
_OF_IMAGE = re.compile(
    r"PATH|HOME|HOSTNAME|LANG|LC_ALL|DEBIAN_FRONTEND|(CUDA|NCCL|PYTHON)_VERSION|PYTHON_SHA256|GPG_KEY"
    r"|(NV|NVIDIA|UV)_\w+|NVARCH|TORCH_CUDA_ARCH_LIST|VLLM_(USAGE_SOURCE|(BUILD|IMAGE)_\w+)"
    r"|(LD_)?LIBRARY_PATH"
)
"""Variables that the images of vLLM and NVIDIA set themselves."""
_READ = frozenset("modelURL vllmConfig hf_token repository tag requestGPU requestGPUType".split())


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


def charted(spec: Mapped) -> tuple[Mapped, list[str]]:
    """The container that the chart makes of one of its models, and the keys that stay open."""
    config, place = dict(pairs(spec.get("vllmConfig"))), spec["modelURL"].span
    if config:  # the chart switches it off unless it is said
        config.setdefault("enablePrefixCaching", Word("false", place))
    words = [Word("vllm", place), Word("serve", place), spec["modelURL"]]
    for key in _OF_CONFIG:
        if isinstance(value := config.pop(key, None), Word):
            spelled = re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", key)
            said = value.text.lower()
            words.append(Word(f"--{'no-' if said == 'false' else ''}{spelled}", value.span))
            words += [] if said in ("true", "false") else [value]
    words += [word for word in items(config.pop("extraArgs", None)) if isinstance(word, Word)]
    token = [{"name": Word("HF_TOKEN", place), "valueFrom": {}}] if "hf_token" in spec else []
    gpus = {text_at(spec, "requestGPUType") or "nvidia.com/gpu": spec.get("requestGPU")}
    container = {key: value for key, value in spec.items() if key not in {*_READ, *_OPEN}} | {
        "command": words,
        "env": [*items(spec.get("env")), *token],
        "resources": {"limits": gpus},
    }
    if repository := text_at(spec, "repository"):
        container["image"] = Word(f"{repository}:{text_at(spec, 'tag')}".rstrip(":"), place)
    # vLLM has one engine, whatever `v1` says
    left = [f"vllmConfig.{key}" for key in config if key not in ("v0", "v1")]
    return container, left + [key for key in _OPEN if key in spec]


def inspected(root: Mapped, config: Mapped) -> Mapped:
    """The container of `docker inspect`, with compose's keys."""
    host, place = root.get("HostConfig"), config["Image"].span
    request = at(host, "DeviceRequests")
    chosen = ",".join(word.text for word in items(at(request, "DeviceIDs")))
    texts = {
        "gpus": f"device={chosen}" if chosen else text_at(request, "Count").replace("-1", "all"),
        "shm_size": text_at(host, "ShmSize"),
        "ipc": text_at(host, "IpcMode"),
        "mem_limit": text_at(host, "Memory"),
        "restart": text_at(host, "RestartPolicy", "Name"),
        "container_name": text_at(root, "Name").lstrip("/"),
    }
    unset = ("", "0", "no", "private", "67108864")
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
        **({"ports": ports} if (ports := at(host, "PortBindings")) else {}),
        **{key: Word(text, place) for key, text in texts.items() if text not in unset},
    }
