"""Requests of a verification to a server: answers with their tokens, and scores of given tokens."""

from __future__ import annotations

import math
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from specserve.errors import TrafficError, UsageError
from specserve.measure.verify.result import Sampling
from specserve.measure.workloads.workload import Prompt
from specserve.serve.client import Client
from specserve.serve.requests import NoChatTemplate, RequestRefused

TOP = 20
"""How many of the likeliest tokens are requested: what vLLM allows by default (`max_logprobs`)."""
GREEDY = Sampling(0.0)
_BASE_BYTES, _LOGPROB_BYTES = 4 << 20, 256
"""What an answer may be long: without log-probabilities, and for each of them; vLLM writes about 75 bytes."""
_ALLOWED = re.compile(r"max allowed: (\d+)")
_LOOK_EVERY_S = 0.2
JobResult = TypeVar("JobResult")


@dataclass(frozen=True, slots=True)
class Position:
    """One emitted token and what the target thought of it: nats, at temperature 1."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens with their log-probabilities, best first; the emitted one may not be among them."""
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
    """The prompt's name."""
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    positions: tuple[Position, ...] = ()
    """Of the first tokens of `ids`: those that fit into a prompt again."""


def positions(steps: Any, ids: Sequence[int], *, count: int) -> tuple[Position, ...]:
    """Read the last `len(ids)` entries of `prompt_logprobs`, requested with `count` tokens each.

    An entry maps token ids to `{logprob, rank, decoded_token}`: the token that stands there, and the `count`
    likeliest (vllm 0.32, v1/engine/logprobs.py, `_update_prompt_logprobs`). Raises TrafficError for anything else.
    """
    try:
        own = steps[len(steps) - len(ids) :] if ids else []
        return tuple(_position(step, token, count) for step, token in zip(own, ids, strict=True))
    except (TypeError, ValueError, LookupError, AttributeError):
        raise TrafficError("the server's `prompt_logprobs` are not in vLLM's format") from None


def _position(step: Any, token: int, count: int) -> Position:
    entries = {int(key): entry for key, entry in step.items()}
    logprobs = {key: float(entry["logprob"]) for key, entry in entries.items()}
    if any(map(math.isnan, logprobs.values())):
        raise ValueError
    mine = entries[token]
    rank = mine.get("rank")  # the emitted token is listed too if it is not among the `count` likeliest
    is_top = int(rank) <= count if rank is not None else len(entries) <= count
    top = sorted((item for item in logprobs.items() if is_top or item[0] != token), key=lambda item: -item[1])
    best = entries[top[0][0]]
    return Position(
        token=token,
        logprob=logprobs[token],
        top=tuple(top),
        text=str(mine.get("decoded_token") or ""),
        best_text=str(best.get("decoded_token") or ""),
    )


class VerifySession:
    """One server and one of its models. The methods may be called by several threads concurrently."""

    def __init__(self, client: Client, *, model: str | None = None) -> None:
        """Ask which models there are. Raises TrafficError, and UsageError for a model that is not there."""
        served = client.models()
        if not served:
            raise TrafficError("the server serves no model")
        if model is not None and model not in served:
            hint = f"it serves {', '.join(served[:5])}"
            raise UsageError(f"the server has no model `{model}`", hint=hint)
        if client.is_sglang(model or served[0]):
            raise TrafficError(
                f"the server at {client.root} is SGLang, which does not score the tokens of a prompt "
                "(`prompt_logprobs`): verify cannot see whether its output is the target's",
                hint="`specserve bench` measures it; `specserve verify PROFILE` verifies the same profile with vLLM",
            )
        self.client = client
        self.model = model or served[0]
        self.max_model_len = client.max_model_len(self.model)
        self.mode: Literal["chat", "completion"] = "chat"
        self._top = TOP

    def warm_up(self, prompt: Prompt) -> None:
        """Send a tiny request of each kind: greedy, sampled, scored. Learn whether the model has a chat template.

        Without a template the text is continued, as `specserve ask` does. Raises Refused, TrafficError.
        """
        try:
            self.generate(prompt, GREEDY, max_tokens=1)
        except NoChatTemplate:
            self.mode = "completion"
        self.scored(self.generate(prompt, Sampling(1.0), max_tokens=4))

    def generate(self, prompt: Prompt, sampling: Sampling, *, max_tokens: int) -> ScoredText:
        """Write after a prompt. Raises Refused if the server does not take it."""
        return read_text(self.ask(prompt, sampling, max_tokens=max_tokens), prompt.id)

    def ask(self, prompt: Prompt, sampling: Sampling = GREEDY, **more: Any) -> dict[str, Any]:
        """The raw answer to a prompt, with token ids."""
        body = {**_fields(sampling), "return_token_ids": True, **more}
        if self.mode == "completion":
            if prompt.messages:
                raise NoChatTemplate("the model has no chat template, and the prompt is a chat")
            return self._post("completions", prompt=prompt.text, **body)
        chat = (
            prompt
            if prompt.messages
            else replace(prompt, messages=({"role": "user", "content": prompt.content},))
        )
        return self._post("chat/completions", **chat.body, **body)

    def _post(self, path: str, *, most_bytes: int = _BASE_BYTES, **body: Any) -> dict[str, Any]:
        whole = {"model": self.model, **body}
        return self.client.post(path, whole, model=self.model, most_bytes=most_bytes)

    def go_on(self, ids: Sequence[int], *, max_tokens: int) -> ScoredText:
        """Greedy text after these tokens."""
        body = {**_fields(GREEDY), "max_tokens": max_tokens, "return_token_ids": True}
        return read_text(self._post("completions", prompt=list(ids), **body), "")

    def next_tokens(self, ids: Sequence[int]) -> dict[int, float]:
        """The likeliest next tokens after these, with their log-probabilities: one prefill, no step of drafts."""
        body = {"max_tokens": 1, "temperature": 0, "logprobs": 5, "return_tokens_as_token_ids": True}
        raw = self._post("completions", prompt=list(ids), **body)
        try:
            (top,) = raw["choices"][0]["logprobs"]["top_logprobs"]
            return {int(key.removeprefix("token_id:")): float(value) for key, value in top.items()}
        except (LookupError, TypeError, ValueError, AttributeError):
            raise TrafficError("the server does not return log-probabilities (`logprobs`)") from None

    def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[Position, ...]:
        """What the target thinks of these tokens after that prompt, by a plain prefill.

        If they fill the context, the last ones are left out: a scored request must have room for one more token.
        """
        if self.max_model_len is not None:
            ids = ids[: max(0, self.max_model_len - 1 - len(prompt_ids))]
        if not ids:
            return ()
        raw = self._prompt_logprobs([*prompt_ids, *ids])
        try:
            steps = raw["choices"][0]["prompt_logprobs"]
        except (LookupError, TypeError):
            steps = None
        if steps is None:
            raise TrafficError(
                "the server does not score prompts (`prompt_logprobs`)", hint="vLLM does, others may not"
            )
        return positions(steps, ids, count=self._top)

    def _prompt_logprobs(self, ids: list[int]) -> dict[str, Any]:
        """A scored request, with as many log-probabilities as the server allows."""
        try:
            body = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": self._top}
            most_bytes = _BASE_BYTES + len(ids) * (self._top + 1) * _LOGPROB_BYTES
            return self._post("completions", most_bytes=most_bytes, prompt=ids, **body)
        except RequestRefused as error:
            found = _ALLOWED.search(error.message)
            if found is None or not 1 <= int(found[1]) < self._top:
                raise
            self._top = int(found[1])
            return self._prompt_logprobs(ids)

    def scored(self, text: ScoredText) -> ScoredText:
        """The text with its score."""
        return replace(text, positions=self.score(text.prompt_ids, text.ids))


def _fields(sampling: Sampling) -> dict[str, Any]:
    """Returns every sampling field of a request: what it leaves out, a server takes from `generation_config.json`."""
    return {**asdict(sampling), "min_p": 0.0, "repetition_penalty": 1.0}


def read_text(raw: Mapping[str, Any], name: str = "", *, index: int = 0) -> ScoredText:
    """Read one choice of a response. Raises TrafficError if it has no token ids."""
    try:
        choice = raw["choices"][index]
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
            "the server does not return token ids (`return_token_ids`)", hint="vLLM does from 0.10.2 on"
        ) from None


def results_of(
    jobs: Iterable[Callable[[], JobResult]], *, concurrency: int, on_tick: Callable[[], None]
) -> Iterator[JobResult]:
    """Yields what the jobs return, in the order in which they end; what one of them raises ends it.

    `on_tick` is called at least five times a second, and may raise. Nobody waits for the threads then: they end
    with their request.
    """
    waiting, lock = iter(jobs), threading.Lock()
    done: queue.SimpleQueue[Callable[[], JobResult] | None] = queue.SimpleQueue()
    """By job, what returns its result or raises its error; None for a thread that has ended."""
    is_over = False

    def raised(error: Exception) -> JobResult:
        raise error

    def work() -> None:
        nonlocal is_over
        while True:
            try:
                with lock:
                    job = None if is_over else next(waiting, None)
                if job is None:
                    break
                done.put(partial(lambda found: found, job()))
            except Exception as error:
                is_over = True
                done.put(partial(raised, error))
        done.put(None)

    for _ in range(concurrency):
        threading.Thread(target=work, daemon=True).start()
    working = concurrency
    try:
        while working:
            on_tick()
            with suppress(queue.Empty):
                result = done.get(timeout=_LOOK_EVERY_S)
                if result is None:
                    working -= 1
                else:
                    yield result()
    finally:
        is_over = True
