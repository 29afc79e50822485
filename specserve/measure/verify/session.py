"""Requests of a verification to a server: answers with their tokens, and scores of given tokens."""

from __future__ import annotations

import math
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from specserve.errors import TrafficError, UsageError
from specserve.measure.verify.result import Sampling
from specserve.measure.workloads.workload import Prompt
from specserve.serve.client import Client
from specserve.serve.requests import NoChatTemplate, RequestRefused

MOST_VOCABULARY = 1 << 18
"""More tokens than any vocabulary has: bounds what is beyond the known ones at temperatures above 1."""
_ROUNDING = 1e-5
"""Of the sum of twenty probabilities that came as float32 logarithms."""
_LOGITS = 1.01
"""A sum above it is none of probabilities: the server shows logits (vLLM's `logprobs_mode`)."""
NOISE = 0.01
"""A share this close to `top_p` may fall on either side: decode and prefill round differently."""
LEVELS = (0.0, -12.0, -18.0, -25.0)
"""Log-probabilities (nats, at temperature 1); a token that is not known is below the first in any case."""
NEAR = 0.25
"""Two scores this close (nats) may change places, for the same reason."""


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


@dataclass(frozen=True, slots=True)
class Distribution:
    """Tokens with their log-weights at the temperature and their probabilities, given that it is one of them."""

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    """Log-probabilities over temperature."""
    probabilities: tuple[float, ...]
    beyond: tuple[float, ...] | None
    """For each of LEVELS: the most that all other tokens below it can have together; None: nothing can be said."""


def known(position: Position, sampling: Sampling) -> Distribution | None:
    """What is known of the distribution that this token was drawn from; None if the settings hide it.

    The order is vLLM's: temperature, top-k, top-p (vllm 0.32, v1/sample/rejection_sampler.py,
    `apply_sampling_constraints`).
    """
    scores = [logprob / sampling.temperature for _, logprob in position.top]
    weights = [math.exp(score - scores[0]) for score in scores]
    beyond = _beyond(position, sampling.temperature)
    if sampling.top_k:
        edge = _edge(scores, weights, sampling.top_k)
        if edge is None:
            return None
        weights, beyond = weights[: sampling.top_k], (edge,) * len(LEVELS)
    if sampling.top_p < 1.0:
        kept = _nucleus(weights, None if beyond is None else beyond[0], sampling.top_p)
        if kept is None:
            return None
        if kept < len(weights):
            weights, beyond = weights[:kept], (0.0,) * len(LEVELS)
    total = math.fsum(weights)
    return Distribution(
        tokens=tuple(token for token, _ in position.top[: len(weights)]),
        scores=tuple(scores[: len(weights)]),
        probabilities=tuple(weight / total for weight in weights),
        beyond=None if beyond is None else tuple(weight / (total + weight) for weight in beyond),
    )


def _edge(scores: list[float], weights: list[float], top_k: int) -> float | None:
    """The weight that may stand beyond the `top_k` best; None if it is not clear which those are.

    They are clear if the last of them is well above all that follow, shown or not, or weighs next to nothing.
    """
    if top_k > len(scores):
        return None
    following = scores[min(top_k, len(scores) - 1)]
    if scores[top_k - 1] - following > NEAR:
        return 0.0
    last = weights[top_k - 1]
    return last if last < NOISE * math.fsum(weights[:top_k]) else None


def _beyond(position: Position, temperature: float) -> tuple[float, ...] | None:
    """At most this is the weight of all other tokens below each level together, if the best one's is 1.

    A token of probability p weighs p^s, with s = 1/T. For s >= 1 that is at most p * most^(s - 1) if none of them
    is likelier than `most`; for s < 1 the sum of N terms is at most N^(1 - s) * sum^s (Jensen).
    """
    seen = math.fsum(math.exp(logprob) for _, logprob in position.top)
    if seen > _LOGITS:
        return None
    rest = math.log(max(0.0, 1.0 - seen) + _ROUNDING)
    exponent, all_ = 1 / temperature, math.log(MOST_VOCABULARY)
    bounds = []
    for level in LEVELS:
        most = min(position.top[-1][1], level)
        total = min(rest, all_ + most)
        bound = total + most * (exponent - 1) if exponent >= 1 else all_ * (1 - exponent) + total * exponent
        bounds.append(math.exp(min(bound - position.top[0][1] * exponent, 50.0)))
    return tuple(bounds)


def _nucleus(weights: list[float], beyond: float | None, top_p: float) -> int | None:
    """How many tokens top-p keeps: those before which less than `top_p` stands; None if that is not clear."""
    total, above = math.fsum(weights), 0.0
    for index, weight in enumerate(weights):
        surely_above = above / (total + beyond) if beyond is not None else 0.0
        if surely_above >= top_p + NOISE:
            return index
        if above / total > top_p - NOISE and index:
            return None
        above += weight
    return len(weights)


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
