"""Which engine a command starts, with what its wrappers, containers and shells say around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specserve.convert.arguments import Setting
from specserve.convert.shell import script
from specserve.convert.words import UNKNOWN, Note, Word, argv_words, readable, unknown
from specserve.diagnostics import Finding, Span
from specserve.errors import quoted

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
STARTS = re.compile(
    r"\bvllm\s+serve\b|entrypoints[./]openai[./]api_server|entrypoints\.api_server|sglang[./]launch_server"
    r"|sglang\s+serve\b|dynamo\.vllm|vllm/vllm-|vllm-openai"
)
"""What a script that starts an engine holds."""
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm", "vllm.entrypoints.api_server": "vllm", "dynamo.vllm": "vllm",
    "sglang.launch_server": "sglang",
}  # fmt: skip
_CLI_MODULES = ("vllm", "vllm.entrypoints.cli.main")
_SHELLS = ("sh", "bash", "zsh", "dash")
_RUN = re.compile(r"(container )?run\b")
_CONTAINED = ("docker", "podman", "nerdctl")
_SAYS = ("echo", "printf", "pip", "pip3", "ls", "cat", "grep", "which")
_QUIET = ("exec", "nohup", "env", "command", "time", "python", "python3", "uv", "run", "sudo", "-u")
_LONGEST_IMAGE = 512
_IMAGE = re.compile(r"(^|[/_])[\w.-]*(vllm|sglang)[\w.-]*(/[\w.-]+)*([:@][\w.:-]+)?$", re.I)
_SWITCH = re.compile(
    r"-[ditPqh]+|--(?:detach|disable-content-trust|env-host|help|http-proxy|init|interactive|no-healthcheck"
    r"|no-hosts|oom-kill-disable|privileged|publish-all|quiet|read-only|replace|rm|rmi|sig-proxy|tls-verify|tty)"
)
"""The options of `docker run` and `podman run` that take no value."""
_ATTACHED = re.compile("-[evpuwmlac](?=.)")
_MOST_NESTED = 4
DYNAMO = "`dynamo.vllm` is NVIDIA Dynamo's worker around vLLM: the profile starts only vLLM, without Dynamo"


@dataclass(slots=True)
class EngineStart:
    """One start of an engine as it was written: its arguments, and what stands around it."""

    engine: str
    """`vllm` or `sglang`."""
    start: Word
    """The word that names the program, or `LLM(…)`."""
    words: list[Word] = field(default_factory=list)
    """The words after the program; none for a call in Python."""
    settings: dict[str, Setting] = field(default_factory=dict)
    env: dict[str, Word] = field(default_factory=dict)
    devices: Word | None = None
    """`--gpus` of a container."""
    image: Word | None = None
    """The container's image, its tag included."""
    published: list[Word] = field(default_factory=list)
    """Ports that a container opens to the host, as written: `9000:8000`."""
    notes: list[Note] = field(default_factory=list)
    unresolved: list[Finding] = field(default_factory=list)
    """What the text does not say: `converted` refuses it."""

    @property
    def what(self) -> str:
        """The program for a person: `vllm serve`, `LLM(…)`."""
        if self.is_call:
            return self.start.text
        if self.engine == "sglang":
            return "SGLang's launch_server"
        program = "api_server" if self.start.text == "-m" else self.start.text
        return "`vllm serve`" if program.endswith("vllm") else f"`{program}`"

    @property
    def place(self) -> Span:
        """Where the program stands."""
        return self.start.span

    @property
    def is_call(self) -> bool:
        """Whether this is an engine in a Python program, which has no port."""
        return self.start.text.endswith("(…)")


def starts(words: Sequence[Word], around: EngineStart | None = None, *, nested: int = 0) -> list[EngineStart]:
    """Every engine that one command starts: several if it is a shell with a script. `around`: its container."""
    if nested > _MOST_NESTED or not words or words[0].text in _SAYS:
        return []
    found = around or EngineStart("vllm", words[0])
    env, at = dict(found.env), 0
    while at < len(words):
        word = words[at]
        name = word.text.rpartition("/")[2]
        assigned = ASSIGNMENT.fullmatch(word.text)
        if assigned:
            env[assigned[1]] = word.part(assigned.start(2))
        elif name in _CONTAINED and _RUN.match(" ".join(item.text for item in words[at + 1 : at + 3])):
            return _container(words[at + 1 :], replace(found, env=env), nested=nested)
        elif name in _SHELLS and (found_script := _script(words, at)) is not None:
            inner = replace(found, env=env, notes=[*found.notes, *_before(words[:at])])
            return _scripted(words[found_script], words[found_script + 2 :], inner, nested=nested)
        elif program := _program(words, at):
            engine, rest = program
            notes = [*found.notes, *_before(words[:at])]
            notes += [Note("", DYNAMO, word.span.line)] * (
                rest == at + 2 and words[at + 1].text == "dynamo.vllm"
            )
            return [replace(found, engine=engine, start=word, words=list(words[rest:]), env=env, notes=notes)]
        at += 1
    return []


def invocation(words: Sequence[Word]) -> EngineStart | None:
    """The engine that one command starts, or None if it starts none."""
    return next(iter(starts(words)), None)


def is_command(words: Sequence[str]) -> bool:
    """Whether arguments are the words of one command that starts an engine."""
    return len(words) > 1 and invocation(argv_words(words)[1]) is not None


def _program(words: Sequence[Word], at: int) -> tuple[str, int] | None:
    """The engine whose program stands here, and where its arguments begin."""
    text = words[at].text
    name = text.rpartition("/")[2]
    following = [word.text for word in words[at + 1 : at + 3]] + ["", ""]
    if text == "-m" and following[0] in _MODULES:
        return _MODULES[following[0]], at + 2
    if text == "-m" and following[0] in _CLI_MODULES and following[1] == "serve":
        return "vllm", at + 3
    if name in ("vllm", "sglang") and following[0] in ("serve", "launch_server")[: 1 + (name == "sglang")]:
        return name, at + 2
    if text.endswith(("openai/api_server.py", "entrypoints/api_server.py")):
        return "vllm", at + 1
    return ("sglang", at + 1) if name == "launch_server.py" else None


def _before(words: Sequence[Word]) -> list[Note]:
    """A note about the wrappers before a program."""
    shown = [
        readable(word.text)
        for word in words
        if word.text.rpartition("/")[2] not in _QUIET
        and not ASSIGNMENT.fullmatch(word.text)
        and not UNKNOWN.search(word.text)
    ]
    said = f"{quoted(' '.join(shown))} before the engine is left out"
    return [Note("", said, words[0].span.line)] if shown else []


def _script(words: Sequence[Word], at: int) -> int | None:
    """Where the text after `sh -c` stands."""
    for later in range(at + 1, len(words) - 1):
        if re.fullmatch(r"-[a-z]*c", words[later].text):
            return later + 1
        if not words[later].text.startswith("-") and not words[later - 1].text.startswith("-"):
            break
    return None


def _scripted(
    text: Word, arguments: Sequence[Word], around: EngineStart, *, nested: int
) -> list[EngineStart]:
    """The engines of a script after `sh -c`; the words behind it are its positional parameters."""
    variables = {name: word.text for name, word in around.env.items() if not UNKNOWN.search(word.text)}
    given, place = [word.text for word in arguments], text.span
    inner = script(text.text, file=place.file, line=place.line, positional=given, variables=variables)
    found: list[EngineStart] = []
    for command in inner:
        env, notes = (
            {**command.exported, **around.env},
            [*around.notes, *command.notes],
        )
        found += starts(command.words, replace(around, env=env, notes=notes), nested=nested + 1)
    return found


def _container(words: Sequence[Word], found: EngineStart, *, nested: int) -> list[EngineStart]:
    """`docker run … IMAGE ARGS`: its options are noted, or become variables, ports and devices."""
    entry, other, folders = None, [], []
    found = replace(found, published=[], env={})
    at = next(place for place, word in enumerate(words) if word.text == "run") + 1
    while at < len(words) and words[at].text.startswith("-"):
        word, at = words[at], at + 1
        short = _ATTACHED.match(word.text)  # `-p8000:8000`
        name = short[0] if short else word.text.partition("=")[0]
        inline = word.text != name
        value = word.part(len(name) + (not short)) if inline else None
        if not inline and not _SWITCH.fullmatch(name) and at < len(words):
            value, at = words[at], at + 1
        assigned = ASSIGNMENT.fullmatch(value.text) if value else None
        if name in ("-e", "--env") and value:
            key = assigned[1] if assigned else value.text
            found.env[key] = value.part(assigned.start(2)) if assigned else replace(value, text=unknown(key))
        elif name == "--gpus":
            found.devices = value
        elif name == "--entrypoint":
            entry = value
        elif name in ("-p", "--publish") and value:
            found.published.append(value)
        elif name in ("-v", "--volume", "--mount") and value:
            folders.append(value.text)
        elif not _SWITCH.fullmatch(name):
            other.append(word.text if inline or not value else f"{name} {value.text}")
    if at >= len(words):
        return []
    found.notes = [*found.notes, *around_notes(folders, other, line=words[0].span.line)]
    return in_container(words[at], list(words[at + 1 :]), entry, found, nested=nested)


def around_notes(folders: Sequence[str], other: Sequence[str], *, line: int) -> list[Note]:
    """What a container says and a profile does not."""
    shown = [", ".join(quoted(readable(text)) for text in texts) for texts in (folders, other)]
    notes = []
    if folders:
        notes.append(
            Note(
                "",
                f"the volumes {shown[0]} are left out; if the profile names a path of the container, write that of "
                "the machine that vLLM runs on",
                line,
            )
        )
    if other:
        notes.append(Note("", f"the container's own settings are left out: {shown[1]}", line))
    return notes


def in_container(
    image: Word | None, words: list[Word], entry: Word | None, found: EngineStart, *, nested: int = 0
) -> list[EngineStart]:
    """What a container of this image starts with these words; its own entry point is the server."""
    found.image = image
    program = [entry, *words] if entry is not None and entry.text else words
    inner = starts(program, found, nested=nested + 1)
    if inner or image is None or "sglang" in image.text:
        return inner
    open_image, first = bool(UNKNOWN.search(image.text)), words[0].text if words else "serve"
    own = entry is None or entry.text.rpartition("/")[2] == "vllm"
    options = first == "serve" or first.startswith("--") or is_model(first)
    named = any(word.text.startswith("--model") for word in words) if open_image else is_image(image.text)
    if not (own and options and named):
        return []
    return [replace(found, start=image, words=words[first == "serve" :])]


def is_image(text: str) -> bool:
    """Whether this names a container image of vLLM or SGLang."""
    return len(text) <= _LONGEST_IMAGE and bool(_IMAGE.search(text))


def is_model(text: str) -> bool:
    """Whether a container's first word is a model, and no program."""
    return "/" in text and not re.search(r"^/(usr|bin|opt|entrypoint)|\.(sh|py)$|/bin/", text)
