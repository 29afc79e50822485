"""Words to options as vLLM's parser splits them. Source: FlexibleArgumentParser, vllm/utils/argparse_utils.py, 0.32."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specserve.convert.words import COMMAND, Word
from specserve.plan.arguments import ArgumentProblem
from specserve.plan.replacements import ARGUMENTS
from specserve.plan.table import Argument, VllmTable
from specserve.profile.schema import Profile
from specserve.profile.texts import recall

Known = Mapping[str, tuple[Argument, bool]]
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # argparse's own test


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


def known_options(tables: Sequence[VllmTable]) -> dict[str, tuple[Argument, bool]]:
    """The option strings of several versions; the last one's meaning counts."""
    return {flag: meaning for table in tables for flag, meaning in table.options().items()}


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
    line = recall(COMMAND).decode(errors="replace") if profile.file == COMMAND else ""
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
