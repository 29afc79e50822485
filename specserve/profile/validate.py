"""What each key takes, and a tree of values to a Profile, with every problem of it in one pass."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specserve.diagnostics import Finding, Span
from specserve.errors import CONTROL, UsageError, did_you_mean, quoted
from specserve.profile.schema import SECTIONS, Profile, Speculation
from specserve.profile.secrets import names_a_secret
from specserve.profile.tree import Node, problem, shown
from specserve.vllm.arguments import human_int
from specserve.vllm.speculation import METHODS, REMOVED
from specserve.vllm.versions import in_range

Key = Mapping[str, Any]
SCHEMA: dict[str, Any] = json.loads(
    Path(__file__).with_name("keys.json").read_text(encoding="utf-8")
)
"""`$defs` has the kinds of keys, and the sections; `title` says what a value must be."""
KINDS: dict[str, dict[str, Any]] = SCHEMA["$defs"]
TOP: Mapping[str, Key] = SCHEMA["properties"]
ELSEWHERE: Mapping[str, str] = SCHEMA["x-elsewhere"]
"""The place of what the profile does not take where a stranger would write it."""
EVERY_KEY: Mapping[str, Key] = KINDS["speculation"]["properties"]
BLOCK_KEYS: Mapping[str, Mapping[str, Key]] = {
    method: {
        name: key for name, key in EVERY_KEY.items() if key.get("x-group") in (None, *known.groups)
    }
    for method, known in METHODS.items()
}
"""The keys that a block of each method takes."""
_ANY = {"$ref": "#/$defs/any"}
_WHOLE: dict[int, tuple[str, Key]] = {}
"""The kind of a key and all that is said of it, by the key's identity."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What no text holds; tabs and line breaks may stand in templates, and in no name."""


def kind_of(key: Key) -> str:
    """The name of what the key takes, in `$defs`."""
    return str(key["$ref"].rpartition("/")[2])


def words(key: Key) -> str:
    """What the value must be, such as `an integer of at least 1`."""
    if "enum" in key and "title" not in key:
        *first, last = (f"`{choice}`" for choice in key["enum"] if choice is not None)
        return f"{', '.join(first)} or {last}" if first else last
    text = str(key.get("title") or KINDS[kind_of(key)]["title"])
    if "items" in key and "title" not in key:
        text += f", each item {words(key['items'])}"
    if "maximum" in key:
        return f"{text} from {key['minimum']:g} to {key['maximum']:g}"
    return f"{text} of at least {key['minimum']:g}" if "minimum" in key else text


def read_profile(tree: Node, *, file: str) -> tuple[Profile | None, list[Finding]]:
    """The profile and its problems; None if vLLM does not take it either.

    What vLLM takes and specserve does not, such as a key of another method, is not in the profile.
    """
    reader = _Reader()
    values = reader.keys(tree, TOP, SCHEMA["x-required"], "")
    try:
        in_range(values.get("vllm") or "")
    except UsageError:
        reader.unfit((tree.mapping or {})["vllm"], TOP["vllm"], "vllm")
    if any(not finding.policy for finding in reader.found):
        return None, reader.found
    values.pop("extends", None)
    given = {"file": file, "name": name_of(file), **values}
    return Profile(**given, nodes=MappingProxyType(tree.nodes())), reader.found


def name_of(file: str) -> str:
    """A profile's default name: the stem in lower case, all but a-z and 0-9 made dashes."""
    stem = "stdin" if file == "-" else Path(file).stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "profile"


class _Reader:
    """Reads one tree; `found` gets its problems."""

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def wrong(self, code: str, message: str, span: Span, path: str, **more: Any) -> None:
        """Takes a problem of what stands at a path."""
        self.found.append(problem(code, message, span._replace(path=path), **more))

    def unfit(self, node: Node, key: Key, path: str, **more: Any) -> None:
        """Takes a value that is not what its key takes."""
        is_secret = "writeOnly" in key or names_a_secret(path.rpartition(".")[2])
        found = "" if is_secret else f"; found {shown(node)}"
        text = f"{quoted(path)} must be {words(key)}{found}"
        self.wrong("SD006", text, node.span, path, **more)

    def keys(
        self, node: Node, known: Mapping[str, Key], needed: Iterable[str], path: str, note: str = ""
    ) -> dict[str, Any]:
        """The values of a mapping that takes these keys; tells the others, and what is missing."""
        values: dict[str, Any] = {}
        given, dot = node.mapping or {}, f"{path}." if path else ""
        takes = known.keys() | (EVERY_KEY.keys() if note else set())
        strangers = given.keys() - takes
        for name, child in given.items():
            if name in known:
                value = self.value(child, known[name], f"{dot}{name}")
                values |= {} if value is None else {name: value}
                continue
            help, is_known = None, name in takes  # by vLLM, for another method
            if is_known:
                help = "leave it out: it has no effect with this method"
            elif guess := did_you_mean(name, known, of=len(strangers)):
                help = f"did you mean `{guess}`?"
            elif elsewhere := ELSEWHERE.get(name.replace("-", "_")):
                help = f"write it as `{elsewhere}`"
            elif path == "target":
                help = "`engine` takes every other engine argument of vLLM"
            text = f"unknown key {quoted(name)} in {quoted(path) if path else 'a profile'}{note}"
            span = child.key or child.span
            self.wrong("SD005", text, span, f"{dot}{name}", help=help, policy=is_known)
        for name in () if strangers else needed:  # a stranger may be meant to be it
            if name not in given:
                span, help = node.key or node.span, known[name]["description"]
                first = Span(span.file, span.line, span.column, span.line, span.column + 1)
                text = f"{quoted(f'{dot}{name}')} is missing{note}"
                self.wrong("SD007", text, node.key or first, path, help=help)
        return values

    def value(self, node: Node, key: Key, path: str) -> Any:
        """The value as Python; None and a problem where it is not what it must be."""
        value, known = node.value, _WHOLE.get(id(key))
        if known is None:
            known = _WHOLE[id(key)] = kind_of(key), {**KINDS[kind_of(key)], **key}
        kind, declared = known
        types = declared.get("type", ("null", "object", "array"))
        if value is None and "null" in types:
            return None
        if isinstance(value, dict) and "object" in types:
            if kind == "speculation":
                return self.block(node, value, path)
            if "properties" not in declared:
                return self.map(value, declared, path)
            needed = declared.get("x-required", ())
            values = self.keys(node, declared["properties"], needed, path)
            return SECTIONS[kind](**values) if kind in SECTIONS else MappingProxyType(values)
        least, most = declared.get("minItems", 0), declared.get("maxItems", math.inf)
        if isinstance(value, list) and "array" in types and least <= len(value) <= most:
            item = declared.get("items", _ANY)
            return tuple(self.value(one, item, f"{path}[{at}]") for at, one in enumerate(value))
        found = _scalar(node, kind, declared)
        if found is None:
            self.unfit(node, key, path)
        return found

    def map(self, given: Mapping[str, Node], key: Key, path: str) -> Mapping[str, Any]:
        """A mapping with names of its own; of a section, null is as if the key were not there."""
        values: dict[str, Any] = {}
        named = key.get("propertyNames", {})
        for name, child in given.items():
            place, span = f"{path}.{name}", child.key or child.span
            elsewhere = ELSEWHERE.get(name.replace("-", "_"))
            if path in ("engine", "frontend") and elsewhere:
                text = f"{quoted(name)} does not belong in `{path}`"
                self.wrong("SD005", text, span, place, help=f"write it as `{elsewhere}`")
            elif not re.fullmatch(named.get("pattern", ".*"), name):
                text = f"a name in `{path}` must be {named['title']}; found {quoted(name)}"
                self.wrong("SD006", text, span, place)
            elif child.value is not None or path not in TOP:
                value = self.value(child, key.get("additionalProperties", _ANY), place)
                values |= {name: value} if value is not None or path not in TOP else {}
        return MappingProxyType(values)

    def block(self, node: Node, given: Mapping[str, Node], path: str) -> Speculation | None:
        """A block of vLLM's SpeculativeConfig, or None where its method cannot be judged."""
        if "method" not in given:
            self.keys(node, EVERY_KEY, ["method"], path)
            return None
        written = given["method"]
        text = written.value if written.raw is None else written.raw
        method = text if isinstance(text, str) else ""
        if method not in METHODS:
            guess = "mtp" if method.endswith("_mtp") else did_you_mean(method, METHODS)
            help = REMOVED.get(method) or (f"did you mean `{guess}`?" if guess else None)
            # the others run in vLLM, or in a plug-in of it
            policy = method not in ("", "null", "medusa", "mlp_speculator")
            self.unfit(written, EVERY_KEY["method"], f"{path}.method", help=help, policy=policy)
            return None
        set_keys = {name: child for name, child in given.items() if child.value is not None}
        note = f" (method `{method}`)"
        node, needs = replace(node, value=set_keys), METHODS[method].needs
        values = self.keys(node, BLOCK_KEYS[method], needs, path, note)
        return Speculation(method, MappingProxyType(values))


def _scalar(node: Node, kind: str, key: Key) -> Any:
    """A scalar as this key takes it; None if it does not."""
    value: Any = node.value
    found: Any = None
    text = str(value if node.raw is None else node.raw)
    if value is None or isinstance(value, (dict, list)):
        return None
    if isinstance(value, bool):
        return value if kind in ("bool", "any") else text if kind == "text" else None
    number = human_int(value) if isinstance(value, str) else value
    match kind:
        case "text" | "any" if _CONTROL.search(text):
            return None
        case "text":
            return text
        case "any":
            return None if isinstance(value, float) and not math.isfinite(value) else value
        case "str" if text.strip() and not CONTROL.search(text):
            found = text if re.fullmatch(key.get("pattern", ".+"), text) else None
        case "float" if isinstance(value, (int, float)) and math.isfinite(value):
            found = float(value)
        case "device" if isinstance(value, str):
            return value if re.fullmatch(key["pattern"], value) else None
        case "length" if text.lower() == "auto" or value == -1:
            return -1  # vLLM fits the length to the memory
        case "int" | "device" | "length" if type(number) is int:
            found = number if kind != "length" or number > 0 else None
    if found is None or found not in key.get("enum", (found,)):
        return None
    low, high = key.get("minimum", found), key.get("maximum", found)
    return found if low <= found <= high else None
