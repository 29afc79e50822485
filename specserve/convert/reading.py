"""A file or a command line to what it says about each engine that it starts, containers included."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from specserve.convert import translate
from specserve.convert.arguments import LEFT_OVER, command_settings
from specserve.convert.invocation import STARTS, EngineStart, around_notes, in_container, is_image, starts
from specserve.convert.options import options
from specserve.convert.python import ENGINES, PythonSource, calls
from specserve.convert.shell import script
from specserve.convert.words import Note, Word, argv_words, unknown, without_placeholder
from specserve.diagnostics import Finding, Span
from specserve.errors import FactError, UsageError, quoted, system_reason
from specserve.files import read_named
from specserve.profile.problems import Stop
from specserve.profile.source import Builder
from specserve.profile.values import Node
from specserve.vllm.versions import newest

_INNERMOST = re.compile(r"\$\{(\w+)(?:(:?[-+?])([^${}]*))?\}|\$(\w+)")
_OF_KUBERNETES = re.compile(r"\$\((\w+)\)")
_UNSET = re.compile(r"\$\{?(\w+)\}?")
_HELM = ("modelSpec", "vllmConfig", "servingEngineSpec", "extraArgs", "modelCommand")
_TEMPLATE = re.compile(r"\{\{-?\s*(?:\.|\$|if |range |include |with |template )")
_SHELL = re.compile(r"(?:^|[ /])(?:ba|z|da)?sh -[a-z]*c ")
_COMMAND = ("entrypoint", "command", "args")
_READ = (
    "image", *_COMMAND, "environment", "env", "ports", "volumes", "volumeMounts", "name", "container_name",
    "build", "stdin_open", "tty",
)  # fmt: skip
_DOLLAR = "\ue004"  # a `$$` of compose, which becomes `$` at the end


def containers(text: str, *, file: str) -> list[EngineStart]:
    """Every engine that a YAML file starts. Raises UsageError for what is not YAML, or a form that is not read."""
    documents = _documents(text, file=file)
    if _TEMPLATE.search(text) or any(
        key in item for root in documents for item in _mappings(root) for key in _HELM
    ):
        hint = "render the chart with `helm template`, and convert the manifest that it prints"
        raise UsageError(
            f"`{file}` contains Helm values or templates, which specserve cannot read", hint=hint
        )
    found: list[EngineStart] = []
    for root in documents:
        for mapping in _mappings(root):
            found += _started(mapping, compose=isinstance(root, dict) and "services" in root)
    return found


def _documents(text: str, *, file: str) -> list[Any]:
    """The documents as dictionaries, lists and words: each scalar as it is written, with its place."""
    findings: list[Finding] = []
    try:
        builder = Builder(file, findings)
        roots = [builder.build(root) for root in yaml.compose_all(text, Loader=yaml.SafeLoader) if root]
        reason = findings[0].message if findings else ""
    except (yaml.YAMLError, RecursionError, ValueError, Stop) as error:
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
    if reason:
        raise UsageError(f"specserve cannot read `{file}` as YAML: {reason}")
    return [_plain(root, text.split("\n")) for root in roots]


def _plain(node: Node, lines: list[str]) -> Any:
    if node.mapping is not None:
        return {key: _plain(item, lines) for key, item in node.mapping.items()}
    if isinstance(node.value, list):
        return [_plain(item, lines) for item in node.value]
    if node.value is None:
        return None
    span, text = node.span, str(node.value) if node.raw is None else node.raw
    if lines[span.line - 1][span.column - 1 :].startswith((">", "|")):  # a block begins on the line below
        span = replace(span, line=span.line + 1)
    return Word(text, span)


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping of a document in order."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(item)


def _started(mapping: Mapping[str, Any], *, compose: bool) -> list[EngineStart]:
    """What a container starts; nothing if the mapping is not a container of an engine."""
    image = mapping.get("image")
    parts = [_listed(mapping.get(key)) for key in _COMMAND]
    text = " ".join(word.text for part in parts for word in part)
    named = isinstance(image, Word) and is_image(_UNSET.sub(r"\1", image.text))
    if not (named or STARTS.search(text)) or not (image is None or isinstance(image, Word)):
        return []
    shell = bool(_SHELL.search(text))
    env: dict[str, Word] = {}

    def resolved(value: Word, *, shell: bool = False) -> Word:
        text = _compose(value.text) if compose else _kubernetes(value.text, env, shell=shell)
        return Word(text if shell else _OF_KUBERNETES.sub(lambda match: unknown(match[1]), text), value.span)

    env.update({name: resolved(word) for name, word in _environment(mapping)})
    command: list[Word] = []
    for value in (mapping.get(key) for key in _COMMAND):
        if isinstance(value, Word):
            command += _listed(resolved(value, shell=shell))
        else:
            command += [resolved(item, shell=shell) for item in _listed(value)]
    place = next(iter([*command, *([image] if image else [])]), Word("", Span("")))
    found = EngineStart("vllm", place, env=env)
    found.published = [resolved(port) for port in _ports(mapping.get("ports"))]
    folders = [word.text for key in ("volumes", "volumeMounts") for word in _places(mapping.get(key))]
    found.notes = around_notes(folders, [key for key in mapping if key not in _READ], line=place.span.line)
    return in_container(resolved(image) if image else None, command, None, found)


def _listed(value: Any) -> list[Word]:
    """A list of words as it is; a text as compose splits it."""
    if isinstance(value, Word):
        try:
            parts = shlex.split(value.text)
        except ValueError:
            parts = value.text.split()
        return [Word(part, value.span) for part in parts]
    return [item for item in value if isinstance(item, Word)] if isinstance(value, list) else []


def _ports(value: Any) -> Iterator[Word]:
    """Compose's `9000:8000` and `{published, target}`; a `containerPort` of Kubernetes opens nothing."""
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Word):
            yield item
        elif isinstance(item, dict) and isinstance(target := item.get("target"), Word):
            outer = item.get("published")
            yield Word(f"{outer.text}:{target.text}", target.span) if isinstance(outer, Word) else target


def _places(value: Any) -> Iterator[Word]:
    for item in value if isinstance(value, list) else []:
        named = item.get("mountPath") or item.get("target") if isinstance(item, dict) else item
        if isinstance(named, Word):
            yield named


def _environment(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Word]]:
    """Compose's mapping or list of `NAME=value`; Kubernetes' list of `{name, value}`."""
    for value in (mapping.get("environment"), mapping.get("env")):
        pairs = list(value.items()) if isinstance(value, dict) else []
        for item in value if isinstance(value, list) else []:
            if isinstance(item, Word):
                name, sign, text = item.text.partition("=")
                pairs.append((name, Word(text, item.span) if sign else None))
            elif isinstance(item, dict) and isinstance(named := item.get("name"), Word):
                empty = Word("", named.span) if "value" in item else None
                pairs.append((named.text, item.get("value") or empty))
        for name, held in pairs:
            yield name, held if isinstance(held, Word) else Word(unknown(name), Span(""))


def _compose(text: str) -> str:
    """A text as compose reads it: `$$` is a dollar sign, `${X:-default}` its default, since nobody sets X."""

    def value(match: re.Match[str]) -> str:
        kept = {"-": match[3], "+": ""}
        return kept.get((match[2] or "?")[-1], unknown(match[1] or match[4]))

    text, before = text.replace("$$", _DOLLAR), ""
    while text != before:  # the innermost first
        before, text = text, _INNERMOST.sub(value, text)
    return text.replace(_DOLLAR, "$")


def _kubernetes(text: str, env: Mapping[str, Word], *, shell: bool) -> str:
    """A text as Kubernetes reads it: `$(X)` is a variable of the container; a shell reads the others."""
    text = _OF_KUBERNETES.sub(lambda match: env[match[1]].text if match[1] in env else match[0], text)
    return text if shell else _UNSET.sub(lambda match: unknown(match[1]), text)


MAX_BYTES = 250_000  # far above any launch script
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # no launch holds them, and no YAML may
_PYTHON = re.compile(rf"\b({'|'.join(ENGINES)})\s*\(")
_YAML = re.compile(r"^[ \t-]*(image|services|apiVersion)[ \t]*:", re.M)
_NOT_OF_AN_ENGINE = ("PATH", "PS1", "HOME", "SHELL", "LANG", "PWD")
_OF_AN_ENGINE = re.compile(
    r"(VLLM|CUDA|NCCL|HF|HUGGING|TORCH|PYTORCH|LD|PYTHON|NVIDIA|GLOO|TRITON|OMP|FLASHINFER|UCX)_|PYTHONPATH"
)


def read(text: str, *, file: str, folder: Path) -> list[EngineStart]:
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
        if found:
            return [_with_settings(start, folder=folder) for start in found]
    if problems:
        raise problems[0]
    hint = (
        "`convert` reads `vllm serve`, `docker run`, compose, Kubernetes, `LLM(…)` in Python, and "
        "SGLang's launch_server"
    )
    if STARTS.search(text):
        hint = (
            "a command in a here-document, a list, a guide or other text is not read: convert it separately"
        )
    raise UsageError(f"specserve found nothing in `{file}` that starts vLLM", hint=hint)


def read_source(source: list[str]) -> tuple[EngineStart, str, list[EngineStart]]:
    """The start to convert, the name of the text it comes from, and other starts in it.

    `source`: a command line, or one word: a file, or `-` for stdin. Raises UsageError and FactError.
    """
    if len(source) > 1:
        return from_argv(argv_words(source)[1], folder=Path.cwd()), "a command line", []
    name = source[0]
    text = _text(name)
    file = "stdin" if name == "-" else name
    folder = Path.cwd() if name == "-" else Path(name).parent
    found = read(text, file=file, folder=folder)
    chosen = next((given for given in found if _speculates(given)), found[0])
    return chosen, Path(file).name, [given for given in found if given is not chosen]


def _speculates(given: EngineStart) -> bool:
    return any("spec" in name for name in given.settings)


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


def from_argv(words: Iterable[Word], *, folder: Path) -> EngineStart:
    """What a command line says. Raises UsageError if it starts neither vLLM nor SGLang."""
    words = list(words)
    found = starts(words)
    if not found:
        what = quoted(words[0].text) if words else "nothing"
        raise UsageError(f"{what} is not a command that starts vLLM or SGLang")
    return _with_settings(found[0], folder=folder)


def _readers(text: str, *, file: str) -> list[Callable[..., list[EngineStart]]]:
    """The forms to try, the likeliest first: the one that the file's name says, or those that the text looks like."""
    readers = {".py": _from_python, ".yaml": containers, ".yml": containers, ".sh": _from_shell}
    named = readers.get(Path(file).suffix.lower())
    python = [_from_python] if _PYTHON.search(text) else []
    yaml = [containers] if _YAML.search(text) else []
    return [named] if named else [*python, *yaml, _from_shell]


def _from_python(text: str, *, file: str) -> list[EngineStart]:
    return calls(PythonSource(text, file=file))


def _from_shell(text: str, *, file: str) -> list[EngineStart]:
    found: list[EngineStart] = []
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


def _with_settings(given: EngineStart, *, folder: Path) -> EngineStart:
    """The start with the settings of its command line; what is wrong with that becomes notes."""
    env = {name: without_placeholder(word) for name, word in given.env.items()}
    given = replace(given, words=[without_placeholder(word) for word in given.words], env=env)
    if given.is_call:
        return given
    sglangs = given.engine == "sglang"
    known = translate.options(newest()) if sglangs else options()
    found: list[Finding] = []
    notes = list(dict.fromkeys(given.notes))
    settings = command_settings(
        given.words, known, folder=folder, found=found, unresolved=given.unresolved, positional=not sglangs
    )
    for finding in found:
        more = ", and is left out" if finding.message.endswith(LEFT_OVER) else ""
        notes.append(Note("", finding.message + more, finding.span.line))
    if given.devices and (listed := re.search(r"device=([\w,-]+)", given.devices.text)):
        given.env.setdefault("CUDA_VISIBLE_DEVICES", replace(given.devices, text=listed[1]))
    return replace(given, settings=settings, notes=notes)
