"""One streamed request to a server, through the `openai` client, and what it cost. Prints nothing."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
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
_HEADERS = frozenset(
    ("accept", "accept-encoding", "connection", "content-length", "content-type", "host", "user-agent")
)
_CONNECT_S, _READ_S, _METRICS_S = 5.0, 600.0, 2.0
_SHORT_S, _ANSWER_S = 10.0, 3600.0
"""All of an answer that needs no model, and of one that a model writes."""
_SHORT_BYTES, _STREAM_BYTES = 4 << 20, 64 << 20
_READING: ContextVar[Reading] = ContextVar("_READING")
"""The answer that this thread reads."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request; None leaves the choice to the server."""

    prompt: str
    mode: Mode | None = None
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


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
    """A connection to one server; a context manager. Every failure is a TrafficError with a way out.

    Nothing of the environment reaches the server: no `OPENAI_*` variable, and for loopback no proxy.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        import openai

        library = import_module(openai.DefaultHttpxClient.__mro__[1].__module__)  # httpx, or what followed it
        self._endpoint = endpoint
        with _without_openai_variables():
            self._http = openai.DefaultHttpxClient(
                trust_env=not endpoint.is_loopback,
                follow_redirects=False,
                timeout=openai.Timeout(_READ_S, connect=_CONNECT_S),
                # no connection is used twice: vLLM closes idle ones, and a request that meets the end is lost
                limits=library.Limits(max_keepalive_connections=0),
                event_hooks={
                    "request": [self._only_what_was_asked_for, _watch_connection],
                    "response": [self._end_if_closed, partial(_count_bytes, library.SyncByteStream)],
                },
            )
            self._openai = openai.OpenAI(
                api_key="none", base_url=endpoint.api, max_retries=0, http_client=self._http
            )

    @property
    def root(self) -> str:
        """Where the server is, without `/v1`."""
        return self._endpoint.root

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _only_what_was_asked_for(self, request: Any) -> None:
        """The client library adds headers, also from the environment; a list of what may pass is safer."""
        for name in list(request.headers.keys()):
            if name.lower() not in _HEADERS:
                del request.headers[name]
        if self._endpoint.api_key and str(request.url).startswith(f"{self._endpoint.api}/"):
            request.headers["Authorization"] = f"Bearer {self._endpoint.api_key}"

    def _end_if_closed(self, response: Any) -> None:
        """A connection that was still being opened while another thread called `close` ends here."""
        if self._http.is_closed:
            response.extensions["network_stream"].close()

    def models(self) -> list[str]:
        """The names that the server serves."""
        return list(self._listed())

    def max_model_len(self, model: str) -> int | None:
        """The most tokens that a request to this model may have; None if the server does not say."""
        limit = self._about(model).get("max_model_len")
        return limit if isinstance(limit, int) and limit > 0 else None

    def is_sglang(self, model: str) -> bool:
        """Whether SGLang serves the model, as its list of models says.

        Source: srt/entrypoints/openai/protocol.py 0.5.23, `ModelCard.owned_by`.
        """
        return self._about(model).get("owned_by") == "sglang"

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
        with self._reading("/v1/models", limit_s=_SHORT_S):
            answer = _content(self._openai.get("/models", cast_to=object))
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
        with self._reading(f"/v1/{path}", model=model, most_bytes=most_bytes):
            answer = _content(self._openai.post(f"/{path}", cast_to=object, body=dict(body)))
            if not isinstance(answer, dict):
                raise requests.no_api(self._endpoint)
            return answer

    def count_tokens(self, body: Mapping[str, Any]) -> int | None:
        """How many tokens a request's `prompt` or `messages` are, by vLLM's `/tokenize`; None if it cannot tell."""
        # what is not a JSON object with a count is a server that cannot count
        reading = self._reading("/tokenize", limit_s=_SHORT_S)
        with contextlib.suppress(TrafficError, LookupError, TypeError), reading:
            url = f"{self._endpoint.root}/tokenize"
            answer = _content(self._openai.post(url, cast_to=object, body=dict(body)))
            count = answer["count"]
            return count if isinstance(count, int) and count >= 0 else None
        return None

    def close(self) -> None:
        """Break off whatever runs."""
        self._http.close()

    def metrics(self) -> Metrics | None:
        """The server's counters; None if it shows none."""
        try:
            return read(scrape(replace(self._endpoint, api_key=None), timeout_s=_METRICS_S))
        except (TrafficError, FactError):
            return None

    def ask(self, question: Question, *, on_text: OnText) -> Answer:
        """Send one request and hand on its text as it comes. Without a mode: chat, if the model has a template."""
        model = question.model or self.first_model()
        before = self.metrics()
        try:
            answer, summary = self._stream(question, model, question.mode or "chat", on_text=on_text)
        except requests.NoChatTemplate:
            if question.mode is not None:
                raise
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
        path = "/v1/completions" if mode == "completion" else "/v1/chat/completions"
        with self._reading(path, model=model, most_bytes=_STREAM_BYTES):
            started = time.perf_counter()
            with self._create(question, model, mode) as stream:
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

    def _create(self, question: Question, model: str, mode: Mode) -> Any:
        options: dict[str, Any] = {
            name: value
            for name in ("max_tokens", "temperature", "seed")
            if (value := getattr(question, name)) is not None
        }
        options |= {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        if mode == "completion":
            return self._openai.completions.create(prompt=question.prompt, **options)
        messages: Any = [{"role": "user", "content": question.prompt}]
        return self._openai.chat.completions.create(messages=messages, **options)

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

    @contextlib.contextmanager
    def _reading(
        self,
        path: str,
        *,
        model: str | None = None,
        most_bytes: int = _SHORT_BYTES,
        limit_s: float | None = None,
    ) -> Iterator[None]:
        """One request, within bounds of bytes and time; what goes wrong is a TrafficError."""
        url, limit_s = f"{self._endpoint.root}{path}", limit_s or _ANSWER_S
        try:
            with requests.bounded(url, most_bytes=most_bytes, limit_s=limit_s) as reading:
                token = _READING.set(reading)
                try:
                    yield
                finally:
                    _READING.reset(token)
        except SpecserveError:
            raise
        except Exception as error:
            failure = requests.of_exception(self._endpoint, error, model=model)
            if failure is None:
                raise
            raise failure from error


def _watch_connection(request: Any) -> None:
    """Have the HTTP library tell by which socket an answer comes, so that its time can end."""
    reading = _READING.get()

    def trace(_event: str, info: Mapping[str, Any]) -> None:
        about = getattr(info.get("return_value"), "get_extra_info", None)
        if about is not None:
            reading.connected(about("socket"))

    request.headers["Accept-Encoding"] = "identity"
    request.extensions["trace"] = trace


def _count_bytes(base: type, response: Any) -> None:
    """Count the bytes of an answer as they come. `base`: the HTTP library's class of streams."""
    reading, pieces = _READING.get(), response.stream
    reading.refuse_encoding(response.headers.get("Content-Encoding"))
    if response.status_code != 200:
        reading.most_bytes = _SHORT_BYTES
    is_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")
    count = reading.count_events if is_stream else reading.count

    class Counted(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            for piece in pieces:
                count(piece)
                yield piece

        def close(self) -> None:
            pieces.close()

    response.stream = Counted()


def _content(answer: object) -> Any:
    """An answer; the client library leaves one as text whose header does not call it JSON."""
    return json.loads(answer) if isinstance(answer, str) else answer


def _pieces(chunk: Any, mode: Mode) -> Iterator[tuple[Kind, str]]:
    """The text of one chunk. A server is not trusted to send what the client library declares."""
    for choice in getattr(chunk, "choices", None) or ():
        if mode == "completion":
            yield "text", _text(choice, "text")
        else:
            delta = getattr(choice, "delta", None)
            yield "reasoning", _text(delta, "reasoning") or _text(delta, "reasoning_content")
            yield "text", _text(delta, "content")


def _text(holder: object, name: str) -> str:
    value = getattr(holder, name, None)
    return value if isinstance(value, str) else ""


def _take_figures(answer: Answer, chunk: Any) -> object:
    """Finish reason and usage go into the answer; the summary of speculation, if it is there, is returned."""
    for choice in getattr(chunk, "choices", None) or ():
        answer.finish_reason = _text(choice, "finish_reason") or answer.finish_reason
    usage = getattr(chunk, "usage", None)
    for name in ("prompt_tokens", "completion_tokens"):
        if isinstance(count := getattr(usage, name, None), int):
            setattr(answer, name, count)
    metrics = getattr(chunk, "metrics", None)
    return metrics.get("speculative_decoding") if isinstance(metrics, dict) else None


@contextlib.contextmanager
def _without_openai_variables() -> Iterator[None]:
    """The client library takes what it is not given from `OPENAI_*`: keys, organisation, headers."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OPENAI_")}
    try:
        yield
    finally:
        os.environ.update(kept)
