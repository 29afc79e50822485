"""Containers in YAML (compose, Kubernetes) to the words that start each of them. Knows no option."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from specserve.convert.invocation import is_image
from specserve.convert.words import CLOSE, OPEN, Word
from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.profile.build import MAX_DEPTH, MAX_VALUES

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STARTS = re.compile(r"\bvllm\s+serve\s|vllm\.entrypoints\.openai\.api_server|sglang\.launch_server")
_CHART_SWITCHES = {"enableLoRA": "--enable-lora", "enableTool": "--enable-auto-tool-choice"}
_CHART_VALUES = {"toolCallParser": "--tool-call-parser", "chatTemplate": "--chat-template"}
_REFERENCE = re.compile(r"\$\$|\$(?:(\w+)|\{(\w+)(?::?[-?]([^}]*))?\})|\$\((\w+)\)")


@dataclass(slots=True)
class Container:
    """One container of vLLM or SGLang."""

    image: Word
    words: list[Word]
    env: dict[str, Word] = field(default_factory=dict)
    script: str | None = None
    """Text for a shell, where the container starts one."""


def containers(text: str, *, file: str) -> list[Container]:
    """The containers of a YAML file that hold one of the engines. Raises UsageError for what is no YAML."""
    try:
        _check(text)
        documents = list(yaml.load_all(text, Loader=_LOADER))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UsageError(f"`{file}` is not YAML: {reason}") from error
    mappings = list(_mappings(documents))
    found = [_container(mapping, file) for mapping in mappings]
    whole = [container for container in found if container is not None]
    whole = whole or [item for mapping in mappings for item in _scripts(mapping, file)]
    return whole or [item for mapping in mappings if (item := _of_chart(mapping, file)) is not None]


def _check(text: str) -> None:
    """Raises ValueError for what is too deep, or grows by its aliases."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or count > MAX_VALUES:
            raise ValueError("it is too large, or nested too deeply")


def _mappings(value: Any) -> Iterator[Mapping[Any, Any]]:
    """Every mapping of a document, once, in order."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, (dict, list)) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            yield item
        waiting += reversed(list(item.values()) if isinstance(item, dict) else item)


def _container(mapping: Mapping[Any, Any], file: str) -> Container | None:
    image = mapping.get("image")
    command = (
        _listed(mapping.get("entrypoint")) + _listed(mapping.get("command")) + _listed(mapping.get("args"))
    )
    if not isinstance(image, str) or not (is_image(_text(image)) or any("vllm" in part for part in command)):
        return None
    place = Span(file)
    texts = [_text(part) for part in command]
    script = None
    for at, part in enumerate(texts[:-1]):
        if re.fullmatch(r"-[a-z]*c", part) and at and texts[at - 1].endswith("sh"):
            script = texts[at + 1]
    env = {name: Word(_text(value), place) for name, value in _environment(mapping)}
    return Container(Word(_text(image), place), [Word(part, place) for part in texts], env, script)


def _scripts(mapping: Mapping[Any, Any], file: str) -> Iterator[Container]:
    """Scripts that stand in YAML without an image, as SkyPilot's `run` does, with the variables beside them."""
    place = Span(file)
    env = dict(_environment(mapping))
    for value in mapping.values():
        if isinstance(value, str) and _STARTS.search(value):
            known = [f"{name}={shlex.quote(text)}" for name, text in env.items() if OPEN not in text]
            yield Container(Word("", place), [], script="\n".join([*known, value]))


def _of_chart(mapping: Mapping[Any, Any], file: str) -> Container | None:
    """A model of vLLM's production stack (`modelSpec` of its Helm values), in the words that its chart makes of it."""
    model, settings = mapping.get("modelURL"), mapping.get("vllmConfig")
    if not isinstance(model, str) or not isinstance(settings, (dict, type(None))):
        return None
    words = ["vllm", "serve", model]
    words += [flag for key, flag in _CHART_SWITCHES.items() if mapping.get(key) is True]
    for key, flag in _CHART_VALUES.items():
        value = mapping.get(key)
        words += [flag, value] if isinstance(value, str) else []
    for key, value in (settings or {}).items():
        flag = "--" + re.sub(r"([A-Z])", r"-\1", str(key)).lower()
        if key == "extraArgs":
            words += _listed(value)
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif key not in ("v0", "v1") and isinstance(value, (str, int, float)):
            words += [flag, str(value)]
    place = Span(file)
    env = {name: Word(_text(value), place) for name, value in _environment(mapping)}
    return Container(Word("vllm/vllm-openai", place), [Word(_text(word), place) for word in words], env)


def _listed(value: Any) -> list[str]:
    """A list as it is; a text as compose splits it."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError:
            return value.split()
    if not isinstance(value, list):
        return []
    return [_plain(item) for item in value if not isinstance(item, (dict, list))]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _environment(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Compose's mapping or list of `NAME=value`; Kubernetes' list of `{name, value}`."""
    for key in ("environment", "env", "envs"):
        value = mapping.get(key)
        if isinstance(value, dict):
            yield from ((str(name), _plain(item)) for name, item in value.items() if item is not None)
        for item in value if isinstance(value, list) else []:
            if isinstance(item, str) and "=" in item:
                name, _, text = item.partition("=")
                yield name, text
            elif isinstance(item, dict) and "name" in item:
                known = item.get("value")
                yield (
                    str(item["name"]),
                    _plain(known) if known is not None else f"{OPEN}{item['name']}{CLOSE}",
                )


def _text(text: str) -> str:
    """A text with `$$` as compose reads it, and every other reference as a mark or its default."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1] or match[2] or match[4]
        return match[3] if match[3] is not None and "?" not in match[0] else f"{OPEN}{name}{CLOSE}"

    return _REFERENCE.sub(value, text)
