"""Where a server is, one bounded HTTP request to it, and what went wrong with a request."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from specserve.errors import TrafficError, UsageError
from specserve.profile.secrets import redacted


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
    """Read a URL such as `http://127.0.0.1:8000`, `host:8000/v1`. Raises UsageError if it is none.

    The key comes from the variable that the server's profile names, else from vLLM's own, and from nowhere else: a
    key for another service must not be sent to whatever answers here.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"`{_without_user(url)}` is not a URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise UsageError(
            f"`{_without_user(url)}` is not an http URL", hint="write it like http://127.0.0.1:8000"
        )
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "the URL contains a user name or a password",
            hint=KEY_HINT,
        )
    if parts.query or parts.fragment:
        raise UsageError(f"`{url}` is not a server's URL: it has a query or a fragment")
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
    value = os.environ.get(name or _VLLM_KEY, "").strip()
    if not value and name is None:
        return None
    if not value:
        raise UsageError(f"the environment variable `{name}` is not set")
    if not (value.isascii() and value.isprintable()):
        raise UsageError(
            f"the environment variable `{name or _VLLM_KEY}` contains no valid key: it has characters that a key "
            "cannot have"
        )
    return value


_VLLM_KEY = "VLLM_API_KEY"
KEY_HINT = (
    "set `VLLM_API_KEY` to the server's key; for a detached server, the variable that its profile names"
)
_LIMIT, _MOST_QUOTED = 300, 4096


class RequestRefused(TrafficError):
    """The server does not take this request, and says why; it serves others."""


class NoChatTemplate(RequestRefused):
    """The server cannot chat with this model; it can still continue a text."""


def of_exception(endpoint: Endpoint, error: Exception) -> TrafficError | None:
    """The failure that an exception of a socket, of http.client or of json stands for."""
    if isinstance(error, OSError | http.client.HTTPException):
        return _of_transport(endpoint, error)
    if isinstance(error, ValueError | RecursionError):
        return TrafficError(
            f"the server at {endpoint.root} sent an invalid answer: {_said(endpoint, str(error))}"
        )
    return None


def failed_midway(endpoint: Endpoint, event: Mapping[str, Any]) -> TrafficError:
    """An error that came as an event of the answer's stream."""
    return TrafficError(
        f"the server failed in the middle of the answer: {_said(endpoint, _message(event, str(event)))}"
    )


def of_status(endpoint: Endpoint, status: int, message: str, *, model: str | None = None) -> TrafficError:
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
    return TrafficError(f"the server at {root} failed ({status}): {said}", hint="see the server's log")


def no_api(endpoint: Endpoint) -> TrafficError:
    """Something listens there, and it is not such a server."""
    return TrafficError(
        f"there is no OpenAI API at {endpoint.api}",
        hint=_address_hint(endpoint),
    )


def _address_hint(endpoint: Endpoint) -> str:
    """What to do if something answers, but not as the root of a vLLM server does."""
    if urlsplit(endpoint.root).path:
        return "give the server's root URL, such as http://127.0.0.1:8000"
    return (
        "another program listens there: give the URL of a vLLM server; `specserve ps` lists detached servers"
    )


def _of_transport(endpoint: Endpoint, error: BaseException) -> TrafficError:
    """An exception of a socket or of http.client."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, Unbounded):
        return TrafficError(text, hint="no vLLM server answers like that: check the address")
    if isinstance(error, ConnectionRefusedError):
        return TrafficError(
            f"nothing listens at {endpoint.root}",
            hint="`specserve ps` lists detached servers, also one that is starting; `specserve up PROFILE` starts one",
        )
    if isinstance(error, http.client.InvalidURL) or (
        isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError)
    ):
        return TrafficError(f"cannot reach {endpoint.root}: {_said(endpoint, text or name)}")
    if isinstance(error, TimeoutError):
        return TrafficError(f"the server at {endpoint.root} has sent nothing for too long")
    return TrafficError(
        f"the connection to {endpoint.root} was interrupted: {_said(endpoint, text or name)}",
        hint="the server's log may show why",
    )


def message_in(text: str) -> str:
    """What the body of an error says."""
    try:
        return _message(json.loads(text), text)
    except (ValueError, RecursionError):
        return text


def _message(body: object, otherwise: str) -> str:
    """vLLM's `{"error": {"message": …}}`, which the library has unwrapped once or not at all."""
    inner: Any = body
    while isinstance(inner, dict) and isinstance(inner.get("error"), dict):
        inner = inner["error"]
    if isinstance(inner, dict):
        for key in ("message", "error", "detail"):
            if isinstance(inner.get(key), str):
                return str(inner[key])
    return inner if isinstance(inner, str) and inner else otherwise


def _said(endpoint: Endpoint, text: str) -> str:
    """What it said, without the key that it may have echoed."""
    text = text[:_MOST_QUOTED]
    return shown(redacted(text.replace(endpoint.api_key, "***") if endpoint.api_key else text))


def shown(text: str) -> str:
    """Text from elsewhere on one short line, without anything that a terminal would obey."""
    words = text[:_MOST_QUOTED].split()
    line = "".join(mark if mark.isprintable() else "?" for mark in " ".join(words))
    return line if len(line) <= _LIMIT else f"{line[:_LIMIT]}…"


MOST_BYTES = 16 << 20
"""vLLM with 64 engines writes about 3 MB of metrics."""
LONGEST_EVENT_BYTES = 256 << 10
_CHUNK_BYTES = 1 << 16
_PATIENCE = 3
"""All of it may take this many times as long as the wait for any of it."""


class Unbounded(OSError):
    """An answer is larger, slower or otherwise encoded than that of a vLLM server can be."""


class Reading:
    """One answer while it is read, however it is read: it counts the bytes, and ends the connection in time."""

    def __init__(self, url: str, *, most_bytes: int, limit_s: float | None) -> None:
        self.url, self.most_bytes, self._limit_s = url, most_bytes, limit_s
        self._bytes = self._event_bytes = 0
        self._end = b""
        self._late = threading.Event()
        self._socket: socket.socket | None = None

    def connected(self, sock: socket.socket) -> None:
        """The connection that the answer comes by; TLS makes another of it."""
        self._socket = sock
        if self._late.is_set():
            self.cut()

    def cut(self) -> None:
        """The time is over. A timeout of the socket would begin again with each byte."""
        self._late.set()
        self.shut()

    def shut(self) -> None:
        """End the connection, if there is one."""
        with contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def refuse_encoding(self, encoding: str | None) -> None:
        """Raises Unbounded for a compressed answer: a few of its bytes can be a thousand times as many."""
        if encoding not in {None, "", "identity"}:
            raise Unbounded(f"the answer of {self.url} is compressed, which specserve did not ask for")

    def count(self, piece: bytes) -> None:
        """Raises Unbounded if there are too many bytes with this piece."""
        self._bytes += len(piece)
        if self._bytes > self.most_bytes:
            raise Unbounded(f"the answer of {self.url} is larger than {self.most_bytes / (1 << 20):.3g} MiB")

    def count_events(self, piece: bytes) -> None:
        """The same for a stream of events, none of which may be too long."""
        self.count(piece)
        text, self._end = self._end + piece, piece[-3:]
        at = max(text.rfind(end) for end in (b"\n\n", b"\r\n\r\n", b"\r\r"))
        self._event_bytes = len(text) - at if at >= 0 else self._event_bytes + len(piece)
        if self._event_bytes > LONGEST_EVENT_BYTES:
            limit = f"{LONGEST_EVENT_BYTES >> 10} KiB"
            raise Unbounded(f"the answer of {self.url} contains an event that is larger than {limit}")

    def refuse_late(self, error: Exception | None = None) -> None:
        """Raises Unbounded if the time was over before the answer was."""
        if self._late.is_set():
            took = f"{self._bytes:,} bytes of it came in {self._limit_s:.3g} s"
            raise Unbounded(f"the answer of {self.url} does not end: {took}") from error


@contextlib.contextmanager
def bounded(url: str, *, most_bytes: int = MOST_BYTES, limit_s: float | None) -> Iterator[Reading]:
    """Read one answer within bounds of bytes and time. Raises Unbounded. `limit_s` None: no limit on the time."""
    reading = Reading(url, most_bytes=most_bytes, limit_s=limit_s)
    timer = threading.Timer(threading.TIMEOUT_MAX if limit_s is None else limit_s, reading.cut)
    timer.daemon = True
    timer.start()
    try:
        yield reading
    except Exception as error:
        reading.refuse_late(error)
        raise
    finally:
        timer.cancel()
    reading.refuse_late()


@dataclass(frozen=True, slots=True)
class Response:
    """What came back."""

    status: int
    text: str


@contextlib.contextmanager
def sent(
    url: str,
    *,
    connect_s: float | None,
    read_s: float | None,
    limit_s: float | None,
    most_bytes: int = MOST_BYTES,
    key: str | None = None,
    body: str | None = None,
    accept: str = "application/json",
    verify: bool = True,
    on_reading: Callable[[Reading], None] = lambda _reading: None,
) -> Iterator[tuple[int, Iterator[bytes], Reading]]:
    """GET, or POST of a JSON body, directly: no proxy, no redirect. Gives the status and the bytes as they come.

    Raises OSError, HTTPException or ValueError. `connect_s`, `read_s`, `limit_s`: limits to connecting, to a wait for
    more and to all of it, None for none; `verify`: check the certificate; `on_reading` is called before and after
    the connection is made.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = http.client.HTTPConnection(host, port, timeout=connect_s)
    if parts.scheme == "https":
        import ssl

        context = ssl.create_default_context() if verify else ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, port, timeout=connect_s, context=context)
    headers = {"Accept": accept, "Connection": "close"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    with (
        contextlib.closing(connection),
        bounded(url, most_bytes=most_bytes, limit_s=limit_s) as reading,
    ):
        on_reading(reading)
        try:
            connection.connect()
        except TimeoutError:
            raise OSError(f"no connection within {connect_s:.3g} s") from None
        connection.sock.settimeout(read_s)
        reading.connected(connection.sock)
        on_reading(reading)
        connection.request("GET" if body is None else "POST", parts.path or "/", body=body, headers=headers)
        with connection.getresponse() as response:
            reading.refuse_encoding(response.headers.get("Content-Encoding"))
            yield response.status, _pieces(response, reading), reading


def _pieces(response: http.client.HTTPResponse, reading: Reading) -> Iterator[bytes]:
    is_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")
    count = reading.count_events if is_stream else reading.count
    while piece := response.read1(_CHUNK_BYTES):
        count(piece)
        yield piece
    if response.length:  # it said that more would come
        raise http.client.IncompleteRead(b"", response.length)


def fetch(
    url: str, *, timeout_s: float | None, key: str | None = None, body: str | None = None, verify: bool = True
) -> Response:
    """GET, or POST of a JSON body, read whole. Raises OSError, HTTPException or ValueError.

    `verify`: check the certificate. `timeout_s` None: no limit on the time.
    """
    accept = "text/plain; version=0.0.4" if body is None else "application/json"
    limit_s = _PATIENCE * timeout_s if timeout_s else None
    with sent(
        url,
        connect_s=timeout_s,
        read_s=timeout_s,
        limit_s=limit_s,
        key=key,
        body=body,
        accept=accept,
        verify=verify,
    ) as (status, pieces, _):
        return Response(status, b"".join(pieces).decode(errors="replace"))


def scrape(endpoint: Endpoint, *, timeout_s: float = 5.0) -> str:
    """The text of its /metrics. Raises TrafficError if there is none. A key goes to this server only."""
    try:
        response = fetch(f"{endpoint.root}/metrics", timeout_s=timeout_s, key=endpoint.api_key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _of_transport(endpoint, error) from error
    if response.status == 404:
        raise TrafficError(
            f"there are no metrics at {endpoint.root}/metrics (404)",
            hint=f"{_address_hint(endpoint)}; SGLang needs `--enable-metrics`",
        )
    if response.status != 200:
        raise of_status(endpoint, response.status, message_in(response.text))
    return response.text
