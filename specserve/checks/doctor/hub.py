"""Lines about the Hub: is there a token, which Hub is asked, may it be asked. Asks nobody, shows no part of a token."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from specserve.checks.doctor.line import Line
from specserve.models.hubcache import is_offline

_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TRUE = {"1", "ON", "YES", "TRUE"}
_LOGIN = "`hf auth login`, or set HF_TOKEN"


def hub_lines(environ: Mapping[str, str]) -> Iterator[Line]:
    """By the environment's variables, as huggingface_hub reads them. (utils/_auth.py, get_token, 2.4)"""
    yield from _token(environ)
    yield from _endpoint(environ.get("HF_ENDPOINT", ""), has_token=_source(environ) is not None)
    if is_offline(environ):
        names = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if environ.get(name)]
        yield Line(
            "Hub", "ok", f"is not asked ({', '.join(names)}): models must be in the cache, or in a folder"
        )


def _token(environ: Mapping[str, str]) -> Iterator[Line]:
    file = token_file(environ)
    source = _source(environ)
    if environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE:
        text = "none is sent: HF_HUB_DISABLE_IMPLICIT_TOKEN is set"
        yield Line("Hub token", "note", text, "unset it for gated models")
    elif source is None:
        if not is_offline(environ):
            text = "none: gated models (Llama, Gemma) cannot be downloaded"
            yield Line("Hub token", "note", text, _LOGIN)
    elif source == "file":
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            text = f"in {file}, which others may read (mode {mode:o})"
            yield Line("Hub token", "note", text, f"`chmod 600 {file}`")
        else:
            yield Line("Hub token", "ok", f"present, in {file}")
    else:
        yield Line("Hub token", "ok", f"present, from {source}")


def token_file(environ: Mapping[str, str]) -> Path:
    """Where `hf auth login` keeps it. (huggingface_hub/constants.py, HF_TOKEN_PATH)"""
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    path = environ.get("HF_TOKEN_PATH") or f"{home}/token"
    return Path(os.path.expandvars(os.path.expanduser(path)))  # noqa: PTH111 - Path's form raises without a home


def _source(environ: Mapping[str, str]) -> str | None:
    """The variable, `file`, or None where there is no token; an empty one is none."""
    if environ.get("HF_OIDC_RESOURCE"):
        return "HF_OIDC_RESOURCE"
    value = next(filter(None, map(environ.get, _VARIABLES)), "")
    if value.strip():
        return next(name for name in _VARIABLES if environ.get(name))
    with suppress(OSError):
        return "file" if token_file(environ).read_bytes().strip() else None
    return None


def _endpoint(text: str, *, has_token: bool) -> Iterator[Line]:
    if not text:
        return
    shown = endpoint(text)
    if shown is None:
        yield Line(
            "Hub", "note", "HF_ENDPOINT is no address", "write it like https://huggingface.co, or unset it"
        )
    elif has_token and shown.startswith("http://") and not _is_loopback(shown):
        text = f"HF_ENDPOINT={shown}: the token goes there unencrypted"
        yield Line("Hub", "note", text, "use https://")
    else:
        yield Line("Hub", "ok", f"HF_ENDPOINT={shown}")


def endpoint(text: str) -> str | None:
    """An address without user, password, query and fragment; None where it is none."""
    with suppress(ValueError):
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
        if parts.scheme in ("http", "https") and host:
            address = f"[{host}]" if ":" in host else host
            return f"{parts.scheme}://{address}{f':{port}' if port is not None else ''}{parts.path}"
    return None


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
