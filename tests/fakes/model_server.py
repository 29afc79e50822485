"""A server with a small, known language model behind vLLM's API: it speculates right, or wrong in a chosen way.

A token is a printable character; what follows depends on the last two. `/v1/completions` takes text or token ids.
"""

from __future__ import annotations

import json
import math
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from itertools import accumulate
from typing import Any

from loopback import served

LETTERS = "".join(map(chr, range(32, 127))) + "\n"
SIZE = 60
END = 0
"""The token that ends a text."""


class Clock:
    """The time of a verification: only what the servers' requests cost passes, however fast the machine is."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lock = threading.Lock()

    def monotonic(self) -> float:
        self.spend(1e-6)  # no two readings of a real one are equal
        return self.now_s

    def spend(self, seconds: float) -> None:
        with self.lock:
            self.now_s += seconds


CLOCK = Clock()


@lru_cache(maxsize=1 << 16)
def logprobs(before: tuple[int, ...], model: int) -> tuple[float, ...]:
    """The model's own log-probabilities of the next token; `model` is its weights."""
    rng = random.Random(f"{before[-2:]} {model}")
    logits = [rng.gauss(0.0, 2.0) for _ in range(SIZE)]
    logits[END] = -5.0
    top = max(logits)
    total = top + math.log(math.fsum(math.exp(value - top) for value in logits))
    return tuple(value - total for value in logits)


@lru_cache(maxsize=1 << 16)
def ranked(before: tuple[int, ...], model: int) -> tuple[int, ...]:
    """The tokens, the likeliest first."""
    values = logprobs(before, model)
    return tuple(sorted(range(SIZE), key=lambda token: -values[token]))


@lru_cache(maxsize=1 << 16)
def weights(before: tuple[int, ...], model: int, heat: float) -> tuple[float, ...]:
    """Running sums of what each of the ranked tokens weighs at a temperature."""
    values = logprobs(before, model)
    return tuple(accumulate(math.exp(values[token] / heat) for token in ranked(before, model)))


@dataclass
class Model:
    """What is served and what is wrong with it."""

    weights: int = 0
    name: str = "small"
    heat: float = 1.0
    """The temperature of sampled tokens is so many times the asked one."""
    wrong_every: int = 0
    """Every so many greedy tokens the second best comes."""
    stray_every: int = 0
    """Every so many tokens the least likely comes, at temperatures above 0."""
    max_model_len: int = 2000
    max_logprobs: int = 20
    has_template: bool = False
    speculates: bool = True
    drafts: bool = True
    shows_metrics: bool = True
    returns_ids: bool = True
    scores: bool = True
    ignores_stop: bool = False
    breaks_json: bool = False
    key: str | None = None
    fails_after: int | None = None
    """Requests after which every answer is an error 500."""
    longest_prompt: int | None = None
    cost_s: float = 0.0
    """Each request takes this time of CLOCK; concurrent ones take it one after another."""
    first_score_s: float = 0.0
    """The first request for `prompt_logprobs` takes this time of CLOCK."""
    noise: float = 0.0
    """Nats that a score may be off by, as it is in bf16."""
    shaky: bool = False
    """A text is scored wrong the first time, and right when it is scored again, or its beginning is."""
    seed: int = 1
    requests: list[dict[str, Any]] = field(default_factory=list)
    written: int = 0
    scored: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()

    def encode(self, text: str) -> list[int]:
        """Characters as tokens."""
        return [1 + LETTERS.find(letter) % (SIZE - 1) for letter in text] or [1]

    def draws(self, ids: Sequence[int], body: dict[str, Any]) -> random.Random:
        """What one answer is drawn with: it depends on the request, not on which of the others come first."""
        asked = f"{self.seed} {ids} {body.get('temperature')}"
        with self.lock:
            self.asked[asked] += 1
            return random.Random(f"{asked} {self.asked[asked]}")

    def spend(self, body: dict[str, Any]) -> None:
        """Let the time pass that a request takes."""
        CLOCK.spend(self.cost_s)
        if "prompt_logprobs" in body:
            with self.lock:
                seconds, self.first_score_s = self.first_score_s, 0.0
            CLOCK.spend(seconds)

    def next(
        self, ids: Sequence[int], written: Sequence[int], body: dict[str, Any], rng: random.Random
    ) -> int:
        """One more token, drawn as this server draws it."""
        before = tuple([*ids[-2:], *written[-2:]][-2:])
        order = ranked(before, self.weights)
        with self.lock:
            self.written += 1
            count = self.written
        temperature = body.get("temperature", 1.0)
        if not temperature:
            return order[1] if self.wrong_every and count % self.wrong_every == 0 else order[0]
        if self.stray_every and count % self.stray_every == 0:
            return order[-1]
        return rng.choices(order, cum_weights=weights(before, self.weights, temperature * self.heat))[0]


class Refusal(Exception):
    """A request that is answered with 400."""


class _Handler(BaseHTTPRequestHandler):
    model: Model
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _send(self, status: int, content: dict[str, Any] | str) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        model = self.model
        if self.path == "/metrics" and model.shows_metrics:
            text = f'vllm:request_success_total{{engine="0"}} {len(model.requests)}\n'
            if model.speculates:
                count = len(model.requests) if model.drafts else 0
                for name, times in (("drafts", 10), ("draft_tokens", 40), ("accepted_tokens", 20)):
                    text += f'vllm:spec_decode_num_{name}_total{{engine="0"}} {times * count}\n'
            self._send(200, text)
        elif self.path == "/v1/models":
            about = {"max_model_len": model.max_model_len, "owned_by": "vllm"}
            self._send(200, {"data": [{"id": model.name, **about}]})
        elif self.path == "/health":
            self._send(200, "")
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        model = self.model
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if model.key and self.headers.get("Authorization") != f"Bearer {model.key}":
            self._send(401, {"error": "Unauthorized"})
            return
        model.requests.append({**body, "path": self.path})
        model.spend(body)
        if model.fails_after is not None and len(model.requests) > model.fails_after:
            self._send(500, {"error": {"message": "EngineCore encountered an issue"}})
            return
        try:
            self._send(200, answer(model, body, is_chat=self.path.endswith("chat/completions")))
        except Refusal as error:
            self._send(400, {"error": {"message": str(error)}})


def answer(model: Model, body: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """The whole response to one request. Raises Refusal."""
    if is_chat and not model.has_template:
        raise Refusal("default chat template is no longer allowed, so you must provide a chat template")
    prompt = "".join(item["content"] for item in body["messages"]) if is_chat else body["prompt"]
    ids = model.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if len(ids) + body["max_tokens"] > min(model.max_model_len, model.longest_prompt or 1 << 30):
        raise Refusal(f"this model's maximum context length is {model.max_model_len} tokens")
    count = body.get("prompt_logprobs")
    if count is not None and count > model.max_logprobs:
        raise Refusal(f"Requested prompt logprobs of {count}, max allowed: {model.max_logprobs}")
    whole: dict[str, Any] = {"model": model.name, "choices": [_choice(model, body, ids, is_chat=is_chat)]}
    if is_chat and model.returns_ids:
        whole["prompt_token_ids"] = ids
    return whole


def _choice(model: Model, body: dict[str, Any], ids: list[int], *, is_chat: bool) -> dict[str, Any]:
    written, text, reason = _write(model, body, ids)
    if body.get("response_format") and not model.breaks_json:
        text, reason = '{"city": "Oslo"}', "stop"
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    if is_chat:
        choice["message"] = {"content": text}
    else:
        choice["text"] = text
    if model.returns_ids:
        choice |= {"token_ids": written} | ({} if is_chat else {"prompt_token_ids": ids})
    if body.get("prompt_logprobs") is not None and model.scores:
        choice["prompt_logprobs"] = [None, *_score(model, ids, body["prompt_logprobs"])]
    return choice


def _write(model: Model, body: dict[str, Any], ids: list[int]) -> tuple[list[int], str, str]:
    written: list[int] = []
    text, rng = "", model.draws(ids, body)
    for _ in range(body["max_tokens"]):
        token = model.next(ids, written, body, rng)
        written.append(token)
        if token == END:
            return written, text, "stop"
        text += LETTERS[token - 1]
        for stop in () if model.ignores_stop else body.get("stop") or ():
            if stop in text:
                return written, text[: text.index(stop)], "stop"
    return written, text, "length"


def _score(model: Model, ids: list[int], count: int) -> Iterator[dict[str, Any]]:
    is_wrong = model.shaky and not any(earlier[: len(ids)] == ids for earlier in model.scored)
    model.scored += [ids] if is_wrong else []
    for index in range(1, len(ids)):
        before = tuple(ids[max(0, index - 2) : index])
        values, order = logprobs(before, model.weights), ranked(before, model.weights)
        shift = -30.0 if is_wrong else model.rng.uniform(-model.noise, model.noise) if model.noise else 0.0
        entries = {ids[index]: order.index(ids[index]) + 1} | {
            token: rank for rank, token in enumerate(order[:count], start=1)
        }
        yield {
            str(token): {
                "logprob": values[token] + shift * (rank == 1),
                "rank": rank,
                "decoded_token": LETTERS[token - 1] if token else "<end>",
            }
            for token, rank in entries.items()
        }


def serving(model: Model) -> AbstractContextManager[str]:
    """The URL of a server with this model, on a free port of loopback."""
    return served(_Handler, model=model)
