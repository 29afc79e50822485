"""Requests to the Hub, with bounds: on the time, on the bytes, and on what an answer may claim. Knows no model file.

The session, the token and the proxies are those of huggingface_hub; its own download functions have no bound on the
whole and would read an answer of any length into memory.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from specserve.errors import FactError, GatedModel, HubUnreachable, ModelNotFound

DEFAULT_TIMEOUT_S = 10.0
_TOTAL = 12
"""The whole of one model may take so many times the timeout of a single answer."""
_WORKERS = 12
_RETRY_PAUSE_S = 0.3
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    body: bytes
    headers: Mapping[str, str]
    status: int


def timeout_s() -> float:
    """How long the Hub may be silent, in seconds: HF_HUB_DOWNLOAD_TIMEOUT, the Hub library's own variable."""
    text = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    return float(text) if text.isdigit() and 0 < int(text) <= 3600 else DEFAULT_TIMEOUT_S


def deadline() -> float:
    """When the reading of one model that begins now is given up, on time.monotonic."""
    return time.monotonic() + _TOTAL * timeout_s()


def api_url(model: str, *, revision: str) -> str:
    """Where the Hub describes a revision of a model with its files."""
    return f"{_endpoint()}/api/models/{model}/revision/{quote(revision, safe='')}?blobs=true"


def file_url(model: str, *, commit: str, name: str) -> str:
    """Where the Hub has a file of a commit."""
    return f"{_endpoint()}/{model}/resolve/{commit}/{quote(name)}"


def _endpoint() -> str:
    """HF_ENDPOINT of the environment, and of nothing else: it is sent the token."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def fetch(url: str, *, limit_bytes: int, first: int | None = None, last: int | None = None) -> Reply:
    """The answer to a GET request, of the bytes from `first` to `last` if they are given.

    Raises HubUnreachable, GatedModel, ModelNotFound; FactError where the answer is longer than the limit.
    """
    for attempt in (1, 2):
        try:
            return _fetch(url, limit_bytes=limit_bytes, first=first, last=last)
        except _Passing as error:
            if attempt == 2:
                raise HubUnreachable(
                    f"the Hub answered {error.status} for {url}", hint="try again, or `--offline`"
                ) from error
            time.sleep(_RETRY_PAUSE_S)
    raise AssertionError("unreachable")


class _Passing(Exception):
    """An error that a second request may not meet."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _fetch(url: str, *, limit_bytes: int, first: int | None, last: int | None) -> Reply:
    headers = {**_headers(), "accept-encoding": "identity"}
    if first is not None and last is not None:
        headers["range"] = f"bytes={first}-{last}"
    with (
        _network(url),
        _session().stream(
            "GET", url, headers=headers, timeout=timeout_s(), follow_redirects=True
        ) as response,
    ):
        status = response.status_code
        if status in _PASSING:
            raise _Passing(status)
        if status not in (200, 206):
            raise _refusal(status, response.headers, url)
        wanted = limit_bytes if last is None or first is None else last - first + 1
        body = _body(response, limit_bytes=wanted, exact="range" not in headers, url=url)
        return Reply(body, response.headers, status)


def _body(response: Any, *, limit_bytes: int, exact: bool, url: str) -> bytes:
    """What came, and no more than was asked for: a server may ignore a range, or never end."""
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > limit_bytes:
            if exact:
                raise FactError(f"{url} is larger than {limit_bytes >> 20} MiB")
            return bytes(body[:limit_bytes])
    return bytes(body)


def _session() -> Any:
    from huggingface_hub import get_session

    return get_session()


def _headers() -> dict[str, str]:
    """The token of `hf auth login` or HF_TOKEN goes to the Hub, and nowhere else: a redirect elsewhere drops it."""
    from huggingface_hub import constants, get_token

    from specserve import __version__

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    identity = {"user-agent": f"specserve/{__version__}"}
    return {**identity, "authorization": f"Bearer {token}"} if token else identity


@contextmanager
def _network(url: str) -> Iterator[None]:
    """Turns what an HTTP library raises into HubUnreachable. The library differs by version of the Hub library."""
    from huggingface_hub.errors import HfHubHTTPError

    http_error: Any = HfHubHTTPError.__bases__[0]
    invalid_url: Any = getattr(__import__(http_error.__module__.partition(".")[0]), "InvalidURL", http_error)
    try:
        yield
    except (http_error, invalid_url, OSError, ValueError) as error:
        kind = type(error).__name__
        said = "a header cannot hold the token" if "header value" in str(error) else str(error) or kind
        words = "did not answer in time" if "Timeout" in kind else f"cannot be asked: {said}"
        raise HubUnreachable(
            f"the Hub at {_endpoint()} {words}", hint="check the network and HF_ENDPOINT, or use `--offline`"
        ) from error


def _refusal(status: int, headers: Mapping[str, str], url: str) -> FactError:
    code, words = headers.get("x-error-code", ""), headers.get("x-error-message", "")
    if code == "RevisionNotFound":
        return ModelNotFound(
            "the Hub has no such revision", hint="a branch, a tag or a commit of the repository"
        )
    if code == "EntryNotFound":
        return ModelNotFound(f"the Hub has no file {url}")
    if code == "GatedRepo" or status == 403:
        return GatedModel("the Hub does not give it to you: it is gated", hint=_GATED_HINT)
    if status == 401 and words.startswith("Invalid"):
        return GatedModel(
            "the Hub does not accept the token", hint="`hf auth login` writes a new one; see HF_TOKEN"
        )
    if status in (401, 404):
        hint = "check the name; a private repository needs HF_TOKEN, or `hf auth login`"
        return ModelNotFound("the Hub has no such repository, or does not show it to you", hint=hint)
    return HubUnreachable(f"the Hub answered {status} for {url}", hint="try again, or `--offline`")


_GATED_HINT = "accept the licence on its page, then run `hf auth login` or set HF_TOKEN"


def each(work: Callable[[_T], _R], items: Iterable[_T], *, until: float) -> dict[_T, _R | FactError]:
    """The work on each item, a dozen at a time; a FactError takes the place of a result.

    `until`: on time.monotonic. Raises HubUnreachable when it passes. The threads are daemons: one that hangs in
    the resolver, where no timeout reaches, must not keep the program alive.
    """
    waiting: queue.SimpleQueue[_T] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[_T, _R | FactError | BaseException]] = queue.SimpleQueue()
    items = list(items)
    for item in items:
        waiting.put(item)

    def run() -> None:
        while time.monotonic() < until:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((item, work(item)))
            except BaseException as error:
                done.put((item, error))

    for _ in range(min(_WORKERS, len(items))):
        threading.Thread(target=run, daemon=True).start()
    results: dict[_T, _R | FactError] = {}
    while len(results) < len(items):
        try:
            item, result = done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise HubUnreachable(
                f"the Hub at {_endpoint()} is too slow: not all was read in {_TOTAL * timeout_s():.0f} s",
                hint="try again, or `--offline`",
            ) from None
        if isinstance(result, BaseException) and not isinstance(result, FactError):
            raise result
        results[item] = result
    return results
