"""A file, a command line, a process or a server to the launches that it makes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from specserve.convert import translate
from specserve.convert.arguments import command_settings, options
from specserve.convert.launch import OF_AN_ENGINE, Launch, script_starts, starts
from specserve.convert.python import ENGINES, launches
from specserve.convert.services import containers, units
from specserve.convert.shell import script
from specserve.convert.words import Note, Word, argv_words, finding, readable, without_placeholder
from specserve.diagnostics import Finding, Span
from specserve.errors import FactError, SpecserveError, UsageError, quoted, system_reason
from specserve.files import read_named
from specserve.metrics import read as read_metrics
from specserve.profile.secrets import hushed
from specserve.profile.source import COMMAND
from specserve.vllm.versions import newest

MAX_BYTES = 250_000  # far above any launch script
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # no launch holds them, and no YAML may
_PYTHON = re.compile(rf"\b({'|'.join(ENGINES)})\s*\(|^import \w+$", re.M)
_YAML = re.compile(
    r"^[ \t{-]*\"?(image|services|apiVersion|Config|servingEngineSpec|model)\"?[ \t]*:", re.M
)
_UNIT = re.compile(r"^\[Service\]\s*$", re.M)
_PLACE = Span(COMMAND, 1, 1, 1, 2)
_VERSION = re.compile(r'"version"\s*:\s*"([\d.]{1,20})')
_CACHE = re.compile(r"^vllm:cache_config_info\{([^\n]{0,8192})\} 1", re.M)
_LABEL = re.compile(r'\b(cache_dtype|gpu_memory_utilization)="([\w.]+)"')


def read(text: str, *, file: str, folder: Path) -> list[Launch]:
    """Every start of vLLM or SGLang in a text: Python, YAML of containers, or a shell's.

    `folder` is where relative paths of `--config` begin. Raises UsageError if there is none.
    """
    text = _CONTROL.sub("", text)
    problems: list[UsageError] = []
    likely = ((units, _UNIT), (launches, _PYTHON), (containers, _YAML))
    readers = [*(one for one, form in likely if form.search(text)), _from_shell]
    for reader in _READERS.get(Path(file).suffix.lower(), readers):  # the form is in the name
        try:
            if found := reader(text, file=file):
                return [with_settings(start, folder=folder) for start in found]
        except UsageError as error:
            problems.append(error)
        except RecursionError:
            problems.append(UsageError(f"specserve cannot read `{file}`: it is nested too deeply"))
    if problems:
        raise problems[0]
    hint = "`specserve convert --help` names what is read; a command in other text is not"
    raise UsageError(f"specserve found nothing in `{file}` that starts vLLM", hint=hint)


def _from_shell(text: str, *, file: str) -> list[Launch]:
    return script_starts(script(text, file=file), text)


_READERS: Mapping[str, list[Callable[..., list[Launch]]]] = {
    ".py": [launches],
    ".service": [units],
    ".sh": [_from_shell],
    **{suffix: [containers] for suffix in (".yaml", ".yml", ".json")},
}


def read_source(source: list[str], pick: str | None = None) -> tuple[Launch, str]:
    """The launch to convert, with a note that names the others, and the name of its text.

    `source`: a command line, or one word: a file, or `-` for stdin. `pick`: the launch by its name
    or its number from 1. Raises UsageError and FactError.
    """
    if len(source) > 1:
        found = starts(argv_words(source)[1])
        if not found:
            raise UsageError(f"{quoted(source[0])} is not a command that starts vLLM or SGLang")
        return with_settings(found[0], folder=Path.cwd()), "a command line"
    file = "stdin" if source[0] == "-" else source[0]
    found = read(_text(source[0]), file=file, folder=Path(file).parent)
    named = [given for given in found if given.settings.keys() & {"model", "model_path"}] or found
    names = []
    for number, given in enumerate(found, start=1):
        when = f" if {quoted(hushed(given.condition))}" if given.condition else ""
        name = quoted(given.name) if given.name else given.what
        names.append(f"{number} {name} (line {given.start.span.line}{when})")
    wanted = [given for at, given in enumerate(found, start=1) if pick in (str(at), given.name)]
    if pick and not wanted:
        raise UsageError(f"{quoted(pick)} is no launch of `{file}`: {', '.join(names)} are")
    speculate = [given for given in named if "spec" in " ".join(given.settings)]
    chosen = [*wanted, *speculate, *named][0]
    if len(found) > 1:
        this = names[found.index(chosen)]
        said = f"the source starts {len(found)} engines: {', '.join(names)}; this is {this}: "
        said += "`--pick` takes the number or name of another"
        chosen = replace(chosen, notes=[Note("", said, chosen.start.span.line), *chosen.notes])
    return chosen, Path(file).name


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
        raise UsageError(f"`{name}` is too large for a launch script: over {MAX_BYTES:,} bytes")
    return data.decode("utf-8-sig", errors="replace").replace("\0", "\ufffd")


def of_process(pid: int) -> Launch:
    """The launch of a process by its arguments, environment and folder.

    Raises UsageError for one that starts no vLLM, FactError for one that ended or is not ours.
    """
    try:
        process = psutil.Process(pid)
        words = argv_words(process.cmdline())[1]
        found = starts(words)
        if not found:
            near = None
            for other in (*process.parents(), *process.children()):
                # it may end meanwhile, or be a script of any kind
                with suppress(psutil.Error, SpecserveError):
                    is_one = near is None and starts(argv_words(other.cmdline())[1])
                    near = other.pid if is_one else near
            hint = f"`specserve convert --pid {near}` reads the vLLM beside it" if near else None
            what = f" ({quoted(words[0].text)})" if words else ""
            raise UsageError(f"process {pid}{what} is not the first process of a vLLM", hint=hint)
        environ, folder = process.environ(), process.cwd()
        is_contained = not Path(f"/proc/{pid}/ns/mnt").samefile("/proc/self/ns/mnt")
    except (psutil.NoSuchProcess, FileNotFoundError) as error:  # a zombie is one too
        raise FactError(f"no process {pid} runs here") from error
    except (psutil.AccessDenied, PermissionError) as error:
        raise FactError(f"process {pid} is another user's", hint="run it as that user") from error
    kept = {name: Word(one, _PLACE) for name, one in environ.items() if OF_AN_ENGINE.match(name)}
    dropped = len(environ) - len(kept)
    note = Note("", f"{dropped} variables are left out: no engine reads any of their names")
    given = replace(found[0], env={**kept, **found[0].env}, notes=[*found[0].notes, note])
    given.folder, given.is_contained = folder, is_contained
    return with_settings(given, folder=Path(folder))


def of_server(url: str, models: Mapping[str, Mapping[str, Any]], text: str) -> Launch:
    """The launch of a server as far as its answers tell; what they do not is unresolved.

    `models`: those of `/v1/models`; `text`: what `/version` and `/metrics` say, if they do. Raises
    UsageError for a server that is not vLLM.
    """
    bases = {name: one for name, one in models.items() if not one.get("parent")}
    told = [*models, *(str(one.get("root")) for one in models.values())]
    is_vllms = bases and all(one.get("owned_by") == "vllm" for one in bases.values())
    if not is_vllms or any(name.startswith("-") for name in told):  # it must add no option
        raise UsageError(f"the server at {url} is not vLLM's")
    first, about = next(iter(bases.items()))
    root, longest = str(about.get("root") or first), about.get("max_model_len")
    words = [root] if first == root else [root, "--served-model-name", *bases]
    words += ["--max-model-len", str(longest)] if isinstance(longest, int) else []
    words += ["--port", str(port)] if (port := urlsplit(url).port) else []
    if urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost"):
        words += ["--host", "127.0.0.1"]  # on what else it listens is not seen from here
    adapters = [(name, one.get("root")) for name, one in models.items() if one.get("parent")]
    if adapters:
        words += ["--enable-lora", "--lora-modules", *(f"{name}={at}" for name, at in adapters)]
    cache = _CACHE.search(text)
    for name, value in _LABEL.findall(cache[0] if cache else ""):
        flag = name.replace("cache_dtype", "kv_cache_dtype").replace("_", "-")
        words += [f"--{flag}", value] if value != "auto" else []
    if cache and 'enable_prefix_caching="False"' in cache[0]:
        words.append("--no-enable-prefix-caching")
    said = [("the server does not report `tensor_parallel_size`, `quantization` and much more", "")]
    try:
        counts = [len(one.accepted_per_position) for one in read_metrics(text).acceptance.values()]
    except FactError:
        said.append(("the server shows no metrics: whether it speculates is open", "speculation"))
    else:
        if counts:
            words += ["--speculative-config", json.dumps({"num_speculative_tokens": max(counts)})]
            what = f"the server speculates with K = {max(counts)}, with an unknown method and draft"
            said.append((what, "speculation.method"))
    version = _VERSION.search(text)
    given = Launch("vllm", Word("vllm", _PLACE), version=version[1] if version else "")
    given.words = argv_words(words)[1]
    for message, path in said:
        span, help_ = Span(url, 1, path=path), "write what its command has, as keys of the profile"
        given.unresolved.append(finding("SD105", message, span, help=help_))
    return with_settings(given, folder=Path.cwd())


def with_settings(given: Launch, *, folder: Path) -> Launch:
    """The start with the settings of its command line; what is wrong with that becomes notes.

    `folder`: where relative paths of `--config` begin, unless the start says so itself.
    """
    env = {name: without_placeholder(word) for name, word in given.env.items()}
    given = replace(given, words=[without_placeholder(word) for word in given.words], env=env)
    if given.is_call:
        return given
    if given.is_contained:
        _use_file_of_host(given)
    sglangs = given.engine == "sglang"
    found: list[Finding] = []
    settings = command_settings(
        given.words,
        translate.options(newest()) if sglangs else options(),
        folder=Path(given.folder) if given.folder else folder,
        found=found,
        unresolved=given.unresolved,
        positional=not sglangs,
    )
    notes = list(dict.fromkeys(given.notes))
    notes += [Note("", finding.message, finding.span.line) for finding in found]
    return replace(given, settings=settings, notes=notes)


def _use_file_of_host(given: Launch) -> None:
    """Puts the host's path of `--config` in; a file that only its container has is unresolved."""
    at = next((at for at, word in enumerate(given.words[:-1]) if word.text == "--config"), None)
    if at is None:
        return
    path = given.words[at + 1]
    if host := given.on_host(path.text):
        given.words[at + 1] = replace(path, text=host)
    else:
        text = f"the source's container has its arguments in {quoted(readable(path.text))}"
        help = "write them as keys of the profile"
        given.unresolved.append(finding("SD105", text, path.span, help=help))
        del given.words[at : at + 2]
