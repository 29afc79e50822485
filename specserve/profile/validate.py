"""A tree of values to a Profile, with every problem of it in one pass; or to what of it can be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from specserve import __version__
from specserve.diagnostics import Finding, Span
from specserve.errors import UsageError, did_you_mean, quoted
from specserve.profile.keys import BLOCK_KEYS, EVERY_KEY, Key
from specserve.profile.partial import readable
from specserve.profile.problems import problem
from specserve.profile.schema import (
    ALTERNATIVE,
    BASELINE,
    ELSEWHERE,
    ENV_NAME,
    SCHEMA,
    TOP,
    Expectation,
    Hardware,
    Profile,
    Server,
    Speculation,
    Target,
    keys_of,
)
from specserve.profile.values import Ambiguous, Node, Unfit, as_written, convert, shown
from specserve.vllm.facts import EXAMPLE_RANGE
from specserve.vllm.speculation import METHODS, REMOVED
from specserve.vllm.versions import in_range

T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ALL = "one of " + ", ".join(f"`{method}`" for method in METHODS)
_MOST_GUESSES = 50  # a file with more unknown keys is not a profile; guessing would only take time


def read_profile(
    tree: Node, *, file: str, whole: bool = True, problems: Iterable[Finding] = ()
) -> tuple[Profile | None, list[Finding]]:
    """The profile as far as it can be read, and its problems: using a bad value raises UnreadableValue.

    None if too little is known of it: a parent could not be read, or the schema is another one. `problems`: those
    that the tree itself has.
    """
    reader = _Reader()
    profile = reader.profile(tree, file=file)
    found = [finding for finding in reader.found if whole or finding.code != "SD007"]
    usable = whole and reader.is_of_this_schema
    found = [*problems, *found]
    if not usable:
        return None, found
    return (readable(profile, {*reader.unread, *_places_of(profile, problems)}) if found else profile), found


def name_of(file: str) -> str:
    """A profile's default name: the stem in lower case, each run of other characters than a-z 0-9 a dash."""
    stem = "stdin" if file == "-" else Path(file).stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "profile"


def _places_of(profile: Profile, problems: Iterable[Finding]) -> Iterator[str]:
    """The paths of problems that were found before keys had paths, by their places."""
    at: dict[tuple[str, int, int], list[str]] = {}
    for path, span in (*profile.spans.items(), *profile.key_spans.items()):
        at.setdefault((span.file, span.line, span.column), []).append(path)
    for finding in problems:
        for span in (finding.span, *(related.span for related in finding.related)):
            yield from [span.path] if span.path else at.get((span.file, span.line, span.column), [])


class _Reader:
    """Reads one tree. `found` gets its problems, `unread` the paths that nobody must rely on."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.unread: set[str] = set()
        self.is_of_this_schema = True

    def wrong(
        self, code: str, message: str, span: Span, path: str, *, help: str | None = None, policy: bool = False
    ) -> None:
        """Takes a problem of what stands at a path."""
        self.unread.add(path)
        self.found.append(problem(code, message, replace(span, path=path), help=help, policy=policy))

    def value(self, node: Node, key: Key, path: str) -> Any:
        """The converted value; else the key's default, and the problems."""

        def wrong(place: Node, where: str, reason: Unfit) -> None:
            code = "SD011" if isinstance(place.value, Ambiguous) else "SD006"
            self.wrong(code, f"{quoted(where)} {reason}", place.span, where, help=reason.help)

        return convert(node, key, path=path, wrong=wrong)

    def profile(self, tree: Node, *, file: str) -> Profile:
        """The profile, with defaults in the place of what is wrong."""
        top = tree.mapping or {}
        meant = self.unknown(top, TOP, where="a profile", section="")
        self.check_schema(top.get("schema"))
        target = self.target(tree, meant)
        server = self.section(top.get("server"), Server, "server")
        if server and server.api_key_env and not ENV_NAME.fullmatch(server.api_key_env):
            node = (top["server"].mapping or {})["api_key_env"]  # a key itself: the message never quotes it
            text = "`server.api_key_env` must be the name of an environment variable"
            hint = "never write the key itself into a profile"
            self.wrong("SD006", text, node.span, "server.api_key_env", help=hint)
        spans, key_spans = _places(tree)
        return Profile(
            file=file,
            name=self.name(top.get("name"), file),
            target=target or Target(),
            speculation=self.block(top.get("speculation"), "speculation"),
            alternatives=self.alternatives(top.get("alternatives")),
            engine=self.arguments(top.get("engine"), "engine"),
            frontend=self.arguments(top.get("frontend"), "frontend"),
            server=server or Server(),
            hardware=self.section(top.get("hardware"), Hardware, "hardware"),
            expect=self.expectations(top.get("expect")),
            env=self.environment(top.get("env")),
            vllm=self.version_range(top.get("vllm")),
            spans=spans,
            key_spans=key_spans,
            relative_paths=frozenset(node.value for _, node in tree.walk() if node.is_relative),
        )

    def unknown(
        self, given: Mapping[str, Node], known: Iterable[str], *, where: str, section: str
    ) -> set[str]:
        """Tells the keys that nobody knows, and returns the known ones that they were probably meant to be."""
        known, meant = set(known), set()
        for count, (name, node) in enumerate((n, v) for n, v in given.items() if n not in known):
            guess = did_you_mean(name, sorted(known)) if count < _MOST_GUESSES else None
            elsewhere = ELSEWHERE.get(name.replace("-", "_"))
            help = "`engine` takes every other engine argument of vLLM" if section == "target" else None
            if elsewhere and not elsewhere.startswith(f"{section}."):
                help = f"write it as `{elsewhere}`"
            elif guess:
                meant |= {guess} - set(given)
                help = f"did you mean `{guess}`?"
            path = f"{section}.{name}" if section else name
            self.wrong(
                "SD005", f"unknown key {quoted(name)} in {where}", node.key or node.span, path, help=help
            )
            self.unread |= {elsewhere} if elsewhere else set()
            self.unread |= {f"{section}.{guess}" if section else guess} if guess else set()
        return meant

    def mapping(self, node: Node | None, path: str, kind: str = "a mapping") -> Mapping[str, Node] | None:
        """The keys of a section; None if it is absent, or is not a mapping, which is a problem."""
        if node is None or node.value is None:
            return None
        if node.mapping is None:
            self.wrong("SD006", f"{quoted(path)} must be {kind}; found {shown(node)}", node.span, path)
        return node.mapping

    def section(self, node: Node | None, kind: type[T], path: str) -> T | None:
        """A section with fixed keys, or None if it is absent."""
        given, keys = self.mapping(node, path), keys_of(kind)
        if node is None or given is None:
            return None
        meant = self.unknown(given, keys, where=f"`{path}`", section=path)
        for name, key in keys.items():
            if key.required and name not in given and name not in meant:
                self.wrong("SD007", f"`{path}.{name}` is missing", node.key or node.span, path)
        values = {name: child for name, child in given.items() if name in keys}
        return kind(
            **{name: self.value(child, keys[name], f"{path}.{name}") for name, child in values.items()}
        )

    def target(self, tree: Node, meant: set[str]) -> Target | None:
        """The target; a missing one is one problem, reported only if no misspelt key was meant to be it."""
        node = (tree.mapping or {}).get("target")
        if node is None or node.value is None:
            self.unread.add("target")
            if node or "target" not in meant:
                span = (node.key or node.span) if node else tree.span
                first = replace(span, end_line=span.line, end_column=span.column + 1)
                hint = "write `target: {model: …}`"
                self.wrong("SD007", "`target.model` is missing", first, "target", help=hint)
            return None
        return self.section(node, Target, "target")

    def check_schema(self, node: Node | None) -> None:
        """Tells a number of the schema that is not this one."""
        number = self.value(node, TOP["schema"], "schema") if node else SCHEMA
        if node and number != SCHEMA:
            text = f"schema {shown(node)} is unknown to specserve {__version__}, which reads schema {SCHEMA}"
            hint = "a newer specserve reads it" if number > SCHEMA else f"write `schema: {SCHEMA}`"
            self.is_of_this_schema = False
            self.wrong("SD006", text, node.span, "schema", help=hint)

    def name(self, node: Node | None, file: str) -> str:
        """The name of the deployment, by default the file's."""
        name = self.value(node, TOP["name"], "name") if node else None
        if node and name is not None and not _NAME.fullmatch(name):
            text = f"`name` must be lower-case letters, digits and single dashes; found {shown(node)}"
            self.wrong("SD006", text, node.span, "name", help=f"for example `{name_of(name)}`")
        return name_of(file) if name is None else str(name)

    def arguments(self, node: Node | None, section: str) -> Mapping[str, Any]:
        """vLLM's own arguments, whatever they are; null is vLLM's default, as if the key were not there."""
        for name, child in ((node and node.mapping) or {}).items():
            if place := ELSEWHERE.get(name.replace("-", "_")):
                text, span = f"{quoted(name)} does not belong in `{section}`", child.key or child.span
                self.wrong("SD005", text, span, f"{section}.{name}", help=f"write it as `{place}`")
                self.unread.add(place)
        values = (self.value(node, TOP[section], section) if node else None) or {}
        return MappingProxyType({name: value for name, value in values.items() if value is not None})

    def version_range(self, node: Node | None) -> str | None:
        """The range of vLLM versions."""
        text: str | None = self.value(node, TOP["vllm"], "vllm") if node else None
        try:
            in_range(text or "")
        except UsageError:
            message = f"`vllm` must be a version range; found {quoted(text or '')}"
            self.wrong(
                "SD006",
                message,
                node.span if node else Span(""),
                "vllm",
                help=f"write it like `{EXAMPLE_RANGE}`",
            )
        return text

    def expectations(self, node: Node | None) -> tuple[Expectation, ...]:
        """The promises, one per list item."""
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, list):
            text = f"`expect` must be a list of promises; found {shown(node)}"
            help = "write a list, such as `expect: [{concurrency: 16, min_speedup: 1.3}]`"
            self.wrong("SD006", text, node.span, "expect", help=help)
            return ()
        promises = []
        for index, item in enumerate(node.value):
            path = f"expect[{index}]"
            if item.value is None:
                self.wrong("SD006", f"`{path}` is empty, and must be a promise", item.span, path)
            promises.append(self.section(item, Expectation, path))
        return tuple(filter(None, promises))

    def environment(self, node: Node | None) -> Mapping[str, str]:
        """Variable names and their texts, as they were written: `010` and `yes` stay what they are."""
        texts = {}
        for name, child in (self.mapping(node, "env") or {}).items():
            path = f"env.{name}"
            if not ENV_NAME.fullmatch(name):
                text = f"{quoted(name)} is not a valid name of an environment variable"
                self.wrong("SD006", text, child.key or child.span, path)
            elif child.value is not None:
                try:
                    texts[name] = as_written(child)
                except Unfit as error:
                    self.wrong("SD006", f"{quoted(path)} {error}", child.span, path)
        return MappingProxyType(texts)

    def alternatives(self, node: Node | None) -> Mapping[str, Speculation]:
        """The named blocks."""
        blocks = {}
        for name, child in (self.mapping(node, "alternatives", "a mapping of names to blocks") or {}).items():
            path = f"alternatives.{name}"
            if not re.fullmatch(ALTERNATIVE, name):
                text, hint = (
                    f"{quoted(name)} is not a valid name of an alternative",
                    "use letters, digits, `-` and `_`",
                )
                self.wrong("SD006", text, child.key or child.span, path, help=hint)
            elif name == BASELINE:
                text = "no alternative can be named `baseline`: that name is the profile without speculation"
                self.wrong("SD006", text, child.key or child.span, path, help="give it another name")
            elif block := self.block(child, path):
                blocks[name] = block
        return MappingProxyType(blocks)

    def block(self, node: Node | None, path: str) -> Speculation | None:
        """A block of vLLM's SpeculativeConfig, or None where it is absent or cannot be judged."""
        given = self.mapping(node, path, "a mapping or `null`")
        method = self.method(node, given, path) if node and given is not None else None
        if node is None or given is None or method is None:
            return None
        keys, rest = BLOCK_KEYS[method], {}
        for name, child in given.items():
            place, span = f"{path}.{name}", child.key or child.span
            if name == "tensor_parallel_size":
                text = f"`tensor_parallel_size` is a key that vLLM refuses in {quoted(path)}"
                self.wrong("SD005", text, span, place, help="write `draft_tensor_parallel_size`")
            elif name not in keys and name in EVERY_KEY:
                owners = [f"`{other}`" for other, table in BLOCK_KEYS.items() if name in table]
                whose = f"{owners[0]}{' and others' if len(owners) > 1 else ''}"
                text = f"`{name}` is a key of {whose}, and has no effect with `{method}`"
                self.wrong("SD005", text, span, place, help="leave it out", policy=True)
            else:
                rest[name] = child
        meant = self.unknown(rest, keys, where=f"{quoted(path)} (method `{method}`)", section=path)
        for name in METHODS[method].needs:
            said = name in given and given[name].value is not None
            if name not in meant and not said:
                text = f"{quoted(f'{path}.{name}')} is missing, which `{method}` needs"
                self.wrong("SD007", text, node.key or node.span, path)
        said_keys = {name: child for name, child in given.items() if name in keys and child.value is not None}
        values = {name: self.value(child, keys[name], f"{path}.{name}") for name, child in said_keys.items()}
        return Speculation(method, MappingProxyType(values))

    def method(self, node: Node, keys: Mapping[str, Node], path: str) -> str | None:
        """The method of a block, or None and a problem."""
        place, given = f"{path}.method", keys.get("method")
        if given is None and did_you_mean("method", set(keys) - EVERY_KEY.keys()):
            self.unknown(keys, EVERY_KEY, where=quoted(path), section=path)
            self.unread.add(path)
            return None
        if given is None or given.value is None:
            span = given.span if given else node.key or node.span
            self.wrong("SD007", f"{quoted(place)} is missing: vLLM would guess it", span, path, help=_ALL)
            return None
        if isinstance(given.value, (dict, list)):
            text = f"{quoted(place)} must be a text; found {shown(given)}"
            self.wrong("SD006", text, given.span, place, help=_ALL)
            return None
        method = given.raw if given.raw is not None else str(given.value)
        if method in METHODS:
            return method
        guess = did_you_mean(method, METHODS)
        text, help = f"unknown method {quoted(method)}", f"did you mean `{guess}`?" if guess else _ALL
        if method.endswith("_mtp"):
            text, help = f"{quoted(method)} is an old name of the method `mtp`", "write `method: mtp`"
        elif method in REMOVED:
            text, help = f"`{method}` is not a method of speculation: {REMOVED[method]}", _ALL
        # the others run in vLLM, or in a plug-in of it
        self.wrong(
            "SD006", text, given.span, place, help=help, policy=method not in ("medusa", "mlp_speculator")
        )
        return None


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
