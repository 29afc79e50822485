"""A launch to the text of a profile that lints, with every change noted."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from specserve.convert.arguments import Setting
from specserve.convert.command import as_tree, profile_sections
from specserve.convert.host import on_host, set_hardware
from specserve.convert.launch import Launch
from specserve.convert.translate import translated
from specserve.convert.words import (
    LONGEST_SHOWN,
    Note,
    Word,
    finding,
    plain,
    readable,
    unresolved,
)
from specserve.diagnostics import Finding
from specserve.errors import UsageError, quoted
from specserve.profile.schema import ENV_NAME, Server
from specserve.profile.secrets import holds_a_secret, hushed, looks_secret, names_a_secret
from specserve.profile.values import Node
from specserve.profile.writer import yaml_text
from specserve.vllm.arguments import VllmTable
from specserve.vllm.versions import judged_versions, newest, table

FILE = "<profile>"
"""The name of a profile that is not written yet."""
OPEN_MARK = "TODO"
"""How the comment begins about a value that the source does not say."""
_PRIVATE_USE = re.compile("[\ue000-\uf8ff]")
_ORDER = ("vllm", "target", "speculation", "engine", "frontend", "server", "hardware", "env")
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - what is looked for, not what is listened on
_SGLANG_PORT = 30_000
_TAG = re.compile(r"vllm-openai[\w-]*:v?(\d{1,4})\.(\d{1,4})\b[\w.+-]*")
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})\b")
_OWN_IMAGE = re.compile(r"(docker\.io/)?vllm/vllm-openai:v\d+\.\d+\.0")


@dataclass(frozen=True, slots=True)
class Converted:
    """A profile's text, what it says otherwise than its source, and what the source leaves open."""

    text: str
    notes: tuple[Note, ...]
    unresolved: tuple[Finding, ...] = ()
    """Errors about values that the source does not say; none of them stands in the text."""


def converted(given: Launch, *, origin: str) -> Converted:
    """The profile of one start of an engine. `origin` names the text.

    Raises UsageError if the text names no model.
    """
    if not ({"model", "model_path"} & given.settings.keys() or given.unresolved):
        hint = "vLLM would serve its default, Qwen3-0.6B"
        raise UsageError(f"{given.what} in {origin} does not specify a model", hint=hint)
    notes: list[Note] = []
    known, versions = _image_table(given, notes)
    given = on_host(translated(given, table=known), known)
    notes += given.notes
    found: list[Finding] = []
    tree = _tree(given, known, notes)
    tree = _complete(tree, notes, found) or tree
    there = {path for path, _ in tree.walk()}
    for at, item in enumerate(given.unresolved):
        path = item.span.path
        lacks = f", so `{path}` is missing from the profile" if path and path not in there else ""
        found.insert(at, replace(item, message=_harmless(item.message) + lacks))
    notes = [replace(note, text=_harmless(note.text)) for note in notes]
    notes.sort(key=lambda note: note.line or sys.maxsize)
    line = f", line {given.place.line}" if given.place.line > 1 else ""
    head = [f"Converted from {_harmless(given.what)} in {origin}{line}."]
    head += [f"- `{note.path}`: {note.text}" if note.path else f"- {note.text}" for note in notes]
    for item in found:
        help = f"; {item.help}" if item.help else ""
        head.append(f"- {OPEN_MARK}: {_harmless(item.message + help)}")
    sections = {"vllm": versions, **plain(tree)}
    ordered = {name: sections[name] for name in _ORDER if sections.get(name) is not None}
    text = yaml_text(ordered, head="\n".join(head), flow=True)
    return Converted(text, tuple(notes), tuple(found))


def _harmless(text: str) -> str:
    """A text without secrets, and without the marks of what the source leaves open."""
    return " ".join(hushed(_PRIVATE_USE.sub("…", readable(text))).splitlines())


def _tree(given: Launch, known: VllmTable, notes: list[Note]) -> Node:
    """The profile's tree, not open to everybody."""
    settings = dict(given.settings)
    refused: list[Finding] = []
    env = _kept_environment(given.env, notes, has_key="api_key" in settings)
    sections, block = profile_sections(settings, table=known, env=env, found=refused)
    notes += [Note("", item.message, item.span.line) for item in refused]
    server = sections.setdefault("server", {})
    if "VLLM_API_KEY" in given.env:
        server.setdefault("api_key_env", Node("VLLM_API_KEY", given.place))
    notes += _keep_on_loopback(server, given, settings)
    notes += set_hardware(given, sections)
    return as_tree(sections, block, given.place)


def _kept_environment(
    env: Mapping[str, Word], notes: list[Note], *, has_key: bool
) -> dict[str, Node]:
    """The variables that a profile may hold; every other one is noted, without its value.

    `has_key`: `--api-key` names the variable from which the launch sets VLLM_API_KEY.
    """
    kept: dict[str, Node] = {}
    for name, word in env.items():
        text, why = word.text, None
        if has_key and name == "VLLM_API_KEY":
            continue
        if not ENV_NAME.fullmatch(name):
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


def _keep_on_loopback(
    server: dict[str, Node], given: Launch, settings: Mapping[str, Setting]
) -> Iterator[Note]:
    """Makes a server without a key listen on this machine only; the note says how to open it."""
    if given.is_call or "uds" in settings:
        return
    line, default = given.place.line, Server()
    if given.engine == "sglang" and "port" not in server:
        server["port"] = Node(_SGLANG_PORT, given.place)
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
        span = replace(node.span, path=path.partition("[")[0])
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


def _image_table(given: Launch, notes: list[Note]) -> tuple[VllmTable, str | None]:
    """The vLLM of a container's image, or that a server names, and its range for a profile.

    Without one that specserve knows: the newest, and None.
    """
    image, release = given.image, _RELEASE.match(given.version)
    if image is None and release is None:
        return newest(), None
    what, line, keep = f"the server, which is vLLM {given.version}", 0, ""
    if image:
        release, line = _TAG.search(image.text), image.span.line
        what = f"the image {quoted(readable(image.text))}"
        keep = f"; `specserve render --image {image.text}` keeps it"
        keep = "" if unresolved(image.text) else keep
    found = table(f"{release[1]}.{release[2]}") if release else newest()
    if release and found.exact and given.engine == "vllm":
        keep = "" if image and _OWN_IMAGE.fullmatch(image.text) else keep
        notes.append(Note("vllm", f"from {what}{keep}", line))
        return found, f">={release[1]}.{release[2]},<{release[1]}.{int(release[2]) + 1}"
    judged = ", ".join(judged_versions(None))
    text = f"{what} names no vLLM that specserve knows: the profile is for vLLM {judged}{keep}"
    notes.append(Note("", text, line))
    return newest(), None
