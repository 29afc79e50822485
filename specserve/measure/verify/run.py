"""One verification from the first request to the verdict. Starts no server, prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, cycle
from typing import NamedTuple

from specserve.errors import TrafficError
from specserve.measure.verify import judge, smoke
from specserve.measure.verify.result import LEVELS, Greedy, Sampled, Smoke, Verification
from specserve.measure.verify.session import JobResult, ScoredText, VerifySession, results_of
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import since_by_engine
from specserve.serve.requests import RequestRefused

CONCURRENCY = 8
MAX_TOKENS = 128
"""Of an answer: a longer one needs more memory when it is scored."""
ANSWERS_PER_S = 2
"""No more answers at a temperature than that, however fast the server is: at 128 tokens each, a
minute's 120 exclude a temperature that is wrong by 4 %."""
_WARM_UP = "warm-up requests, not counted"
_GREEDY_SHARE = 1 / 3
"""Of the time, if there are sampled answers too."""
_SMOKE_SHARE = 1 / 4
"""Of the time: it is left for the smoke tests, which come last."""
_SMOKE_CONCURRENCY = 4
_MAX_RESCORED = 32
_PROBE = Prompt("probe", 16, "def add(a, b):\n")


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is to be verified, and how long it may take."""

    temperatures: tuple[float, ...]
    prompts: tuple[Prompt, ...]
    limit_s: float = 60.0
    server: str | None = None
    against: str | None = None
    alternative: str | None = None
    settings: tuple[str, ...] = ()
    check: bool = True


class VerifyStatus(NamedTuple):
    """How far a verification is."""

    phase: str
    elapsed_s: float | None
    """None during the warm-up, which is not part of the time limit."""
    tokens: int = 0


@dataclass(slots=True)
class Verifier:
    """One run. `on_tick` is called often, and may raise to end the run."""

    session: VerifySession
    request: VerifyRequest
    show: Callable[[VerifyStatus], None]
    on_tick: Callable[[], None]
    other: VerifySession | None = None
    """The server that scores the answers; None: the one that wrote them."""
    greedy: list[ScoredText] = field(default_factory=list)
    tallies: dict[float, list[judge.Tally]] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    longest_s: float = 0.0
    """What an answer took at most."""
    began: float = 0.0
    phase: str = _WARM_UP

    def run(self) -> Verification:
        """Returns the verification.

        Raises TrafficError if the server cannot be verified, and what `on_tick` raises.
        """
        # the first requests may make the server compile: they are no part of the time
        probe = partial(self._scored, 0.0, _PROBE, _PROBE.max_tokens)
        for job in (partial(self.session.learn_mode, _PROBE), probe):
            list(self._results([job]))
        client, self.began = self.session.client, time.monotonic()
        before = client.metrics()
        self.tallies = {t: [] for t in self.request.temperatures if t}
        self.phase = "comparing tokens with a plain prefill"
        for answer in self._results(self._jobs()):
            self.tokens += len(answer.positions) if answer else 0
        if not self.tokens:
            _, said = next(iter(self.unused.items()), ("", "no token could be scored"))
            raise TrafficError(f"the server answered no prompt: {said}")
        self.phase = "scoring what looks wrong a second time"
        greedy_part = self._judge_greedy() if 0.0 in self.request.temperatures else None
        sampled_parts = tuple(judge.judge_sampled(one, t) for t, one in self.tallies.items())
        smoke_tests = self._smoke()
        gained = speculates = None
        if before is not None and (after := client.metrics()) is not None:
            speculates = after.speculates
            gained = since_by_engine(before.acceptance, now=after.acceptance)
        smoke_tests.append(smoke.drafts(speculates, gained, tokens=self.tokens))
        parts: list[Greedy | Sampled] = [*([greedy_part] if greedy_part else []), *sampled_parts]
        order = list(LEVELS)
        return Verification(
            url=client.root,
            model=self.session.model,
            verdict=max((part.verdict for part in parts), key=lambda each: order.index(each.word)),
            elapsed_s=self._elapsed_s,
            speculates=speculates,
            acceptance=gained if speculates else None,
            against=self.other.client.root if self.other else None,
            greedy=greedy_part,
            sampled=sampled_parts,
            smoke=tuple(smoke_tests),
            unused_prompts=dict(self.unused),
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def _results(
        self, jobs: Iterable[Callable[[], JobResult]], concurrency: int = CONCURRENCY
    ) -> Iterator[JobResult]:
        def tick() -> None:
            self.on_tick()
            elapsed_s = None if self.phase == _WARM_UP else self._elapsed_s
            self.show(VerifyStatus(self.phase, elapsed_s, self.tokens))

        return results_of(jobs, concurrency=concurrency, on_tick=tick)

    def _scored(self, temperature: float, prompt: Prompt, max_tokens: int) -> ScoredText:
        """Write and score one answer. Raises RequestRefused."""
        text = self.session.generate(prompt, temperature, max_tokens=max_tokens)
        scorer = self.other or self.session
        return replace(text, positions=scorer.score(text.prompt_ids, text.ids))

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
        """Yields answers to ask for, until the time is over or there are enough.

        Greedy prompts come first and alone, then beside sampled ones in one batch, because vLLM
        treats both cases differently; each is sent once, as greedy text repeats. However slow the
        server is, each temperature has 8 answers.
        """
        request = self.request
        limit_s = request.limit_s * (1 - _SMOKE_SHARE)
        greedy_limit_s = request.limit_s * _GREEDY_SHARE if self.tallies else limit_s
        prompts = request.prompts if 0.0 in request.temperatures else ()
        yield from (partial(self._answer, 0.0, prompt) for prompt in prompts[:CONCURRENCY])
        greedy, turns = iter(prompts[CONCURRENCY:]), cycle(request.prompts)
        most = max(CONCURRENCY, ANSWERS_PER_S * request.limit_s)
        for sent in count():
            ends_s = self._elapsed_s + self.longest_s
            prompt = next(greedy, None) if ends_s < greedy_limit_s else None
            goes_on = sent < CONCURRENCY or (ends_s < limit_s and sent < most)
            if prompt is not None:
                yield partial(self._answer, 0.0, prompt)
            if goes_on:
                yield from (partial(self._answer, t, next(turns)) for t in self.tallies)
            if prompt is None and not (goes_on and self.tallies):
                return

    def _judge_greedy(self) -> Greedy:
        """The suspects that are furthest behind are scored again, alone: what passes is noise."""
        tried, wrong = judge.suspects(self.greedy)[:_MAX_RESCORED], []
        scorer = self.other or self.session
        for answer, index in tried:
            score = partial(scorer.score, answer.prompt_ids, answer.ids[: index + 1])
            (again,) = self._results([score])
            if not again or again[-1].gap > judge.TIE_TOLERANCE:
                wrong.append((answer, index))
        return judge.judge_greedy(self.greedy, wrong, cleared=len(tried) - len(wrong))

    def _smoke(self) -> list[Smoke]:
        self.phase = "smoke tests"
        jobs = [partial(smoke.smoke_test, name, self.session) for name in smoke.TESTS]
        found = {one.name: one for one in self._results(jobs, _SMOKE_CONCURRENCY)}
        return [found[name] for name in smoke.TESTS]
