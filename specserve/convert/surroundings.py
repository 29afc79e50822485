"""What stands around an engine: the image that says its version, the network it listens on, the nodes it runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specserve.convert.given import Given, Setting
from specserve.convert.words import Note
from specserve.plan.support import UnknownVersion, known_versions, table
from specserve.plan.table import VllmTable
from specserve.profile.problems import quoted
from specserve.profile.schema import Server
from specserve.profile.tree import Node

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - what is looked for, not what is listened on
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
_SGLANG_PORT = 30_000
_TAG = re.compile(r"vllm-openai[\w-]*:v?(\d+)\.(\d+)[\w.+-]*")
_PUBLISHED = re.compile(r"(?:(\[[^]]*\]|\d+\.[\d.]+):)?(?:(\d+):)?(\d+)(?:/\w+)?")


def image_table(given: Given, notes: list[Note]) -> tuple[VllmTable, str | None]:
    """The table of the vLLM in a container's image, and its range for a profile; else the newest table and None."""
    newest, image = table(known_versions()[-1]), given.image
    if image is None:
        return newest, None
    tag = _TAG.search(image.text)
    if given.engine == "sglang":
        text = f"the image {quoted(image.text)} is left out: a profile is for vLLM"
    elif tag is None:
        text = f"the image {quoted(image.text)} does not say which vLLM it has"
    else:
        major, minor = int(tag[1]), int(tag[2])
        try:
            found = table(f"{major}.{minor}")
            if found.exact:
                notes.append(Note("vllm", f"from the image {quoted(image.text)}", image.span.line))
                return found, f">={major}.{minor},<{major}.{minor + 1}"
        except UnknownVersion:
            pass
        known = ", ".join(known_versions())
        text = f"the image {quoted(image.text)} has a vLLM that specserve does not know; the profile is for {known}"
    notes.append(Note("vllm", text, image.span.line))
    return newest, None


def first_version(refused: Sequence[set[Any]]) -> int:
    """The place of the first version from which on each takes what the newest takes, by what each one refuses."""
    first = len(refused) - 1
    while first > 0 and refused[first - 1] <= refused[-1]:
        first -= 1
    return max(first, 0)


def keep_on_loopback(server: dict[str, Node], given: Given, settings: Mapping[str, Setting]) -> list[Note]:
    """Makes a server without a key listen on this machine only; the note says what the source did, and how to do it."""
    if given.is_call or "uds" in settings:
        return []
    notes: list[Note] = []
    line = given.place.line
    if given.engine == "sglang" and "port" not in server:
        server["port"] = Node(_SGLANG_PORT, given.place)
        notes.append(Note("server.port", "SGLang's default", line))
    host, keyed = server.get("host"), "api_key_env" in server
    published = [(word, _PUBLISHED.fullmatch(word.text)) for word in given.published]
    local = bool(published) and all(match and match[1] in _LOOPBACK for _, match in published)
    parts = []
    if (host.value in _EVERYWHERE and not keyed) if host else given.engine == "vllm":
        default = Server().host
        said = f"`--host {host.value}`" if host and host.value else "no `--host`"
        parts.append(f"the source listens on every interface ({said}), this profile on {default} only")
        if host:
            server["host"] = replace(host, value=default, raw=default)
        if not local:
            key = "" if keyed else ", api_key_env: NAME"
            about = "" if keyed else " with the variable of a key"
            parts.append(f"to open it, write `server: {{host: 0.0.0.0{key}}}`{about}")
    if published:
        parts.append(f"the container publishes {', '.join(quoted(word.text) for word, _ in published)}")
    number = str(server["port"].value if "port" in server else Server().port)
    moved = [match[2] for _, match in published if match and match[3] == number and match[2] != number]
    if moved and moved[0]:
        parts.append(f"clients used port {moved[0]}: write `server: {{port: {moved[0]}}}` to keep it")
    return [*notes, Note("server.host", "; ".join(parts), line)] if parts else notes


def use_hardware_nodes(sections: dict[str, Node], headless: Setting | None, notes: list[Note]) -> None:
    """Moves the nodes of vLLM's own executor to `hardware`; `up` then says which of them it starts."""
    engine, target = (
        dict(sections[name].mapping or {}) if name in sections else {} for name in ("engine", "target")
    )
    nodes, rank = engine.get("nnodes"), engine.get("node_rank")
    world = _count(target.get("tensor_parallel_size")) * _count(target.get("pipeline_parallel_size"))
    executor = engine.get("distributed_executor_backend")
    others = _count(engine.get("data_parallel_size")) > 1 or (
        executor is not None and executor.value == "ray"
    )
    if nodes and _count(nodes) > 1 and world % _count(nodes) == 0 and not others:
        rest = {name: node for name, node in engine.items() if name not in ("nnodes", "node_rank")}
        hardware = dict(sections["hardware"].mapping or {}) if "hardware" in sections else {}
        hardware["count"] = Node(world // _count(nodes), nodes.span)
        hardware["nodes"] = nodes
        sections["hardware"] = Node(hardware, nodes.span)
        sections["engine"] = replace(sections["engine"], value=rest)
        if not rest:
            del sections["engine"]
        words = f"--node-rank {rank.value if rank else 0}"
        text = f"from `--nnodes`; the source starts the node of `specserve up PROFILE {words}`"
        notes.append(Note("hardware.nodes", text, nodes.span.line))
        if headless:
            text = "`--headless` is left out: `up` adds it to every node but the first"
            notes.append(Note("", text, headless.place.line))
    elif headless:
        text = "`--headless` is left out: it starts a worker that answers no requests; convert the first node's command"
        notes.append(Note("", text, headless.place.line))


def _count(node: Node | None) -> int:
    return node.value if node and isinstance(node.value, int) else 1
