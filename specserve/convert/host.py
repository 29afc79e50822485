"""A container's launch as one of the host: paths by its mounts, GPUs and nodes as `hardware`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from specserve.convert.arguments import Setting, place_of
from specserve.convert.command import Sections
from specserve.convert.launch import Launch
from specserve.convert.words import UNKNOWN, Note, finding, readable
from specserve.errors import quoted
from specserve.hardware.accelerators import catalogue
from specserve.profile.values import Node
from specserve.vllm.arguments import VllmTable

_PATHS = frozenset(
    "model tokenizer chat_template download_dir hf_config_path generation_config lora_modules "
    "speculative_config allowed_local_media_path tool_parser_plugin reasoning_parser_plugin "
    "ssl_keyfile ssl_certfile ssl_ca_certs load_format_config".split()
)
"""The arguments whose values may be paths."""
_PATH = re.compile(r"(^|[=:])(/[^,;\s\"'{}]*|[\w./-]+\.jinja)$")
_SIZE = re.compile(r"\d+gb")


def on_host(given: Launch, table: VllmTable) -> Launch:
    """The launch with the host's paths.

    A path that only the container has is an error, of a cache a note.
    """
    if not given.is_contained:
        return _with_note(replace(given, settings=_from_folder(given)), given.left_out)
    settings, notes, unresolved = dict(given.settings), list(given.notes), list(given.unresolved)
    used: set[tuple[str, str]] = set()

    def is_on_host(path: str) -> bool:
        held = _mount_of(path, given.mounts)
        used.update([held] if held else [])
        return bool(held and held[0])

    def mapped(node: Node, path: str) -> Node:
        found = _PATH.search(str(node.value))
        if found is None or UNKNOWN.fullmatch(found.string):
            return node
        if is_on_host(found[2]):
            text = found.string[: found.start(2)] + on_hosts_path(found[2], given.mounts)
            if not UNKNOWN.search(text):
                said = f"it is {quoted(found[2])} in the source's container"
                notes.append(Note(path, said, node.span.line))
            return replace(node, value=text, raw=text)
        text = f"{quoted(found[2])} is a path of the source's container, not of the host"
        place = replace(node.span, path=path)
        unresolved.append(finding("SD105", text, place, help="write the host's path"))
        return node

    for name, setting in given.settings.items():
        folder = str(setting.node.value) if name == "download_dir" else ""
        if folder.startswith("/") and not is_on_host(folder):
            text = f"`{setting.written} {folder}` is left out: the host does not have this path"
            notes.append(Note("", f"{text} of the container", setting.place.line))
            del settings[name]
        elif name in _PATHS:
            node = _each(setting.node, place_of(name, table), mapped)
            settings[name] = replace(setting, node=node)
    env = dict(given.env)
    for name, word in given.env.items():
        if word.text.startswith("/"):
            host = readable(on_hosts_path(word.text, given.mounts))
            where = f", {quoted(host)} on the host" if is_on_host(word.text) else ""
            text = f"`{name}` is left out: {quoted(word.text)} is a path of the container{where}"
            notes.append(Note("", text, word.span.line))
            del env[name]
    left = [
        f"volume {host}:{path}".replace(" :", " ")
        for host, path in given.mounts
        if (host, path) not in used
    ]
    given = replace(given, settings=settings, env=env, notes=notes, unresolved=unresolved)
    return _with_note(given, [*left, *given.left_out])


def _with_note(given: Launch, left: list[str]) -> Launch:
    """The launch with a note about what no profile holds."""
    if not left:
        return given
    shown = ", ".join(map(quoted, dict.fromkeys(map(readable, left))))
    text = f"a profile has no place for these settings: {shown}"
    return replace(given, notes=[*given.notes, Note("", text, given.place.line)])


def _from_folder(given: Launch) -> dict[str, Setting]:
    """The settings with whole paths in the place of those that begin at the launch's folder."""

    def whole(node: Node, _: str) -> Node:
        text = str(node.value)
        path = Path(given.folder, text)
        if not (text.startswith(("./", "../")) or ("/" in text and path.exists())):
            return node
        return replace(node, value=os.path.normpath(path), raw=None)

    settings = dict(given.settings)
    for name in settings.keys() & _PATHS if given.folder else ():
        settings[name] = replace(settings[name], node=_each(settings[name].node, name, whole))
    return settings


def _each(node: Node, path: str, change: Callable[[Node, str], Node]) -> Node:
    """A value with each of its texts changed. `path`: where it stands in a profile."""
    if node.mapping is not None:
        items = node.mapping.items()
        return replace(
            node, value={key: _each(item, f"{path}.{key}", change) for key, item in items}
        )
    if isinstance(node.value, list):
        return replace(node, value=[_each(item, path, change) for item in node.value])
    return change(node, path) if isinstance(node.value, str) else node


def with_file_of_arguments(given: Launch) -> Launch:
    """The launch with the host's path of its `--config`; what its container has is unresolved."""
    words, unresolved = list(given.words), list(given.unresolved)
    at = next((at for at, word in enumerate(words[:-1]) if word.text == "--config"), None)
    if at is None or not given.is_contained:
        return given
    word = words[at + 1]
    words[at + 1] = replace(word, text=on_hosts_path(word.text, given.mounts))
    if words[at + 1] == word:
        text = f"the source's container has its arguments in {quoted(readable(word.text))}"
        unresolved.append(
            finding("SD105", text, word.span, help="write them as keys of the profile")
        )
        del words[at : at + 2]
    return replace(given, words=words, unresolved=unresolved)


def on_hosts_path(path: str, mounts: list[tuple[str, str]]) -> str:
    """A container's path as the host has it; as it is if no folder of the host holds it."""
    held = _mount_of(path, mounts)
    return f"{held[0].rstrip('/')}{path[len(held[1].rstrip('/')) :]}" if held and held[0] else path


def _mount_of(path: str, mounts: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The innermost mount that a container's path lies in."""
    holds = [held for held in mounts if f"{path}/".startswith(f"{held[1].rstrip('/')}/")]
    return max(holds, key=lambda held: len(held[1]), default=None)


def set_hardware(given: Launch, sections: Sections) -> Iterator[Note]:
    """Fills `hardware` from the container's GPUs and nodes, and from those of vLLM's executor."""
    engine, target = sections.get("engine", {}), sections["target"]
    hardware = dict(sections.get("hardware", {}))
    nodes, executor = engine.get("nnodes"), engine.get("distributed_executor_backend")
    world = count_of(target.get("tensor_parallel_size")) * count_of(
        target.get("pipeline_parallel_size")
    )
    is_other = count_of(engine.get("data_parallel_size")) > 1 or (
        executor and executor.value == "ray"
    )
    if given.devices:
        listed = re.search(r"device=([\w,-]+)", given.devices.text)
        text = str(len(listed[1].split(","))) if listed else given.devices.text
        if text.isdigit() and int(text):
            hardware["count"] = Node(int(text), given.devices.span)
    if given.nodes and given.nodes.text.isdigit() and int(given.nodes.text) > 1:
        hardware["nodes"] = Node(int(given.nodes.text), given.nodes.span)
    if given.accelerator and (name := accelerator_of(given.accelerator.text)):
        hardware["accelerator"] = Node(name, given.accelerator.span)
        yield Note("hardware.accelerator", f"the source says {quoted(given.accelerator.text)}")
    if nodes and count_of(nodes) > 1 and world % count_of(nodes) == 0 and not is_other:
        hardware |= {
            "count": Node(world // count_of(nodes), nodes.span),
            "nodes": engine.pop("nnodes"),
        }
        rank = engine.pop("node_rank", None)
        command = f"specserve up PROFILE --node-rank {rank.value if rank else 0}"
        text = f"from `--nnodes`; the source starts the node of `{command}`"
        yield Note("hardware.nodes", text, nodes.span.line)
    if hardware:
        sections["hardware"] = hardware


def accelerator_of(label: str) -> str | None:
    """The name in the catalogue for a label such as `nvidia-h100-80gb`."""
    if label == "nvidia-tesla-a100":  # GKE's name for the smaller one
        return "A100-40GB"
    words = re.split(r"[-_ ]", re.sub(r"(\d) (gb)", r"\1\2", label.lower()))
    named = [one.name for one in catalogue() if set(one.name.lower().split("-")[:-1]) <= set(words)]
    sizes = [word for word in words if _SIZE.fullmatch(word)]
    exact = [name for name in named if name.lower().rpartition("-")[2] in sizes]
    longest = max((len(name.split("-")) for name in exact or named), default=0)
    chosen = [name for name in exact or named if len(name.split("-")) == longest]
    return chosen[0] if len(chosen) == 1 and (exact or not sizes) else None


def count_of(node: Node | None) -> int:
    return node.value if node and isinstance(node.value, int) else 1
