"""What a secret looks like, and text without the secrets of the environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from specserve.errors import without_user

# the last word decides: HF_TOKEN is one, HF_TOKEN_PATH and TOKENIZERS_PARALLELISM are none
_NAME = re.compile(r"(^|_)(API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(_?\d+)?$", re.I)
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-(?=[\w-]{0,200}\d)[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{16}|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|nvapi-[\w-]{20,}|AIza[\w-]{35}|eyJ[\w-]{10,1000}\.eyJ[\w-]{10,}\.)"
    r"|://[^/\s:@$]+:[^/\s@$]+@"
)
"""Tokens by the marks that their makers gave them, and passwords within addresses."""


def names_a_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret, whatever its value is."""
    return bool(_NAME.search(name))


def looks_secret(text: str) -> bool:
    """Whether the text holds something shaped like a well-known kind of key."""
    return bool(_SHAPE.search(text))


def hushed(text: str) -> str:
    """The text with what is shaped like a key starred out."""
    return _SHAPE.sub(lambda match: "*" * len(match[0]), text)


_BROAD_NAME = re.compile(r"KEY|TOKEN(?!IZ|S)|SECRET|PASS|CRED|AUTH(?!OR)|BEARER", re.IGNORECASE)
_LEAST = 6


def redacted(text: str, *, environ: Mapping[str, str] = os.environ, shapes: bool = False) -> str:
    """The text with `$NAME` for each secret of the environment, and `***` for user and password of a URL.

    A variable is one by its name; with `shapes` also by its value, a long word: some name a key otherwise.
    """
    found = {name: value for name, value in environ.items() if _is_secret(name, value, shapes=shapes)}
    for name, value in sorted(found.items(), key=lambda item: -len(item[1])):
        for form in _forms(value):
            text = text.replace(form, f"${name}")
    return without_user(text)


def _is_secret(name: str, value: str, *, shapes: bool) -> bool:
    word = value.strip()
    if len(word) >= _LEAST and _BROAD_NAME.search(name):
        return True
    return shapes and len(word) >= 2 * _LEAST and re.search(r"[\s/]", word) is None


def _forms(value: str) -> Iterator[str]:
    """The value as it may stand in a text: plain, as Python and JSON write it, percent-encoded, each line of it."""
    word = value.strip()
    lines = [line.strip() for line in word.splitlines()]
    for form in (value, word, *lines):
        escaped = form.encode("utf-8", "surrogateescape")
        for written in (form, repr(form)[1:-1], json.dumps(form)[1:-1], quote(escaped, safe="")):
            if len(written) >= _LEAST:
                yield written
