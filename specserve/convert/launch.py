"""One launch of an engine, and the launches that a command or a script makes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from specserve.convert.arguments import Setting
from specserve.convert.shell import Command, script
from specserve.convert.words import (
    LONGEST_SHOWN,
    UNKNOWN,
    Note,
    Word,
    argv_words,
    readable,
    unknown,
    unresolved,
)
from specserve.diagnostics import Finding
from specserve.errors import quoted
from specserve.profile.tree import Node

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
STARTS = re.compile(
    r"\bvllm\s+serve\b|entrypoints[./](openai[./])?api_server|sglang[./]launch_server"
    r"|sglang\s+serve\b|vllm/vllm-|vllm-openai"
)
"""What a script that starts an engine holds."""
_PROGRAM = re.compile(
    r"(([^ ]*/)?vllm serve |-m vllm(\.entrypoints\.cli\.main)? serve "
    r"|-m vllm\.entrypoints\.(openai\.)?api_server |[^ ]*entrypoints/(openai/)?api_server\.py )"
    r"|-m sglang\.launch_server |([^ ]*/)?sglang (serve|launch_server) "
    r"|([^ ]*/)?launch_server\.py ".replace(" ", "\0")
)
"""The words that name a program, each with a zero byte behind it; the first group is vLLM's."""
_SCRIPT = re.compile(r"(?:-[^\0]*\0(?:\w+\0)?)*?-[a-z]*c\0(?:-[^\0]*\0)*")
"""What stands between a shell and the text that it runs: `-o pipefail -c`."""
_SHELLS = ("sh", "bash", "zsh", "dash")
_RUN = re.compile("(container\0)?(run|create)\0")
_CONTAINED = ("docker", "podman", "nerdctl")
_SAYS = ("echo", "printf", "pip", "pip3", "ls", "cat", "grep", "which")
_CHANGES_NOTHING = re.compile(
    r"echo|printf|set|shopt|:|true|false|exit|return|trap|which|command|type|test|\[|ls|date|wait"
    r"|break|continue|nvidia-smi|shift"
)
_QUIET = re.compile(r"(?s)exec|nohup|env|command|time|python3?|uv|run|sudo|-u|.*[\ue000-\uf8ff].*")
_NO_PROGRAM = re.compile(
    rf"serve$|--|{UNKNOWN.pattern}|(?!/(usr|bin|opt|entrypoint)|.*(\.(sh|py)$|/bin/))[^/]*/"
)
"""What a container's first word may be if it names no program: an option, or a model."""
_LONGEST_IMAGE, _LONGEST_COMMAND, _MOST_NESTED = 512, 100, 4
_IMAGE = re.compile(r"(^|[/_])[\w.-]*(vllm|sglang)[\w.-]*(/[\w.-]+)*([:@][\w.:-]+)?$", re.I)
_SWITCH = re.compile(
    r"-[ditPqh]+|--(?:detach|disable-content-trust|env-host|help|http-proxy|init|interactive"
    r"|no-healthcheck|no-hosts|oom-kill-disable|privileged|publish-all|quiet|read-only|replace|rm"
    r"|rmi|sig-proxy|tls-verify|tty)"
)
"""The options of `docker run` and `podman run` that take no value."""
_ATTACHED = re.compile("-[evpuwmlac](?=.)")
_OF_VLLM = re.compile("--(model|max-model-len|tensor-parallel-size|gpu-memory-utilization)")
_NOT_OF_AN_ENGINE = re.compile("PS1|HOME|SHELL|LANG|PWD|PATH")
OF_AN_ENGINE = re.compile(
    r"(VLLM|CUDA|NCCL|HF|HUGGING|TORCH|PYTORCH|LD|PYTHON|NVIDIA|GLOO|TRITON|OMP|FLASHINFER|UCX)_"
    r"|PYTHONPATH"
)


@dataclass(slots=True)
class Launch:
    """One start of an engine as it was written: its arguments, and what stands around it."""

    engine: str  # `vllm` or `sglang`
    start: Word  # the word that names the program, or `LLM(…)`
    words: list[Word] = field(default_factory=list)
    """The words after the program; none for a call in Python."""
    settings: dict[str, Setting] = field(default_factory=dict)
    env: dict[str, Word] = field(default_factory=dict)
    name: str = ""  # of the service, container or function that it stands in
    condition: str = ""  # when a script runs it, in the script's words
    is_contained: bool = False  # its paths are those of a container
    folder: str = ""  # where relative paths begin, if the source says so
    version: str = ""  # of vLLM, if a server says so
    image: Word | None = None  # the container's image, its tag included
    mounts: list[tuple[str, str]] = field(default_factory=list)
    """Folders of the host and their paths in the container; a named volume has no folder."""
    used: set[str] = field(default_factory=set)  # the mounted paths that a setting names
    hardware: dict[str, Node] = field(default_factory=dict)  # what its container says of it
    left_out: list[str] = field(default_factory=list)  # what no profile holds: `replicas: 2`
    notes: list[Note] = field(default_factory=list)
    unresolved: list[Finding] = field(default_factory=list)  # an error each, and exit code 1

    @property
    def what(self) -> str:
        """The program for a person: `vllm serve`, `LLM(…)`."""
        if self.is_call or self.engine == "sglang":
            return self.start.text if self.is_call else "SGLang's launch_server"
        program = "api_server" if self.start.text == "-m" else readable(self.start.text)
        return "`vllm serve`" if program.endswith("vllm") else f"`{program}`"

    @property
    def is_call(self) -> bool:
        """Whether this is an engine in a Python program, which has no port."""
        return self.start.text.endswith("(…)")

    def on_host(self, path: str) -> str | None:
        """A container's path as the host has it; None if no folder of the host holds it."""
        holds = [held for held in self.mounts if f"{path}/".startswith(f"{held[1].rstrip('/')}/")]
        source, inside = max(holds, key=lambda held: len(held[1]), default=("", ""))
        self.used |= {inside}
        return f"{source.rstrip('/')}{path[len(inside.rstrip('/')) :]}" if source else None

    def use_gpus(self, word: Word) -> None:
        """Takes the GPUs that `--gpus` names: `2`, or `device=0,1`; `all` says no number."""
        listed = re.search(r"device=([\w,-]+)", word.text)
        if listed:
            self.env.setdefault("CUDA_VISIBLE_DEVICES", replace(word, text=listed[1]))
        count = str(len(listed[1].split(","))) if listed else word.text
        if count.isdigit() and int(count):
            self.hardware["count"] = Node(int(count), word.span)


def starts(words: Sequence[Word], around: Launch | None = None, *, nested: int = 0) -> list[Launch]:
    """Every engine that one command starts: several if it is a shell with a script.

    `around`: what stands around it, such as its container.
    """
    if nested > _MOST_NESTED or not words or words[0].text in _SAYS:
        return []
    found = around or Launch("vllm", words[0])
    env = dict(found.env)
    for at, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        inner = replace(found, env=env, notes=list(found.notes), unresolved=list(found.unresolved))
        wrappers = [one.text for one in words[:at] if not ASSIGNMENT.fullmatch(one.text)]
        loud = [one for one in wrappers if not _QUIET.fullmatch(one.rpartition("/")[2])]
        if loud:
            said = f"{quoted(' '.join(loud))} before the engine is left out"
            inner.notes.append(Note("", said, words[0].span.line))
        if assigned := ASSIGNMENT.fullmatch(word.text):
            env[assigned[1]] = word.part(assigned.start(2))
        elif name in _CONTAINED and _RUN.match(_joined(words[at + 1 : at + 3])):
            return _container(words[at + 1 :], inner, nested)
        elif name in _SHELLS and (flags := _SCRIPT.match(_joined(words[at + 1 :]))):
            text, *more = words[at + 1 + flags[0].count("\0") :] or [Word("", word.span)]
            commands = script(
                text.text,
                file=text.span.file,
                line=text.span.line,
                positional=[one.text for one in more[1:]],
                variables={key: one.text for key, one in env.items() if not unresolved(one.text)},
            )
            return script_starts(commands, text.text, inner, nested=nested)
        elif named := _PROGRAM.match(_joined(words[at : at + 3])):
            rest = list(words[at + named[0].count("\0") :])
            return [replace(inner, engine="vllm" if named[1] else "sglang", start=word, words=rest)]
    return []


def script_starts(
    commands: Iterable[Command], text: str, around: Launch | None = None, *, nested: int = 0
) -> list[Launch]:
    """Every engine that the commands of a script start, with a note for each command before it.

    Functions that nothing calls count only if no other command starts one. `text`: of the script.
    """
    found: list[Launch] = []
    before: list[Note] = []
    for command in commands:
        if command.function and not all(item.name == command.function for item in found):
            continue
        here = around or Launch("vllm", command.words[0])
        env, notes = {**here.env}, [*here.notes, *before, *command.notes]
        for name, word in command.exported.items():
            used = re.search(rf"\$\{{?{re.escape(name)}\b", text)  # by the script itself
            if OF_AN_ENGINE.match(name) or not (used or _NOT_OF_AN_ENGINE.fullmatch(name)):
                env.setdefault(name, word)
        if path := command.exported.get("PATH"):
            said = "`PATH` is left out: export it where you start the server"
            notes.append(Note("", said, path.span.line))
        if command.function:
            said = f"nothing in the source calls its function `{command.function}`"
            notes.append(Note("", said))
        inner = replace(here, env=env, notes=notes)
        inner.name = command.function or here.name
        inner.condition = command.condition or here.condition
        inside = starts(command.words, inner, nested=nested + 1)
        found += inside
        programs = (word.text for word in command.words if not ASSIGNMENT.fullmatch(word.text))
        first = next(programs, "echo").rpartition("/")[2]
        if not inside and not _CHANGES_NOTHING.fullmatch(first):
            texts = (readable(word.text) for word in command.words)
            shown = " ".join(f'"{one}"' if re.search("[ <>&|;]", one) else one for one in texts)
            shown = " ".join(shown.split())
            said = f"set-up before the launch is left out: {quoted(shown, _LONGEST_COMMAND)}"
            if command.condition:
                said += f" (if {quoted(command.condition, LONGEST_SHOWN)})"
            place = command.words[0].span.line
            before.append(Note("", f"{said}; `render` cannot do it", place))
    return found


def is_command(words: Sequence[str]) -> bool:
    """Whether arguments are the words of one command that starts an engine."""
    return len(words) > 1 and bool(starts(argv_words(words)[1]))


def _joined(words: Sequence[Word]) -> str:
    return "".join(f"{word.text}\0" for word in words)


def _container(words: Sequence[Word], found: Launch, nested: int) -> list[Launch]:
    """`docker run … IMAGE ARGS`: its options become variables, mounts, ports and devices."""
    entry = None
    found = replace(found, env={}, mounts=[], used=set(), hardware={}, left_out=[])
    found.is_contained = True
    at = next(place for place, word in enumerate(words) if word.text in ("run", "create")) + 1
    while at < len(words) and words[at].text.startswith("-"):
        word, at = words[at], at + 1
        short = _ATTACHED.match(word.text)  # `-p8000:8000`
        name = short[0] if short else word.text.partition("=")[0]
        inline = word.text != name
        value = word.part(len(name) + (not short)) if inline else None
        if not inline and not _SWITCH.fullmatch(name) and at < len(words):
            value, at = words[at], at + 1
        if name in ("-e", "--env") and value:
            key, sign, _ = value.text.partition("=")
            held = value.part(len(key) + 1) if sign else replace(value, text=unknown(key))
            found.env[key] = held
        elif name == "--gpus" and value:
            found.use_gpus(value)
        elif name == "--entrypoint":
            entry = value
        elif name in ("-v", "--volume") and value:
            found.mounts.append(mount(value.text))
        elif name == "--name" and value:
            found.name = value.text
        elif not _SWITCH.fullmatch(name):
            found.left_out.append(word.text if inline or not value else f"{name} {value.text}")
    if at >= len(words):
        return []
    return in_container(words[at], list(words[at + 1 :]), entry, found, nested=nested)


def mount(text: str) -> tuple[str, str]:
    """The folder of the host and that of the container: `./hf:/data`."""
    source, _, rest = text.partition(":")
    inside = rest.partition(":")[0] or source
    source = source if rest else ""
    for variable, folder in ((unknown("HOME"), "~"), (unknown("PWD"), ".")):
        source = source.replace(variable, folder, 1) if source.startswith(variable) else source
    is_folder = source.startswith(("/", ".", "~")) or UNKNOWN.match(source)
    return (source if is_folder else ""), inside


def in_container(
    image: Word | None, words: list[Word], entry: Word | None, found: Launch, *, nested: int = 0
) -> list[Launch]:
    """What a container of this image starts with these words, or its own entry point does."""
    found = replace(found, image=image)
    program = [entry, *words] if entry is not None and entry.text else words
    inner = starts(program, found, nested=nested + 1)
    if inner or image is None or "sglang" in image.text:
        return inner
    is_open, first = bool(UNKNOWN.search(image.text)), words[0].text if words else "serve"
    own = entry is None or entry.text.rpartition("/")[2] == "vllm"
    options = _NO_PROGRAM.match(first)
    named = any(_OF_VLLM.match(word.text) for word in words) if is_open else is_image(image.text)
    if not (own and options and named):
        return []
    return [replace(found, start=image, words=words[first == "serve" :])]


def is_image(text: str) -> bool:
    """Whether this names a container image of vLLM or SGLang."""
    return len(text) <= _LONGEST_IMAGE and bool(_IMAGE.search(text))
