"""A launch to the text of a profile that lints, with every change noted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specserve.convert.arguments import place_of
from specserve.convert.command import Sections, as_tree, profile_sections
from specserve.convert.launch import Launch
from specserve.convert.translate import translated
from specserve.convert.words import (
    LONGEST_SHOWN,
    UNKNOWN,
    Note,
    finding,
    plain,
    readable,
    unresolved,
)
from specserve.diagnostics import Finding
from specserve.errors import UsageError, quoted
from specserve.profile.schema import Server
from specserve.profile.secrets import holds_a_secret, hushed, looks_secret, names_a_secret
from specserve.profile.tree import Node
from specserve.profile.writer import yaml_text
from specserve.vllm.arguments import VllmTable
from specserve.vllm.versions import judged_versions, newest, table

FILE = "<profile>"  # the name of a profile that is not written yet
OPEN_MARK = "TODO"  # how the comment begins about a value that the source does not say
_PRIVATE_USE = re.compile("[\ue000-\uf8ff]")
_ORDER = ("vllm", "target", "speculation", "engine", "frontend", "server", "hardware", "env")
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - what is looked for, not what is listened on
_SGLANG_PORT = 30_000
_TAG = re.compile(r"vllm-openai[\w-]*:v?(\d{1,4})\.(\d{1,4})\b[\w.+-]*")
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})\b")
_PATHS = frozenset(
    "model tokenizer chat_template download_dir hf_config_path generation_config lora_modules "
    "speculative_config allowed_local_media_path tool_parser_plugin reasoning_parser_plugin "
    "ssl_keyfile ssl_certfile ssl_ca_certs load_format_config".split()
)
"""The arguments whose values may be paths."""
_PATH = re.compile(r"(^|[=:])(/[^,;\s\"'{}]*|[\w./-]+\.jinja)$")


@dataclass(frozen=True, slots=True)
class Converted:
    """A profile's text, what it says otherwise than its source, and what the source leaves open."""

    text: str
    notes: tuple[Note, ...]
    unresolved: tuple[Finding, ...] = ()  # an error for each value that the source does not say


def converted(given: Launch, *, origin: str) -> Converted:
    """The profile of one start of an engine. `origin` names the text.

    Raises UsageError if the text names no model.
    """
    if not ({"model", "model_path"} & given.settings.keys() or given.unresolved):
        hint = "vLLM would serve its default, Qwen3-0.6B"
        raise UsageError(f"{given.what} in {origin} does not specify a model", hint=hint)
    notes: list[Note] = []
    known, versions = _image_table(given, notes)
    given = _on_host(translated(given, table=known), known)
    notes += given.notes
    refused: list[Finding] = []
    env = _kept_environment(given, notes)
    sections, block = profile_sections(given.settings, table=known, env=env, found=refused)
    notes += [Note("", item.message, item.span.line) for item in refused]
    notes += _keep_on_loopback(sections.setdefault("server", {}), given)
    sections["hardware"] = {**sections.get("hardware", {}), **given.hardware}
    notes += _set_nodes(sections)
    found: list[Finding] = []
    tree = as_tree(sections, block, given.start.span)
    tree = _complete(tree, notes, found) or tree
    there = set(tree.nodes())
    for at, item in enumerate(given.unresolved):
        path = item.span.path
        lacks = f", so `{path}` is missing from the profile" if path and path not in there else ""
        found.insert(at, item._replace(message=_harmless(item.message) + lacks))
    notes = [replace(note, text=_harmless(note.text)) for note in notes]
    notes.sort(key=lambda note: note.line or sys.maxsize)
    line = f", line {given.start.span.line}" if given.start.span.line > 1 else ""
    head = [f"Converted from {_harmless(given.what)} in {origin}{line}."]
    head += [f"- `{note.path}`: {note.text}" if note.path else f"- {note.text}" for note in notes]
    for item in found:
        parts = filter(None, (item.message, item.help))
        head.append(f"- {OPEN_MARK}: {_harmless('; '.join(parts))}")
    made = {"vllm": versions, **plain(tree)}
    ordered = {name: made[name] for name in _ORDER if made.get(name) is not None}
    text = yaml_text(ordered, head="\n".join(head), flow=True)
    return Converted(text, tuple(notes), tuple(found))


def _harmless(text: str) -> str:
    """A text without secrets, and without the marks of what the source leaves open."""
    return " ".join(hushed(_PRIVATE_USE.sub("…", readable(text))).splitlines())


def _image_table(given: Launch, notes: list[Note]) -> tuple[VllmTable, str | None]:
    """The vLLM that an image or a server names, and its range for a profile; else the newest."""
    image, release, line = given.image, _RELEASE.match(given.version), 0
    if image is None and release is None:
        return newest(), None
    what, keep = f"the server, which is vLLM {given.version}", ""
    if image:
        release, line, name = _TAG.search(image.text), image.span.line, readable(image.text)
        what, keep = f"the image {quoted(name)}", f"; `specserve render --image {name}` keeps it"
    found = table(f"{release[1]}.{release[2]}") if release else newest()
    if release and found.exact and given.engine == "vllm":
        notes.append(Note("vllm", f"from {what}{keep}", line))
        return found, f">={release[1]}.{release[2]},<{release[1]}.{int(release[2]) + 1}"
    judged = ", ".join(judged_versions(None))
    text = f"{what} names no vLLM that specserve knows: the profile is for vLLM {judged}{keep}"
    notes.append(Note("", text, line))
    return newest(), None


def _on_host(given: Launch, known: VllmTable) -> Launch:
    """The launch with the host's paths, and a note about what no profile holds.

    A path that only the container has is an error, of a cache a note.
    """
    settings, env = dict(given.settings), dict(given.env)
    notes, errors = list(given.notes), list(given.unresolved)

    def mapped(node: Node, path: str) -> Node:
        found = _PATH.search(str(node.value))
        if found is None or UNKNOWN.fullmatch(found.string):
            return node
        if host := given.on_host(found[2]):
            text = found.string[: found.start(2)] + host
            if not UNKNOWN.search(text):
                said = f"it is {quoted(found[2])} in the source's container"
                notes.append(Note(path, said, node.span.line))
            return replace(node, value=text, raw=text)
        text = f"{quoted(found[2])} is a path of the source's container, not of the host"
        place = node.span._replace(path=path)
        errors.append(finding("SD105", text, place, help="write the host's path"))
        return node

    def whole(node: Node, _: str) -> Node:
        text, path = str(node.value), Path(given.folder, str(node.value))
        if not (text.startswith(("./", "../")) or ("/" in text and path.exists())):
            return node
        return replace(node, value=os.path.normpath(path), raw=None)

    change = mapped if given.is_contained else whole if given.folder else None
    for name in [name for name in settings if name in _PATHS] if change else ():
        setting, value = settings[name], str(settings[name].node.value)
        is_cache = given.is_contained and name == "download_dir" and value.startswith("/")
        if is_cache and not given.on_host(value):
            text = f"`{setting.written} {value}` is left out: the host does not have this path"
            notes.append(Note("", f"{text} of the container", setting.place.line))
            del settings[name]
        elif change:
            node = _each(setting.node, place_of(name, known), change)
            settings[name] = replace(setting, node=node)
    for name, word in given.env.items() if given.is_contained else ():
        if word.text.startswith("/"):
            host = given.on_host(word.text)
            where = f", {quoted(readable(host))} on the host" if host else ""
            text = f"`{name}` is left out: {quoted(word.text)} is a path of the container{where}"
            notes.append(Note("", text, word.span.line))
            del env[name]
    mounts = (one for one in given.mounts if one[1] not in given.used)
    volumes = (f"volume {':'.join(filter(None, one))}" for one in mounts)
    left = dict.fromkeys(map(readable, [*volumes, *given.left_out]))
    if left:
        text = f"a profile has no place for these settings: {', '.join(map(quoted, left))}"
        notes.append(Note("", text, given.start.span.line))
    return replace(given, settings=settings, env=env, notes=notes, unresolved=errors)


def _each(node: Node, path: str, change: Callable[[Node, str], Node]) -> Node:
    """A value with each of its texts changed. `path`: where it stands in a profile."""
    if node.mapping is not None:
        items = node.mapping.items()
        inner = {key: _each(item, f"{path}.{key}", change) for key, item in items}
        return replace(node, value=inner)
    if isinstance(node.value, list):
        return replace(node, value=[_each(item, path, change) for item in node.value])
    return change(node, path) if isinstance(node.value, str) else node


def _kept_environment(given: Launch, notes: list[Note]) -> dict[str, Node]:
    """The variables that a profile may hold; every other one is noted, without its value."""
    kept: dict[str, Node] = {}
    for name, word in given.env.items():
        text, why = word.text, None
        if name == "VLLM_API_KEY" and "api_key" in given.settings:
            continue  # the option names the variable from which the launch sets it
        if not (name.isascii() and name.isidentifier()):
            why = "this is not the name of a variable"
        elif names_a_secret(name) or looks_secret(text):
            why = "it is a secret; export it where you start the server"
            why += ", as `HF_TOKEN`" if name.startswith("HUGGING") else ""
        elif unresolved(text):
            why = "the source does not say its value; export it where you start the server"
        elif name == "HF_ENDPOINT":
            why = "a profile must not name the address that tokens are sent to"
        if why:
            notes.append(Note("", f"{quoted(name)} is left out: {why}", word.span.line))
        else:
            kept[name] = word.node()
    return kept


def _keep_on_loopback(server: dict[str, Node], given: Launch) -> Iterator[Note]:
    """Makes a server without a key listen on this machine only; the note says how to open it."""
    if "VLLM_API_KEY" in given.env:
        server.setdefault("api_key_env", Node("VLLM_API_KEY", given.start.span))
    if given.is_call or "uds" in given.settings:
        return
    line, default = given.start.span.line, Server()
    if given.engine == "sglang" and "port" not in server:
        server["port"] = Node(_SGLANG_PORT, given.start.span)
        yield Note("server.port", "SGLang's default", line)
    host, keyed = server.get("host"), "api_key_env" in server
    if (host.value in _EVERYWHERE and not keyed) if host else given.engine == "vllm":
        said = f"`--host {host.value}`" if host and host.value else "no `--host`"
        key = "" if keyed else ", and `api_key_env: NAME` with the variable of a key"
        text = f"the source listens on every interface ({said}), this profile on {default.host}"
        if host:
            server["host"] = replace(host, value=default.host, raw=default.host)
        text += f" only; to open it, write `host: 0.0.0.0` under `server`{key}"
        yield Note("server.host", text, line)


def _set_nodes(sections: Sections) -> Iterator[Note]:
    """Moves the nodes of vLLM's own executor to `hardware`."""
    engine = sections.get("engine", {})
    said = {name: node.value for name, node in (*engine.items(), *sections["target"].items())}

    def count(name: str) -> int:
        return number if isinstance(number := said.get(name), int) else 1

    nodes, world = count("nnodes"), count("tensor_parallel_size") * count("pipeline_parallel_size")
    is_other = said.get("distributed_executor_backend") == "ray" or count("data_parallel_size") > 1
    if nodes > 1 and world % nodes == 0 and not is_other:
        place, rank = engine["nnodes"].span, engine.pop("node_rank", None)
        sections["hardware"] |= {
            "count": Node(world // nodes, place),
            "nodes": engine.pop("nnodes"),
        }
        command = f"specserve up PROFILE --node-rank {rank.value if rank else 0}"
        text = f"from `--nnodes`; the source starts the node of `{command}`"
        yield Note("hardware.nodes", text, place.line)


def _complete(
    node: Node, notes: list[Note], found: list[Finding], path: str = "", key: str = ""
) -> Node | None:
    """The tree without secrets, which are noted, and what the source leaves open: an error."""
    text = node.value if isinstance(node.value, str) else ""
    if looks_secret(key) or (text and holds_a_secret(key, text)):
        notes.append(Note("", f"`{path}` is left out: it looks like a secret"))
        return None
    if unresolved(text) or unresolved(key) or not key.isprintable():
        reads = quoted(_harmless(text or key), LONGEST_SHOWN)
        message = f"the source does not say `{_harmless(path)}`: it reads {reads}"
        span = node.span._replace(path=path.partition("[")[0])
        found.append(finding("SD105", message, span, help="write its value"))
        return None
    if text.startswith(("./", "../")):
        text = "paths that start with `./` or `../` are relative to the profile's own folder"
        notes += [] if any(note.text == text for note in notes) else [Note("", text)]
    if isinstance(node.value, list):
        cleaned = (_complete(item, notes, found, f"{path}[]", key) for item in node.value)
        items = [item for item in cleaned if item]
        return replace(node, value=items) if items or not node.value else None
    if node.mapping is None:
        return node
    kept: dict[str, Node] = {}
    for name, child in node.mapping.items():
        if clean := _complete(child, notes, found, f"{path}.{name}" if path else name, name):
            kept[name] = clean
    return replace(node, value=kept) if kept or not node.mapping or not path else None
