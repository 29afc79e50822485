"""One streamed request to a server, and what it cost. Prints nothing."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specserve.errors import TrafficError
from specserve.metrics import Acceptance, Metrics, since_by_engine
from specserve.serve import requests
from specserve.serve.requests import Endpoint

Mode = Literal["chat", "completion"]
Kind = Literal["text", "reasoning"]
OnText = Callable[[Kind, str], None]
_READ_S, _SHORT_S, _ANSWER_S = 600.0, 10.0, 3600.0
"""A wait for more; all of an answer that needs no model, and of one that a model writes."""
_SHORT_BYTES, _STREAM_BYTES = 4 << 20, 64 << 20


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

    Each request has a connection of its own: vLLM closes idle ones, and a request that meets the
    end is lost. Nothing of the environment reaches the server, and no proxy is used.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.root = endpoint.root

    def models(self) -> dict[str, dict[str, Any]]:
        """What the server says about its models, by name."""
        with self._sent("/v1/models", limit_s=_SHORT_S) as pieces:
            answer = json.loads(b"".join(pieces))
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

    def post(
        self, path: str, body: Mapping[str, Any], *, most_bytes: int = _SHORT_BYTES
    ) -> dict[str, Any]:
        """One request below `/v1/` whose answer comes whole. May be called by several threads.

        Raises requests.RequestRefused if the server does not take the request, else TrafficError.
        """
        with self._sent(f"/v1/{path}", body, most_bytes=most_bytes) as pieces:
            answer = json.loads(b"".join(pieces))
            if not isinstance(answer, dict):
                raise requests.no_api(self._endpoint)
            return answer

    def metrics(self) -> Metrics | None:
        """The server's counters; None if it shows none."""
        return requests.metrics(self.root)

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
        except requests.NoChatTemplate:
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
        with self._sent(path, body, most_bytes=_STREAM_BYTES) as pieces:
            for event in _events(pieces):
                if "error" in event:
                    why = requests.message_in(json.dumps(event))
                    why = requests.said_by(self._endpoint, why)
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
            raise TrafficError(message, hint=requests.LOG_HINT)
        return answer

    @contextlib.contextmanager
    def _sent(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        most_bytes: int = _SHORT_BYTES,
        limit_s: float | None = None,
    ) -> Iterator[Iterator[bytes]]:
        """A good answer as it comes, within bounds; what goes wrong is a TrafficError."""
        with requests.exchange(
            self._endpoint,
            path,
            body=None if body is None else json.dumps(dict(body)),
            most_bytes=most_bytes,
            limit_s=limit_s or _ANSWER_S,
            read_s=_READ_S,
        ) as (status, pieces):
            if not 200 <= status < 300:
                said = requests.message_in(b"".join(pieces).decode(errors="replace"))
                raise requests.of_status(self._endpoint, status, said)
            yield pieces


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
