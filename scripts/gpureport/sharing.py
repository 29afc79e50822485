"""A report without what is private: paths, addresses, names of host and user, logs and the environment."""

from __future__ import annotations

import contextlib
import getpass
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_DROPPED = frozenset({"log_tail", "log", "environment", "url", "uuid", "host"})
"""Keys whose values tell of the machine and not of the measurement."""
_QUOTED = frozenset({"cause", "line", "notes", "reason"})
"""Keys whose values quote messages of vLLM; a host may be called `gpu`, which is no secret elsewhere."""
_URL = re.compile(r"\b[a-z]+://[^\s'\"`]+")
_PATH = re.compile(r"(?<![\w.<])(?:~|\.{1,2})?/[\w.@+~-]+(?:/[\w.@+~-]*)*")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
_PLACED = re.compile(r"(?:\.\./models|configs|demo|scripts)/[\w./-]+|\{\w+\}/[\w./-]+")
"""Paths of the repository and of the report's own folder, which are the same for everyone."""


def shared(report: Mapping[str, Any], *, private: Iterable[str] = ()) -> dict[str, Any]:
    """The report to give away, without the words `private` in what vLLM said. Done twice it changes nothing."""
    cleaned = _clean(dict(report), words=[word for word in private if len(word) > 2], is_quoted=False)
    assert isinstance(cleaned, dict)
    return cleaned


def private_words() -> list[str]:
    """The names of this host and its user, and the home folder."""
    found = [socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name]
    with contextlib.suppress(KeyError, OSError):
        found.append(getpass.getuser())
    return [word for word in found if word not in ("root", "localhost")]


def _clean(value: Any, *, words: list[str], is_quoted: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _clean(item, words=words, is_quoted=is_quoted or name in _QUOTED)
            for name, item in value.items()
            if name not in _DROPPED
        }
    if isinstance(value, list | tuple):
        return [_clean(item, words=words, is_quoted=is_quoted) for item in value]
    return text(value, words if is_quoted else ()) if isinstance(value, str) else value


def text(value: str, words: Iterable[str] = ()) -> str:
    """One string without paths, URLs, addresses and the words given."""
    found = _URL.sub("<url>", value)
    found = _ADDRESS.sub("<address>", found)
    found = _PATH.sub(lambda match: match[0] if _is_public(found, match) else "<path>", found)
    for word in words:
        found = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "<private>", found)
    return found


def _is_public(value: str, match: re.Match[str]) -> bool:
    """Whether a path is one of the repository's or of the report's own folder."""
    before = value[: match.start()]
    whole = re.search(r"[\w{}.-]*$", before)
    return bool(_PLACED.fullmatch(f"{whole[0] if whole else ''}{match[0]}"))
