"""The words behind `vllm serve` to settings, as vLLM's parser reads them, each value with its place.

Source: FlexibleArgumentParser, vllm/utils/argparse_utils.py, 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specserve.convert.options import option_strings, options
from specserve.convert.words import (
    LONGEST_SHOWN,
    OBJECT,
    UNKNOWN,
    NotJson,
    Word,
    adds_options,
    finding,
    json_node,
    parts_if,
    readable,
    repaired_json,
)
from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.errors import quoted, system_reason
from specserve.files import open_regular
from specserve.plan.arguments import ELSEWHERE
from specserve.plan.replacements import ARGUMENTS
from specserve.profile import schema
from specserve.profile.schema import Profile
from specserve.profile.source import COMMAND, MAX_BYTES, parse, recall
from specserve.profile.values import Node, Scalar, meaning
from specserve.vllm.arguments import Argument, ArgumentProblem, VllmTable, human_int
from specserve.vllm.versions import newest

Known = Mapping[str, tuple[Argument, bool]]
LEFT_OVER = "belongs to no option"
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # argparse's own test
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_EXAMPLE = """in a shell, single quotes stand around it: '{"key": "value"}'"""
_PLACES = {**schema.ELSEWHERE, **ELSEWHERE}
_ANSWERS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
"""What stood after a switch of earlier vLLMs, and what it meant; never a model."""


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


@dataclass(frozen=True, slots=True)
class Setting:
    """One argument with its value, as it was written: on a command line, in a file of arguments, in Python."""

    name: str
    """vLLM's own name, or what would be it."""
    node: Node
    written: str
    """`--tensor-parallel-size`, or the keyword."""
    argument: Argument | None = None
    inline: bool = False
    """The value follows a `=`, in one word with the option."""

    @property
    def place(self) -> Span:
        """Where the name stands."""
        return self.node.key or self.node.span


Loose = tuple[Word, Option | None]
"""A word that belongs to no option, and the option before it."""


def parse_options(
    words: Sequence[Word], known: Known, *, positional: bool = True
) -> tuple[list[Option], list[Loose]]:
    """The options among the words that follow `vllm serve` or `api_server`, and the words that belong to none.

    `positional`: False for a program without positional arguments, where each word belongs to the option before it.
    """
    found: list[Option] = []
    loose: list[Loose] = []
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if adds_options(word.text):
            loose.append((word, None))
            continue
        if not looks_like_option(word.text, known):
            loose.append((word, found[-1] if found else None))
            continue
        option = _opened(word, known)
        form = "value" if option.keys else option.argument.form if option.argument else None
        most = {"flag": 0, "many": len(words), None: 1 if positional else len(words)}.get(form, 1)
        values = list(option.values)
        while not option.inline and len(values) < most and at < len(words):
            if adds_options(words[at].text) or looks_like_option(words[at].text, known):
                break
            values.append(words[at])
            at += 1
        found.append(replace(option, values=tuple(values)))
    return found, loose


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
        option = replace(_found(Word("--optimization-level", word.span), known), word=word.part(0, 2))
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


def refused_spellings(profile: Profile, table: VllmTable) -> Iterator[ArgumentProblem]:
    """The options of a raw command whose argument this version has, but not by the spelling used: `--disable-x`."""
    known = option_strings(table)
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


def command_settings(
    words: Sequence[Word], known: Known, *, folder: Path, found: list[Finding], unresolved: list[Finding],
    positional: bool = True,
) -> dict[str, Setting]:  # fmt: skip
    """Every argument of a command line over those of its `--config` file, which begins at `folder`.

    `found` gets what vLLM's parser refuses or overrides, `unresolved` what the text does not say; `positional`:
    whether the program takes a model among its words.
    """
    parsed, loose = parse_options(words, known, positional=positional)
    settings = settings_of(parsed, found, unresolved)
    models = [word for word, before in loose if positional and not (before and "model" in settings)]
    certain = [word for word in models if not UNKNOWN.search(word.text)]
    models = certain or (
        [] if "model" in settings else [word for word in models if not adds_options(word.text)]
    )
    for word, before in loose:
        switch = before is not None and before.argument is not None and before.argument.form == "flag"
        answer = _ANSWERS.get(word.text.lower()) if switch else None
        if before is not None and answer is not None:
            setting = settings[before.name]
            value = answer is not before.negative
            settings[before.name] = replace(setting, node=replace(setting.node, value=value))
            name = _as_switch(before, value=value)
            text = f"`{before.flag} {word.text}` is `{name}` today: a switch takes no value"
            found.append(finding("SD102", text, word.span, help=f"write `{name}`"))
        elif word in models[:1]:
            settings["model"] = Setting("model", word.node(), word.text)
        elif UNKNOWN.search(word.text):
            unresolved.append(left_open(word))
        else:
            help = f"`{before.flag}` is a switch and takes no value" if switch and before else None
            found.append(finding("SD102", f"{quoted(word.text)} {LEFT_OVER}", word.span, help=help))
    config = settings.pop("config", None)
    if config is None or not isinstance(config.node.value, str):
        return settings
    if config.inline:  # vLLM 0.26 to 0.33, `_pull_args_from_config` of vllm/utils/argparse_utils.py
        text = "vLLM ignores `--config=FILE`: it reads `--config FILE` only"
        found.append(finding("SD005", text, config.node.span, help="write it as two words"))
        return settings
    return {**_file_settings(config, config.node.value, folder, found, unresolved), **settings}


def left_open(word: Word) -> Finding:
    """An error about a word that the source does not say, or says under a condition."""
    if parts := parts_if(word.text):
        text = f"the source adds {quoted(parts[0], LONGEST_SHOWN)} only if {quoted(parts[1], LONGEST_SHOWN)}"
        return finding("SD105", text, word.span, help="write it as keys of the profile if it holds")
    name = quoted(readable(word.text), LONGEST_SHOWN)
    return finding("SD105", f"the source does not say what {name} is", word.span, help="write its value")


def settings_of(
    parsed: Iterable[Option], found: list[Finding], unresolved: list[Finding]
) -> dict[str, Setting]:
    """The settings of a command line by name; `found` and `unresolved` as for `command_settings`."""
    settings: dict[str, Setting] = {}
    dotted: dict[str, Setting] = {}
    for option in parsed:
        if (node := node_of(option, found, unresolved)) is None:
            continue
        if option.name == "api_key":  # the profile keeps one key; what stands behind it may be options
            unresolved += [left_open(word) for word in option.values[1:] if UNKNOWN.search(word.text)]
        setting = Setting(option.name, node, option.flag, option.argument, inline=option.inline)
        chosen = dotted if option.keys else settings
        earlier = chosen.get(setting.name)
        if earlier and (option.keys or (option.argument and option.argument.form == "append")):
            setting = replace(setting, node=merged(earlier.node, node))
        elif earlier:
            found.append(said_twice(earlier.place, setting))
        chosen[setting.name] = setting
    for name, setting in dotted.items():  # vLLM appends them, so that they win
        if name in settings:
            found.append(said_twice(settings[name].place, setting))
    return settings | dotted


def said_twice(earlier: Span, later: Setting, *, refused: bool = False) -> Finding:
    """About a setting that stands in two places, of which the later one wins, or which vLLM refuses."""
    related = Related(earlier, "and here" if refused else "this one has no effect")
    severity = Severity.ERROR if refused else Severity.WARNING
    what = "is said twice, which vLLM refuses" if refused else "occurs twice, and the later one wins"
    text, hint = f"`{later.written}` {what}", "leave one of them out"
    return finding("SD004", text, later.place, severity=severity, related=(related,), help=hint)


def _file_settings(
    config: Setting, name: str, folder: Path, found: list[Finding], unresolved: list[Finding]
) -> dict[str, Setting]:
    """The keys of a file of arguments: `tensor-parallel-size: 4` is `--tensor-parallel-size 4`."""
    if UNKNOWN.search(name):
        unresolved.append(left_open(Word(name, config.node.span)))
        return {}
    try:
        with open_regular(folder / name) as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        text = f"cannot read the arguments in {quoted(name)}: {system_reason(error)}"
        hint = "put the arguments on the command line"
        unresolved.append(finding("SD005", text, config.node.span, help=hint))
        return {}
    tree, problems = parse(data, file=name)
    unresolved += problems
    settings: dict[str, Setting] = {}
    for key, node in ((tree.mapping if tree else None) or {}).items():
        argument, negative = options().get("--" + key.replace("_", "-"), (None, False))
        held = replace(node, value=not node.value) if negative and isinstance(node.value, bool) else node
        called = argument.name if argument else key.replace("-", "_")
        if argument and argument.form in ("json", "json_or_str") and isinstance(node.value, str):
            word = Word(node.value, node.span)
            try:
                read: Node | None = json_node(word)
            except NotJson as error:
                read = _repaired(word, key, called, error, found, unresolved)
            if read is None:
                continue
            held = replace(read, key=node.key)
        settings[called] = Setting(called, held, key, argument)
    return settings


def place_of(name: str, table: VllmTable) -> str:
    """The dotted path of a profile that holds an argument."""
    return _PLACES.get(name, f"{'frontend' if name in table.frontend else 'engine'}.{name}")


def _unread(text: str, name: str, span: Span, help: str | None = None) -> Finding:
    """An error about an argument that a profile will not have, because its value cannot be read."""
    table = newest()
    path = place_of(name, table) if name in {**table.engine, **table.frontend} else ""
    return finding("SD105", text, replace(span, path=path), help=help)


def _repaired(
    word: Word, written: str, name: str, error: NotJson, found: list[Finding], unresolved: list[Finding]
) -> Node | None:
    """The value of a word that is not JSON, but means some; else None, and an error in `unresolved`."""
    made = repaired_json(word.text)
    span = word.span
    if made:
        if not UNKNOWN.search(word.text):
            text = f"the value of `{written}` must be JSON: {quoted(word.text)} becomes {quoted(made)}"
            found.append(finding("SD105", text, span, help=f"write `'{made}'`"))
        return json_node(Word(made, word.span))
    if UNKNOWN.search(word.text):
        reads = quoted(readable(word.text), LONGEST_SHOWN)
        text = f"the source does not say the value of `{written}`: it reads {reads}"
        unresolved.append(_unread(text, name, span, "write its value"))
    else:
        unresolved.append(_unread(f"the value of `{written}` is not JSON: {error}", name, span, _EXAMPLE))
    return None


def node_of(option: Option, found: list[Finding], unresolved: list[Finding]) -> Node | None:
    """The value of an option, its key the option's own word; None and a finding if it has no usable one."""
    form, place = option.argument.form if option.argument else None, option.word.span
    if not option.values and (option.keys or form not in (None, "flag", "optional_value")):
        unresolved.append(_unread(f"`{option.flag}` needs a value", option.name, place))
        return None
    try:
        node: Node | None = _dotted(option) if option.keys else _whole(option)
    except NotJson as error:
        node = _repaired(option.values[0], option.flag, option.name, error, found, unresolved)
    if node is None:
        return None
    if form == "flag" and option.inline and not option.keys:
        name = _as_switch(option, value=node.value is True)
        text = f"`{option.flag}={option.values[0].text}` is `{name}` today: a switch takes no value"
        found.append(finding("SD105", text, option.values[0].span, help=f"write `{name}`"))
    return replace(node, key=place)


def _as_switch(option: Option, *, value: bool) -> str:
    """How a switch says this value today."""
    name = option.name.replace("_", "-")
    return f"--{name}" if value else f"--no-{name}"


def _whole(option: Option) -> Node:
    """The value of an option that is no part of another one's."""
    argument, words = option.argument, option.values
    form = argument.form if argument else "many" if len(words) > 1 else "json_or_str"
    if not words or form == "flag":
        answer = _ANSWERS.get(words[0].text.lower(), True) if words else True
        return Node(answer is not option.negative, option.word.span)
    text, span = words[0].text, words[0].span
    if form == "json" or (form == "json_or_str" and OBJECT.fullmatch(text)):
        return Node(None, span) if text in ("", "None") else json_node(words[0])
    if form == "comma":
        return Node([Node(_scalar(part, argument), span, raw=part) for part in text.split(",")], span)
    items = [Node(_scalar(word.text, argument), word.span, raw=word.text) for word in words]
    if form not in ("many", "append"):
        return items[0]
    last = items[-1].span
    return Node(items, replace(span, end_line=last.end_line, end_column=last.end_column))


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
