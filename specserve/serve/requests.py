"""Where a server is, one bounded HTTP request to it, and what went wrong with a request."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specserve.errors import FactError, TrafficError, UsageError
from specserve.profile.secrets import redacted

if TYPE_CHECKING:
    from specserve.metrics.prometheus import Metrics

MOST_BYTES = 16 << 20
"""vLLM with 64 engines writes about 3 MB of metrics."""
_PATIENCE = 3
"""All of an answer may take this many times as long as the wait for any of it."""
_LIMIT, _MOST_QUOTED = 300, 4096
KEY_HINT = (
    "set `VLLM_API_KEY` to the server's key; for a detached server, the variable that its profile"
    " names"
)
_ADDRESS_HINT = (
    "give the root URL of a vLLM server, such as http://127.0.0.1:8000; `specserve ps` lists"
    " detached servers"
)
_LOG_HINT = "the server's log may show why"


class RequestRefused(TrafficError):
    """The server does not take this request, and says why; it serves others."""


class NoChatTemplate(RequestRefused):
    """The server cannot chat with this model; it can still continue a text."""


class Unbounded(OSError):
    """An answer is larger, slower or otherwise encoded than that of a vLLM server can be."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The root of a server, without `/v1` and a slash at its end, and the key that it wants."""

    root: str
    api_key: str | None = field(default=None, repr=False)


def endpoint(url: str, *, api_key_env: str | None = None) -> Endpoint:
    """Read a URL such as `http://127.0.0.1:8000`, `host:8000/v1`. Raises UsageError if it is none.

    The key comes from the variable that the server's profile names, else from vLLM's own: a key for
    another service must not be sent to whatever answers here.
    """
    shown_url = url.rpartition("@")[2]
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"`{shown_url}` is not a URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        hint = "write it like http://127.0.0.1:8000"
        raise UsageError(f"`{shown_url}` is not an http URL", hint=hint)
    if parts.username is not None or parts.password is not None:
        raise UsageError("the URL contains a user name or a password", hint=KEY_HINT)
    if parts.query or parts.fragment:
        raise UsageError(f"`{url}` is not a server's URL: it has a query or a fragment")
    name = api_key_env or "VLLM_API_KEY"
    key = os.environ.get(name, "").strip() or None
    if key is None and api_key_env is not None:
        raise UsageError(f"the environment variable `{name}` is not set")
    if key and not (key.isascii() and key.isprintable()):
        why = "it has characters that a key cannot have"
        raise UsageError(f"the environment variable `{name}` contains no valid key: {why}")
    path = parts.path.rstrip("/").removesuffix("/v1")
    place = f"[{host}]" if ":" in host else host
    place = f"{place}:{port}" if port is not None else place
    return Endpoint(f"{parts.scheme}://{place}{path}", key)


@contextlib.contextmanager
def exchange(
    url: str,
    *,
    most_bytes: int,
    limit_s: float,
    connect_s: float,
    read_s: float,
    key: str | None = None,
    body: str | None = None,
    verify: bool = True,
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """GET, or POST of a JSON body, directly: no proxy, no redirect. Yields status and answer.

    Raises OSError, HTTPException or ValueError. `connect_s`, `read_s`: limits to connecting and to
    a wait for more; `limit_s`: for all of it; `verify`: check the certificate.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = http.client.HTTPConnection(host, port, timeout=connect_s)
    if parts.scheme == "https":
        import ssl

        context = ssl.create_default_context() if verify else ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, port, timeout=connect_s, context=context)
    headers = {
        "Accept": "*/*",
        "Connection": "close",
        **({"Authorization": f"Bearer {key}"} if key else {}),
        **({"Content-Type": "application/json"} if body is not None else {}),
    }
    taken, is_late = 0, False

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        while piece := response.read1(1 << 16):
            taken += len(piece)
            if taken > most_bytes:
                size = f"{most_bytes / (1 << 20):.3g} MiB"
                raise Unbounded(f"the answer of {url} is larger than {size}")
            yield piece
        if response.length:  # it said that more would come
            raise http.client.IncompleteRead(b"", response.length)

    def cut() -> None:
        nonlocal is_late
        is_late = True
        with contextlib.suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)

    with contextlib.closing(connection):
        try:
            connection.connect()
        except TimeoutError:
            raise OSError(f"no connection within {connect_s:.3g} s") from None
        opened = connection.sock
        opened.settimeout(read_s)  # which begins again with each byte
        timer = threading.Timer(limit_s, cut)
        timer.daemon = True
        timer.start()
        method = "GET" if body is None else "POST"
        try:
            connection.request(method, parts.path or "/", body=body, headers=headers)
            with connection.getresponse() as response:
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    # a few of its bytes can be a thousand times as many
                    why = "is compressed, which specserve did not ask for"
                    raise Unbounded(f"the answer of {url} {why}")
                yield response.status, pieces()
        finally:
            timer.cancel()
            if is_late:
                took = f"{taken:,} bytes of it came in {limit_s:.3g} s"
                raise Unbounded(f"the answer of {url} does not end: {took}")


def fetch(
    url: str, *, timeout_s: float, key: str | None = None, verify: bool = True
) -> tuple[int, str]:
    """Status and text of a GET. Raises OSError, HTTPException or ValueError."""
    with exchange(
        url,
        most_bytes=MOST_BYTES,
        limit_s=_PATIENCE * timeout_s,
        connect_s=timeout_s,
        read_s=timeout_s,
        key=key,
        verify=verify,
    ) as (status, pieces):
        return status, b"".join(pieces).decode(errors="replace")


def is_healthy(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether GET /health says 200. No certificate is checked: this asks our own child."""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        return fetch(f"{url}/health", timeout_s=timeout_s, verify=False)[0] == 200
    return False


def metrics(url: str, *, timeout_s: float = 2.0, verify: bool = True) -> Metrics | None:
    """The figures of GET /metrics; None if it says nothing that can be read."""
    from specserve.metrics.prometheus import read

    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, FactError):
        status, text = fetch(f"{url}/metrics", timeout_s=timeout_s, verify=verify)
        return read(text) if status == 200 else None
    return None


def scrape(endpoint: Endpoint, *, timeout_s: float = 5.0) -> str:
    """The text of its /metrics. Raises TrafficError if there is none. A key goes to it only."""
    with failing(endpoint):
        status, text = fetch(f"{endpoint.root}/metrics", timeout_s=timeout_s, key=endpoint.api_key)
    if status == 404:
        raise TrafficError(
            f"there are no metrics at {endpoint.root}/metrics (404)",
            hint=f"{_ADDRESS_HINT}; SGLang needs `--enable-metrics`",
        )
    if status != 200:
        raise of_status(endpoint, status, message_in(text))
    return text


@contextlib.contextmanager
def failing(endpoint: Endpoint) -> Iterator[None]:
    """Raises TrafficError instead of what a socket, http.client or json raise."""
    root = endpoint.root
    try:
        yield
    except Unbounded as error:
        hint = "no vLLM server answers like that: check the address"
        raise TrafficError(str(error), hint=hint) from error
    except ConnectionRefusedError as error:
        hint = (
            "`specserve ps` lists detached servers, also one that is starting;"
            " `specserve up PROFILE` starts one"
        )
        raise TrafficError(f"nothing listens at {root}", hint=hint) from error
    except TimeoutError as error:
        raise TrafficError(f"the server at {root} has sent nothing for too long") from error
    except (http.client.HTTPException, ConnectionError) as error:
        said = _said(endpoint, str(error) or type(error).__name__)
        message = f"the connection to {root} was interrupted: {said}"
        raise TrafficError(message, hint=_LOG_HINT) from error
    except OSError as error:
        raise TrafficError(f"cannot reach {root}: {_said(endpoint, str(error))}") from error
    except (ValueError, RecursionError) as error:
        said = _said(endpoint, str(error))
        raise TrafficError(f"the server at {root} sent an invalid answer: {said}") from error


def of_status(
    endpoint: Endpoint, status: int, message: str, *, model: str | None = None
) -> TrafficError:
    """An answer other than 200. `message` is what the server said, as it said it."""
    root, said = endpoint.root, _said(endpoint, message)
    if status in {401, 403}:
        what = "refused the key" if endpoint.api_key else "wants an API key"
        return TrafficError(f"the server at {root} {what} ({status})", hint=KEY_HINT)
    if status == 404 and model is not None and "does not exist" in message:
        return TrafficError(f"the server at {root} has no model `{shown(model)}`")
    if status in {404, 405}:
        return no_api(endpoint)
    if status in {400, 422}:
        kind = NoChatTemplate if "chat template" in message.lower() else RequestRefused
        return kind(f"the server does not take this request: {said}")
    if 300 <= status < 400:
        return TrafficError(f"{root} redirects ({status})", hint="use the address it redirects to")
    return TrafficError(f"the server at {root} failed ({status}): {said}", hint=_LOG_HINT)


def no_api(endpoint: Endpoint) -> TrafficError:
    """Something listens there, and it is not such a server."""
    message = f"there is no OpenAI API at {endpoint.root}/v1"
    return TrafficError(message, hint=_ADDRESS_HINT)


def failed_midway(endpoint: Endpoint, event: dict[str, Any]) -> TrafficError:
    """An error that came as an event of the answer's stream."""
    said = _said(endpoint, message_in(json.dumps(event)))
    return TrafficError(f"the server failed in the middle of the answer: {said}")


def message_in(text: str) -> str:
    """What the body of an error says: vLLM's `{"error": {"message": …}}`, or else the body."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for _ in range(3):
        if isinstance(found, dict):
            keys = ("error", "message", "detail")
            found = next((found[key] for key in keys if found.get(key)), None)
    return found if isinstance(found, str) else text


def _said(endpoint: Endpoint, text: str) -> str:
    """What it said, without the key that it may have echoed."""
    text = text[:_MOST_QUOTED]
    return shown(redacted(text.replace(endpoint.api_key, "***") if endpoint.api_key else text))


def shown(text: str) -> str:
    """Text from elsewhere on one short line, without anything that a terminal would obey."""
    words = text[:_MOST_QUOTED].split()
    line = "".join(mark if mark.isprintable() else "?" for mark in " ".join(words))
    return line if len(line) <= _LIMIT else f"{line[:_LIMIT]}…"
