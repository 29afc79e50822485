"""The engines that containers start: services of a compose file, containers of Kubernetes manifests and patches."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.convert.invocation import STARTS, Invocation, around_notes, in_container, is_image, starts
from specserve.convert.words import UNKNOWN, Word, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.profile.build import MAX_DEPTH, MAX_VALUES

_INNERMOST = re.compile(r"\$\{(\w+)(?:(:?[-+?])([^${}]*))?\}|\$(\w+)")
_OF_KUBERNETES = re.compile(r"\$\((\w+)\)")
_UNSET = re.compile(r"\$\{?(\w+)\}?")
_HELM = ("modelSpec", "vllmConfig", "servingEngineSpec", "extraArgs", "modelCommand")
_TEMPLATE = re.compile(r"\{\{-?\s*(?:\.|\$|if |range |include |with |template )")
_TASK = ("resources", "envs", "setup", "num_nodes", "file_mounts", "service")
_READ = (
    "image", "entrypoint", "command", "args", "environment", "env", "ports", "volumes", "volumeMounts", "name",
    "container_name", "build", "stdin_open", "tty",
)  # fmt: skip
_OF_THE_PARSER = (
    ValueError,
    AttributeError,
    AssertionError,
    TypeError,
)  # what ruamel.yaml raises for odd texts
_DOLLAR = "\ue004"  # a `$$` of compose, which becomes `$` at the end


def containers(text: str, *, file: str) -> list[Invocation]:
    """Every engine that a YAML file starts. Raises UsageError for what is no YAML, or a form that is not read."""
    documents = _documents(text, file=file)
    mappings = [mapping for document in documents for mapping in _mappings(document)]
    roots = [document for document in documents if isinstance(document, dict)]
    if _TEMPLATE.search(text) or any(key in mapping for mapping in mappings for key in _HELM):
        hint = "render the chart with `helm template`, and convert the manifest that it prints"
        raise UsageError(
            f"`{file}` holds values or templates of Helm, which specserve does not read", hint=hint
        )
    if any("run" in root and any(key in root for key in _TASK) for root in roots):
        hint = "convert the command that stands behind `run:`"
        raise UsageError(f"`{file}` is a task of SkyPilot, which specserve does not read", hint=hint)
    found: list[Invocation] = []
    for root in roots:
        for mapping in _mappings(root):
            found += _started(mapping, compose="services" in root)
    return found or [start for mapping in mappings for start in _in_texts(mapping)]


def _documents(text: str, *, file: str) -> list[Any]:
    """The documents as dictionaries, lists and words: each scalar as it is written, with its place."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        budget = [MAX_VALUES]
        return [
            _plain(node, file, budget, 0) for node in YAML(typ="safe", pure=True).compose_all(text) if node
        ]
    except (YAMLError, RecursionError, LookupError, *_OF_THE_PARSER) as error:
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UsageError(f"`{file}` is not YAML: {reason}") from error


def _plain(node: Any, file: str, budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    if budget[0] < 0 or depth > MAX_DEPTH:
        raise ValueError("it is too large, or nested too deeply")
    if node.id == "sequence":
        return [_plain(item, file, budget, depth + 1) for item in node.value]
    if node.id == "mapping":
        mapping: dict[str, Any] = {}
        for key, item in node.value:
            if key.id != "scalar":
                raise ValueError("a key is no text")
            value = _plain(item, file, budget, depth + 1)
            if key.value != "<<":
                mapping[key.value] = value
            for merged in (value if isinstance(value, list) else [value]) if key.value == "<<" else []:
                mapping = {**merged, **mapping} if isinstance(merged, dict) else mapping
        return mapping
    if node.tag.endswith(":null") or (node.value in ("", "null", "~") and not node.style):
        return None
    start, end = node.start_mark, node.end_mark
    line = start.line + (2 if node.style in ("|", ">") else 1)  # a block begins on the line below
    return Word(node.value, Span(file, line, start.column + 1, end.line + 1, end.column + 1))


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping of a document in order."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(item)


def _started(mapping: Mapping[str, Any], *, compose: bool) -> list[Invocation]:
    """What a container starts; nothing if the mapping is no container of an engine."""
    image = mapping.get("image")
    parts = [_listed(mapping.get(key)) for key in ("entrypoint", "command", "args")]
    text = " ".join(word.text for part in parts for word in part)
    named = isinstance(image, Word) and is_image(_UNSET.sub(r"\1", image.text))
    if not (named or STARTS.search(text)) or not (image is None or isinstance(image, Word)):
        return []
    shell = bool(re.search(r"(?:^|[ /])(?:ba|z|da)?sh -[a-z]*c ", text))
    env: dict[str, Word] = {}

    def resolved(value: Word, *, shell: bool = False) -> Word:
        text = _compose(value.text) if compose else _kubernetes(value.text, env, shell=shell)
        return Word(text if shell else _OF_KUBERNETES.sub(lambda match: unknown(match[1]), text), value.span)

    env.update({name: resolved(word) for name, word in _environment(mapping)})
    values = [mapping.get(key) for key in ("entrypoint", "command", "args")]
    texts = [resolved(value, shell=shell) if isinstance(value, Word) else value for value in values]
    command: list[Word] = []
    for value in texts:
        items = _listed(value)
        command += items if isinstance(value, Word) else [resolved(item, shell=shell) for item in items]
    place = next(iter([*command, *([image] if image else [])]), Word("", Span("")))
    found = Invocation("vllm", place, env=env)
    found.published = [resolved(port) for port in _ports(mapping.get("ports"))]
    folders = [word.text for key in ("volumes", "volumeMounts") for word in _places(mapping.get(key))]
    found.notes = around_notes(folders, [key for key in mapping if key not in _READ], line=place.span.line)
    return in_container(resolved(image) if image else None, command, None, found)


def _listed(value: Any) -> list[Word]:
    """A list of words as it is; a text as compose splits it."""
    if isinstance(value, Word):
        try:
            parts = shlex.split(value.text)
        except ValueError:
            parts = value.text.split()
        return [Word(part, value.span) for part in parts]
    return [item for item in value if isinstance(item, Word)] if isinstance(value, list) else []


def _ports(value: Any) -> Iterator[Word]:
    """Compose's `9000:8000` and `{published, target}`; a `containerPort` of Kubernetes opens nothing."""
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Word):
            yield item
        elif isinstance(item, dict) and isinstance(target := item.get("target"), Word):
            outer = item.get("published")
            yield Word(f"{outer.text}:{target.text}", target.span) if isinstance(outer, Word) else target


def _places(value: Any) -> Iterator[Word]:
    for item in value if isinstance(value, list) else []:
        named = item.get("mountPath") or item.get("target") if isinstance(item, dict) else item
        if isinstance(named, Word):
            yield named


def _environment(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Word]]:
    """Compose's mapping or list of `NAME=value`; Kubernetes' list of `{name, value}`."""
    for value in (mapping.get("environment"), mapping.get("env")):
        pairs = list(value.items()) if isinstance(value, dict) else []
        for item in value if isinstance(value, list) else []:
            if isinstance(item, Word):
                name, sign, text = item.text.partition("=")
                pairs.append((name, Word(text, item.span) if sign else None))
            elif isinstance(item, dict) and isinstance(named := item.get("name"), Word):
                empty = Word("", named.span) if "value" in item else None
                pairs.append((named.text, item.get("value") or empty))
        for name, held in pairs:
            yield name, held if isinstance(held, Word) else Word(unknown(name), Span(""))


def _compose(text: str) -> str:
    """A text as compose reads it: `$$` is a dollar sign, `${X:-default}` its default, since nobody sets X."""

    def value(match: re.Match[str]) -> str:
        kept = {"-": match[3], "+": ""}
        return kept.get((match[2] or "?")[-1], unknown(match[1] or match[4]))

    text, before = text.replace("$$", _DOLLAR), ""
    while text != before:  # the innermost first
        before, text = text, _INNERMOST.sub(value, text)
    return text.replace(_DOLLAR, "$")


def _kubernetes(text: str, env: Mapping[str, Word], *, shell: bool) -> str:
    """A text as Kubernetes reads it: `$(X)` is a variable of the container; a shell reads the others."""
    text = _OF_KUBERNETES.sub(lambda match: env[match[1]].text if match[1] in env else match[0], text)
    return text if shell else _UNSET.sub(lambda match: unknown(match[1]), text)


def _in_texts(mapping: Mapping[str, Any]) -> Iterator[Invocation]:
    """The engines of scripts that stand in YAML: a ConfigMap's, a step's of a workflow."""
    env = {name: word for name, word in _environment(mapping) if not UNKNOWN.search(word.text)}
    for value in mapping.values():
        if isinstance(value, Word) and STARTS.search(value.text):
            around = Invocation("vllm", value, env=env)
            yield from starts([Word("sh", value.span), Word("-c", value.span), value], around)
