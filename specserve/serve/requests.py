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
from typing import Any
from urllib.parse import urlsplit

from specserve.errors import TrafficError, UsageError
from specserve.profile.secrets import redacted

MOST_BYTES = 16 << 20
"""vLLM with 64 engines writes about 3 MB of metrics."""
_CHUNK_BYTES = 1 << 16
_PATIENCE = 3
"""All of an answer may take this many times as long as the wait for any of it."""
_LIMIT, _MOST_QUOTED = 300, 4096
_VLLM_KEY = "VLLM_API_KEY"
KEY_HINT = (
    "set `VLLM_API_KEY` to the server's key; for a detached server, the variable that its profile"
    " names"
)


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
    name = api_key_env or _VLLM_KEY
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


@dataclass(slots=True, eq=False)
class Exchange:
    """One answer while it is read: its status, and its bytes as they come, within bounds."""

    url: str
    most_bytes: int
    limit_s: float | None
    status: int = 0
    pieces: Iterator[bytes] = field(default_factory=lambda: iter(()))
    _bytes: int = 0
    _is_late: bool = False
    _is_shut: bool = False
    _socket: socket.socket | None = None

    def shut(self) -> None:
        """End the connection, also one that is being made."""
        self._is_shut = True
        with contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def _cut(self) -> None:
        """The time is over. A timeout of the socket would begin again with each byte."""
        self._is_late = True
        self.shut()

    def _read(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while piece := response.read1(_CHUNK_BYTES):
            self._bytes += len(piece)
            if self._bytes > self.most_bytes:
                size = f"{self.most_bytes / (1 << 20):.3g} MiB"
                raise Unbounded(f"the answer of {self.url} is larger than {size}")
            yield piece
        if response.length:  # it said that more would come
            raise http.client.IncompleteRead(b"", response.length)

    @contextlib.contextmanager
    def opened(
        self,
        *,
        connect_s: float | None,
        read_s: float | None,
        key: str | None = None,
        body: str | None = None,
        accept: str = "application/json",
        verify: bool = True,
    ) -> Iterator[None]:
        """GET, or POST of a JSON body, directly: no proxy, no redirect.

        Raises OSError, HTTPException or ValueError. `connect_s`, `read_s`: limits to connecting and
        to a wait for more, None for none; `verify`: check the certificate.
        """
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        connection = http.client.HTTPConnection(host, port, timeout=connect_s)
        if parts.scheme == "https":
            import ssl

            context = ssl.create_default_context() if verify else ssl._create_unverified_context()  # noqa: S323
            connection = http.client.HTTPSConnection(host, port, timeout=connect_s, context=context)
        headers = {"Accept": accept, "Connection": "close"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        timer = threading.Timer(self.limit_s or threading.TIMEOUT_MAX, self._cut)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.closing(connection):
                try:
                    connection.connect()
                except TimeoutError:
                    raise OSError(f"no connection within {connect_s:.3g} s") from None
                self._socket = connection.sock
                self._socket.settimeout(read_s)
                if self._is_shut:  # while it was being made
                    self.shut()
                method = "GET" if body is None else "POST"
                connection.request(method, parts.path or "/", body=body, headers=headers)
                with connection.getresponse() as response:
                    if response.headers.get("Content-Encoding", "identity") != "identity":
                        # a few of its bytes can be a thousand times as many
                        why = "is compressed, which specserve did not ask for"
                        raise Unbounded(f"the answer of {self.url} {why}")
                    self.status, self.pieces = response.status, self._read(response)
                    yield
        except Exception as error:
            self._refuse_late(error)
            raise
        finally:
            timer.cancel()
        self._refuse_late(None)

    def _refuse_late(self, error: Exception | None) -> None:
        if self._is_late:
            took = f"{self._bytes:,} bytes of it came in {self.limit_s:.3g} s"
            raise Unbounded(f"the answer of {self.url} does not end: {took}") from error


@dataclass(frozen=True, slots=True)
class Response:
    """What came back."""

    status: int
    text: str


def fetch(
    url: str,
    *,
    timeout_s: float | None,
    key: str | None = None,
    body: str | None = None,
    verify: bool = True,
) -> Response:
    """GET, or POST of a JSON body, read whole. Raises OSError, HTTPException or ValueError.

    `verify`: check the certificate. `timeout_s` None: no limit on the time.
    """
    accept = "text/plain; version=0.0.4" if body is None else "application/json"
    exchange = Exchange(url, MOST_BYTES, _PATIENCE * timeout_s if timeout_s else None)
    with exchange.opened(
        connect_s=timeout_s, read_s=timeout_s, key=key, body=body, accept=accept, verify=verify
    ):
        return Response(exchange.status, b"".join(exchange.pieces).decode(errors="replace"))


def scrape(endpoint: Endpoint, *, timeout_s: float = 5.0) -> str:
    """The text of its /metrics. Raises TrafficError if there is none. A key goes to it only."""
    with failing(endpoint):
        response = fetch(f"{endpoint.root}/metrics", timeout_s=timeout_s, key=endpoint.api_key)
    if response.status == 404:
        raise TrafficError(
            f"there are no metrics at {endpoint.root}/metrics (404)",
            hint=f"{_address_hint(endpoint)}; SGLang needs `--enable-metrics`",
        )
    if response.status != 200:
        raise of_status(endpoint, response.status, message_in(response.text))
    return response.text


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
    except (http.client.HTTPException, OSError) as error:
        said = _said(endpoint, str(error) or type(error).__name__)
        is_lost = isinstance(error, http.client.HTTPException | ConnectionError)
        if isinstance(error, http.client.InvalidURL) or not is_lost:
            raise TrafficError(f"cannot reach {root}: {said}") from error
        hint = "the server's log may show why"
        message = f"the connection to {root} was interrupted: {said}"
        raise TrafficError(message, hint=hint) from error
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
    hint = "see the server's log"
    return TrafficError(f"the server at {root} failed ({status}): {said}", hint=hint)


def no_api(endpoint: Endpoint) -> TrafficError:
    """Something listens there, and it is not such a server."""
    message = f"there is no OpenAI API at {endpoint.root}/v1"
    return TrafficError(message, hint=_address_hint(endpoint))


def failed_midway(endpoint: Endpoint, event: dict[str, Any]) -> TrafficError:
    """An error that came as an event of the answer's stream."""
    said = _said(endpoint, _message(event) or str(event))
    return TrafficError(f"the server failed in the middle of the answer: {said}")


def _address_hint(endpoint: Endpoint) -> str:
    """What to do if something answers, but not as the root of a vLLM server does."""
    if urlsplit(endpoint.root).path:
        return "give the server's root URL, such as http://127.0.0.1:8000"
    return (
        "another program listens there: give the URL of a vLLM server;"
        " `specserve ps` lists detached servers"
    )


def message_in(text: str) -> str:
    """What the body of an error says."""
    try:
        return _message(json.loads(text)) or text
    except (ValueError, RecursionError):
        return text


def _message(body: object) -> str | None:
    """vLLM's `{"error": {"message": …}}`."""
    inner: Any = body
    while isinstance(inner, dict) and isinstance(inner.get("error"), dict):
        inner = inner["error"]
    found = (
        [inner.get(key) for key in ("message", "error", "detail")]
        if isinstance(inner, dict)
        else []
    )
    return next((each for each in [*found, inner] if isinstance(each, str) and each), None)


def _said(endpoint: Endpoint, text: str) -> str:
    """What it said, without the key that it may have echoed."""
    text = text[:_MOST_QUOTED]
    return shown(redacted(text.replace(endpoint.api_key, "***") if endpoint.api_key else text))


def shown(text: str) -> str:
    """Text from elsewhere on one short line, without anything that a terminal would obey."""
    words = text[:_MOST_QUOTED].split()
    line = "".join(mark if mark.isprintable() else "?" for mark in " ".join(words))
    return line if len(line) <= _LIMIT else f"{line[:_LIMIT]}…"
