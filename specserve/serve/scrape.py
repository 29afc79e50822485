"""GET /metrics of any server, bounded in bytes and in time whatever it sends. Does not know what the text means."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from specserve.errors import TrafficError
from specserve.serve.requests import Endpoint

MOST_BYTES = 16 << 20
"""vLLM with 64 engines writes about 3 MB."""
_CHUNK_BYTES = 1 << 16
_PATIENCE = 3
"""All of it may take so many times as long as the wait for any of it."""
_KEY_HINT = "`--api-key-env NAME` takes the key from the environment variable NAME"


def scrape(endpoint: Endpoint, *, timeout_s: float = 5.0) -> str:
    """The text of its /metrics. Raises TrafficError where there is none, and where it does not come to an end.

    Each call is a connection of its own, directly: no proxy, no redirect. A key goes to this server only.
    """
    connection = _connection(endpoint, timeout_s=timeout_s)
    late = threading.Event()
    try:
        connection.connect()
        with _cut(connection.sock, after_s=_PATIENCE * timeout_s, late=late):
            connection.request("GET", urlsplit(f"{endpoint.root}/metrics").path, headers=_headers(endpoint))
            with connection.getresponse() as response:
                _refuse(endpoint, response)
                text = _text(endpoint, response)
        if late.is_set():
            raise TimeoutError
        return text
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failure(endpoint, error, is_late=late.is_set()) from error
    finally:
        connection.close()


def _headers(endpoint: Endpoint) -> dict[str, str]:
    key = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    return {"Accept": "text/plain; version=0.0.4", "Connection": "close", **key}


def _connection(endpoint: Endpoint, *, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(endpoint.root)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)


@contextlib.contextmanager
def _cut(sock: socket.socket, *, after_s: float, late: threading.Event) -> Iterator[None]:
    """Ends the connection when its time is over: a timeout of the socket starts anew with each byte."""

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(after_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _refuse(endpoint: Endpoint, response: http.client.HTTPResponse) -> None:
    status = response.status
    if status in {401, 403}:
        what = "refused the key" if endpoint.api_key else "wants an API key"
        raise TrafficError(f"{endpoint.root}/metrics {what} ({status})", hint=_KEY_HINT)
    if 300 <= status < 400:
        raise TrafficError(
            f"{endpoint.root}/metrics sends its callers elsewhere ({status})", hint="give the address itself"
        )
    if status == 404:
        raise TrafficError(
            f"there are no metrics at {endpoint.root}/metrics (404)",
            hint="name the server's root, such as http://127.0.0.1:8000",
        )
    if status != 200:
        raise TrafficError(f"{endpoint.root}/metrics failed ({status})", hint="the server's log tells why")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise TrafficError(f"{endpoint.root}/metrics is compressed, and nobody asked for that")


def _text(endpoint: Endpoint, response: http.client.HTTPResponse) -> str:
    data = bytearray()
    while piece := response.read1(_CHUNK_BYTES):
        data += piece
        if len(data) > MOST_BYTES:
            raise TrafficError(
                f"{endpoint.root}/metrics sends more than {MOST_BYTES >> 20} MiB: no server of vLLM does"
            )
    if response.length:  # it said that more would come
        raise http.client.IncompleteRead(bytes(data[:0]), response.length)
    return data.decode(errors="replace")


def _failure(endpoint: Endpoint, error: Exception, *, is_late: bool) -> TrafficError:
    if is_late:
        return TrafficError(f"{endpoint.root}/metrics does not come to an end")
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
