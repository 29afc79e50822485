"""What a secret looks like, and text without the secrets of the environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from specserve.errors import without_user

# the last word decides: HF_TOKEN is one, HF_TOKEN_PATH and TOKENIZERS_PARALLELISM are none
_NAME = re.compile(
    r"(?i)(^|_)(API_?KEYS?|(?<=_)KEYS?|TOKENS?|SECRETS?|CREDENTIALS?|AUTHORIZATION|PWD|PASS)"
    r"(_?\d+)?$|(PASSWORDS?|PASSWD|PASSPHRASE|APIKEY)(_?\d+)?$"
)
# of a tokenizer, of a router or a cache, and of a compiler
_OTHER_NAME = (
    r"(?i)(^|_)((bos|eos|pad|unk|mask|sep|cls|image|video|audio|start|end|stop|special)_tokens?"
    r"|(num|max|min)_(\w{1,40}_)?(tokens|keys)|(routing|meta|prefix|sort|cache|index)_keys?"
    r"|(pre|post|custom)_pass)$"
)
# no secret under any name: paths, references, switches, counts, placeholders
_HARMLESS = (
    r"(?is)[./~$<\[*].*|true|false|yes|no|on|off|none|null|empty|dummy|auto|[-+]?[\d.]{1,5}[kmg]?"
    r"|(bearer|basic)(\s+[$<{*].*)?"
)
_COUNT = r"(?i)[-+]?[\d._,]{1,30}[kmg]?"
# tokens by the marks of their makers, headers of HTTP, and passwords within addresses
_SHAPE = re.compile(
    r"(?m)(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-(?=[\w-]{0,200}\d)[A-Za-z0-9_-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abp]-[\w-]{10,}"
    r"|AKIA[A-Z0-9]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|nvapi-[\w-]{20,}|AIza[\w-]{35}"
    r"|eyJ[\w-]{10,1000}\.eyJ[\w-]{10,}\.|([Bb]earer(\s+|%20)[\w.~+/=-]{4,}"
    r"|[Bb]asic(\s+|%20)(?=\S{0,200}[A-Z\d=])[\w+/=-]{8,})(?=\s*($|[,;\"'&#\]}\\])))"
    r"|://[^/\s:@$]*:[^/\s@$]+@"
)
_PAIR = re.compile(
    r"""(--[\w.-]{1,80})\s{1,9}(?=\S)"""
    r"""|([\w.-]{1,80})\\{0,4}["']?\s{0,9}[:=]\s{0,9}\\{0,4}(?=\S)"""
)
_VALUE = re.compile(
    r"""(?x) "([^"]{0,2000}) | '([^']{0,2000}) | \[([^\]]{0,2000})
        | ((?<=:\s)[^\s"'#,{}\[\]][^"'#,{}\[\]\n]{0,500}) | ([^\s"'#,;&{}\[\]]+)"""
)
_BROAD_NAME = r"(?i)KEY|TOKEN(?!IZ|S)|SECRET|PASS|CRED|AUTH(?!OR)|BEARER"
_LEAST = 6


def names_a_secret(name: str, value: str | None = None) -> bool:
    """Whether a variable or key of this name holds a secret: always, or with this value."""
    words = re.sub(r"(?<=[a-z\d])(?=[A-Z])|[^A-Za-z\d]+", "_", name)
    if not _NAME.search(words) or re.search(_OTHER_NAME, words):
        return False
    if value is None:
        return True
    is_count = words.lower().endswith(("tokens", "per_token")) and re.fullmatch(_COUNT, value)
    return not (is_count or re.fullmatch(_HARMLESS, value.strip()))


def looks_secret(text: str) -> bool:
    """Whether the text holds something shaped like a known kind of key, or named: `api-key=…`."""
    if _SHAPE.search(text):
        return True
    is_template = "{%" in text or "{{" in text  # its variables are named after tokens
    return not is_template and any(True for _ in _named(text))


def holds_a_secret(name: str, value: str) -> bool:
    """Whether a value is a secret, by the name of its variable or key or by its shape."""
    return names_a_secret(name, value) or looks_secret(value)


@lru_cache(maxsize=8)  # a long line may have a thousand findings
def hushed(text: str) -> str:
    """The text with what is shaped or named like a secret starred out."""
    for start, end in [*(match.span() for match in _SHAPE.finditer(text)), *_named(text)]:
        text = text[:start] + "*" * (end - start) + text[end:]
    return text


def _named(text: str) -> Iterator[tuple[int, int]]:
    """Where the values of keys and options that name secrets stand."""
    if not re.search("[:=]|--", text):  # most texts name nothing
        return
    for match in _PAIR.finditer(text):
        name, value = match[match.lastindex or 0], _VALUE.match(text, match.end())
        if value and names_a_secret(name, value[value.lastindex or 0]):
            yield value.span(value.lastindex or 0)


def masked(key: str, value: Any) -> Any:
    """The value as it may be shown beside its key: of a secret not even the length."""
    text = value if isinstance(value, str) else json.dumps(value)
    if names_a_secret(key, text):
        return "********"
    quiet = hushed(text)
    return value if quiet == text else quiet


def redacted(text: str, *, environ: Mapping[str, str] = os.environ, shapes: bool = False) -> str:
    """The text with `$NAME` for each secret of the environment, and `***` for a URL's user.

    A variable is one by its name; with `shapes` also by its value, a long word.
    """
    for name, value in sorted(environ.items(), key=lambda item: -len(item[1])):
        word = value.strip()
        is_long = shapes and len(word) >= 2 * _LEAST and not re.search(r"[\s/]", word)
        if not (is_long or (len(word) >= _LEAST and re.search(_BROAD_NAME, name))):
            continue
        for form in (value, word, *map(str.strip, word.splitlines())):
            escaped = quote(form.encode("utf-8", "surrogateescape"), safe="")
            for written in (form, repr(form)[1:-1], json.dumps(form)[1:-1], escaped):
                text = text.replace(written, f"${name}") if len(written) >= _LEAST else text
    return without_user(text)
