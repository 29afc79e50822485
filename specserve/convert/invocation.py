"""Which of a command's words start which engine: wrappers, containers and variables taken off. Knows no option."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specserve.convert.words import Word

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_CLI_MODULES = ("vllm", "vllm.entrypoints.cli.main")
_SGLANG_MODULES = ("sglang.launch_server",)
_CONTAINERS = ("docker", "podman", "nerdctl")
_RUNS = ("run", "create")
_SHELLS = ("sh", "bash", "zsh", "dash")
_IMAGE = re.compile(r"(^|/)[\w.-]*(vllm|sglang)[\w.-]*(/[\w.-]+)*([:@][\w.:-]+)?$")
_WITH_VALUE = re.compile(
    r"""-[evpwumlh] | --(?: env(-file)? | volume | publish | name | gpus | network | net | ipc | shm-size | runtime
        | entrypoint | workdir | user | mount | device | ulimit | cap-add | security-opt | restart | memory | cpus
        | cpuset-cpus | group-add | label | hostname | platform | log-driver | log-opt | add-host | pull | tmpfs
        | pid | userns )""",
    re.X,
)
"""Options of `docker run` that take a value in the next word."""


@dataclass(slots=True)
class Invocation:
    """One start of an engine: its own arguments, and the environment set for it."""

    engine: str
    """`vllm` or `sglang`."""
    start: Word
    """The word that names the program."""
    words: list[Word] = field(default_factory=list)
    env: dict[str, Word] = field(default_factory=dict)
    devices: Word | None = None
    """`--gpus` of a container."""
    image: Word | None = None
    """The container's image, its tag included."""
    published: list[Word] = field(default_factory=list)
    """Ports that a container opens to the host, as written: `9000:8000`."""
    volumes: list[Word] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What stands around the engine and has no place in a profile."""


def invocation(words: Sequence[Word]) -> Invocation | None:
    """The engine that one command starts, or None where it starts none."""
    env: dict[str, Word] = {}
    at = 0
    while at < len(words):
        word = words[at]
        assigned = ASSIGNMENT.fullmatch(word.text)
        if assigned:
            env[assigned[1]] = word.part(assigned.start(2))
            at += 1
            continue
        name = word.text.rpartition("/")[2]
        if name in _CONTAINERS and any(word.text in _RUNS for word in words[at + 1 : at + 3]):
            return _container(words, at, env)
        start = _program(words, at)
        if start:
            engine, rest = start
            return Invocation(engine, word, list(words[rest:]), env)
        at += 1
    return None


def _program(words: Sequence[Word], at: int) -> tuple[str, int] | None:
    """The engine whose program stands here, and where its arguments begin."""
    text = words[at].text
    name = text.rpartition("/")[2]
    following = words[at + 1].text if at + 1 < len(words) else ""
    if text == "-m" and following in _MODULES:
        return "vllm", at + 2
    if text == "-m" and following in _SGLANG_MODULES:
        return "sglang", at + 2
    if text == "-m" and following in _CLI_MODULES and _is(words, at + 2, "serve"):
        return "vllm", at + 3
    if name == "vllm" and following == "serve":
        return "vllm", at + 2
    if name == "sglang" and following in ("serve", "launch_server"):
        return "sglang", at + 2
    if text.endswith(("openai/api_server.py", "entrypoints/api_server.py")):
        return "vllm", at + 1
    if name == "launch_server.py":
        return "sglang", at + 1
    return None


def _is(words: Sequence[Word], at: int, text: str) -> bool:
    return at < len(words) and words[at].text == text


def _container(words: Sequence[Word], at: int, env: dict[str, Word]) -> Invocation | None:
    """`docker run … IMAGE ARGS`: the image's entry point is the server, unless the arguments name a program."""
    entry: Word | None = None
    found = Invocation("vllm", words[at], env=env)
    at += 1
    while at < len(words):
        word = words[at]
        if not word.text.startswith("-"):
            if _IMAGE.search(word.text):
                break
            at += 1
            continue
        name, sign, _ = word.text.partition("=")
        value = word.part(len(name) + 1) if sign else None
        if not sign and _WITH_VALUE.fullmatch(name) and at + 1 < len(words):
            at += 1
            value = words[at]
        at += 1
        if value is None:
            continue
        assigned = ASSIGNMENT.fullmatch(value.text)
        if name in ("-e", "--env") and assigned:
            found.env[assigned[1]] = value.part(assigned.start(2))
        elif name == "--gpus":
            found.devices = value
        elif name == "--entrypoint":
            entry = value
        elif name in ("-p", "--publish"):
            found.published.append(value)
        elif name in ("-v", "--volume"):
            found.volumes.append(value)
    if at >= len(words):
        return None
    return in_container(words[at], list(words[at + 1 :]), entry, found)


def in_container(image: Word, words: list[Word], entry: Word | None, found: Invocation) -> Invocation | None:
    """What a container of this image starts with these words."""
    if entry is not None:
        words = [entry, *words]
    found.image = image
    inner = invocation(words)
    if inner is not None:
        return replace(
            found,
            engine=inner.engine,
            start=inner.start,
            words=inner.words,
            env={**found.env, **inner.env},
        )
    if "sglang" in image.text or (entry is not None and entry.text.rpartition("/")[2] not in ("vllm", "")):
        return None
    if words and words[0].text in ("serve",):
        words = words[1:]
    return replace(found, start=image, words=words)


def is_image(text: str) -> bool:
    """Whether this names a container image of vLLM or SGLang."""
    return bool(_IMAGE.search(text))


def shell_script(words: Sequence[Word]) -> Word | None:
    """The text after `sh -c`, which is a script of its own."""
    for at, word in enumerate(words):
        if word.text.rpartition("/")[2] in _SHELLS and at + 2 < len(words):
            for later in range(at + 1, len(words) - 1):
                if re.fullmatch(r"-[a-z]*c", words[later].text):
                    return words[later + 1]
    return None
