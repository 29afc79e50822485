"""Where a server is: a URL as people write it, made safe to use. Sends nothing."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from specserve.errors import UsageError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The root of a server, without `/v1` and without a slash at its end, and the key that it wants."""

    root: str
    is_loopback: bool
    api_key: str | None = field(default=None, repr=False)

    @property
    def api(self) -> str:
        """The root of the OpenAI API."""
        return f"{self.root}/v1"


def endpoint(url: str, *, api_key_env: str | None = None) -> Endpoint:
    """Read a URL such as `http://127.0.0.1:8000`, `host:8000/v1`. Raises UsageError where it is none.

    The key comes from the variable that the user named, and from nowhere else: a key for another service must
    not be sent to whatever answers here.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"`{_without_user(url)}` is no URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise UsageError(f"`{_without_user(url)}` is no http URL", hint="such as http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "the URL holds a user or a password", hint="`--api-key-env NAME` takes a key from a variable"
        )
    if parts.query or parts.fragment:
        raise UsageError(f"`{url}` is no server's URL: it has a query or a fragment")
    path = parts.path.rstrip("/").removesuffix("/v1")
    name = f"[{host}]" if ":" in host else host
    root = f"{parts.scheme}://{name}{f':{port}' if port is not None else ''}{path}"
    return Endpoint(root=root, is_loopback=_is_loopback(host), api_key=_key(api_key_env))


def _without_user(url: str) -> str:
    return url.rpartition("@")[2]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name, "").strip()
    if not value:
        raise UsageError(f"the environment variable `{name}` is not set")
    if not (value.isascii() and value.isprintable()):
        raise UsageError(f"the environment variable `{name}` holds no key: it has characters that no key has")
    return value
