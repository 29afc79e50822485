"""Words to options with their values as vLLM's parser reads them, each value with its place.

Source: FlexibleArgumentParser, vllm/utils/argparse_utils.py, 0.32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from specserve.convert.words import COMMAND, Word
from specserve.diagnostics import Finding, Severity, Span
from specserve.profile.schema import Profile
from specserve.profile.source import recall
from specserve.profile.values import Node, Scalar, meaning
from specserve.vllm.arguments import Argument, ArgumentProblem, VllmTable, human_int
from specserve.vllm.versions import ARGUMENTS

Known = Mapping[str, tuple[Argument, bool]]
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # argparse's own test
MAX_DEPTH = 50
_OBJECT = re.compile(r"(?s)\s*\{.*\}\s*")
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_PAIRS = re.compile(r"\w+=\d+(,\w+=\d+)*")
_EXAMPLE = """in a shell, single quotes stand around it: '{"key": "value"}'"""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command line with its values. `argument` is None if no vLLM has it."""

    flag: str
    """`--tensor-parallel-size`: underscores made dashes, an abbreviation spelt out."""
    word: Word
    argument: Argument | None = None
    negative: bool = False
    """`--no-x`."""
    keys: tuple[str, ...] = ()
    """`a`, `b` of `--x.a.b`."""
    values: tuple[Word, ...] = ()
    inline: bool = False
    """The value stands behind a `=`."""
    appended: bool = False
    """`--x.a+`: the value is one more item of a list."""

    @property
    def name(self) -> str:
        """vLLM's name of the argument; for an unknown one, what it would be."""
        return self.argument.name if self.argument else self.flag.lstrip("-").replace("-", "_")

    @property
    def takes_value(self) -> bool:
        """Whether a value must follow; unknown options are not expected to have one."""
        return self.argument is not None and self.argument.form not in ("flag", "optional_value")


@dataclass(slots=True)
class Parsed:
    """Options in their order; the words that belong to none, each with the option before it."""

    options: list[Option] = field(default_factory=list)
    loose: list[tuple[Word, Option | None]] = field(default_factory=list)
    positional: bool = True
    """Whether the program takes a model among these."""


def parse(words: Sequence[Word], known: Known, *, positional: bool = True) -> Parsed:
    """The options among the words that follow `vllm serve` or `api_server`.

    `positional`: False for a program without positional arguments, where each word belongs to the option before it.
    """
    parsed, at = Parsed(positional=positional), 0
    while at < len(words):
        word = words[at]
        at += 1
        if not looks_like_option(word.text, known):
            parsed.loose.append((word, parsed.options[-1] if parsed.options else None))
            continue
        option = _opened(word, known)
        form = "value" if option.keys else option.argument.form if option.argument else None
        most = {"flag": 0, "many": len(words), None: 1 if positional else len(words)}.get(form, 1)
        values = list(option.values)
        while not option.inline and len(values) < most and at < len(words):
            if looks_like_option(words[at].text, known):
                break
            values.append(words[at])
            at += 1
        parsed.options.append(replace(option, values=tuple(values)))
    return parsed


def refused_spellings(profile: Profile, table: VllmTable) -> Iterator[ArgumentProblem]:
    """The options of a raw command whose argument this version has, but not by the spelling used: `--disable-x`."""
    known = table.options()
    line = recall(COMMAND).decode(errors="replace")
    for path, span in profile.key_spans.items():
        written = line[span.column - 1 : span.end_column - 1] if span.file == COMMAND else ""
        name = path.rpartition(".")[2]
        if written.startswith("--") and name in {**table.engine, **table.frontend}:
            option = _found(Word(written, span), known)
            if option.argument is None:
                old = ARGUMENTS.get(option.name)
                text = f"vLLM {table.minor} has no option `{option.flag}`"
                yield ArgumentProblem(path, text, old.why if old else None, "spelling")


def looks_like_option(text: str, known: Known) -> bool:
    """argparse's rule: a dash makes an option, but for negative numbers and texts with spaces."""
    if not text.startswith("-") or len(text) == 1:
        return False
    head, sign, _ = text.partition("=")
    if text in known or head in known or (text.startswith("--") and sign and " " not in head):
        return True
    return not _NEGATIVE_NUMBER.fullmatch(text) and " " not in text


def _opened(word: Word, known: Known) -> Option:
    """The option that a word opens, with the value that stands in the same word."""
    text = word.text
    cut = text.find("=") if text not in known else -1
    head, value = (word, None) if cut < 0 else (word.part(0, cut), word.part(cut + 1))
    if text not in known and text.startswith("-O"):  # -O3, -O=3, -O 3
        level = _found(Word("--optimization-level", word.span), known)
        option = replace(level, word=word.part(0, 2))
        value = value or (word.part(2) if text != "-O" else None)
    else:
        option = _found(head, known)
    return replace(option, values=(value,), inline=True) if value else option


def _found(word: Word, known: Known) -> Option:
    flag, *keys = [word.text] if _NEGATIVE_NUMBER.fullmatch(word.text) else word.text.split(".")
    appended = bool(keys) and keys[-1].endswith("+")
    if appended:
        keys[-1] = keys[-1].removesuffix("+")
    if flag.startswith("--"):
        flag = "--" + flag.removeprefix("--").replace("_", "-")
        longer = [name for name in known if name.startswith(flag)] if len(flag) > len("--") else []
        if flag not in known and len(longer) == 1:  # argparse completes it
            flag = longer[0]
    argument, negative = known.get(flag, (None, False))
    return Option(flag, word, argument, negative, tuple(keys), appended=appended)


class NotJson(ValueError):
    """Why a text is not JSON; `position` counts its characters from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


def json_node(word: Word) -> Node:
    """The JSON value that a word holds, each value and key with its columns. Raises NotJson."""
    try:
        json.loads(word.text)
        tree: Any = yaml.compose(
            word.text.replace("\t", " "), Loader=yaml.SafeLoader
        )  # YAML tells the places
        return _placed(word, tree, depth=0)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg[0].lower() + error.msg[1:], error.pos) from error
    except RecursionError as error:
        raise NotJson("it is nested too deeply", 0) from error
    except yaml.YAMLError as error:
        raise NotJson(
            "it has a character that no profile may have, or a key of over 1,024 characters", 0
        ) from error
    except ValueError as error:  # more digits than Python converts
        raise error if isinstance(error, NotJson) else NotJson("a number is too long", 0) from error


def _placed(word: Word, tree: yaml.Node, *, depth: int) -> Node:
    """A part of a JSON text, by the characters where it begins and ends."""
    start, end = tree.start_mark.index, tree.end_mark.index
    if depth > MAX_DEPTH:
        raise NotJson("it is nested too deeply", start)
    part = word.part(start, end)
    if isinstance(tree, yaml.SequenceNode):
        return Node([_placed(word, item, depth=depth + 1) for item in tree.value], part.span)
    if isinstance(tree, yaml.ScalarNode):
        return Node(json.loads(part.text), part.span, raw=None if tree.style else part.text)
    values: dict[str, Node] = {}
    for key, value in tree.value:
        name = _placed(word, key, depth=depth)
        values[str(name.value)] = replace(_placed(word, value, depth=depth + 1), key=name.span)
    return Node(values, part.span)


def _json_of_pairs(text: str) -> str | None:
    """`image=4,video=1`, as earlier vLLMs took it, as JSON; None for a text of another form."""
    if not _PAIRS.fullmatch(text):
        return None
    pairs = (pair.split("=") for pair in text.split(","))
    return json.dumps({name: int(number) for name, number in pairs})


def wrong_value(message: str, span: Span, *, help: str | None = None) -> Finding:
    """An error about what follows an option."""
    return Finding("SD105", "wrong-argument-value", Severity.ERROR, message, span, help=help)


def node_of(option: Option, found: list[Finding]) -> Node | None:
    """The value of an option, its key the option's own word; None and a finding if it has no usable one."""
    argument, place = option.argument, option.word.span
    if (option.takes_value or option.keys) and not option.values:
        found.append(wrong_value(f"`{option.flag}` needs a value", place))
        return None
    try:
        node = _dotted(option) if option.keys else _whole(option)
    except NotJson as error:
        word = option.values[0]
        at = min(error.position, max(len(word.text) - 1, 0))
        pairs = _json_of_pairs(word.text)
        help_text = f"write `'{pairs}'`" if pairs else _EXAMPLE
        message = f"the value of `{option.flag}` is not JSON: {error}"
        if pairs:
            message = f"the value of `{option.flag}` must be JSON now: `{word.text}` becomes `{pairs}`"
        found.append(wrong_value(message, word.part(at, at + 1).span, help=help_text))
        if pairs is None:
            return None
        node = json_node(Word(pairs, word.span))
    if argument and argument.form == "flag" and option.inline and not option.keys:
        text = f"`{option.flag}` is a switch and takes no value"
        found.append(wrong_value(text, option.values[0].span, help=f"write `{option.flag}`, or leave it out"))
    return replace(node, key=place)


def _whole(option: Option) -> Node:
    """The value of an option that is no part of another one's."""
    argument, words = option.argument, option.values
    form = argument.form if argument else "many" if len(words) > 1 else "json_or_str"
    if not words or form == "flag":
        return Node(not option.negative, option.word.span)
    text, span = words[0].text, words[0].span
    if form == "json" or (form == "json_or_str" and _OBJECT.fullmatch(text)):
        return Node(None, span) if text in ("", "None") else json_node(words[0])
    if form == "comma":
        return Node([Node(_scalar(part, argument), span, raw=part) for part in text.split(",")], span)
    if form in ("many", "append"):
        items = [Node(_scalar(word.text, argument), word.span, raw=word.text) for word in words]
        last = items[-1].span
        return Node(items, replace(span, end_line=last.end_line, end_column=last.end_column))
    return Node(_scalar(text, argument), span, raw=text)


def _scalar(text: str, argument: Argument | None) -> Scalar:
    """A text as this argument takes it; what does not fit stays a text, for the rules to report."""
    kind = argument.kind if argument else "bool"
    if argument and argument.nullable and text == "None":
        return text
    if kind == "int" or (argument and kind == "list" and not argument.choices):
        return int(text) if _INTEGER.fullmatch(text) else text
    if kind == "float":
        number = meaning(text)
        return float(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else text
    return meaning(text) if kind == "bool" else text


def _dotted(option: Option) -> Node:
    """`--x.a.b value` as `{a: {b: value}}`: JSON, else a number such as 80g, else the text; `--x.a+ b,c` as texts."""
    word = option.values[0]
    if option.appended:
        node = Node([Node(part, word.span, raw=part) for part in word.text.split(",")], word.span)
    else:
        try:
            node = json_node(word)
        except NotJson:
            number = human_int(word.text)
            node = Node(word.text if number is None else number, word.span, raw=word.text)
    for key in reversed(option.keys):
        node = Node({key: replace(node, key=option.word.span)}, word.span)
    return node


def merged(below: Node, above: Node) -> Node:
    """Two mappings of one option as one, as vLLM joins `--x.a 1 --x.b 2`; lists grow, the rest is replaced."""
    if isinstance(below.value, list) and isinstance(above.value, list):
        return replace(above, value=[*below.value, *above.value])
    if below.mapping is None or above.mapping is None:
        return above
    values = dict(below.mapping)
    for key, node in above.mapping.items():
        values[key] = merged(values[key], node) if key in values else node
    return replace(above, value=values)
