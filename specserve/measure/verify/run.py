"""One verification from the first request to the verdict. Starts no server, prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import NamedTuple

from specserve.errors import TrafficError
from specserve.measure.verify import judge, smoke
from specserve.measure.verify.result import (
    LEVELS,
    Greedy,
    Outcome,
    Sampled,
    ServerSpeculation,
    Smoke,
    Verification,
)
from specserve.measure.verify.session import JobResult, ScoredText, VerifySession, results_of
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import since_by_engine
from specserve.metrics.prometheus import Metrics
from specserve.serve.requests import RequestRefused

CONCURRENCY = 8
MAX_TOKENS, MIN_TOKENS = 128, 48
"""Of an answer: a longer one needs more memory when it is scored; a wave of shorter ones would not
be enough for LOSSLESS at temperature 0, and prompts would take most of the time."""
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
    smoke: bool = True
    server: str | None = None
    against: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    alternative: str | None = None
    settings: tuple[str, ...] = ()
    check: bool = True


class VerifyStatus(NamedTuple):
    """How far a verification is."""

    phase: str
    elapsed_s: float | None
    """None during the warm-up, which is not part of the time limit."""
    tokens: int = 0


class Verifier:
    """One run. `other`: the server that scores the answers; None: the one that wrote them.

    `on_tick` is called often, and may raise to end the run.
    """

    def __init__(
        self,
        session: VerifySession,
        request: VerifyRequest,
        *,
        other: VerifySession | None = None,
        show: Callable[[VerifyStatus], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._session, self._request, self._other = session, request, other
        self._scorer = other or session
        self._show, self._on_tick = show, on_tick
        self._greedy: list[ScoredText] = []
        self._tallies: dict[float, list[judge.Tally]] = {t: [] for t in request.temperatures if t}
        self._unused: dict[str, str] = {}
        self._max_tokens = MAX_TOKENS
        self._tokens = 0
        self._began = time.monotonic()
        self._phase = _WARM_UP

    def run(self) -> Verification:
        """Returns the verification.

        Raises TrafficError if the server cannot be verified, and what `on_tick` raises.
        """
        session = self._session
        self._probe()
        before = session.client.metrics()
        self._phase = "comparing tokens with a plain prefill"
        for wave in self._waves():
            for answer in self._results([partial(self._answer, *each) for each in wave]):
                self._tokens += len(answer.positions) if answer else 0
        if not self._tokens:
            _, said = next(iter(self._unused.items()), ("", "no token could be scored"))
            raise TrafficError(f"the server answered no prompt: {said}")
        self._phase = "scoring what looks wrong a second time"
        greedy_part = self._judge_greedy() if 0.0 in self._request.temperatures else None
        sampled_parts = tuple(judge.judge_sampled(one, t) for t, one in self._tallies.items())
        smoke_tests = self._smoke() if self._request.smoke else []
        speculation = _speculation(before, session.client.metrics())
        if self._request.smoke:
            smoke_tests.append(smoke.drafts(speculation, tokens=self._tokens))
        parts: list[Greedy | Sampled] = [*([greedy_part] if greedy_part else []), *sampled_parts]
        order = list(LEVELS)
        return Verification(
            url=session.client.root,
            model=session.model,
            verdict=max((part.verdict for part in parts), key=lambda each: order.index(each.word)),
            elapsed_s=self._elapsed_s,
            speculation=speculation,
            against=self._other.client.root if self._other else None,
            greedy=greedy_part,
            sampled=sampled_parts,
            smoke=tuple(smoke_tests),
            unused_prompts=dict(self._unused),
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _tick(self) -> None:
        self._on_tick()
        elapsed_s = None if self._phase == _WARM_UP else self._elapsed_s
        self._show(VerifyStatus(self._phase, elapsed_s, self._tokens))

    def _results(
        self, jobs: Sequence[Callable[[], JobResult]], concurrency: int = CONCURRENCY
    ) -> Iterator[JobResult]:
        return results_of(jobs, concurrency=concurrency, on_tick=self._tick)

    def _probe(self) -> None:
        """Send tiny requests of each kind; a missing feature ends the run here."""
        probe = partial(self._scored, 0.0, _PROBE, _PROBE.max_tokens)
        # the first requests may make the server compile: they are no part of the time
        for job in (partial(self._session.learn_mode, _PROBE), probe, probe):
            self._began = time.monotonic()
            list(self._results([job]))
        # if answers beside each other take as long as in turns, the first wave still takes no more
        # than a quarter of the time
        tokens_per_s = _PROBE.max_tokens / self._elapsed_s
        tokens = int(self._request.limit_s / 4 * tokens_per_s / CONCURRENCY)
        self._max_tokens = min(MAX_TOKENS, max(MIN_TOKENS, tokens))
        self._began = time.monotonic()

    def _scored(self, temperature: float, prompt: Prompt, max_tokens: int) -> ScoredText:
        """Write and score one answer. Raises RequestRefused."""
        text = self._session.generate(prompt, temperature, max_tokens=max_tokens)
        return replace(text, positions=self._scorer.score(text.prompt_ids, text.ids))

    def _answer(self, temperature: float, prompt: Prompt) -> ScoredText | None:
        """Take one answer into the figures; None if the server does not take the prompt."""
        try:
            found = self._scored(temperature, prompt, self._max_tokens)
        except RequestRefused as error:
            self._unused[prompt.id] = error.message
            return None
        if temperature:
            self._tallies[temperature].append(judge.tally(found.positions, temperature))
        else:
            self._greedy.append(found)
        return found

    def _waves(self) -> Iterator[list[tuple[float, Prompt]]]:
        """Yields the answers to ask for, by temperature and prompt, until the time is over.

        Greedy prompts come first and alone, then beside sampled ones in one batch, because vLLM
        treats both cases differently; each is sent once, as greedy text repeats. A wave has as many
        sampled answers as all before it, so the verdict is looked at a few times only. However slow
        the server is, each temperature has one wave.
        """
        share = 1 - _SMOKE_SHARE if self._request.smoke else 1.0
        limit_s = self._request.limit_s * share
        greedy_limit_s = self._request.limit_s * _GREEDY_SHARE if self._tallies else limit_s
        prompts = list(self._request.prompts) if 0.0 in self._request.temperatures else []
        turns = cycle(self._request.prompts)
        size, sampled, sent = CONCURRENCY, 0, 0
        while True:
            count = CONCURRENCY if not sent or self._elapsed_s < greedy_limit_s else 0
            wave = [(0.0, prompt) for prompt in prompts[:count]]
            del prompts[:count]
            if sent or not wave:
                open_ones = [t for t, one in self._tallies.items() if not judge.is_decided(one, t)]
                if sampled:
                    fits = (limit_s - self._elapsed_s) / self._elapsed_s * sent
                    size = int(min(sampled, fits / max(1, len(open_ones))))
                if size >= CONCURRENCY // 2:
                    wave += [(t, next(turns)) for t in open_ones for _ in range(size)]
                    sampled += size
            if not wave:
                return
            sent += len(wave)
            yield [*wave[::2], *wave[1::2]]

    def _judge_greedy(self) -> Greedy:
        """Suspects are scored again, alone, nothing behind them: what passes then is noise."""
        found = judge.suspects(self._greedy)
        tried, wrong = found[:_MAX_RESCORED], []
        for answer, index in tried:
            score = partial(self._scorer.score, answer.prompt_ids, answer.ids[: index + 1])
            (again,) = self._results([score])
            if not again or again[-1].gap > judge.TIE_TOLERANCE:
                wrong.append((answer, index))
        return judge.judge_greedy(
            self._greedy,
            wrong,
            cleared=len(tried) - len(wrong),
            not_rescored=len(found) - len(tried),
        )

    def _smoke(self) -> list[Smoke]:
        self._phase = "smoke tests"
        jobs = [partial(self._smoke_test, name, test) for name, test in smoke.TESTS.items()]
        found = {one.name: one for one in self._results(jobs, _SMOKE_CONCURRENCY)}
        return [found[name] for name in smoke.TESTS]

    def _smoke_test(self, name: str, test: smoke.SmokeTest) -> Smoke:
        if self._elapsed_s >= self._request.limit_s:
            return Smoke(name, Outcome.SKIPPED, "no time left for this test: raise `--seconds`")
        return smoke.smoke_test(name, test, self._session)


def _speculation(before: Metrics | None, after: Metrics | None) -> ServerSpeculation:
    if before is None or after is None:
        return ServerSpeculation(None)
    if not after.speculates:
        return ServerSpeculation(is_on=False)
    gained = since_by_engine(before.acceptance, now=after.acceptance)
    return ServerSpeculation(is_on=True, acceptance=gained)
