"""Requests to one server, several at once: generate with speculation, score the same tokens by a plain prefill."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from specserve.errors import TrafficError, UsageError
from specserve.measure.verify.greedy import Answer, Position, positions
from specserve.measure.verify.prompts import Prompt
from specserve.measure.verify.result import Sampling
from specserve.serve.client import Client
from specserve.serve.requests import NoChatTemplate, Refused

TOP = 20
"""How many of the likeliest tokens are asked for: what vLLM allows by default (`max_logprobs`)."""
_NEUTRAL: Mapping[str, Any] = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
"""Said in every request: what it leaves out a server takes from the model's `generation_config.json`."""
_ALLOWED = re.compile(r"max allowed: (\d+)")


class Session:
    """One server and one of its models. The methods may be called by several threads at once."""

    def __init__(self, client: Client, *, model: str | None = None) -> None:
        """Asks which models there are. Raises TrafficError, and UsageError for a model that is not there."""
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
        self.top = TOP

    def warm_up(self, prompt: Prompt) -> None:
        """Send a tiny request of each kind: greedy, sampled, scored. Learn whether the model has a chat template.

        Without a template the text is continued, as `specserve ask` does. Raises Refused, TrafficError.
        """
        try:
            self.generate(prompt, Sampling(0.0), max_tokens=1)
        except NoChatTemplate:
            self.mode = "completion"
        one = self.generate(prompt, Sampling(1.0), max_tokens=4)
        self.score(one.prompt_ids, one.ids)

    def generate(self, prompt: Prompt, sampling: Sampling, *, max_tokens: int) -> Answer:
        """Write after a prompt. Raises Refused where the server does not take it."""
        body = {**sampling_body(sampling), "max_tokens": max_tokens}
        return answer(self.ask(prompt, body), prompt.name, sampling.temperature)

    def ask(self, prompt: Prompt, body: Mapping[str, Any]) -> dict[str, Any]:
        """The raw answer to a prompt, with token ids."""
        whole = {"model": self.model, "return_token_ids": True, **body}
        if self.mode == "completion":
            if prompt.messages:
                raise NoChatTemplate("the model has no chat template, and the prompt is a chat")
            return self.client.post("completions", {"prompt": prompt.text, **whole}, model=self.model)
        messages = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
        return self.client.post("chat/completions", {"messages": messages, **whole}, model=self.model)

    def go_on(self, ids: Sequence[int], *, max_tokens: int, **more: Any) -> Answer:
        """Greedy text after these tokens."""
        body = {**sampling_body(Sampling(0.0)), "max_tokens": max_tokens, "return_token_ids": True, **more}
        raw = self.client.post(
            "completions", {"model": self.model, "prompt": list(ids), **body}, model=self.model
        )
        return answer(raw, "", 0.0)

    def next_tokens(self, ids: Sequence[int]) -> dict[int, float]:
        """The likeliest next tokens after these, with their log-probabilities: one prefill, no step of drafts."""
        body = {"max_tokens": 1, "temperature": 0, "logprobs": 5, "return_tokens_as_token_ids": True}
        raw = self.client.post(
            "completions", {"model": self.model, "prompt": list(ids), **body}, model=self.model
        )
        try:
            (top,) = raw["choices"][0]["logprobs"]["top_logprobs"]
            return {int(key.removeprefix("token_id:")): float(value) for key, value in top.items()}
        except (LookupError, TypeError, ValueError, AttributeError):
            raise TrafficError("the server does not tell log-probabilities (`logprobs`)") from None

    def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[Position, ...]:
        """What the target thinks of these tokens after that prompt, by a plain prefill.

        Where they fill the context, the last ones are left out: a scored request must have room for one more token.
        """
        if self.max_model_len is not None:
            ids = ids[: max(0, self.max_model_len - 1 - len(prompt_ids))]
        if not ids:
            return ()
        raw = self._scored([*prompt_ids, *ids])
        try:
            steps = raw["choices"][0]["prompt_logprobs"]
        except (LookupError, TypeError):
            steps = None
        if steps is None:
            raise TrafficError(
                "the server does not score prompts (`prompt_logprobs`)", hint="vLLM does, others may not"
            )
        return positions(steps, ids, count=self.top)

    def _scored(self, ids: list[int]) -> dict[str, Any]:
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0}
        try:
            return self.client.post("completions", {**body, "prompt_logprobs": self.top}, model=self.model)
        except Refused as error:
            found = _ALLOWED.search(error.message)
            if found is None or not 1 <= int(found[1]) < self.top:
                raise
            self.top = int(found[1])
            return self._scored(ids)

    def scored(self, one: Answer) -> Answer:
        """The answer with its score."""
        return Answer(
            one.prompt, one.temperature, one.prompt_ids, one.ids, one.text, one.finish_reason,
            self.score(one.prompt_ids, one.ids),
        )  # fmt: skip


def sampling_body(sampling: Sampling) -> dict[str, Any]:
    """The fields of a request."""
    return {
        **_NEUTRAL,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }


def answer(raw: Mapping[str, Any], name: str, temperature: float, *, index: int = 0) -> Answer:
    """Read one choice of a response. Raises TrafficError where it has no token ids."""
    try:
        choice = raw["choices"][index]
        ids = choice["token_ids"]
        prompt_ids = choice.get("prompt_token_ids") or raw.get("prompt_token_ids")
        if ids is None or prompt_ids is None:
            raise LookupError
        text = choice["text"] if "text" in choice else (choice.get("message") or {}).get("content")
        return Answer(
            prompt=name,
            temperature=temperature,
            prompt_ids=tuple(map(int, prompt_ids)),
            ids=tuple(map(int, ids)),
            text=str(text or ""),
            finish_reason=choice.get("finish_reason"),
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        raise TrafficError(
            "the server does not return token ids (`return_token_ids`)", hint="vLLM does from 0.10.2 on"
        ) from None


Result = TypeVar("Result")
Job = Callable[[], Result]
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class _Done(Generic[Result]):
    """What a job returned; it may be None."""

    result: Result


class Crew(Generic[Result]):
    """So many threads that take jobs from an iterable, one by one."""

    def __init__(self, jobs: Iterable[Job[Result]], *, concurrency: int) -> None:
        self._jobs = iter(jobs)
        self._lock = threading.Lock()
        self._done: queue.SimpleQueue[_Done[Result] | Exception | None] = queue.SimpleQueue()
        self._is_over = False
        self._count = concurrency

    def results(self, *, on_tick: Callable[[], None]) -> Iterator[Result]:
        """What the jobs return, in the order in which they end; what one of them raises ends it.

        `on_tick` is called at least five times a second, and may raise. Nobody waits for the threads then: they end
        with their request, which whoever made it can break off.
        """
        for _ in range(self._count):
            threading.Thread(target=self._work, daemon=True).start()
        working = self._count
        try:
            while working:
                on_tick()
                try:
                    item = self._done.get(timeout=_LOOK_EVERY_S)
                except queue.Empty:
                    continue
                if item is None:
                    working -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item.result
        finally:
            self._is_over = True

    def _next(self) -> Job[Result] | None:
        with self._lock:
            return None if self._is_over else next(self._jobs, None)

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._done.put(_Done(job()))
        except Exception as error:  # handed to whoever waits for the results
            self._is_over = True
            self._done.put(error)
        finally:
            self._done.put(None)


FEWEST_TOKENS = 24
"""Shorter answers cost more for their prompts than they tell."""
_MARGIN = 1.2
_LAST = 8


@dataclass(slots=True)
class Pace:
    """The last 8 requests. There must be one before anything is asked of it.

    One thread may add while others ask: what they read is replaced, never changed.
    """

    _last: tuple[tuple[float, int], ...] = ()

    def add(self, took_s: float, tokens: int) -> None:
        """Add a request that wrote and scored an answer of so many tokens."""
        self._last = (*self._last, (took_s, max(1, tokens)))[-_LAST:]

    @property
    def token_s(self) -> float:
        """Seconds for each token of one more answer, rather more than less."""
        last = self._last
        return _MARGIN * sum(took_s for took_s, _ in last) / sum(tokens for _, tokens in last)

    def tokens(self, most: int, *, within_s: float) -> int:
        """Return the tokens of one more answer that should end within a time: at most `most`, at least 24 of them."""
        return min(most, max(FEWEST_TOKENS, int(within_s / self.token_s)))
