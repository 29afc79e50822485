"""Secrets of the environment taken out of text that is shown or kept. Does not know where the text goes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from specserve.errors import without_user

_NAME = re.compile(r"KEY|TOKEN(?!IZ|S)|SECRET|PASS|CRED|AUTH(?!OR)|BEARER", re.IGNORECASE)
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
    if len(word) >= _LEAST and _NAME.search(name):
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
