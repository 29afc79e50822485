"""A file or a command line to the launches that it makes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from specserve.convert import translate
from specserve.convert.arguments import command_settings, options
from specserve.convert.containers import containers
from specserve.convert.host import with_file_of_arguments
from specserve.convert.launch import STARTS, Launch, script_starts, starts
from specserve.convert.python import ENGINES, launches
from specserve.convert.shell import script
from specserve.convert.units import units
from specserve.convert.words import Note, Word, argv_words, without_placeholder
from specserve.diagnostics import Finding
from specserve.errors import FactError, UsageError, quoted, system_reason
from specserve.files import read_named
from specserve.profile.secrets import hushed
from specserve.vllm.versions import newest

MAX_BYTES = 250_000  # far above any launch script
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # no launch holds them, and no YAML may
_PYTHON = re.compile(rf"\b({'|'.join(ENGINES)})\s*\(|^import \w+$", re.M)
_YAML = re.compile(
    r"^[ \t{-]*\"?(image|services|apiVersion|Config|servingEngineSpec|model)\"?[ \t]*:", re.M
)
_UNIT = re.compile(r"^\[Service\]\s*$", re.M)


def read(text: str, *, file: str, folder: Path) -> list[Launch]:
    """Every start of vLLM or SGLang in a text: Python, YAML of containers, or a shell's.

    `folder` is where relative paths of `--config` begin. Raises UsageError if there is none.
    """
    text = _CONTROL.sub("", text)
    problems: list[UsageError] = []
    for reader in _readers(text, file=file):
        try:
            found = reader(text, file=file)
        except UsageError as error:
            problems.append(error)
            continue
        except RecursionError:
            problems.append(UsageError(f"specserve cannot read `{file}`: it is nested too deeply"))
            continue
        if found:
            return [with_settings(start, folder=folder) for start in found]
    if problems:
        raise problems[0]
    hint = (
        "`convert` reads `vllm serve`, `docker run`, compose, Kubernetes, `LLM(…)` in Python, and "
        "SGLang's launch_server"
    )
    if STARTS.search(text):
        hint = "a command in a here-document, a list, a guide or other text is not read: "
        hint += "convert it separately"
    raise UsageError(f"specserve found nothing in `{file}` that starts vLLM", hint=hint)


def read_source(source: list[str], pick: str | None = None) -> tuple[Launch, str]:
    """The launch to convert, with a note that names the others, and the name of its text.

    `source`: a command line, or one word: a file, or `-` for stdin. `pick`: the launch by its name
    or its number from 1. Raises UsageError and FactError.
    """
    if len(source) > 1:
        return from_argv(argv_words(source)[1], folder=Path.cwd()), "a command line"
    name = source[0]
    text = _text(name)
    file = "stdin" if name == "-" else name
    folder = Path.cwd() if name == "-" else Path(name).parent
    found = read(text, file=file, folder=folder)
    names = [f"{number} {_named(given)}" for number, given in enumerate(found, start=1)]
    named = [given for given in found if given.settings.keys() & {"model", "model_path"}] or found
    chosen = next(
        (given for given in named if any("spec" in name for name in given.settings)), named[0]
    )
    if pick:
        picked = [given for at, given in enumerate(found, start=1) if pick in (str(at), given.name)]
        if not picked:
            raise UsageError(
                f"{quoted(pick)} is no launch of `{file}`", hint=f"it has {', '.join(names)}"
            )
        chosen = picked[0]
    if len(found) > 1:
        this = names[found.index(chosen)]
        said = f"the source starts {len(found)} engines: {', '.join(names)}; this is {this}"
        note = Note("", f"{said}: `--pick` takes the number or name of another", chosen.place.line)
        chosen = replace(chosen, notes=[note, *chosen.notes])
    return chosen, Path(file).name


def _named(given: Launch) -> str:
    """A launch among others, for a person."""
    when = f" if {quoted(hushed(given.condition))}" if given.condition else ""
    return f"{quoted(given.name) if given.name else given.what} (line {given.place.line}{when})"


def _text(name: str) -> str:
    try:
        limit = MAX_BYTES + 1
        data = sys.stdin.buffer.read(limit) if name == "-" else read_named(name, limit)
    except (OSError, ValueError) as error:
        reason, hint = system_reason(error), None
        if isinstance(error, FileNotFoundError):
            reason += ", and it is not a command that starts vLLM"
            hint = "name a script, or write `specserve convert -- vllm serve MODEL …`"
        raise FactError(f"cannot read `{name}`: {reason}", hint=hint) from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"`{name}` is larger than {MAX_BYTES:,} bytes, which is too large for a launch script"
        )
    return data.decode("utf-8-sig", errors="replace").replace("\0", "\ufffd")


def from_argv(words: Iterable[Word], *, folder: Path) -> Launch:
    """What a command line says. Raises UsageError if it starts neither vLLM nor SGLang."""
    words = list(words)
    found = starts(words)
    if not found:
        what = quoted(words[0].text) if words else "nothing"
        raise UsageError(f"{what} is not a command that starts vLLM or SGLang")
    return with_settings(found[0], folder=folder)


def _readers(text: str, *, file: str) -> list[Callable[..., list[Launch]]]:
    """The form that the file's name says, or those that the text looks like, in order."""
    yamls = dict.fromkeys((".yaml", ".yml", ".json"), containers)
    readers = {".py": launches, ".service": units, ".sh": _from_shell, **yamls}
    named = readers.get(Path(file).suffix.lower())
    likely = ((units, _UNIT), (launches, _PYTHON), (containers, _YAML))
    return [named] if named else [*(one for one, form in likely if form.search(text)), _from_shell]


def _from_shell(text: str, *, file: str) -> list[Launch]:
    return script_starts(script(text, file=file), text)


def with_settings(given: Launch, *, folder: Path) -> Launch:
    """The start with the settings of its command line; what is wrong with that becomes notes.

    `folder`: where relative paths of `--config` begin, unless the start says so itself.
    """
    env = {name: without_placeholder(word) for name, word in given.env.items()}
    given = replace(given, words=[without_placeholder(word) for word in given.words], env=env)
    given = with_file_of_arguments(given)
    if given.is_call:
        return given
    sglangs = given.engine == "sglang"
    known = translate.options(newest()) if sglangs else options()
    found: list[Finding] = []
    notes = list(dict.fromkeys(given.notes))
    folder = Path(given.folder) if given.folder else folder
    settings = command_settings(
        given.words,
        known,
        folder=folder,
        found=found,
        unresolved=given.unresolved,
        positional=not sglangs,
    )
    notes += [Note("", finding.message, finding.span.line) for finding in found]
    if given.devices and (listed := re.search(r"device=([\w,-]+)", given.devices.text)):
        given.env.setdefault("CUDA_VISIBLE_DEVICES", replace(given.devices, text=listed[1]))
    return replace(given, settings=settings, notes=notes)
