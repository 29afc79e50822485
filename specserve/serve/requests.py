"""Where a server is, one bounded HTTP request to it, and what went wrong with a request."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from specserve.errors import FactError, TrafficError, UsageError
from specserve.profile.secrets import redacted

if TYPE_CHECKING:
    from specserve.metrics import Metrics

MOST_BYTES = 16 << 20
"""vLLM with 64 engines writes about 3 MB of metrics."""
_PATIENCE, _CONNECT_S = 3, 5.0
"""All of an answer may take this many times as long as the wait for any of it."""
_LIMIT, _MOST_QUOTED = 300, 4096
KEY_HINT = "set `VLLM_API_KEY` and name the URL; for a detached server, set its profile's variable"
_ADDRESS_HINT = (
    "give the root URL of a vLLM server, such as http://127.0.0.1:8000; `specserve ps` lists"
    " detached servers"
)
LOG_HINT = "the server's log may show why"


class RequestRefused(TrafficError):
    """The server does not take this request, and says why; it serves others."""


class NoChatTemplate(RequestRefused):
    """The server cannot chat with this model; it can still continue a text."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The root of a server, without `/v1` and a slash at its end, and the key that it wants."""

    root: str
    api_key: str | None = field(default=None, repr=False)


def endpoint(url: str, *, api_key_env: str | None) -> Endpoint:
    """Read a URL such as `http://127.0.0.1:8000`, `host:8000/v1`. Raises UsageError if it is none.

    The key comes from that variable, if it is set; None: the server gets no key.
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
    key = os.environ.get(api_key_env, "").strip() if api_key_env else ""
    if not (key.isascii() and key.isprintable()):
        why = "it has characters that a key cannot have"
        raise UsageError(f"the environment variable `{api_key_env}` contains no valid key: {why}")
    path = parts.path.rstrip("/").removesuffix("/v1")
    place = f"[{host}]" if ":" in host else host
    place = f"{place}:{port}" if port is not None else place
    return Endpoint(f"{parts.scheme}://{place}{path}", key or None)


@contextlib.contextmanager
def exchange(
    server: Endpoint,
    path: str,
    *,
    body: str | None = None,
    most_bytes: int = MOST_BYTES,
    limit_s: float,
    read_s: float,
    verify: bool = True,
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """GET, or POST of a JSON body, directly: no proxy, no redirect. Yields status and answer.

    Raises TrafficError, also for what is read of it meanwhile. `read_s`: limit to a wait for more;
    `limit_s`: for all of it; `verify`: check the certificate.
    """
    url, ends_s = f"{server.root}{path}", time.monotonic() + limit_s
    headers = {"Accept": "*/*", "Connection": "close"}
    if server.api_key:
        headers["Authorization"] = f"Bearer {server.api_key}"
    if body is not None:
        headers["Content-Type"] = "application/json"

    def unbounded(why: str) -> TrafficError:
        hint = "no vLLM server answers like that: check the address"
        return TrafficError(f"the answer of {url} {why}", hint=hint)

    def pieces() -> Iterator[bytes]:
        taken = 0
        while piece := response.read1(1 << 16):
            taken += len(piece)
            if taken > most_bytes:
                raise unbounded(f"is larger than {most_bytes / (1 << 20):.3g} MiB")
            if time.monotonic() > ends_s:
                raise unbounded(f"does not end: {taken:,} bytes of it came in {limit_s:.3g} s")
            yield piece
        if response.length:  # it said that more would come
            raise http.client.IncompleteRead(b"", response.length)

    with failing(server), contextlib.ExitStack() as stack:
        parts, connect_s = urlsplit(url), min(read_s, _CONNECT_S)
        host, port = parts.hostname or "", parts.port
        connection = http.client.HTTPConnection(host, port, timeout=connect_s)
        if parts.scheme == "https":
            import ssl

            context = ssl.create_default_context() if verify else ssl._create_unverified_context()  # noqa: S323
            connection = http.client.HTTPSConnection(host, port, timeout=connect_s, context=context)
        stack.callback(connection.close)
        connection.connect()
        connection.sock.settimeout(read_s)  # which begins again with each byte
        method = "GET" if body is None else "POST"
        connection.request(method, parts.path or "/", body=body, headers=headers)
        response = stack.enter_context(connection.getresponse())
        if response.headers.get("Content-Encoding", "identity") != "identity":
            # a few of its bytes can be a thousand times as many
            raise unbounded("is compressed, which specserve did not ask for")
        yield response.status, pieces()


def fetch(url: str, path: str, *, timeout_s: float) -> tuple[int, str]:
    """Status and text of a GET that needs no key. Raises TrafficError."""
    limit_s, verify = _PATIENCE * timeout_s, path != "/health"  # which asks our own child
    with exchange(Endpoint(url), path, read_s=timeout_s, limit_s=limit_s, verify=verify) as (
        status,
        pieces,
    ):
        return status, b"".join(pieces).decode(errors="replace")


def is_healthy(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether GET /health says 200, whatever its certificate."""
    with contextlib.suppress(TrafficError):
        return fetch(url, "/health", timeout_s=timeout_s)[0] == 200
    return False


def metrics(url: str, *, timeout_s: float = 2.0) -> Metrics | None:
    """The figures of GET /metrics; None if it says nothing that can be read."""
    from specserve.metrics import read

    with contextlib.suppress(TrafficError, FactError):
        return read(scrape(url, timeout_s=timeout_s))
    return None


def scrape(url: str, *, timeout_s: float = 5.0) -> str:
    """The text of its /metrics, which needs no key. Raises TrafficError if there is none."""
    status, text = fetch(url, "/metrics", timeout_s=timeout_s)
    if status == 404:
        raise TrafficError(
            f"there are no metrics at {url}/metrics (404)",
            hint=f"{_ADDRESS_HINT}; SGLang needs `--enable-metrics`",
        )
    if status != 200:
        raise of_status(Endpoint(url), status, message_in(text))
    return text


@contextlib.contextmanager
def failing(server: Endpoint) -> Iterator[None]:
    """Raises TrafficError instead of what a socket, http.client or json raise."""
    root = server.root
    try:
        yield
    except ConnectionRefusedError as error:
        hint = "`specserve ps` lists detached servers, also one that is starting;"
        hint += " `specserve up` starts one"
        raise TrafficError(f"nothing listens at {root}", hint=hint) from error
    except TimeoutError as error:
        raise TrafficError(f"the server at {root} has sent nothing for too long") from error
    except OSError as error:
        raise TrafficError(f"cannot reach {root}: {said_by(server, str(error))}") from error
    except (http.client.HTTPException, ValueError, RecursionError) as error:
        said = said_by(server, str(error) or type(error).__name__)
        message = f"the server at {root} sent an invalid answer: {said}"
        raise TrafficError(message, hint=LOG_HINT) from error


def of_status(server: Endpoint, status: int, message: str) -> TrafficError:
    """An answer other than 200. `message` is what the server said, as it said it."""
    root, said = server.root, said_by(server, message)
    if status in {401, 403}:
        what = "refused the key" if server.api_key else "wants an API key"
        return TrafficError(f"the server at {root} {what} ({status})", hint=KEY_HINT)
    if status in {404, 405}:
        return no_api(server)
    if status in {400, 422}:
        kind = NoChatTemplate if "chat template" in message.lower() else RequestRefused
        return kind(f"the server does not take this request: {said}")
    if 300 <= status < 400:
        return TrafficError(f"{root} redirects ({status})", hint="use the address it redirects to")
    return TrafficError(f"the server at {root} failed ({status}): {said}", hint=LOG_HINT)


def no_api(server: Endpoint) -> TrafficError:
    """Something listens there, and it is not such a server."""
    return TrafficError(f"there is no OpenAI API at {server.root}/v1", hint=_ADDRESS_HINT)


def message_in(text: str) -> str:
    """What the body of an error says: vLLM's `{"error": {"message": …}}`, or else the body."""
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        found = json.loads(text)
        found = found.get("error", found)
        found = found if isinstance(found, str) else found.get("message") or found["detail"]
        return found if isinstance(found, str) else text
    return text


def said_by(server: Endpoint, text: str) -> str:
    """What it said, without the key that it may have echoed."""
    text = text[:_MOST_QUOTED]
    return shown(redacted(text.replace(server.api_key, "***") if server.api_key else text))


def shown(text: str) -> str:
    """Text from elsewhere on one short line, without anything that a terminal would obey."""
    words = text[:_MOST_QUOTED].split()
    line = "".join(mark if mark.isprintable() else "?" for mark in " ".join(words))
    return line if len(line) <= _LIMIT else f"{line[:_LIMIT]}…"
