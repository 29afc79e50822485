"""A tree of values to a Profile, with every problem of it in one pass; or to what of it can be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from specserve import __version__
from specserve.diagnostics import Finding, Span
from specserve.errors import ProfileError, UsageError, did_you_mean, quoted
from specserve.profile import sections
from specserve.profile.codes import problem
from specserve.profile.schema import (
    ELSEWHERE,
    SCHEMA,
    SECTIONS,
    TOP,
    Hardware,
    Profile,
    Server,
    Speculation,
    Target,
    keys_of,
)
from specserve.profile.values import Node, shown
from specserve.vllm.facts import EXAMPLE_RANGE
from specserve.vllm.speculation import METHODS
from specserve.vllm.versions import in_range

T = TypeVar("T")

_ALWAYS_THERE = frozenset({"name", "schema"})
"""Keys that change nothing of what is judged: a bad one has a default in its place."""


class UnreadableValue(ProfileError):
    """A value was needed that a finding has already called bad."""

    def __init__(self, path: str) -> None:
        super().__init__(f"`{path}` cannot be read")


class _Unreadable:
    """Stands in the place of a value of the profile; whoever looks at it raises UnreadableValue."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _stop(self, *_: object) -> NoReturn:
        raise UnreadableValue(self._path)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._stop()

    __bool__ = __iter__ = __len__ = __contains__ = __getitem__ = __str__ = _stop
    __eq__ = __hash__ = _stop


class _PartialMapping(dict[str, Any]):
    """A mapping without its bad values; asking for one of them raises UnreadableValue."""

    def __init__(self, values: Mapping[str, Any], unread: frozenset[str], path: str) -> None:
        super().__init__({name: value for name, value in values.items() if name not in unread})
        self._unread, self._path = unread, path

    def _checked(self, key: object) -> Any:
        if key in self._unread:
            raise UnreadableValue(f"{self._path}.{key}")
        return key

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(self._checked(key), default)

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(self._checked(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._checked(key))


def _without(section: T, names: frozenset[str], *, path: str) -> T:
    """A copy of a section that raises UnreadableValue for these of its fields."""
    kind: Any = type(section)

    class Partial(kind):  # type: ignore[misc]
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in names:
                raise UnreadableValue(f"{path}.{name}")
            return super().__getattribute__(name)

    copy: T = object.__new__(Partial)
    for field in fields(kind):
        object.__setattr__(copy, field.name, getattr(section, field.name))
    return copy


def _readable(profile: Profile, problems: Iterable[Finding]) -> Profile:
    """The profile without what its problems are about: the rules that need none of it can still run."""
    unread: dict[str, set[str]] = {}
    for path in _paths(profile, problems):
        head, _, rest = re.sub(r"\[.*", "", path).partition(".")
        unread.setdefault(head, set()).add(rest)
    changes = {
        head: _part(getattr(profile, head), head, rests)
        for head, rests in unread.items()
        if head not in _ALWAYS_THERE and head in Profile.__dataclass_fields__
    }
    return replace(profile, **changes)


def _part(value: Any, path: str, rests: set[str]) -> Any:
    """What is left of a value of the profile without these paths below it."""
    if "" in rests or value is None or path in ("expect", "vllm"):
        return _Unreadable(path)
    names = frozenset(rest.partition(".")[0] for rest in rests)
    if path == "alternatives":  # a block that cannot be read at all is not there
        kept = {name: block for name, block in value.items() if name not in rests}
        for name in names & kept.keys():
            keys = {rest.partition(".")[2] for rest in rests if rest.startswith(f"{name}.")}
            kept[name] = _part(kept[name], f"{path}.{name}", keys)
        return kept
    if isinstance(value, Speculation):
        return replace(value, keys=_PartialMapping(value.keys, names, path))
    if isinstance(value, Mapping):
        return _PartialMapping(value, names, path)
    return _without(value, names, path=path)


def _paths(profile: Profile, problems: Iterable[Finding]) -> Iterator[str]:
    """The dotted paths that problems are about, and the known keys that unknown ones were meant to be."""
    at: dict[tuple[str, int, int], list[str]] = {}
    for path, span in (*profile.spans.items(), *profile.key_spans.items()):
        at.setdefault((span.file, span.line, span.column), []).append(path)
    for finding in problems:
        path = finding.span.path
        if path:
            yield path
        else:  # found before keys had paths: by its place
            for span in (finding.span, *(related.span for related in finding.related)):
                yield from at.get((span.file, span.line, span.column), ())
        if finding.code == "SD005":
            section, _, name = path.rpartition(".")
            yield from filter(None, [ELSEWHERE.get(name.replace("-", "_"))])
            if guess := did_you_mean(name, _known(profile, section)):
                yield f"{section}.{guess}" if section else guess


def _known(profile: Profile, section: str) -> Iterable[str]:
    """The keys of a section, or of a block by its method."""
    if section in SECTIONS:
        return keys_of(SECTIONS[section])
    if not section:
        return TOP
    block = profile.speculation if section == "speculation" else None
    if section.startswith("alternatives."):
        block = profile.alternatives.get(section.removeprefix("alternatives."))
    return METHODS[block.method] if block else ()


_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NEEDED = "write `target: {model: …}`"


def read_profile(
    tree: Node, *, file: str, whole: bool = True, problems: Iterable[Finding] = ()
) -> tuple[Profile | None, list[Finding]]:
    """The profile as far as it can be read, and its problems: using a bad value raises UnreadableValue.

    None if too little is known of it: a parent could not be read, or the schema is another one. `problems`: those
    that the tree itself has.
    """
    found: list[Finding] = []
    top = tree.mapping or {}
    meant = sections.unknown(top, TOP, where="a profile", section="", found=found)
    _check_schema(top.get("schema"), found=found)
    target = _target(tree, meant=meant, found=found)
    server = sections.fixed(top.get("server"), Server, path="server", found=found)
    _check_key_name(server, top, found=found)
    spans, key_spans = _places(tree)
    profile = Profile(
        file=file,
        name=_name(top.get("name"), file=file, found=found),
        target=target or Target(),
        speculation=sections.block(top.get("speculation"), path="speculation", found=found),
        alternatives=sections.alternatives(top.get("alternatives"), found=found),
        engine=_arguments(top.get("engine"), section="engine", found=found),
        frontend=_arguments(top.get("frontend"), section="frontend", found=found),
        server=server or Server(),
        hardware=sections.fixed(top.get("hardware"), Hardware, path="hardware", found=found),
        expect=sections.expectations(top.get("expect"), found=found),
        env=sections.environment(top.get("env"), found=found),
        vllm=_version_range(top.get("vllm"), found=found),
        spans=spans,
        key_spans=key_spans,
    )
    if not whole:
        found = [finding for finding in found if finding.code != "SD007"]
    usable = whole and all(finding.code != "SD010" for finding in found)
    found = [*problems, *found]
    if not usable:
        return None, found
    return (_readable(profile, found) if found else profile), found


def name_of(file: str) -> str:
    """A profile's default name: the stem in lower case, each run of other characters than a-z 0-9 a dash."""
    stem = "stdin" if file == "-" else Path(file).stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "profile"


def _check_schema(node: Node | None, *, found: list[Finding]) -> None:
    if node is None:
        return
    number = sections.value(node, replace(TOP["schema"], default=None), path="schema", found=found)
    if number not in (None, SCHEMA):
        message = f"schema {shown(node)} is unknown to specserve {__version__}, which reads schema {SCHEMA}"
        span = replace(node.span, path="schema")
        help_text = "a newer specserve reads it" if number > SCHEMA else f"write `schema: {SCHEMA}`"
        found.append(problem("SD010", message, span, help=help_text))


def _target(tree: Node, *, meant: set[str], found: list[Finding]) -> Target | None:
    node = (tree.mapping or {}).get("target")
    if node is None and "target" in meant:
        return None
    if node is None or node.value is None:
        span = replace(node.key or node.span if node else tree.span, path="target")
        found.append(problem("SD007", "`target.model` is missing", _first(span), help=_NEEDED))
        return None
    target = sections.fixed(node, Target, path="target", found=found)
    if target and isinstance(target.model, str) and target.model.startswith("-"):
        span = replace((node.mapping or {})["model"].span, path="target.model")
        found.append(problem("SD006", "`target.model` must not start with `-`", span))
    return target


def _first(span: Span) -> Span:
    """The first character of a place: for what stands nowhere."""
    return replace(span, end_line=span.line, end_column=span.column + 1)


def _check_key_name(server: Server | None, top: Mapping[str, Node], *, found: list[Finding]) -> None:
    """A key itself in the place of the name of its variable: told without a word of it."""
    name = server.api_key_env if server else None
    if name is not None and not sections.ENV_NAME.fullmatch(name):
        node = (top["server"].mapping or {})["api_key_env"]
        message = "`server.api_key_env` must be the name of an environment variable"
        span = replace(node.span, path="server.api_key_env")
        found.append(problem("SD006", message, span, help="never write the key itself into a profile"))


def _name(node: Node | None, *, file: str, found: list[Finding]) -> str:
    if node is None:
        return name_of(file)
    name = sections.value(node, TOP["name"], path="name", found=found)
    if name is None:
        return name_of(file)
    if not _NAME.fullmatch(name):
        message = f"`name` must be lower-case letters, digits and single dashes; found {shown(node)}"
        help_text = f"for example `{name_of(name)}`"
        found.append(problem("SD006", message, replace(node.span, path="name"), help=help_text))
    return str(name)


def _arguments(node: Node | None, *, section: str, found: list[Finding]) -> Mapping[str, Any]:
    """vLLM's own arguments, whatever they are; null is vLLM's default, as if the key were not there."""
    if node is None:
        return MappingProxyType({})
    sections.misplaced(node, section=section, found=found)
    values = sections.value(node, TOP[section], path=section, found=found) or {}
    return MappingProxyType({name: value for name, value in values.items() if value is not None})


def _version_range(node: Node | None, *, found: list[Finding]) -> str | None:
    if node is None:
        return None
    text: str | None = sections.value(node, TOP["vllm"], path="vllm", found=found)
    if text is None:
        return None
    try:
        in_range(text)
    except UsageError:
        message = f"`vllm` must be a version range; found {quoted(text)}"
        span = replace(node.span, path="vllm")
        found.append(problem("SD006", message, span, help=f"write it like `{EXAMPLE_RANGE}`"))
    return text


def _places(tree: Node) -> tuple[Mapping[str, Span], Mapping[str, Span]]:
    """The place of each value and of each key by dotted path."""
    values: dict[str, Span] = {}
    keys: dict[str, Span] = {}
    for path, node in tree.walk():
        if path:
            values[path] = _at_path(node.span, path)
            if node.key:
                keys[path] = _at_path(node.key, path)
    return MappingProxyType(values), MappingProxyType(keys)


def _at_path(span: Span, path: str) -> Span:
    # `dataclasses.replace` takes three times as long, and a profile has a hundred places
    return Span(span.file, span.line, span.column, span.end_line, span.end_column, path)
