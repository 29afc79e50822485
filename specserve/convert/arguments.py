"""The words behind `vllm serve` to settings, as vLLM's parser reads them, each with its place.

Source: FlexibleArgumentParser, vllm/utils/argparse_utils.py, 0.32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from specserve.convert.words import (
    LONGEST_SHOWN,
    OBJECT,
    UNKNOWN,
    Word,
    adds_options,
    finding,
    json_node,
    json_of_pairs,
    parts_of,
    plain,
    readable,
)
from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.errors import quoted, system_reason
from specserve.files import open_regular
from specserve.plan.arguments import ELSEWHERE
from specserve.profile import validate
from specserve.profile.source import MAX_BYTES
from specserve.profile.tree import Node, Scalar, meaning, parse
from specserve.vllm.arguments import Argument, VllmTable, flag_of, human_int
from specserve.vllm.versions import known_versions, newest, table

Known = Mapping[str, tuple[Argument, bool]]
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # argparse's own test
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_EXAMPLE = """in a shell, single quotes stand around it: '{"key": "value"}'"""
_PLACES = {**validate.ELSEWHERE, **ELSEWHERE}
_ANSWERS = dict.fromkeys(["true", "yes", "on", "1"], True)
_ANSWERS |= dict.fromkeys(["false", "no", "off", "0"], False)
"""What stood after a switch of earlier vLLMs, and what it meant; never a model."""


def option_strings(table: VllmTable) -> dict[str, tuple[Argument, bool]]:
    """Each option string of `vllm serve` (`--x`, `-x`, `--no-x`) in a version; True if negative."""
    found: dict[str, tuple[Argument, bool]] = {}
    for argument in (*table.frontend.values(), *table.engine.values()):
        for flag in filter(None, (argument.flag, *argument.aliases)):
            found[flag] = (argument, False)
            if not (argument.negatable and flag.startswith("--")):
                continue
            found.setdefault(f"--no-{flag[2:]}", (argument, True))
            for one, other in (("enable", "disable"), ("disable", "enable")):
                if table.inverse_flags and flag.startswith(f"--{one}-"):
                    negative = f"--{other}-{flag.removeprefix(f'--{one}-')}"
                    found.setdefault(negative, (argument, True))
    return found


@lru_cache
def options() -> Mapping[str, tuple[Argument, bool]]:
    """Each option string of a known version: its argument in the newest, True if negative."""
    found: dict[str, tuple[Argument, bool]] = {}
    for version in known_versions():
        found |= option_strings(table(version))
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    """One argument with its value, as it was written: on a command line, in a file, in Python."""

    name: str  # vLLM's own, or what would be it
    node: Node
    written: str  # `--tensor-parallel-size`, or the keyword
    argument: Argument | None = None

    @property
    def place(self) -> Span:
        """Where the name stands."""
        return self.node.key or self.node.span


class _Option(NamedTuple):
    """The word that opens an option, and what the word itself says of a value."""

    flag: str  # `--tensor-parallel-size`: underscores made dashes, an abbreviation spelt out
    word: Word
    name: str  # vLLM's name of the argument; for an unknown one, what it would be
    form: str | None  # how its value stands on a command line; None for an option that no vLLM has
    argument: Argument | None
    negative: bool  # `--no-x`
    keys: Sequence[str]  # `a`, `b` of `--x.a.b`; `b+` takes one more item of a list
    value: Word | None  # what stands behind a `=`


def command_settings(
    words: Sequence[Word],
    known: Known,
    *,
    folder: Path,
    found: list[Finding],
    unresolved: list[Finding],
    positional: bool = True,
) -> dict[str, Setting]:
    """Every argument of a command line over those of its `--config` file, which is in `folder`.

    `found` gets what vLLM's parser refuses or overrides, `unresolved` what the text does not say.
    `positional`: False for a program without a model among its words, where each word belongs to
    the option before it.
    """
    reader = _Reader(known, found, unresolved)
    reader.read(words, positional=positional)
    settings, loose = reader.settings, reader.loose
    has_model = "model" in settings
    models = [word for word, before in loose if positional and not (before and has_model)]
    certain = [word for word in models if not UNKNOWN.search(word.text)]
    models = [word for word in models if not (has_model or adds_options(word.text))]
    model = next(iter(certain or models), None)
    for word, before in loose:
        if word is model:
            settings["model"] = Setting("model", word.node(), word.text)
        elif UNKNOWN.search(word.text):
            unresolved.append(left_open(word))
        else:
            help = f"`{before.flag}` is a switch and takes no value" if before else None
            help = help if before and before.form == "flag" else None
            text = f"{quoted(word.text)} belongs to no option"
            unresolved.append(finding("SD102", text, word.span, help=help))
    config = settings.pop("config", None)
    if config is None or not isinstance(config.node.value, str):
        return settings
    name, place = config.node.value, config.node.span
    if UNKNOWN.search(name):
        unresolved.append(left_open(Word(name, place)))
        return settings
    try:
        with open_regular(folder / name) as stream:
            tree, problems = parse(stream.read(MAX_BYTES + 1), file=name)
    except (OSError, ValueError) as error:
        text = f"cannot read the arguments in {quoted(name)}: {system_reason(error)}"
        help = "put the arguments on the command line"
        unresolved.append(finding("SD005", text, place, help=help))
        return settings
    unresolved += problems
    more = words_of(tree) if tree else []
    of_file = command_settings(more, known, folder=folder, found=found, unresolved=unresolved)
    return {**of_file, **settings}


def words_of(tree: Node) -> list[Word]:
    """The words that vLLM makes of the arguments in a file: `seed: 4` is two words.

    Source: `load_config_file`, vllm/utils/argparse_utils.py, 0.32.
    """
    words: list[Word] = []
    for key, node in (tree.mapping or {}).items():
        flag = f"--no-{key}" if node.value is False else f"--{key}"
        if node.value is False and flag.replace("_", "-") not in options():
            continue
        words.append(Word(flag, node.key or node.span))
        for item in node.value if isinstance(node.value, list) else [node]:
            if item.mapping is not None:
                words.append(Word(json.dumps(plain(item)), item.span))
            elif not isinstance(item.value, bool):
                words.append(Word(str(item.value) if item.raw is None else item.raw, item.span))
    return words


class _Reader:
    """The settings of a command line, and the words of no option with the option before each."""

    def __init__(self, known: Known, found: list[Finding], unresolved: list[Finding]) -> None:
        self.known, self.found, self.unresolved = known, found, unresolved
        self.settings: dict[str, Setting] = {}
        self.loose: list[tuple[Word, _Option | None]] = []

    def read(self, words: Sequence[Word], *, positional: bool) -> None:
        """Reads all words, once."""
        given: list[tuple[_Option, Node]] = []
        before: _Option | None = None
        at = 0
        while at < len(words):
            word, at = words[at], at + 1
            if adds_options(word.text) or not self._is_option(word):
                self.loose.append((word, None if adds_options(word.text) else before))
                continue
            option = before = self._opened(word)
            most = {"many": len(words), None: 1 if positional else len(words)}.get(option.form, 1)
            if option.form == "flag":
                most = int(at < len(words) and words[at].text.lower() in _ANSWERS)
            values = [option.value] if option.value else []
            while not option.value and len(values) < most and at < len(words):
                if self._is_option(words[at]):
                    break
                values.append(words[at])
                at += 1
            if option.name == "config" and option.value:  # `_pull_args_from_config`, 0.26 to 0.33
                text = "vLLM ignores `--config=FILE`: it reads `--config FILE` only"
                help = "write it as two words"
                self.found.append(finding("SD005", text, option.value.span, help=help))
            elif (node := self._node(option, values)) is not None:
                given.append((option, node))
            if option.name == "api_key":  # the profile keeps one key; behind it may be options
                later = (item for item in values[1:] if UNKNOWN.search(item.text))
                self.unresolved += map(left_open, later)
        dotted: set[str] = set()
        for option, node in sorted(given, key=lambda one: bool(one[0].keys)):  # vLLM appends these
            name = option.name
            setting = Setting(name, node, option.flag, option.argument)
            earlier = self.settings.get(name)
            if earlier and (name in dotted or option.form == "append"):
                setting = replace(setting, node=merged(earlier.node, node))
            elif earlier:
                self.found.append(said_twice(earlier.place, setting))
            dotted |= {name} if option.keys else set()
            self.settings[name] = setting

    def _is_option(self, word: Word) -> bool:
        """argparse's rule: a dash makes an option, but for negative numbers and spaced texts."""
        text, (head, sign, _) = word.text, word.text.partition("=")
        if adds_options(text) or not text.startswith("-") or len(text) == 1:
            return adds_options(text)
        if {text, head} & self.known.keys() or (text[:2] == "--" and sign and " " not in head):
            return True
        return not _NEGATIVE_NUMBER.fullmatch(text) and " " not in text

    def _opened(self, word: Word) -> _Option:
        """The option that a word opens."""
        text, known = word.text, self.known
        cut = text.find("=") if text not in known else -1
        head, value = (word, None) if cut < 0 else (word.part(0, cut), word.part(cut + 1))
        if text not in known and text.startswith("-O"):  # -O3, -O=3, -O 3
            value = value or (word.part(2) if text != "-O" else None)
            option = self._opened(Word("--optimization-level", word.span))
            return option._replace(word=word.part(0, 2), value=value)
        flag, *keys = [head.text] if _NEGATIVE_NUMBER.fullmatch(head.text) else head.text.split(".")
        if flag.startswith("--"):
            flag = "--" + flag.removeprefix("--").replace("_", "-")
            longer = [name for name in known if name.startswith(flag) and flag != "--"]
            if flag not in known and len(longer) == 1:  # argparse completes it
                flag = longer[0]
        argument, negative = known.get(flag, (None, False))
        name = argument.name if argument else flag.lstrip("-").replace("-", "_")
        form = "value" if keys else argument.form if argument else None
        return _Option(flag, head, name, form, argument, negative, keys, value)

    def _node(self, option: _Option, values: Sequence[Word]) -> Node | None:
        """The value of an option at its place; None and a finding if it has no usable one."""
        argument, flag, key = option.argument, option.flag, option.word.span
        form = option.form or ("many" if len(values) > 1 else "json_or_str")
        if not values and option.form not in (None, "flag", "optional_value"):
            self._unread(option, key, f"`{flag}` needs a value")
            return None
        if not values or form == "flag":
            value = not option.negative
            if values:
                value = _ANSWERS.get(values[0].text.lower(), True) is not option.negative
                now = flag_of(option.name if value else f"no_{option.name}")
                text = f"`{flag} {values[0].text}` is `{now}` today: a switch takes no value"
                self.found.append(finding("SD102", text, values[0].span, help=f"write `{now}`"))
            return Node(value, key, key)
        word, text, span = values[0], values[0].text, values[0].span
        items = [Node(_scalar(item.text, argument), item.span, raw=item.text) for item in values]
        node: Node | None = items[0]
        if option.keys:
            node = _dotted(option, word)
        elif form == "json" or (form == "json_or_str" and OBJECT.fullmatch(text)):
            node = self._json(option, word)
        elif form == "comma":
            parts = [Node(_scalar(part, argument), span, raw=part) for part in text.split(",")]
            node = Node(parts, span)
        elif form in ("many", "append"):
            last = items[-1].span
            node = Node(items, span._replace(end_line=last.end_line, end_column=last.end_column))
        return node and replace(node, key=key)

    def _json(self, option: _Option, word: Word) -> Node | None:
        """The value of an option that takes JSON; None and a finding if it is none."""
        text, flag = word.text, option.flag
        try:
            return Node(None, word.span) if text in ("", "None") else json_node(word)
        except ValueError as error:
            said, help = f"the value of `{flag}` is not JSON: {error}", _EXAMPLE
        if made := json_of_pairs(text):
            said = f"the value of `{flag}` must be JSON: {quoted(text)} becomes {quoted(made)}"
            self.found.append(finding("SD105", said, word.span, help=f"write `'{made}'`"))
            return json_node(Word(made, word.span))
        if UNKNOWN.search(text):
            reads, help = quoted(readable(text), LONGEST_SHOWN), "write its value"
            said = f"the source does not say the value of `{flag}`: it reads {reads}"
        self._unread(option, word.span, said, help)
        return None

    def _unread(self, option: _Option, span: Span, text: str, help: str | None = None) -> None:
        """Reports an argument that a profile will not have, as its value cannot be read."""
        path = place_of(option.name, newest()) if option.argument else ""
        self.unresolved.append(finding("SD105", text, span._replace(path=path), help=help))


def left_open(word: Word) -> Finding:
    """An error about a word that the source does not say, or says under a condition."""
    said, condition = (quoted(part, LONGEST_SHOWN) for part in parts_of(word.text))
    if condition == "``":
        text = f"the source does not say what {said} is"
        return finding("SD105", text, word.span, help="write its value")
    text, help = f"the source adds {said} only if {condition}", "write it as keys of the profile"
    return finding("SD105", text, word.span, help=f"{help} if it holds")


def said_twice(earlier: Span, later: Setting, *, refused: bool = False) -> Finding:
    """A setting that stands in two places, of which the later wins, or which vLLM refuses."""
    related = Related(earlier, "and here" if refused else "this one has no effect")
    severity = Severity.ERROR if refused else Severity.WARNING
    what = "is said twice, which vLLM refuses"
    text = f"`{later.written}` {what if refused else 'occurs twice, and the later one wins'}"
    help = "leave one of them out"
    return finding("SD004", text, later.place, severity, related=(related,), help=help)


def place_of(name: str, table: VllmTable) -> str:
    """The dotted path of a profile that holds an argument."""
    return _PLACES.get(name, f"{'frontend' if name in table.frontend else 'engine'}.{name}")


def _scalar(text: str, argument: Argument | None) -> Scalar:
    """A text as this argument takes it; what does not fit stays a text, for the rules to report."""
    kind = argument.kind if argument else "bool"
    if argument and argument.nullable and text == "None":
        return text
    if kind == "int" or (argument and kind == "list" and not argument.choices):
        return int(text) if _INTEGER.fullmatch(text) else text
    if kind == "float":
        number: Any = meaning(text)
        return float(number) if type(number) in (int, float) else text
    return meaning(text) if kind == "bool" else text


def _dotted(option: _Option, word: Word) -> Node:
    """`--x.a.b value` as `{a: {b: value}}`: JSON, a number such as 80g, or the text.

    `--x.a+ b,c` is a list of texts.
    """
    if option.keys[-1].endswith("+"):
        items = [Node(part, word.span, raw=part) for part in word.text.split(",")]
        node = Node(items, word.span)
    else:
        try:
            node = json_node(word)
        except ValueError:
            number = human_int(word.text)
            node = Node(word.text if number is None else number, word.span, raw=word.text)
    for key in reversed(option.keys):
        inner = replace(node, key=option.word.span)
        node = Node({key.removesuffix("+"): inner}, word.span)
    return node


def merged(below: Node, above: Node) -> Node:
    """Two values of one option, as vLLM joins `--x.a 1 --x.b 2`: lists grow, scalars replace."""
    if isinstance(below.value, list) and isinstance(above.value, list):
        return replace(above, value=[*below.value, *above.value])
    if below.mapping is None or above.mapping is None:
        return above
    values = dict(below.mapping)
    for key, node in above.mapping.items():
        values[key] = merged(values[key], node) if key in values else node
    return replace(above, value=values)
