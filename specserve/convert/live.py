"""The launch of a vLLM that runs: of a process by its arguments, of a server by what it tells."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from specserve.convert.launch import OF_AN_ENGINE, Launch, starts
from specserve.convert.reading import with_settings
from specserve.convert.words import Note, Word, argv_words, finding
from specserve.diagnostics import Span
from specserve.errors import FactError, SpecserveError, UsageError, quoted
from specserve.metrics import read
from specserve.profile.source import COMMAND

_PLACE = Span(COMMAND, 1, 1, 1, 2)
_INFO = re.compile(r"^vllm:cache_config_info\{([^\n]{0,8192})\} 1", re.M)
_VERSION = re.compile(r'"version"\s*:\s*"([\d.]{1,20})')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_OF_CACHE = {
    "cache_dtype": "--kv-cache-dtype",
    "gpu_memory_utilization": "--gpu-memory-utilization",
}
_OPEN = ("tensor_parallel_size", "quantization", "max_num_seqs")
"""What decides most of a server, and no endpoint tells."""


def of_process(pid: int) -> Launch:
    """The launch of a process by its arguments, environment and folder.

    Raises UsageError for one that starts no vLLM, FactError for one that ended or is not ours.
    """
    try:
        process = psutil.Process(pid)
        words, found = _launched(process)
        if not found:
            near = None
            for other in (*process.parents(), *process.children()):
                with suppress(
                    psutil.Error, SpecserveError
                ):  # it may end meanwhile, or be a script of any kind
                    near = near or (other.pid if _launched(other)[1] else None)
            hint = f"`specserve convert --pid {near}` reads the vLLM beside it" if near else None
            what = f" ({quoted(words[0].text)})" if words else ""
            raise UsageError(f"process {pid}{what} is not the first process of a vLLM", hint=hint)
        environ, folder = process.environ(), process.cwd()
        is_contained = not Path(f"/proc/{pid}/ns/mnt").samefile("/proc/self/ns/mnt")
    except (psutil.NoSuchProcess, FileNotFoundError) as error:  # a zombie is one too
        raise FactError(f"no process {pid} runs here") from error
    except (psutil.AccessDenied, PermissionError) as error:
        hint = "run `specserve convert` as its user"
        raise FactError(f"process {pid} is another user's", hint=hint) from error
    kept = {
        name: Word(value, _PLACE) for name, value in environ.items() if OF_AN_ENGINE.match(name)
    }
    text = (
        f"{len(environ) - len(kept)} variables that no engine reads, by their names, are left out"
    )
    given, notes = found[0], [*found[0].notes, Note("", text)]
    given = replace(
        given, env={**kept, **given.env}, folder=folder, is_contained=is_contained, notes=notes
    )
    return with_settings(given, folder=Path(folder))


def _launched(process: psutil.Process) -> tuple[list[Word], list[Launch]]:
    """The arguments of a process, and the launch that they are."""
    words = argv_words(process.cmdline())[1]
    return words, starts(words)


def of_server(url: str, models: Mapping[str, Mapping[str, Any]], text: str) -> Launch:
    """The launch of a server as far as its answers tell; what they do not is unresolved.

    `models`: those of `/v1/models`; `text`: what `/version` and `/metrics` say, if they do. Raises
    UsageError for a server that is not vLLM.
    """
    bases = {name: one for name, one in models.items() if not one.get("parent")}
    told = [*models, *(str(one.get("root")) for one in models.values())]
    is_vllms = all(one.get("owned_by") == "vllm" for one in bases.values())
    if not (bases and is_vllms) or any(
        text.startswith("-") for text in told
    ):  # it must add no option
        raise UsageError(
            f"the server at {url} is not vLLM's", hint="`convert` can ask no other server"
        )
    first, about = next(iter(bases.items()))
    root, longest = str(about.get("root") or first), about.get("max_model_len")
    words = ["vllm", "serve", root]
    if first != root:
        words += ["--served-model-name", *bases]
    if isinstance(longest, int):
        words += ["--max-model-len", str(longest)]
    where = urlsplit(url)
    if where.port:
        words += ["--port", str(where.port)]
    if where.hostname in ("127.0.0.1", "::1", "localhost"):
        words += ["--host", "127.0.0.1"]  # on what else it listens is not seen from here
    if adapters := [
        f"{name}={one.get('root')}" for name, one in models.items() if one.get("parent")
    ]:
        words += ["--enable-lora", "--lora-modules", *adapters]
    words += _of_cache(text)
    version = _VERSION.search(text)
    given = Launch("vllm", Word("vllm", _PLACE), version=version[1] if version else "")
    said = [(f"the server does not tell {', '.join(map(quoted, _OPEN))} and other options", "")]
    try:
        metrics = read(text)
    except FactError:
        said.append(("the server shows no metrics: whether it speculates is open", "speculation"))
    else:
        if counts := [len(one.accepted_per_position) for one in metrics.acceptance.values()]:
            words += ["--speculative-config", json.dumps({"num_speculative_tokens": max(counts)})]
            what = f"the server speculates with K = {max(counts)}; it does not tell its method"
            what += " and draft"
            said.append((what, "speculation.method"))
    for message, path in said:
        help = "write what its command has, as keys of the profile"
        given.unresolved.append(finding("SD105", message, Span(url, 1, path=path), help=help))
    given.words = argv_words(words)[1][2:]
    return with_settings(given, folder=Path.cwd())


def _of_cache(text: str) -> list[str]:
    """The options that the labels of the cache's metric tell."""
    info = _INFO.search(text)
    cache = dict(_LABEL.findall(info[1])) if info else {}
    told = [
        f"{flag}={cache[name]}"
        for name, flag in _OF_CACHE.items()
        if cache.get(name, "auto") != "auto"
    ]
    if cache.get("user_specified_block_size") == "True":
        told.append(f"--block-size={cache.get('block_size')}")
    return (
        [*told, "--no-enable-prefix-caching"]
        if cache.get("enable_prefix_caching") == "False"
        else told
    )
