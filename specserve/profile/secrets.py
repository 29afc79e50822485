"""What a secret looks like: by the name of its variable, by its own shape."""

from __future__ import annotations

import re

# the last word decides: HF_TOKEN is one, HF_TOKEN_PATH and TOKENIZERS_PARALLELISM are none
_NAME = re.compile(r"(^|_)(API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(_?\d+)?$", re.I)
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-(?=[\w-]*\d)[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{16}|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|nvapi-[\w-]{20,}|AIza[\w-]{35}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.)"
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
