"""Requests to one server: generate with speculation, score the same tokens by a plain prefill; several concurrently."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from specserve.errors import TrafficError, UsageError
from specserve.measure.verify.result import Sampling
from specserve.measure.verify.scores import Position, ScoredText, positions
from specserve.measure.workloads.workload import Prompt
from specserve.serve.client import Client
from specserve.serve.requests import NoChatTemplate, RequestRefused

TOP = 20
"""How many of the likeliest tokens are requested: what vLLM allows by default (`max_logprobs`)."""
GREEDY = Sampling(0.0)
_ALLOWED = re.compile(r"max allowed: (\d+)")


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
        messages = list(prompt.messages or ({"role": "user", "content": prompt.content},))
        return self._post("chat/completions", messages=messages, **body)

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        return self.client.post(path, {"model": self.model, **body}, model=self.model)

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
            return self._post("completions", prompt=ids, **body)
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
    """Every sampling field of a request: what it leaves out, a server takes from `generation_config.json`."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


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


JobResult = TypeVar("JobResult")
_LOOK_EVERY_S = 0.2


def results_of(
    jobs: Iterable[Callable[[], JobResult]], *, concurrency: int, on_tick: Callable[[], None]
) -> Iterator[JobResult]:
    """What the jobs return, in the order in which they end; what one of them raises ends it.

    `on_tick` is called at least five times a second, and may raise. Nobody waits for the threads then: they end
    with their request.
    """
    waiting, lock, is_over = iter(jobs), threading.Lock(), threading.Event()
    done: queue.SimpleQueue[tuple[JobResult] | Exception | None] = queue.SimpleQueue()

    def following() -> Callable[[], JobResult] | None:
        with lock:
            return None if is_over.is_set() else next(waiting, None)

    def work() -> None:
        try:
            while (job := following()) is not None:
                done.put((job(),))
        except Exception as error:  # raised again where the results are taken
            is_over.set()
            done.put(error)
        finally:
            done.put(None)

    for _ in range(concurrency):
        threading.Thread(target=work, daemon=True).start()
    working = concurrency
    try:
        while working:
            on_tick()
            try:
                item = done.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                continue
            if item is None:
                working -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item[0]
    finally:
        is_over.set()
