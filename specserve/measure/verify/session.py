"""Requests of a verification to a server: answers with their tokens, and scores of given tokens."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from specserve.errors import TrafficError
from specserve.measure.workloads.load import Prompt
from specserve.serve.client import Client
from specserve.serve.requests import NoChatTemplate

TOP = 20
"""How many of the likeliest tokens are requested: what vLLM allows by default (`max_logprobs`)."""
_MAX_BYTES = 64 << 20
"""Of an answer: vLLM writes about 75 for each log-probability, so 40,000 tokens fit."""
_TICK_S = 0.2
_SETTINGS = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "return_token_ids": True,
}
"""In every request: what it leaves out, a server takes from `generation_config.json`."""
JobResult = TypeVar("JobResult")


@dataclass(frozen=True, slots=True)
class Position:
    """One emitted token and what the target thought of it: nats, at temperature 1."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens with their log-probabilities, best first; perhaps without this one."""
    text: str = ""
    best_text: str = ""

    @property
    def gap(self) -> float:
        """How much likelier the best token is; 0 if this is it."""
        return max(0.0, self.top[0][1] - self.logprob)


@dataclass(frozen=True, slots=True)
class ScoredText:
    """What a server wrote after a prompt, in token ids, with its score once it has one."""

    prompt: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    positions: tuple[Position, ...] = ()


def positions(steps: Any, ids: Sequence[int], *, count: int) -> tuple[Position, ...]:
    """Read the last `len(ids)` entries of `prompt_logprobs`, requested with `count` tokens each.

    An entry maps token ids to `{logprob, rank, decoded_token}`: the token that stands there, and
    the `count` likeliest (vllm 0.32, v1/engine/logprobs.py, `_update_prompt_logprobs`). Raises
    TrafficError for anything else.
    """
    found = []
    try:
        for step, token in zip(steps[len(steps) - len(ids) :], ids, strict=True):
            entries = {int(key): entry for key, entry in step.items()}
            logprobs = {key: float(entry["logprob"]) for key, entry in entries.items()}
            if any(map(math.isnan, logprobs.values())):
                raise ValueError
            # the emitted token is listed too if it is not among the `count` likeliest
            top = [each for each in logprobs.items() if len(entries) <= count or each[0] != token]
            top.sort(key=lambda each: -each[1])
            mine, best = (entries[key].get("decoded_token") for key in (token, top[0][0]))
            place = Position(token, logprobs[token], tuple(top), str(mine or ""), str(best or ""))
            found.append(place)
    except (TypeError, ValueError, LookupError, AttributeError):
        message = "the server's `prompt_logprobs` are not in vLLM's format"
        raise TrafficError(message) from None
    return tuple(found)


class VerifySession:
    """One server and one of its models. Several threads may call the methods concurrently."""

    def __init__(self, client: Client) -> None:
        """Ask which model it serves. Raises TrafficError."""
        self.client, self.model = client, client.first_model()
        self.is_chat = True

    def generate(self, prompt: Prompt, temperature: float, *, max_tokens: int) -> ScoredText:
        """Write after a prompt. Raises RequestRefused if the server does not take it."""
        return read_text(self.ask(prompt, temperature, max_tokens=max_tokens), prompt.id)

    def ask(self, prompt: Prompt, temperature: float = 0.0, **more: Any) -> dict[str, Any]:
        """The raw answer, with token ids. Without a chat template, text is continued."""
        body = {**_SETTINGS, "temperature": temperature, **more}
        if self.is_chat or prompt.messages:
            messages = prompt.messages or ({"role": "user", "content": prompt.content},)
            try:
                return self._post("chat/completions", messages=[*messages], **body)
            except NoChatTemplate:
                if prompt.messages:
                    raise
                self.is_chat = False
        return self._post("completions", prompt=prompt.text, **body)

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        whole = {"model": self.model, **body}
        return self.client.post(path, whole, most_bytes=_MAX_BYTES)

    def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[Position, ...]:
        """What the target thinks of these tokens after that prompt, by a plain prefill."""
        if not ids:
            return ()
        body = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP}
        raw = self._post("completions", prompt=[*prompt_ids, *ids], **body)
        with suppress(LookupError, TypeError):
            if (steps := raw["choices"][0]["prompt_logprobs"]) is not None:
                return positions(steps, ids, count=TOP)
        raise TrafficError(
            "the server does not score prompts (`prompt_logprobs`)",
            hint="vLLM does, SGLang does not: `specserve bench` measures it",
        )


def read_text(raw: Mapping[str, Any], name: str = "") -> ScoredText:
    """Read a response. Raises TrafficError if it has no token ids."""
    try:
        choice = raw["choices"][0]
        prompt_ids = choice.get("prompt_token_ids") or raw["prompt_token_ids"]
        text = choice["text"] if "text" in choice else (choice.get("message") or {}).get("content")
        return ScoredText(
            prompt=name,
            prompt_ids=tuple(map(int, prompt_ids)),
            ids=tuple(map(int, choice["token_ids"])),
            text=str(text or ""),
            finish_reason=choice.get("finish_reason"),
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        raise TrafficError(
            "the server does not return token ids (`return_token_ids`)",
            hint="vLLM does from 0.10.2 on",
        ) from None


def results_of(
    jobs: Iterable[Callable[[], JobResult]], *, concurrency: int, on_tick: Callable[[], None]
) -> Iterator[JobResult]:
    """Yields what the jobs return as they end; the first error of a job is raised.

    The next job is taken when a thread is free. `on_tick` is called at least five times a second,
    and may raise. Nobody waits for the threads then, as an executor would: they end with their
    request.
    """
    waiting, lock, is_over = iter(jobs), threading.Lock(), threading.Event()
    done: queue.SimpleQueue[list[JobResult] | Exception | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            while not is_over.is_set():
                with lock:
                    job = next(waiting, None)
                if job is None:
                    break
                done.put([job()])
        except Exception as error:
            done.put(error)
        done.put(None)

    for _ in range(concurrency):
        threading.Thread(target=work, daemon=True).start()
    running = concurrency
    try:
        while running:
            on_tick()
            with suppress(queue.Empty):
                found = done.get(timeout=_TICK_S)
                if isinstance(found, Exception):
                    raise found
                running -= found is None
                yield from found or ()
    finally:
        is_over.set()
