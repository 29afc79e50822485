"""One HTTP request to a server, bounded in bytes and in time whatever it sends; and GET /metrics with its failures."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from specserve.errors import TrafficError
from specserve.serve.requests import KEY_HINT, Endpoint

MOST_BYTES = 16 << 20
"""vLLM with 64 engines writes about 3 MB."""
_CHUNK_BYTES = 1 << 16
_PATIENCE = 3
"""All of it may take this many times as long as the wait for any of it."""


class Endless(OSError):
    """What it sends has no end, in bytes or in time: whatever listens there may be no server of ours."""


@dataclass(frozen=True, slots=True)
class Response:
    """What came back."""

    status: int
    text: str
    encoding: str


def fetch(
    url: str, *, timeout_s: float | None, key: str | None = None, body: str | None = None, verify: bool = True
) -> Response:
    """GET, or POST of a JSON body, directly: no proxy, no redirect. Raises OSError, HTTPException or ValueError.

    `verify`: check the certificate. `timeout_s` None: no limit on the time.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    if parts.scheme == "https":
        import ssl

        context = ssl.create_default_context() if verify else ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    headers = {"Accept": "text/plain; version=0.0.4", "Connection": "close"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if body is not None:
        headers |= {"Accept": "application/json", "Content-Type": "application/json"}
    with contextlib.closing(connection):
        connection.connect()
        with _limited(connection.sock, limit_s=_PATIENCE * timeout_s if timeout_s else None):
            connection.request(
                "GET" if body is None else "POST", parts.path or "/", body=body, headers=headers
            )
            with connection.getresponse() as response:
                encoding = response.headers.get("Content-Encoding", "identity")
                return Response(response.status, _text(response), encoding)


@contextlib.contextmanager
def _limited(sock: socket.socket, *, limit_s: float | None) -> Iterator[None]:
    """End the connection when its time is over: a timeout of the socket starts again with each byte."""
    late = threading.Event()

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit_s or 0.0, cut)
    timer.daemon = True
    if limit_s is not None:
        timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        if late.is_set():
            raise Endless("it does not come to an end") from error
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise Endless("it does not come to an end")


def _text(response: http.client.HTTPResponse) -> str:
    data = bytearray()
    while piece := response.read1(_CHUNK_BYTES):
        data += piece
        if len(data) > MOST_BYTES:
            raise Endless(f"it sends more than {MOST_BYTES >> 20} MiB")
    if response.length:  # it said that more would come
        raise http.client.IncompleteRead(b"", response.length)
    return data.decode(errors="replace")


def scrape(endpoint: Endpoint, *, timeout_s: float = 5.0) -> str:
    """The text of its /metrics. Raises TrafficError if there is none. A key goes to this server only."""
    try:
        response = fetch(f"{endpoint.root}/metrics", timeout_s=timeout_s, key=endpoint.api_key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failure(endpoint, error) from error
    _refuse(endpoint, response)
    return response.text


def _refuse(endpoint: Endpoint, response: Response) -> None:
    status = response.status
    if status in {401, 403}:
        what = "refused the key" if endpoint.api_key else "wants an API key"
        raise TrafficError(f"{endpoint.root}/metrics {what} ({status})", hint=KEY_HINT)
    if 300 <= status < 400:
        raise TrafficError(f"{endpoint.root}/metrics redirects ({status})", hint="give the address itself")
    if status == 404:
        raise TrafficError(
            f"there are no metrics at {endpoint.root}/metrics (404)",
            hint="name the server's root, such as http://127.0.0.1:8000",
        )
    if status != 200:
        raise TrafficError(f"{endpoint.root}/metrics failed ({status})", hint="the server's log tells why")
    if response.encoding != "identity":
        raise TrafficError(f"{endpoint.root}/metrics is compressed, and nobody asked for that")


def _failure(endpoint: Endpoint, error: Exception) -> TrafficError:
    if isinstance(error, Endless):
        return TrafficError(f"{endpoint.root}/metrics: {error}")
    if isinstance(error, ConnectionRefusedError):
        return TrafficError(
            f"nothing listens at {endpoint.root}", hint="`specserve up PROFILE --detach` starts a server"
        )
    if isinstance(error, TimeoutError):
        return TrafficError(f"{endpoint.root}/metrics does not answer")
    if isinstance(error, socket.gaierror):
        return TrafficError(f"cannot reach {endpoint.root}: {error.strerror}")
    if isinstance(error, http.client.HTTPException | ValueError | ConnectionError):
        return TrafficError(f"{endpoint.root}/metrics broke off, or is no HTTP ({type(error).__name__})")
    return TrafficError(f"cannot reach {endpoint.root}: {error}")
