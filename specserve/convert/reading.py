"""A file of any known form to what it says about each engine that it starts. Runs nothing, changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from specserve.convert import sglang
from specserve.convert.argumentfile import with_file
from specserve.convert.composefile import containers
from specserve.convert.given import Given, Note
from specserve.convert.invocation import Invocation, in_container, invocation, shell_script
from specserve.convert.options import Option, Parsed, known_options, parse
from specserve.convert.pythoncommand import command_lists, texts
from specserve.convert.pythonsource import ENGINES, Call, calls
from specserve.convert.settings import Setting, settings_of
from specserve.convert.shelltext import commands, heredocs
from specserve.convert.values import json_of_pairs
from specserve.convert.words import Word
from specserve.diagnostics import Finding
from specserve.errors import UsageError
from specserve.plan.support import known_versions, table
from specserve.profile.problems import quoted
from specserve.profile.tree import Node

MAX_BYTES = 250_000  # far above any launch script
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_PYTHON = re.compile(rf"\b({'|'.join(ENGINES)})\s*\(")
_YAML = re.compile(r"^[ \t-]*(image|services|apiVersion)[ \t]*:", re.M)
_MOST_NESTED = 3
_SHELLS_OWN = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PS1", "HOME")
_SAYS = ("echo", "printf")
_NO = ("false", "0", "no", "off")
_YES = ("true", "1", "yes", "on")


class _Reader(Protocol):
    def __call__(self, text: str, *, file: str, folder: Path) -> list[Given]: ...


def read(text: str, *, file: str, folder: Path) -> list[Given]:
    """Every start of vLLM or SGLang in a text: Python, YAML of containers, or a shell's.

    `folder` is where relative paths of `--config` begin. Raises UsageError where there is none.
    """
    text = _code_of(text)
    problems: list[UsageError] = []
    for reader in _readers(text, file=file):
        try:
            found = reader(text, file=file, folder=folder)
        except UsageError as error:
            problems.append(error)
            continue
        if found:
            return found
    inside = [] if Path(file).suffix.lower() == ".py" else _from_heredocs(text, file=file, folder=folder)
    if inside:
        return inside
    if problems:
        raise problems[0]
    hint = (
        "it reads `vllm serve`, `docker run`, compose files, `LLM(…)` in Python, and SGLang's launch_server"
    )
    raise UsageError(f"`{file}` starts no vLLM that specserve could find", hint=hint)


def _code_of(text: str) -> str:
    """The code blocks of a guide, every other line left empty; a text without any as it is."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    if len(fences) < 2:
        return text
    inside = {
        number
        for start, end in zip(fences[::2], fences[1::2], strict=False)
        for number in range(start + 1, end)
    }
    return "\n".join(line if number in inside else "" for number, line in enumerate(lines))


def _readers(text: str, *, file: str) -> list[_Reader]:
    """The forms to try, the likeliest first."""
    suffix = Path(file).suffix.lower()
    readers: list[_Reader] = []
    if suffix == ".py" or (suffix not in (".sh", ".yaml", ".yml") and _PYTHON.search(text)):
        readers.append(_from_python)
    if suffix in (".yaml", ".yml") or (suffix not in (".sh", ".py") and _YAML.search(text)):
        readers.append(_from_yaml)
    if suffix not in (".py", ".yaml", ".yml"):
        readers.append(_from_shell)
    return readers


def from_argv(words: Iterable[Word], *, folder: Path) -> Given:
    """What a command line says. Raises UsageError where it starts neither vLLM nor SGLang."""
    words = list(words)
    script = shell_script(words)
    found = _from_shell(script.text, file="sh", folder=folder) if script else []
    if found:
        return found[0]
    start = invocation(words)
    if start is None:
        what = quoted(words[0].text) if words else "nothing"
        raise UsageError(f"{what} is no command that starts vLLM or SGLang")
    return _given(start, folder=folder)


def _from_python(text: str, *, file: str, folder: Path) -> list[Given]:
    found = [_called(call) for call in calls(text, file=file)]
    if found:
        return found
    starts = [from_argv(words, folder=folder) for words in command_lists(text, file=file)]
    scripts = () if starts else texts(text, file=file)
    return starts + [given for script in scripts for given in _from_shell(script, file=file, folder=folder)]


def _called(call: Call) -> Given:
    newest = table(known_versions()[-1])
    arguments = {**newest.frontend, **newest.engine}
    settings = {name: Setting(name, node, name, arguments.get(name)) for name, node in call.keywords.items()}
    return Given(call.engine, f"{call.name}(…)", call.place, settings, call.env)


def _from_yaml(text: str, *, file: str, folder: Path) -> list[Given]:
    found: list[Given] = []
    for container in containers(text, file=file):
        if container.script is not None:
            inner = _from_shell(container.script, file=file, folder=folder)
            for given in inner:
                given.env = {**_nodes(container.env), **given.env}
            found += inner
            continue
        around = Invocation("vllm", container.image, env=container.env)
        start = in_container(container.image, container.words, None, around)
        if start:
            found.append(_given(start, folder=folder))
    return found


def _from_shell(text: str, *, file: str, folder: Path, nested: int = 0) -> list[Given]:
    found: list[Given] = []
    exported: dict[str, Word] = {}
    for words in commands(text, file=file):
        if words[0].text in _SAYS:
            continue
        if words[0].text == "export":
            exported |= _exported(words[1:], text=text)
            continue
        script = shell_script(words) if nested < _MOST_NESTED else None
        inner = _from_shell(script.text, file=file, folder=folder, nested=nested + 1) if script else []
        start = None if inner else invocation(words)
        if start:
            start.env = {**exported, **start.env}
            inner = [_given(start, folder=folder)]
        found += inner
    return found


def _from_heredocs(text: str, *, file: str, folder: Path) -> list[Given]:
    """What stands in the here-documents of a script: YAML for `kubectl apply -f -`, another script."""
    found: list[Given] = []
    for document in heredocs(text):
        for reader in (_from_yaml, _from_shell):
            try:
                found += reader(document, file=file, folder=folder)
            except UsageError:
                continue  # the other form, or none
            if found:
                break
    return found


def _exported(words: Iterable[Word], *, text: str) -> dict[str, Word]:
    """The exported variables that an engine may read: not those that the script itself puts into its words."""
    pairs = [(word.text.partition("=")[0], word) for word in words if "=" in word.text]
    return {
        name: word.part(len(name) + 1)
        for name, word in pairs
        if not re.search(rf"\$(?:{re.escape(name)}\b|\{{{re.escape(name)}\b)", text)
        and name not in _SHELLS_OWN
    }


def _given(start: Invocation, *, folder: Path) -> Given:
    """The settings of a command line; what is wrong with it becomes notes."""
    sglangs = start.engine == "sglang"
    tables = [table(version) for version in known_versions()]
    known = sglang.options(tables[-1]) if sglangs else known_options(tables)
    parsed = parse(start.words, known, positional=not sglangs)
    found: list[Finding] = []
    notes: list[Note] = []
    settings = settings_of([_without_pairs(option, notes) for option in parsed.options], found)
    notes += _loose(parsed, settings)
    if not sglangs:
        settings = with_file(settings, folder=folder, found=found)
    notes += [Note("", finding.message, finding.span.line) for finding in found]
    what = "SGLang's launch_server" if sglangs else f"`{_program(start)}`"
    given = Given(start.engine, what, start.start.span, settings, _nodes(start.env), notes)
    given.image, given.published, given.words = start.image, start.published, start.words
    if start.devices and (listed := re.search(r"device=([\w,-]+)", start.devices.text)):
        given.env.setdefault("CUDA_VISIBLE_DEVICES", Node(listed[1], start.devices.span))
    return given


def _program(start: Invocation) -> str:
    text = start.start.text
    return "vllm serve" if text.endswith("vllm") else "api_server" if text == "-m" else text


def _without_pairs(option: Option, notes: list[Note]) -> Option:
    """`--limit-mm-per-prompt image=4` as JSON."""
    json = option.argument is not None and option.argument.form == "json" and not option.keys
    pairs = json_of_pairs(option.values[0].text) if json and option.values else None
    if pairs is None:
        return option
    word = option.values[0]
    notes.append(Note("", f"`{option.flag} {word.text}` of old is JSON today", word.span.line))
    return replace(option, values=(Word(pairs, word.span),))


def _loose(parsed: Parsed, settings: dict[str, Setting]) -> list[Note]:
    """The words of no option: the model, and the answers that switches of old took."""
    notes = []
    for word, before in parsed.loose:
        answer = word.text.lower()
        switch = before is not None and before.argument is not None and before.argument.form == "flag"
        if before and switch and answer in (*_NO, *_YES):
            setting = settings[before.name]
            value = (answer in _YES) is not before.negative
            settings[before.name] = replace(setting, node=replace(setting.node, value=value))
            text = f"`{before.flag} {word.text}` of old: a switch no longer takes a value"
            notes.append(Note("", text, word.span.line))
        elif "model" not in settings:
            settings["model"] = Setting("model", _node(word), word.text)
        else:
            notes.append(
                Note("", f"{quoted(word.text)} is left out: it belongs to no option", word.span.line)
            )
    return notes


def _node(word: Word) -> Node:
    return Node(word.text, word.span, key=word.span, raw=word.text)


def _nodes(words: Mapping[str, Word]) -> dict[str, Node]:
    return {name: _node(word) for name, word in words.items()}
