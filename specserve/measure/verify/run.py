"""One verification of a running server, from the first request to the verdict."""

from __future__ import annotations

import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from specserve.errors import Interrupted, TrafficError
from specserve.measure.verdict import library
from specserve.measure.verify import judge
from specserve.measure.verify.judge import (
    LEVELS,
    LOSSY,
    Compared,
    Outcome,
    Position,
    ScoredText,
    Smoke,
    Verification,
)
from specserve.measure.workloads import Prompt, read
from specserve.metrics import Metrics, since_by_engine
from specserve.serve.client import Client, NoChatTemplate, RequestRefused, shown
from specserve.serve.process import stop_on_signals
from specserve.serve.records import locate

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


_FEW_TOKENS = 1000
"""A drafter like ngram may propose nothing within so many."""
_STORY = Prompt(
    "smoke",
    40,
    "def count_words(text):\n    # say how often each word of a text comes\n"
    "    words = text.split()\n",
)
_CITIES = '{"city": "Lima"}\n{"city": "Oslo"}\n{"city": "Lima"}\n'
"""Examples, so that a small model too comes to an end: blanks without end are legal JSON."""
_CITY = Prompt("smoke", 96, text=f"Write one more line of the same kind.\n{_CITIES}")
_SCHEMA = {
    "type": "object",
    "required": ["city"],
    "additionalProperties": False,
    "properties": {"city": {"enum": ["Lima", "Oslo"]}},
}


Found = tuple[Outcome, str]


def json_schema(session: VerifySession) -> Found:
    """`response_format` with a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": _SCHEMA}}
    given = read_text(session.ask(_CITY, max_tokens=_CITY.max_tokens, response_format=form))
    text, fitting = "".join(given.text.split()), ('{"city":"Lima"}', '{"city":"Oslo"}')
    if text in fitting:  # blanks may stand anywhere
        return "ok", shown(given.text)
    if given.finish_reason == "length" and any(each.startswith(text) for each in fitting):
        return "skipped", f"not finished within {_CITY.max_tokens} tokens"
    return "not ok", f"not JSON of the schema: {shown(given.text[:80])}"


def stop_string(session: VerifySession) -> Found:
    """A stop string from the middle of a greedy text must end it right there."""
    full = read_text(session.ask(_STORY, max_tokens=_STORY.max_tokens))
    for start in range(len(full.text) // 4, len(full.text) - 3):
        stop = full.text[start : start + 3]
        if len(stop.strip()) == 3 and full.text.index(stop) == start:
            break  # it comes for the first time there
    else:
        return "skipped", "the text is too short or too repetitive for this test"
    cut = read_text(session.ask(_STORY, max_tokens=_STORY.max_tokens, stop=[stop]))
    if cut.text == full.text[:start] and cut.finish_reason == "stop":
        return "ok", f"with the stop string {shown(repr(stop))}, the answer ends right before it"
    if stop not in cut.text and cut.ids != full.ids[: len(cut.ids)]:
        return "skipped", "the greedy text differed the second time: a near-tie"
    return "not ok", f"the stop string {shown(repr(stop))} gives {shown(repr(cut.text[-30:]))}"


TESTS: Mapping[str, Callable[[VerifySession], Found]] = {
    "JSON schema": json_schema,
    "stop string": stop_string,
}


def smoke_test(name: str, session: VerifySession) -> Smoke:
    """Run one test; a server that fails at it is its result. Raises TrafficError if it is gone."""
    try:
        return Smoke(name, *TESTS[name](session))
    except RequestRefused as error:
        return Smoke(name, "skipped", f"refused: {error.message}")
    except TrafficError as error:
        session.client.models()
        return Smoke(name, "not ok", error.message)


def drafts(before: Metrics | None, after: Metrics | None, *, tokens: int) -> Smoke:
    """Whether the server did speculate meanwhile: a profile may have lost its draft on the way."""
    if before is None or after is None:
        return Smoke("drafts", "skipped", "the server shows no metrics")
    if not after.speculates:
        return Smoke("drafts", "skipped", "the server does not speculate")
    gained = since_by_engine(before.acceptance, now=after.acceptance)
    if gained is not None and gained.drafts:
        rate = gained.acceptance_rate or 0.0
        return Smoke("drafts", "ok", f"{gained.drafts} drafts, acceptance {rate:.2f}")
    outcome: Outcome = "skipped" if tokens < _FEW_TOKENS else "not ok"
    return Smoke("drafts", outcome, f"no draft within {tokens} tokens")


OnProgress = Callable[[float | None, int], None]
"""Takes the seconds since the warm-up (None: it is not over) and the tokens so far."""
SHIPPED = Path(__file__).with_name("prompts.jsonl")
MAX_PROMPTS = 64
CONCURRENCY = 8
MAX_TOKENS = 128
"""Of an answer: a longer one needs more memory when it is scored."""
ANSWERS_PER_S = 2
"""No more answers at a temperature than that, however fast the server is: at 128 tokens each, a
minute's 120 exclude a temperature that is wrong by 4 %."""
_GREEDY_SHARE = 1 / 3
_SMOKE_SHARE = 1 / 4
"""Of the time: it is left for the smoke tests, which come last."""
_MAX_RESCORED = 32
_PROBE = Prompt("probe", 16, "def add(a, b):\n")


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is to be verified, and how long it may take."""

    server: str | None
    temperatures: tuple[float, ...]
    prompts: tuple[Prompt, ...]
    limit_s: float
    against: str | None = None
    """The server that scores the answers; None: the one that wrote them."""


def load_prompts(path: str | None = None) -> tuple[Prompt, ...]:
    """Returns the first 64 prompts of a file, or those that ship. Raises FactError."""
    found, _ = read(Path(path) if path is not None else SHIPPED)
    return tuple(found[:MAX_PROMPTS])


def run_verification(
    request: VerifyRequest, *, progress: AbstractContextManager[OnProgress]
) -> Verification:
    """Verify a running server. Raises TrafficError, UsageError, FactError, Interrupted."""
    library("scipy.stats")  # before a minute of requests, not after it
    with stop_on_signals() as stop, ExitStack() as stack:

        def tick() -> None:
            if stop.count:
                number = stop.signal or signal.SIGINT
                raise Interrupted("interrupted before there was a verdict", exit_code=128 + number)

        def session(server: str | None) -> VerifySession:
            client = Client(locate(server)[0])
            # in a thread: a server that hangs must not keep a signal waiting
            (found,) = results_of([partial(VerifySession, client)], concurrency=1, on_tick=tick)
            return found

        writer = session(request.server)
        try:
            scorer = session(request.against) if request.against is not None else writer
        except TrafficError as error:
            message = f"the server of `--against`: {error.message}"
            raise TrafficError(message, hint=error.hint) from error
        return Verifier(writer, scorer, request, stack.enter_context(progress), tick).run()


@dataclass(slots=True)
class Verifier:
    """One run. `on_tick` is called often, and may raise to end the run."""

    session: VerifySession
    scorer: VerifySession
    request: VerifyRequest
    show: OnProgress
    on_tick: Callable[[], None]
    greedy: list[ScoredText] = field(default_factory=list)
    tallies: dict[float, list[judge.Tally]] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    longest_s: float = 0.0
    began: float = 0.0

    def run(self) -> Verification:
        """Returns the verification. Raises TrafficError, and what `on_tick` raises."""
        # the first requests may make the server compile: they are no part of the time
        for temperature in (1.0, 0.0):
            list(self._results([partial(self._scored, temperature, _PROBE, _PROBE.max_tokens)]))
        client, self.began = self.session.client, time.monotonic()
        before = client.metrics()
        self.tallies = {t: [] for t in self.request.temperatures if t}
        for answer in self._results(self._jobs(), CONCURRENCY):
            self.tokens += len(answer.positions) if answer else 0
        if not self.tokens:
            said = next(iter(self.unused.values()), "no token could be scored")
            raise TrafficError(f"the server answered no prompt: {said}")
        found = [self._judge_greedy()] if 0.0 in self.request.temperatures else []
        found += [judge.judge_sampled(one, t) for t, one in self.tallies.items()]
        jobs = [partial(smoke_test, name, self.session) for name in TESTS]
        tests = list(self._results(jobs))
        tests.append(drafts(before, client.metrics(), tokens=self.tokens))
        worst = max((each.verdict for each in found), key=lambda v: list(LEVELS).index(v.word))
        sentences = [
            f"{each.verdict.sentence} at T = {each.temperature:g}"
            for each in found
            if each.verdict.sentence and (each.verdict.word == LOSSY) == (worst.word == LOSSY)
        ]
        return Verification(
            url=client.root,
            model=self.session.model,
            verdict=replace(worst, sentence="; ".join(sentences)),
            has_failed=worst.level == "bad" or any(each.outcome == "not ok" for each in tests),
            elapsed_s=time.monotonic() - self.began,
            against=self.scorer.client.root if self.scorer is not self.session else None,
            temperatures=tuple(found),
            smoke=tuple(tests),
            unused_prompts=dict(self.unused),
        )

    def _results(
        self, jobs: Iterable[Callable[[], JobResult]], concurrency: int = 1
    ) -> Iterator[JobResult]:
        def tick() -> None:
            self.on_tick()
            self.show(time.monotonic() - self.began if self.began else None, self.tokens)

        return results_of(jobs, concurrency=concurrency, on_tick=tick)

    def _scored(self, temperature: float, prompt: Prompt, max_tokens: int) -> ScoredText:
        """Write and score one answer. Raises RequestRefused."""
        text = self.session.generate(prompt, temperature, max_tokens=max_tokens)
        return replace(text, positions=self.scorer.score(text.prompt_ids, text.ids))

    def _answer(self, temperature: float, prompt: Prompt) -> ScoredText | None:
        """Take one answer into the figures; None if the server does not take the prompt."""
        began = time.monotonic()
        try:
            found = self._scored(temperature, prompt, MAX_TOKENS)
        except RequestRefused as error:
            self.unused[prompt.id] = error.message
            return None
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        if temperature:
            self.tallies[temperature].append(judge.tally(found.positions, temperature))
        else:
            self.greedy.append(found)
        return found

    def _jobs(self) -> Iterator[Callable[[], ScoredText | None]]:
        """Yields answers to ask for: greedy prompts, then sampled ones, while there is time.

        Greedy text repeats, so each prompt is sent once. However slow the server is, each
        temperature has 8 answers.
        """
        request = self.request
        limit_s = request.limit_s * (1 - _SMOKE_SHARE)
        greedy_s = request.limit_s * _GREEDY_SHARE if self.tallies else limit_s
        prompts = request.prompts if 0.0 in request.temperatures else ()
        for sent, prompt in enumerate(prompts):
            if sent < CONCURRENCY or self._ends_s() < greedy_s:
                yield partial(self._answer, 0.0, prompt)
        turns = cycle(request.prompts)
        for sent in range(max(CONCURRENCY, int(ANSWERS_PER_S * request.limit_s))):
            if sent < CONCURRENCY or self._ends_s() < limit_s:
                yield from (partial(self._answer, t, next(turns)) for t in self.tallies)

    def _ends_s(self) -> float:
        """When another answer would be there, since the warm-up."""
        return time.monotonic() - self.began + self.longest_s

    def _judge_greedy(self) -> Compared:
        """The suspects that are furthest behind are scored again, alone: what passes is noise."""
        wrong = []
        for answer, index in judge.suspects(self.greedy)[:_MAX_RESCORED]:
            score = partial(self.scorer.score, answer.prompt_ids, answer.ids[: index + 1])
            (again,) = self._results([score])
            if again[-1].gap > judge.TIE_TOLERANCE:
                wrong.append((answer, index))
        return judge.judge_greedy(self.greedy, wrong)
