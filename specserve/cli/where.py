"""Which server a client command means: a URL, a detached server's name, or the only one there is."""

from __future__ import annotations

from pathlib import Path

from specserve.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8000"


def is_url(text: str) -> bool:
    """Whether it is an address; else it is a detached server's name, which has neither colon, dot nor slash."""
    return any(mark in text for mark in ":./")


def refuse_file(text: str) -> None:
    """Raises UsageError where a file is named, which is no server."""
    if "://" not in text and (text.endswith((".yaml", ".yml")) or Path(text).is_file()):
        raise UsageError(
            f"`{text}` is a file, and a server's name or URL is wanted",
            hint="`specserve up FILE --detach` starts one; `specserve ps` lists those that run",
        )


def where(url: str | None, name: str | None, api_key_env: str | None) -> tuple[str, str | None]:
    """The URL, and the NAME of the variable that holds the key: of a detached server that of its profile.

    Without either it is the only detached server, else port 8000 of this host. Raises UsageError, FactError.
    """
    if url is not None and name is not None:
        raise UsageError("`--url` and `--name` both say where the server is", hint="give one of them")
    if url is not None:
        return url, api_key_env
    from specserve.serve.detached.registry import names, only_server

    if name is None and len(names()) != 1:
        return DEFAULT_URL, api_key_env
    record = only_server(name)
    return record.url, api_key_env or record.api_key_env
