"""A file or a command line to what it says about each engine that it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from specserve.convert import sglang
from specserve.convert.argumentfile import with_file
from specserve.convert.containers import containers
from specserve.convert.given import Given, Note, Setting, settings_of
from specserve.convert.invocation import STARTS, Invocation, starts
from specserve.convert.options import Option, Parsed, known_options, parse
from specserve.convert.python import ENGINES, Source, calls, command_lists
from specserve.convert.shell import script
from specserve.convert.values import json_of_pairs, wrong_value
from specserve.convert.words import UNKNOWN, Word
from specserve.diagnostics import Finding
from specserve.errors import UsageError
from specserve.plan.support import known_versions, table
from specserve.profile.problems import quoted
from specserve.profile.tree import Node

MAX_BYTES = 250_000  # far above any launch script
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # no launch holds them, and no YAML may
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_PYTHON = re.compile(rf"\b({'|'.join(ENGINES)})\s*\(")
_YAML = re.compile(r"^[ \t-]*(image|services|apiVersion)[ \t]*:", re.M)
_NOT_OF_AN_ENGINE = ("PATH", "PS1", "HOME", "SHELL", "LANG", "PWD")
_OF_AN_ENGINE = re.compile(
    r"(VLLM|CUDA|NCCL|HF|HUGGING|TORCH|PYTORCH|LD|PYTHON|NVIDIA|GLOO|TRITON|OMP|FLASHINFER|UCX)_|PYTHONPATH"
)
_NO = ("false", "0", "no", "off")
_YES = ("true", "1", "yes", "on")


def read(text: str, *, file: str, folder: Path) -> list[Given]:
    """Every start of vLLM or SGLang in a text: Python, YAML of containers, or a shell's.

    `folder` is where relative paths of `--config` begin. Raises UsageError if there is none.
    """
    text = _code_of(_CONTROL.sub("", text))
    problems: list[UsageError] = []
    for reader in _readers(text, file=file):
        try:
            found = reader(text, file=file)
        except UsageError as error:
            problems.append(error)
            continue
        if found:
            return [start if isinstance(start, Given) else _given(start, folder=folder) for start in found]
    if problems:
        raise problems[0]
    hint = "it reads `vllm serve`, `docker run`, compose, Kubernetes, `LLM(…)` in Python, and SGLang's launch_server"
    if STARTS.search(text):
        hint = "a command in a here-document, a ConfigMap or a text for another program is not read: convert it alone"
    raise UsageError(f"`{file}` starts no vLLM that specserve could find", hint=hint)


def from_argv(words: Iterable[Word], *, folder: Path) -> Given:
    """What a command line says. Raises UsageError if it starts neither vLLM nor SGLang."""
    words = list(words)
    found = starts(words)
    if not found:
        what = quoted(words[0].text) if words else "nothing"
        raise UsageError(f"{what} is no command that starts vLLM or SGLang")
    return _given(found[0], folder=folder)


def _code_of(text: str) -> str:
    """The code blocks of a guide, every other line left empty; a text without any as it is."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    if len(fences) < 2:
        return text
    pairs = zip(fences[::2], fences[1::2], strict=False)
    inside = {number for start, end in pairs for number in range(start + 1, end)}
    return "\n".join(line if number in inside else "" for number, line in enumerate(lines))


_Reader = Callable[..., "list[Invocation] | list[Given]"]


def _readers(text: str, *, file: str) -> list[_Reader]:
    """The forms to try, the likeliest first: the one that the file's name says, or those that the text looks like."""
    named: dict[str, _Reader] = {
        ".py": _from_python,
        ".yaml": containers,
        ".yml": containers,
        ".sh": _from_shell,
    }
    suffix = Path(file).suffix.lower()
    if suffix in named:
        return [named[suffix]]
    likely: list[tuple[re.Pattern[str], _Reader]] = [(_PYTHON, _from_python), (_YAML, containers)]
    return [*(reader for pattern, reader in likely if pattern.search(text)), _from_shell]


def _from_python(text: str, *, file: str) -> list[Invocation] | list[Given]:
    source = Source(text, file=file)
    return calls(source) or command_lists(source)


def _from_shell(text: str, *, file: str) -> list[Invocation]:
    found: list[Invocation] = []
    for command in script(text, file=file):
        for start in starts(command.words):
            exported = {} if start.image else _of_engine(command.exported, text)
            notes = [*start.notes, *command.notes]
            found.append(replace(start, env={**exported, **start.env}, notes=notes))
    return found


def _of_engine(exported: Mapping[str, Word], text: str) -> dict[str, Word]:
    """The exported variables that an engine may read: not those that only the script itself reads."""
    return {
        name: word
        for name, word in exported.items()
        if _OF_AN_ENGINE.match(name)
        or (name not in _NOT_OF_AN_ENGINE and not re.search(rf"\$\{{?{re.escape(name)}\b", text))
    }


def _given(start: Invocation, *, folder: Path) -> Given:
    """The settings of a command line; what is wrong with it becomes notes."""
    sglangs = start.engine == "sglang"
    tables = [table(version) for version in known_versions()]
    known = sglang.options(tables[-1]) if sglangs else known_options(tables)
    parsed = parse(start.words, known, positional=not sglangs)
    found: list[Finding] = []
    notes = [Note("", text, line) for line, text in dict.fromkeys(start.notes)]
    settings = settings_of([_without_pairs(option, notes) for option in parsed.options], found)
    text = start.start.text
    program = "vllm serve" if text.endswith("vllm") else "api_server" if text == "-m" else text
    what = "SGLang's launch_server" if sglangs else f"`{program}`"
    given = Given(
        start.engine,
        what,
        start.start.span,
        settings,
        {name: word.node() for name, word in start.env.items()},
        notes,
    )
    given.image, given.published, given.words = start.image, start.published, start.words
    _place_loose(parsed, given)
    config = settings["config"].node if "config" in settings else None
    if config and (unknown := UNKNOWN.search(str(config.value))):
        message = f"the source does not say `--config`: it reads `${unknown[1]}`"
        given.unresolved.append(wrong_value(message, config.span, help="write its value"))
        del settings["config"]
    if not sglangs:
        given.settings = with_file(settings, folder=folder, found=found)
    notes += [Note("", finding.message, finding.span.line) for finding in found]
    if start.devices and (listed := re.search(r"device=([\w,-]+)", start.devices.text)):
        given.env.setdefault("CUDA_VISIBLE_DEVICES", Node(listed[1], start.devices.span))
    return given


def _without_pairs(option: Option, notes: list[Note]) -> Option:
    """`--limit-mm-per-prompt image=4` as JSON."""
    json = option.argument is not None and option.argument.form == "json" and not option.keys
    pairs = json_of_pairs(option.values[0].text) if json and option.values else None
    if pairs is None:
        return option
    word = option.values[0]
    notes.append(Note("", f"`{option.flag} {word.text}` of old is JSON today", word.span.line))
    return replace(option, values=(Word(pairs, word.span),))


def _place_loose(parsed: Parsed, given: Given) -> None:
    """The words of no option: the model, and the answers that switches of old took."""
    for word, before in parsed.loose:
        answer, line = word.text.lower(), word.span.line
        switch = before is not None and before.argument is not None and before.argument.form == "flag"
        unknown = UNKNOWN.search(word.text)
        if before and switch and answer in (*_NO, *_YES):
            setting = given.settings[before.name]
            value = (answer in _YES) is not before.negative
            given.settings[before.name] = replace(setting, node=replace(setting.node, value=value))
            text = f"`{before.flag} {word.text}` of old: a switch no longer takes a value"
            given.notes.append(Note("", text, line))
        elif "model" not in given.settings:
            given.settings["model"] = Setting("model", word.node(), word.text)
        elif unknown:
            message = f"the source does not say what `${unknown[1]}` is"
            given.unresolved.append(wrong_value(message, word.span, help="write its value"))
        else:
            given.notes.append(Note("", f"{quoted(word.text)} is left out: it belongs to no option", line))
