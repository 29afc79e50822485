"""Where a server is, bounded HTTP requests to it, and one streamed answer with what it cost."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from specserve.errors import FactError, TrafficError, UsageError
from specserve.metrics import Acceptance, Metrics, read, since_by_engine
from specserve.profile.secrets import redacted

Mode = Literal["chat", "completion"]
Kind = Literal["text", "reasoning"]
OnText = Callable[[Kind, str], None]
MOST_BYTES, _STREAM_BYTES = 16 << 20, 64 << 20
"""vLLM with 64 engines writes about 3 MB of metrics."""
_CONNECT_S, _READ_S, _SHORT_S, _ANSWER_S = 5.0, 600.0, 10.0, 3600.0
"""A connection; a wait for more; all of an answer that needs no model, and of one by a model."""
_PATIENCE = 3  # times as long as the wait for any of an answer may all of it take
_LIMIT, _MOST_QUOTED = 300, 4096
_KEY_HINT = "set `VLLM_API_KEY` and name the URL; for a detached server, set its profile's variable"
_ADDRESS_HINT = "give the root URL of a vLLM server (SGLang's metrics need `--enable-metrics`)"
_LOG_HINT = "the server's log may show why"


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
        raise UsageError("the URL contains a user name or a password", hint=_KEY_HINT)
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
    body: Mapping[str, Any] | None = None,
    *,
    most_bytes: int = MOST_BYTES,
    limit_s: float | None = None,
    read_s: float | None = None,
    verify: bool = True,
) -> Iterator[Iterator[bytes]]:
    """GET, or POST of a JSON body, directly: no proxy, no redirect. Yields a good answer.

    `limit_s`: for all of it; `read_s`: limit to a wait for more; `verify`: check the certificate.
    Raises RequestRefused if the server does not take the request, else TrafficError, also for what
    is read of the answer meanwhile.
    """
    url, read_s, limit_s = f"{server.root}{path}", read_s or _READ_S, limit_s or _ANSWER_S
    ends_s = time.monotonic() + limit_s
    # of its own for each request: vLLM closes idle connections, and what meets the end is lost
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
        data = None if body is None else json.dumps(dict(body))
        connection.request("POST" if data else "GET", parts.path or "/", data, headers)
        response = stack.enter_context(connection.getresponse())
        if response.headers.get("Content-Encoding", "identity") != "identity":
            # a few of its bytes can be a thousand times as many
            raise unbounded("is compressed, which specserve did not ask for")
        if not 200 <= response.status < 300:
            said = _message_in(b"".join(pieces()).decode(errors="replace"))
            raise refusal(server, path, response.status, said)
        yield pieces()


@contextlib.contextmanager
def failing(server: Endpoint) -> Iterator[None]:
    """Raises TrafficError instead of what a socket, http.client or json raise."""
    root = server.root
    try:
        yield
    except ConnectionRefusedError as error:
        hint = "`specserve ps` lists detached servers; `specserve up` starts one"
        raise TrafficError(f"nothing listens at {root}", hint=hint) from error
    except TimeoutError as error:
        raise TrafficError(f"the server at {root} has sent nothing for too long") from error
    except OSError as error:
        raise TrafficError(f"cannot reach {root}: {_said_by(server, str(error))}") from error
    except (http.client.HTTPException, ValueError, RecursionError) as error:
        said = _said_by(server, str(error) or type(error).__name__)
        message = f"the server at {root} sent an invalid answer: {said}"
        raise TrafficError(message, hint=_LOG_HINT) from error


def refusal(server: Endpoint, path: str, status: int, message: str) -> TrafficError:
    """An answer other than 2xx. `message` is what the server said, as it said it."""
    root, said = server.root, _said_by(server, message)
    if status in {401, 403}:
        what = "refused the key" if server.api_key else "wants an API key"
        return TrafficError(f"the server at {root} {what} ({status})", hint=_KEY_HINT)
    if status in {404, 405}:
        return TrafficError(f"there is no `{path}` at {root} ({status})", hint=_ADDRESS_HINT)
    if status in {400, 422}:
        kind = NoChatTemplate if "chat template" in message.lower() else RequestRefused
        return kind(f"the server does not take this request: {said}")
    if 300 <= status < 400:
        return TrafficError(f"{root} redirects ({status})", hint="use the address it redirects to")
    return TrafficError(f"the server at {root} failed ({status}): {said}", hint=_LOG_HINT)


def _message_in(text: str) -> str:
    """What the body of an error says: vLLM's `{"error": {"message": …}}`, or else the body."""
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        found = json.loads(text)
        found = found.get("error", found)
        found = found if isinstance(found, str) else found.get("message") or found["detail"]
        return found if isinstance(found, str) else text
    return text


def _said_by(server: Endpoint, text: str) -> str:
    """What it said, without the key that it may have echoed."""
    text = text[:_MOST_QUOTED]
    return shown(redacted(text.replace(server.api_key, "***") if server.api_key else text))


def shown(text: str) -> str:
    """Text from elsewhere on one short line, without anything that a terminal would obey."""
    words = text[:_MOST_QUOTED].split()
    line = "".join(mark if mark.isprintable() else "?" for mark in " ".join(words))
    return line if len(line) <= _LIMIT else f"{line[:_LIMIT]}…"


def fetch(url: str, path: str, *, timeout_s: float) -> str:
    """The text of a GET that needs no key, such as `/metrics`. Raises TrafficError."""
    limit_s, verify = _PATIENCE * timeout_s, path != "/health"  # which asks our own child
    server = Endpoint(url)
    with exchange(server, path, limit_s=limit_s, read_s=timeout_s, verify=verify) as pieces:
        return b"".join(pieces).decode(errors="replace")


def is_healthy(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether GET /health is answered well, whatever its certificate."""
    with contextlib.suppress(TrafficError):
        fetch(url, "/health", timeout_s=timeout_s)
        return True
    return False


def metrics(url: str, *, timeout_s: float = 2.0) -> Metrics | None:
    """The figures of GET /metrics; None if it says nothing that can be read."""
    with contextlib.suppress(TrafficError, FactError):
        return read(fetch(url, "/metrics", timeout_s=timeout_s))
    return None


@dataclass(slots=True)
class Answer:
    """What came back. Times in seconds from sending the request; None if the server did not say."""

    model: str
    mode: Mode
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    last_token_s: float | None = None
    speculates: bool | None = None
    acceptance: Acceptance | None = None
    """By what the server's counters gained meanwhile."""
    other_requests: int = 0
    """Requests of others that ran meanwhile, and whose tokens the counters hold too."""

    @property
    def tokens_per_s(self) -> float | None:
        """Decoding speed: the tokens after the first over the time after the first."""
        if self.completion_tokens is None or self.ttft_s is None or self.last_token_s is None:
            return None
        seconds, tokens = self.last_token_s - self.ttft_s, self.completion_tokens - 1
        return tokens / seconds if tokens > 0 and seconds > 0 else None


class Client:
    """Requests to one server. Every failure is a TrafficError with a way out.

    Nothing of the environment reaches the server. May be used by several threads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.root = endpoint.root

    def models(self) -> dict[str, dict[str, Any]]:
        """What the server says about its models, by name."""
        with exchange(self._endpoint, "/v1/models", limit_s=_SHORT_S) as pieces:
            answer = json.loads(b"".join(pieces))
            try:
                return {str(model["id"]): dict(model) for model in answer["data"]}
            except (ValueError, LookupError, TypeError):
                raise ValueError("`/v1/models` is no list of models") from None

    def first_model(self) -> str:
        """The name that a request without a model is sent to. Raises TrafficError without one."""
        if not (models := self.models()):
            raise TrafficError(f"the server at {self.root} serves no model")
        return next(iter(models))

    def max_model_len(self, model: str) -> int | None:
        """The most tokens that a request may have; None if the server does not say."""
        with contextlib.suppress(TrafficError):
            limit = self.models().get(model, {}).get("max_model_len")
            return limit if isinstance(limit, int) and limit > 0 else None
        return None

    def post(
        self, path: str, body: Mapping[str, Any], *, most_bytes: int = MOST_BYTES
    ) -> dict[str, Any]:
        """One request below `/v1/` whose answer comes whole."""
        with exchange(self._endpoint, f"/v1/{path}", body, most_bytes=most_bytes) as pieces:
            answer = json.loads(b"".join(pieces))
            if not isinstance(answer, dict):
                raise ValueError("it is no object")
            return answer

    def metrics(self) -> Metrics | None:
        """The server's counters; None if it shows none."""
        return metrics(self.root)

    def metrics_after(
        self, before: Metrics, *, requests: int = 1, limit_s: float = 1.0
    ) -> Metrics | None:
        """The counters once they hold our requests: the server adds one after its last chunk."""
        wanted = before.total.finished_requests + requests
        deadline = time.monotonic() + limit_s
        while after := self.metrics():
            if after.total.finished_requests >= wanted or time.monotonic() > deadline:
                return after
            time.sleep(0.02)
        return None

    def ask(self, prompt: str, *, on_text: OnText, **params: float | None) -> Answer:
        """Send one request and hand on its text as it comes: a chat, if the model can do that.

        `params`: sampling parameters; None leaves the choice to the server.
        """
        body: dict[str, Any] = {name: value for name, value in params.items() if value is not None}
        body |= {"model": self.first_model(), "stream": True}
        body["stream_options"] = {"include_usage": True}
        before = self.metrics()
        try:
            messages = [{"role": "user", "content": prompt}]
            answer = self._stream("chat", {**body, "messages": messages}, on_text)
        except NoChatTemplate:
            answer = self._stream("completion", {**body, "prompt": prompt}, on_text)
        answer.speculates = before.speculates if before is not None else None
        if before is not None and before.speculates and (after := self.metrics_after(before)):
            answer.acceptance = since_by_engine(before.acceptance, now=after.acceptance)
            finished = after.total.finished_requests - before.total.finished_requests
            answer.other_requests = max(finished - 1, 0) + after.running_requests
        return answer

    def _stream(self, mode: Mode, body: dict[str, Any], on_text: OnText) -> Answer:
        path = "/v1/chat/completions" if mode == "chat" else "/v1/completions"
        answer = Answer(model=body["model"], mode=mode)
        said: dict[Kind, list[str]] = {"text": [], "reasoning": []}
        started = time.perf_counter()
        with exchange(self._endpoint, path, body, most_bytes=_STREAM_BYTES) as pieces:
            for event in _events(pieces):
                if "error" in event:
                    why = _said_by(self._endpoint, _message_in(json.dumps(event)))
                    raise TrafficError(f"the server failed in the middle of the answer: {why}")
                for kind, text in _texts(event, answer):
                    answer.last_token_s = time.perf_counter() - started
                    answer.ttft_s = answer.ttft_s or answer.last_token_s
                    said[kind].append(text)
                    on_text(kind, text)
                usage = event.get("usage")
                for name in ("prompt_tokens", "completion_tokens"):
                    if isinstance(usage, dict) and isinstance(count := usage.get(name), int):
                        setattr(answer, name, count)
        answer.text, answer.reasoning = "".join(said["text"]), "".join(said["reasoning"])
        if answer.finish_reason is None:
            message = "the answer ended without a finish reason"
            raise TrafficError(message, hint=_LOG_HINT)
        return answer


def _events(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events, up to `[DONE]`. Raises ValueError."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":  # vLLM writes each event on one line
                if value.strip() == b"[DONE]":
                    return
                event = json.loads(value)
                if not isinstance(event, dict):
                    raise ValueError(f"an event is {type(event).__name__} instead of an object")
                yield event


def _texts(event: Mapping[str, Any], answer: Answer) -> Iterator[tuple[Kind, str]]:
    """The text of one event; a finish reason goes into the answer.

    A server is not trusted to send what the API declares.
    """
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            answer.finish_reason = _text(choice, "finish_reason") or answer.finish_reason
            delta = choice.get("delta") if answer.mode == "chat" else choice
            if text := _text(delta, "reasoning") or _text(delta, "reasoning_content"):
                yield "reasoning", text
            if text := _text(delta, "content" if answer.mode == "chat" else "text"):
                yield "text", text


def _text(holder: object, name: str) -> str:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else ""
