"""A file or a command line to what it says about each engine that it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from specserve.convert import sglang
from specserve.convert.containers import containers
from specserve.convert.given import LEFT_OVER, Given, command_settings
from specserve.convert.invocation import STARTS, starts
from specserve.convert.options import parse
from specserve.convert.python import ENGINES, Source, calls, command_lists
from specserve.convert.shell import script
from specserve.convert.words import Note, Word, without_placeholder
from specserve.diagnostics import Finding
from specserve.errors import UsageError
from specserve.profile.problems import quoted
from specserve.vllm.versions import newest, options

MAX_BYTES = 250_000  # far above any launch script
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # no launch holds them, and no YAML may
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_PYTHON = re.compile(rf"\b({'|'.join(ENGINES)})\s*\(")
_YAML = re.compile(r"^[ \t-]*(image|services|apiVersion)[ \t]*:", re.M)
_NOT_OF_AN_ENGINE = ("PATH", "PS1", "HOME", "SHELL", "LANG", "PWD")
_OF_AN_ENGINE = re.compile(
    r"(VLLM|CUDA|NCCL|HF|HUGGING|TORCH|PYTORCH|LD|PYTHON|NVIDIA|GLOO|TRITON|OMP|FLASHINFER|UCX)_|PYTHONPATH"
)


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
            return [_with_settings(start, folder=folder) for start in found]
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
    return _with_settings(found[0], folder=folder)


def _code_of(text: str) -> str:
    """The code blocks of a guide, every other line left empty; a text without any as it is."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    if len(fences) < 2:
        return text
    pairs = zip(fences[::2], fences[1::2], strict=False)
    inside = {number for start, end in pairs for number in range(start + 1, end)}
    return "\n".join(line if number in inside else "" for number, line in enumerate(lines))


def _readers(text: str, *, file: str) -> list[Callable[..., list[Given]]]:
    """The forms to try, the likeliest first: the one that the file's name says, or those that the text looks like."""
    readers = {".py": _from_python, ".yaml": containers, ".yml": containers, ".sh": _from_shell}
    named = readers.get(Path(file).suffix.lower())
    python = [_from_python] if _PYTHON.search(text) else []
    yaml = [containers] if _YAML.search(text) else []
    return [named] if named else [*python, *yaml, _from_shell]


def _from_python(text: str, *, file: str) -> list[Given]:
    source = Source(text, file=file)
    return calls(source) or command_lists(source)


def _from_shell(text: str, *, file: str) -> list[Given]:
    found: list[Given] = []
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


def _with_settings(given: Given, *, folder: Path) -> Given:
    """The start with the settings of its command line; what is wrong with that becomes notes."""
    env = {name: without_placeholder(word) for name, word in given.env.items()}
    given = replace(given, words=[without_placeholder(word) for word in given.words], env=env)
    if given.is_call:
        return given
    sglangs = given.engine == "sglang"
    known = sglang.options(newest()) if sglangs else options()
    parsed = parse(given.words, known, positional=not sglangs)
    found: list[Finding] = []
    notes = list(dict.fromkeys(given.notes))
    settings = command_settings(parsed, folder=folder, found=found, unresolved=given.unresolved)
    for finding in found:
        more = ", and is left out" if finding.message.endswith(LEFT_OVER) else ""
        notes.append(Note("", finding.message + more, finding.span.line))
    if given.devices and (listed := re.search(r"device=([\w,-]+)", given.devices.text)):
        given.env.setdefault("CUDA_VISIBLE_DEVICES", replace(given.devices, text=listed[1]))
    return replace(given, settings=settings, notes=notes)
