"""The engines that containers start: services of a compose file, containers of Kubernetes manifests and patches."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
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
            found += _started(mapping, _compose if "services" in root else _kubernetes)
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
    except (
        YAMLError,
        RecursionError,
        ValueError,
        AttributeError,
        AssertionError,
        KeyError,
        TypeError,
    ) as error:
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
            merged = value if isinstance(value, list) else [value]
            if key.value == "<<":
                mapping = {
                    **{
                        name: held for each in merged if isinstance(each, dict) for name, held in each.items()
                    },
                    **mapping,
                }
            else:
                mapping[str(key.value)] = value
        return mapping
    start, end = node.start_mark, node.end_mark
    line = start.line + (2 if node.style in ("|", ">") else 1)  # a block begins on the line below
    word = Word(node.value, Span(file, line, start.column + 1, end.line + 1, end.column + 1))
    return (
        None if node.tag.endswith(":null") or (node.value in ("", "null", "~") and not node.style) else word
    )


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping of a document in order."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(item)


def _started(
    mapping: Mapping[str, Any], resolved: Callable[[Word, Mapping[str, Word], bool], Word]
) -> list[Invocation]:
    """What a container starts; nothing if the mapping is no container of an engine."""
    image = mapping.get("image")
    written = [word for key in ("entrypoint", "command", "args") for word in _listed(mapping.get(key))]
    text = " ".join(word.text for word in written)
    named = isinstance(image, Word) and is_image(_UNSET.sub(r"\1", image.text))
    if not (named or STARTS.search(text)) or not (image is None or isinstance(image, Word)):
        return []
    env = dict(_environment(mapping))
    shell = bool(re.search(r"(?:^|[ /])(?:ba|z|da)?sh -[a-z]*c ", text))
    env = {name: resolved(word, {}, False) for name, word in env.items()}
    command: list[Word] = []
    for key in ("entrypoint", "command", "args"):
        value = mapping.get(key)
        whole = [
            _marked(resolved(word, env, shell), shell)
            for word in ([value] if isinstance(value, Word) else _listed(value))
        ]
        command += _listed(whole[0]) if isinstance(value, Word) else whole
    place = next(iter([*command, *([image] if image else [])]), Word("", Span("")))
    found = Invocation("vllm", place, env=env)
    found.published = [resolved(port, {}, False) for port in _ports(mapping.get("ports"))]
    folders = [word.text for key in ("volumes", "volumeMounts") for word in _places(mapping.get(key))]
    found.notes = around_notes(folders, [key for key in mapping if key not in _READ], line=place.span.line)
    return in_container(resolved(image, {}, False) if image else None, command, None, found)


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
    for key in ("environment", "env"):
        value = mapping.get(key)
        if isinstance(value, dict):
            for name, held in value.items():
                yield name, held if isinstance(held, Word) else Word(unknown(name), Span(""))
        for item in value if isinstance(value, list) else []:
            if isinstance(item, Word):
                name, sign, text = item.text.partition("=")
                yield name, Word(text if sign else unknown(name), item.span)
            elif isinstance(item, dict) and isinstance(named := item.get("name"), Word):
                held = item.get("value")
                empty = "" if "value" in item else unknown(named.text)
                yield named.text, held if isinstance(held, Word) else Word(empty, named.span)


def _marked(word: Word, shell: bool) -> Word:
    """A word without `$(X)`, which only a shell could still replace."""
    return word if shell else Word(_OF_KUBERNETES.sub(lambda match: unknown(match[1]), word.text), word.span)


def _compose(word: Word, env: Mapping[str, Word], shell: bool) -> Word:
    """A text as compose reads it: `$$` is a dollar sign, `${X:-default}` its default, since nobody sets X."""

    def value(match: re.Match[str]) -> str:
        name, operator, default = match[1] or match[4], match[2] or "", match[3] or ""
        return (
            default
            if operator.endswith(("-", "+")) and operator[-1] == "-"
            else ""
            if operator.endswith("+")
            else unknown(name)
        )

    text, before = word.text.replace("$$", _DOLLAR), ""
    while text != before:  # the innermost first
        before, text = text, _INNERMOST.sub(value, text)
    return Word(text.replace(_DOLLAR, "$"), word.span)


def _kubernetes(word: Word, env: Mapping[str, Word], shell: bool) -> Word:
    """A text as Kubernetes reads it: `$(X)` is a variable of the container; a shell reads the others."""
    text = _OF_KUBERNETES.sub(lambda match: env[match[1]].text if match[1] in env else match[0], word.text)
    if not shell:
        text = _UNSET.sub(lambda match: unknown(match[1]), text)
    return Word(text, word.span)


def _in_texts(mapping: Mapping[str, Any]) -> Iterator[Invocation]:
    """The engines of scripts that stand in YAML: a ConfigMap's, a step's of a workflow."""
    env = {name: word for name, word in _environment(mapping) if not UNKNOWN.search(word.text)}
    for value in mapping.values():
        if isinstance(value, Word) and STARTS.search(value.text):
            around = Invocation("vllm", value, env=env)
            yield from starts([Word("sh", value.span), Word("-c", value.span), value], around)
