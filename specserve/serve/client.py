"""One streamed request to a server, and what it cost. Prints nothing."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specserve.errors import FactError, SpecserveError, TrafficError
from specserve.metrics.counters import Acceptance, of_request, since_by_engine
from specserve.metrics.prometheus import Metrics, read
from specserve.serve import requests
from specserve.serve.requests import Endpoint, Reading, scrape

Mode = Literal["chat", "completion"]
Kind = Literal["text", "reasoning"]
OnText = Callable[[Kind, str], None]
_CONNECT_S, _READ_S, _METRICS_S = 5.0, 600.0, 2.0
_SHORT_S, _ANSWER_S = 10.0, 3600.0
"""All of an answer that needs no model, and of one that a model writes."""
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
        return (self.completion_tokens - 1) / seconds if self.completion_tokens > 1 and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """Whether the server speculates (None: it does not tell), and what was accepted."""

    is_on: bool | None
    acceptance: Acceptance | None = None
    basis: Literal["request", "counters"] | None = None
    """`request`: the server counted this one alone; `counters`: what all its counters gained meanwhile."""
    other_requests: int = 0
    """Requests of others that ran meanwhile, and whose tokens the counters hold too."""


class Client:
    """Requests to one server; a context manager. Every failure is a TrafficError with a way out.

    Each request has a connection of its own: vLLM closes idle ones, and a request that meets the end is lost.
    Nothing of the environment reaches the server, and no proxy is used.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._readings: set[Reading] = set()
        self._is_closed = False

    @property
    def root(self) -> str:
        """Where the server is, without `/v1`."""
        return self._endpoint.root

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def models(self) -> list[str]:
        """The names that the server serves."""
        return list(self._listed())

    def max_model_len(self, model: str) -> int | None:
        """The most tokens that a request to this model may have; None if the server does not say."""
        limit = self._about(model).get("max_model_len")
        return limit if isinstance(limit, int) and limit > 0 else None

    def note(self, model: str) -> str | None:
        """What the model's folder says about it, if the server runs on this host and serves a folder."""
        from specserve.models.read import model_note

        root = self._about(model).get("root") if self._endpoint.is_loopback else None
        return model_note(Path(root)) if isinstance(root, str) else None

    def _about(self, model: str) -> dict[str, Any]:
        """What the server says about a model; nothing if it lists none."""
        with contextlib.suppress(TrafficError):
            return self._listed().get(model, {})
        return {}

    def _listed(self) -> dict[str, dict[str, Any]]:
        """What the server says about its models, by name."""
        answer = self._whole("/v1/models", limit_s=_SHORT_S)
        try:
            return {str(model["id"]): dict(model) for model in answer["data"]}
        except (ValueError, LookupError, TypeError):
            raise requests.no_api(self._endpoint) from None

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        model: str | None = None,
        most_bytes: int = _SHORT_BYTES,
    ) -> dict[str, Any]:
        """One request below `/v1/` whose answer comes whole. May be called by several threads at once.

        Raises requests.RequestRefused if the server does not take the request, else TrafficError.
        """
        answer = self._whole(f"/v1/{path}", body, model=model, most_bytes=most_bytes)
        if not isinstance(answer, dict):
            raise requests.no_api(self._endpoint)
        return answer

    def close(self) -> None:
        """Break off whatever runs."""
        self._is_closed = True
        for reading in tuple(self._readings):
            reading.shut()

    def metrics(self) -> Metrics | None:
        """The server's counters; None if it shows none."""
        try:
            return read(scrape(replace(self._endpoint, api_key=None), timeout_s=_METRICS_S))
        except (TrafficError, FactError):
            return None

    def ask(self, question: Question, *, on_text: OnText) -> Answer:
        """Send one request and hand on its text as it comes: a chat, if the model has a template for it."""
        model = question.model or self.first_model()
        before = self.metrics()
        try:
            answer, summary = self._stream(question, model, "chat", on_text=on_text)
        except requests.NoChatTemplate:
            answer, summary = self._stream(question, model, "completion", on_text=on_text)
        answer.speculation = self._speculation(summary, before)
        return answer

    def first_model(self) -> str:
        """The name that a request without a model is sent to. Raises TrafficError if the server serves none."""
        models = self.models()
        if not models:
            raise TrafficError(f"the server at {self._endpoint.root} serves no model")
        return models[0]

    def _stream(
        self, question: Question, model: str, mode: Mode, *, on_text: OnText
    ) -> tuple[Answer, object]:
        answer, summary = Answer(model=model, mode=mode), None
        said: dict[Kind, list[str]] = {"text": [], "reasoning": []}
        started = time.perf_counter()
        with contextlib.closing(self._events(question, model, mode)) as stream:
            for chunk in stream:
                pieces = [(kind, text) for kind, text in _pieces(chunk, mode) if text]
                if pieces:
                    answer.last_token_s = time.perf_counter() - started
                    answer.ttft_s = answer.ttft_s or answer.last_token_s
                for kind, text in pieces:
                    said[kind].append(text)
                    on_text(kind, text)
                summary = _take_figures(answer, chunk) or summary
        answer.text, answer.reasoning = "".join(said["text"]), "".join(said["reasoning"])
        if answer.finish_reason is None:
            raise TrafficError(
                "the answer ended without a finish reason", hint="the server's log may show why"
            )
        return answer, summary

    def _events(self, question: Question, model: str, mode: Mode) -> Generator[dict[str, Any], None, None]:
        body: dict[str, Any] = {
            name: value
            for name in ("max_tokens", "temperature")
            if (value := getattr(question, name)) is not None
        }
        body |= {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        path = "/v1/completions" if mode == "completion" else "/v1/chat/completions"
        if mode == "completion":
            body["prompt"] = question.prompt
        else:
            body["messages"] = [{"role": "user", "content": question.prompt}]
        with self._sent(path, body, model=model, most_bytes=_STREAM_BYTES) as pieces:
            for event in _events(pieces):
                if "error" in event:
                    raise requests.failed_midway(self._endpoint, event)
                yield event

    def _speculation(self, summary: object, before: Metrics | None) -> SpeculationCounts:
        counted = of_request(summary)
        if counted is not None:
            return SpeculationCounts(True, counted, "request")
        if before is None:
            return SpeculationCounts(None)
        if not before.speculates:
            return SpeculationCounts(False)
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

    def metrics_after(self, before: Metrics, *, requests: int = 1, limit_s: float = 1.0) -> Metrics | None:
        """The counters once they hold our requests: the server adds one a moment after its last chunk."""
        deadline, wanted = time.monotonic() + limit_s, before.total.finished_requests + requests
        while after := self.metrics():
            if after.total.finished_requests >= wanted or time.monotonic() > deadline:
                return after
            time.sleep(0.02)
        return None

    def _whole(self, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The JSON of an answer that comes whole; `options` as those of `_sent`."""
        with self._sent(path, body, **options) as pieces:
            return json.loads(b"".join(pieces))

    @contextlib.contextmanager
    def _sent(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        model: str | None = None,
        most_bytes: int = _SHORT_BYTES,
        limit_s: float | None = None,
    ) -> Iterator[Iterator[bytes]]:
        """The bytes of a good answer as they come, within bounds; what goes wrong is a TrafficError."""
        try:
            with requests.sent(
                f"{self._endpoint.root}{path}",
                key=self._endpoint.api_key if path.startswith("/v1/") else None,
                body=None if body is None else json.dumps(dict(body)),
                connect_s=_CONNECT_S,
                read_s=_READ_S,
                limit_s=limit_s or _ANSWER_S,
                most_bytes=most_bytes,
                on_reading=self._register,
            ) as (status, pieces, reading):
                try:
                    if not 200 <= status < 300:
                        reading.most_bytes = _SHORT_BYTES
                        said = requests.message_in(b"".join(pieces).decode(errors="replace"))
                        raise requests.of_status(self._endpoint, status, said, model=model)
                    yield pieces
                finally:
                    self._readings.discard(reading)
        except SpecserveError:
            raise
        except Exception as error:
            failure = requests.of_exception(self._endpoint, error)
            if failure is None:
                raise
            raise failure from error

    def _register(self, reading: Reading) -> None:
        """Called before it connects, and again when it has: `close` may come in between."""
        self._readings.add(reading)
        if self._is_closed:
            reading.shut()


def _events(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events, up to `[DONE]`. Raises ValueError for one that is no object."""
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


def _pieces(chunk: Mapping[str, Any], mode: Mode) -> Iterator[tuple[Kind, str]]:
    """The text of one chunk. A server is not trusted to send what the API declares."""
    for choice in _choices(chunk):
        if mode == "completion":
            yield "text", _text(choice, "text")
        else:
            delta = choice.get("delta")
            yield "reasoning", _text(delta, "reasoning") or _text(delta, "reasoning_content")
            yield "text", _text(delta, "content")


def _choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _text(holder: object, name: str) -> str:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else ""


def _take_figures(answer: Answer, chunk: Mapping[str, Any]) -> object:
    """Finish reason and usage go into the answer; the summary of speculation, if it is there, is returned."""
    for choice in _choices(chunk):
        answer.finish_reason = _text(choice, "finish_reason") or answer.finish_reason
    usage, metrics = chunk.get("usage"), chunk.get("metrics")
    for name in ("prompt_tokens", "completion_tokens"):
        if isinstance(usage, dict) and isinstance(count := usage.get(name), int):
            setattr(answer, name, count)
    return metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
