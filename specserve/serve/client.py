"""One streamed request to a server, and what it cost. Prints nothing."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from specserve.errors import FactError, TrafficError
from specserve.files import read_start
from specserve.metrics.counters import Acceptance, of_request, since_by_engine
from specserve.metrics.prometheus import Metrics, read
from specserve.serve import requests
from specserve.serve.requests import Endpoint, Exchange, scrape

Mode = Literal["chat", "completion"]
Kind = Literal["text", "reasoning"]
OnText = Callable[[Kind, str], None]
_CONNECT_S, _READ_S, _METRICS_S = 5.0, 600.0, 2.0
_SHORT_S, _ANSWER_S = 10.0, 3600.0
"""All of an answer that needs no model, and of one that a model writes."""
_HERE = ("127.0.0.1", "::1", "localhost")
_SHORT_BYTES, _STREAM_BYTES = 4 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """One request; None leaves the choice to the server."""

    prompt: str
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None


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
    speculation: SpeculationCounts = field(default_factory=lambda: SpeculationCounts(None))

    @property
    def tokens_per_s(self) -> float | None:
        """Decoding speed: the tokens after the first over the time after the first."""
        if self.completion_tokens is None or self.ttft_s is None or self.last_token_s is None:
            return None
        seconds = self.last_token_s - self.ttft_s
        return (
            (self.completion_tokens - 1) / seconds
            if self.completion_tokens > 1 and seconds > 0
            else None
        )


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """Whether the server speculates (None: it does not tell), and what was accepted."""

    is_on: bool | None
    acceptance: Acceptance | None = None
    basis: Literal["request", "counters"] | None = None
    """`request`: the server counted this one alone; `counters`: what all its counters gained."""
    other_requests: int = 0
    """Requests of others that ran meanwhile, and whose tokens the counters hold too."""


class Client:
    """Requests to one server; a context manager. Every failure is a TrafficError with a way out.

    Each request has a connection of its own: vLLM closes idle ones, and a request that meets the
    end is lost. Nothing of the environment reaches the server, and no proxy is used.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._open: set[Exchange] = set()
        self._is_closed = False

    @property
    def root(self) -> str:
        """Where the server is, without `/v1`."""
        return self._endpoint.root

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Break off whatever runs."""
        self._is_closed = True
        for exchange in tuple(self._open):
            exchange.shut()

    def models(self) -> dict[str, dict[str, Any]]:
        """What the server says about its models, by name."""
        with self._sent("/v1/models", limit_s=_SHORT_S) as exchange:
            answer = json.loads(b"".join(exchange.pieces))
            try:
                return {str(model["id"]): dict(model) for model in answer["data"]}
            except (ValueError, LookupError, TypeError):
                raise requests.no_api(self._endpoint) from None

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

    def note(self, model: str) -> str | None:
        """What the model's folder says about it, if the server is on this host and names one."""
        if urlsplit(self.root).hostname not in _HERE:
            return None
        folder = self.models().get(model, {}).get("root")
        data = read_start(Path(folder) / "NOTE.txt", 500) if isinstance(folder, str) else b""
        return " ".join(data.decode(errors="replace").split()) or None

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        model: str | None = None,
        most_bytes: int = _SHORT_BYTES,
    ) -> dict[str, Any]:
        """One request below `/v1/` whose answer comes whole. May be called by several threads.

        Raises requests.RequestRefused if the server does not take the request, else TrafficError.
        """
        with self._sent(f"/v1/{path}", body, model=model, most_bytes=most_bytes) as exchange:
            answer = json.loads(b"".join(exchange.pieces))
            if not isinstance(answer, dict):
                raise requests.no_api(self._endpoint)
            return answer

    def metrics(self) -> Metrics | None:
        """The server's counters; None if it shows none."""
        try:
            return read(scrape(Endpoint(self.root), timeout_s=_METRICS_S))
        except (TrafficError, FactError):
            return None

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

    def ask(self, question: Question, *, on_text: OnText) -> Answer:
        """Send one request and hand on its text as it comes: a chat, if the model can do that."""
        model = question.model or self.first_model()
        before = self.metrics()
        try:
            answer, summary = self._stream(question, model, "chat", on_text=on_text)
        except requests.NoChatTemplate:
            answer, summary = self._stream(question, model, "completion", on_text=on_text)
        answer.speculation = self._speculation(summary, before)
        return answer

    def _stream(
        self, question: Question, model: str, mode: Mode, *, on_text: OnText
    ) -> tuple[Answer, object]:
        body: dict[str, Any] = {
            name: value
            for name in ("max_tokens", "temperature")
            if (value := getattr(question, name)) is not None
        }
        body |= {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        path = "/v1/chat/completions" if mode == "chat" else "/v1/completions"
        if mode == "chat":
            body["messages"] = [{"role": "user", "content": question.prompt}]
        else:
            body["prompt"] = question.prompt
        answer, summary = Answer(model=model, mode=mode), None
        said: dict[Kind, list[str]] = {"text": [], "reasoning": []}
        started = time.perf_counter()
        with self._sent(path, body, model=model, most_bytes=_STREAM_BYTES) as exchange:
            for event in _events(exchange.pieces):
                if "error" in event:
                    raise requests.failed_midway(self._endpoint, event)
                for kind, text in _texts(event, mode):
                    answer.last_token_s = time.perf_counter() - started
                    answer.ttft_s = answer.ttft_s or answer.last_token_s
                    said[kind].append(text)
                    on_text(kind, text)
                summary = _take_figures(answer, event) or summary
        answer.text, answer.reasoning = "".join(said["text"]), "".join(said["reasoning"])
        if answer.finish_reason is None:
            hint = "the server's log may show why"
            raise TrafficError("the answer ended without a finish reason", hint=hint)
        return answer, summary

    def _speculation(self, summary: object, before: Metrics | None) -> SpeculationCounts:
        counted = of_request(summary)
        if counted is not None:
            return SpeculationCounts(True, counted, "request")
        if before is None or not before.speculates:
            return SpeculationCounts(None if before is None else False)
        after = self.metrics_after(before)
        if after is None:
            return SpeculationCounts(True)
        finished = after.total.finished_requests - before.total.finished_requests
        return SpeculationCounts(
            is_on=True,
            acceptance=since_by_engine(before.acceptance, now=after.acceptance),
            basis="counters",
            other_requests=max(finished - 1, 0) + after.running_requests,
        )

    @contextlib.contextmanager
    def _sent(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        model: str | None = None,
        most_bytes: int = _SHORT_BYTES,
        limit_s: float | None = None,
    ) -> Iterator[Exchange]:
        """A good answer as it comes, within bounds; what goes wrong is a TrafficError."""
        exchange = Exchange(f"{self.root}{path}", most_bytes, limit_s or _ANSWER_S)
        text = None if body is None else json.dumps(dict(body))
        self._open.add(exchange)
        if self._is_closed:
            exchange.shut()
        try:
            with (
                requests.failing(self._endpoint),
                exchange.opened(
                    connect_s=_CONNECT_S, read_s=_READ_S, key=self._endpoint.api_key, body=text
                ),
            ):
                if not 200 <= exchange.status < 300:
                    exchange.most_bytes = _SHORT_BYTES
                    said = b"".join(exchange.pieces).decode(errors="replace")
                    said = requests.message_in(said)
                    raise requests.of_status(self._endpoint, exchange.status, said, model=model)
                yield exchange
        finally:
            self._open.discard(exchange)


def _events(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events, up to `[DONE]`. Raises ValueError."""
    rest, data = b"", list[bytes]()
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            if name == b"data":
                data.append(value.strip())
            elif not line.strip() and data:
                text, data = b"\n".join(data), []
                if text == b"[DONE]":
                    return
                event = json.loads(text)
                if not isinstance(event, dict):
                    raise ValueError(f"an event is {type(event).__name__} instead of an object")
                yield event


def _texts(event: Mapping[str, Any], mode: Mode) -> Iterator[tuple[Kind, str]]:
    """The text of one event. A server is not trusted to send what the API declares."""
    for choice in _choices(event):
        delta = choice if mode == "completion" else choice.get("delta")
        found: tuple[tuple[Kind, str], ...] = (
            ("reasoning", _text(delta, "reasoning") or _text(delta, "reasoning_content")),
            ("text", _text(delta, "text" if mode == "completion" else "content")),
        )
        yield from ((kind, text) for kind, text in found if text)


def _choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _text(holder: object, name: str) -> str:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else ""


def _take_figures(answer: Answer, chunk: Mapping[str, Any]) -> object:
    """Finish reason and usage go into the answer; the summary of speculation is returned."""
    for choice in _choices(chunk):
        answer.finish_reason = _text(choice, "finish_reason") or answer.finish_reason
    usage, metrics = chunk.get("usage"), chunk.get("metrics")
    for name in ("prompt_tokens", "completion_tokens"):
        if isinstance(usage, dict) and isinstance(count := usage.get(name), int):
            setattr(answer, name, count)
    return metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
