"""One verification from the first request to the verdict. Starts no server, prints nothing."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from specserve.errors import TrafficError
from specserve.measure.verify import greedy, prompts, sampled, smoke
from specserve.measure.verify.greedy import Answer, Suspect
from specserve.measure.verify.prompts import Prompt
from specserve.measure.verify.result import (
    Against,
    Greedy,
    Sampled,
    Sampling,
    Smoke,
    Speculation,
    Verdict,
    Verification,
)
from specserve.measure.verify.sampled import Collector
from specserve.measure.verify.session import FEWEST_TOKENS, Crew, Pace, Session
from specserve.measure.verify.smoke import NAME as CONTEXT
from specserve.measure.verify.smoke import long_context, place, skipped, tried
from specserve.metrics.counters import since_by_engine
from specserve.metrics.prometheus import Metrics
from specserve.serve.requests import Refused

_GREEDY_TOKENS = 64
_PLENTY = 4
"""Answers may end early: where there are prompts enough, so many times the tokens of a verdict are asked for."""
_SUSPECTS = 32
"""So many tokens that look wrong are scored again in any case; more until one is confirmed or the time is over."""
_PATIENCE_S = 120.0
"""No answer at all for so long, or for twice the limit: nobody answers any more."""
_SMOKE_AT_ONCE = 4
_SMOKE_SHARE = 4
"""This part of the time is left for the smoke tests, which come last: on a slow server they take long."""
_WAVES = 4
"""A sampled answer takes at most this part of the time."""
_FEWEST_REQUESTS = 4
"""Of the fewest tokens and at each temperature, even if the time is over: fewer give no useful interval."""
_PROBE_TOKENS = 16
_FIRST = 4
_CONTEXT_SHARE = 10
"""A long text may take this part of the time."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be verified, and how much it may cost."""

    samplings: tuple[Sampling, ...]
    prompts: tuple[Prompt, ...]
    max_tokens: int = 128
    concurrency: int = 8
    limit_s: float = 60.0
    tie_tolerance: float = greedy.TIE_TOLERANCE
    smoke: bool = True
    draft_limit: int | None = None
    """The most tokens that the draft can follow, where that is known."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    phase: str
    elapsed_s: float
    tokens: int = 0


@dataclass(slots=True)
class _State:
    """What has come so far."""

    cold: list[Prompt] = field(default_factory=list)
    """Prompts that are still to be asked at temperature 0."""
    answers: list[Answer] = field(default_factory=list)
    """At temperature 0."""
    first: list[Answer] = field(default_factory=list)
    """The first few at any temperature: of them the long text is made."""
    collectors: dict[Sampling, Collector] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    tokens: int = 0
    pace: Pace = field(default_factory=Pace)
    sampling_s: float = 0.0
    scored: int = 0
    scoring_s: float = 0.0


Tell = Callable[[Progress], None]
T = TypeVar("T")


class Verifier:
    """One run. `on_tick` is called often, and may raise to end it."""

    def __init__(self, session: Session, wish: Wish, *, tell: Tell, on_tick: Callable[[], None]) -> None:
        self._session = session
        self._wish = wish
        self._tell = tell
        self._on_tick = on_tick
        hot = [one for one in wish.samplings if one.temperature > 0]
        cold = list(wish.prompts) if Sampling(0.0) in wish.samplings else []
        self._state = _State(cold, collectors={one: Collector(one) for one in hot})
        self._began = time.monotonic()
        self._phase = "warm-up requests"
        self._heard_at_s = self._began

    def run(self, *, other: Session | None = None) -> Verification:
        """All of it. Raises TrafficError where the server cannot be verified, and what `on_tick` raises."""
        self._probe()
        before = self._session.client.metrics()
        self._sample()
        self._phase = "scoring what looks wrong a second time"
        greedy_result = self._greedy()
        results = tuple(collector.judged() for collector in self._state.collectors.values())
        tests = [*self._smoke(), self._context()] if self._wish.smoke else []
        likeness = self._against(other) if other is not None else None
        speculation = _speculation(before, self._session.client.metrics())
        if self._wish.smoke:
            tests.append(smoke.drafts(speculation, tokens=self._state.tokens))
        return Verification(
            url=self._session.client.root,
            model=self._session.model,
            mode=self._session.mode,
            verdict=overall([*([greedy_result] if greedy_result else []), *results]),
            elapsed_s=self._elapsed_s,
            requests=self._state.requests,
            concurrency=self._wish.concurrency,
            speculation=speculation,
            greedy=greedy_result,
            sampled=results,
            smoke=tuple(tests),
            against=likeness,
            tokens_per_s=self._state.tokens / self._state.sampling_s if self._state.sampling_s else None,
            unused_prompts=dict(self._state.unused),
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _tick(self) -> None:
        self._on_tick()
        silent_s = time.monotonic() - self._heard_at_s
        if silent_s > max(_PATIENCE_S, 2 * self._wish.limit_s):
            raise TrafficError(
                f"the server has not answered for {silent_s:.0f} s", hint="its log may tell why"
            )
        self._tell(Progress(self._phase, self._elapsed_s, self._state.tokens))

    def _probe(self) -> None:
        """Ask the first prompt that the server takes, and score the answer; a missing feature ends the run here."""
        refusal: Refused | None = None
        for prompt in self._wish.prompts:
            try:
                self._alone(partial(self._session.warm_up, prompt))
                # the first requests may make the server compile: they are not part of the time limit
                self._began = time.monotonic()
                took_s = self._alone(partial(_timed, self._session, prompt))
            except Refused as error:
                refusal = error
            else:
                # beside others it may take as many times longer: a guess until the first of them ended
                self._state.pace.add(took_s * self._wish.concurrency, _PROBE_TOKENS)
                return
        assert refusal is not None
        raise refusal

    def _alone(self, job: Callable[[], T]) -> T:
        """One job, in a thread: whoever waits for it can be interrupted."""
        (found,) = self._results(iter([job]), concurrency=1)
        return found

    def _results(self, jobs: Iterator[Callable[[], T]], *, concurrency: int) -> Iterator[T]:
        for found in Crew(jobs, concurrency=concurrency).results(on_tick=self._tick):
            self._heard_at_s = time.monotonic()
            yield found

    def _smoke(self) -> list[Smoke]:
        self._phase = "smoke tests"
        tests = smoke.tests(
            self._session,
            tie_tolerance=self._wish.tie_tolerance,
            has_time=lambda: self._elapsed_s < self._wish.limit_s,
        )
        jobs = [partial(_numbered, number, test) for number, test in enumerate(tests)]
        found = self._results(iter(jobs), concurrency=_SMOKE_AT_ONCE)
        return [result for _, result in sorted(found, key=lambda item: item[0])]

    def _sample(self) -> None:
        self._phase = "comparing tokens with a plain prefill"
        began_s = self._elapsed_s
        found = self._results(self._jobs(), concurrency=self._wish.concurrency)
        for sampling, one, took_s, scoring_s in found:
            if one is not None:
                self._take(sampling, one, took_s, scoring_s)
        self._state.sampling_s = self._elapsed_s - began_s
        if not self._state.requests:
            name, said = next(iter(self._state.unused.items()), ("", "no prompt"))
            raise TrafficError(f"the server took none of the prompts; the one of `{name}`: {said}")

    def _jobs(self) -> Iterator[Callable[[], _Result]]:
        """Greedy requests first, then all kinds mixed in one batch: both are paths of their own in vLLM."""
        wish, cold = self._wish, self._state.cold
        asked: Counter[Sampling] = Counter()
        enough = greedy.tokens_for(greedy.MARGIN)
        for turn in itertools.count():
            open_ones = [one for one, found in self._state.collectors.items() if not found.is_decided]
            is_first = turn < wish.concurrency
            is_over = not is_first and not self._has_time()
            if is_over:
                open_ones = [one for one in open_ones if asked[one] < _FEWEST_REQUESTS * FEWEST_TOKENS]
                if not open_ones:
                    return
            if open_ones and not is_first and self._is_slow and asked[Sampling(0.0)] >= enough:
                cold.clear()
            is_alone = is_first and self._sampled_tokens > FEWEST_TOKENS
            if cold and not is_over and (is_alone or turn % 2 == 0 or not open_ones):
                sampling, prompt, tokens = Sampling(0.0), cold.pop(0), self._greedy_tokens
            elif open_ones:
                sampling = min(open_ones, key=lambda one: asked[one])
                prompt, tokens = wish.prompts[turn % len(wish.prompts)], self._sampled_tokens
            else:
                return
            asked[sampling] += tokens
            yield partial(self._one, sampling, prompt, tokens)

    def _has_time(self) -> bool:
        return self._left_s > FEWEST_TOKENS * self._state.pace.token_s

    @property
    def _left_s(self) -> float:
        return self._wish.limit_s - self._elapsed_s - self._reserved_s()

    @property
    def _is_slow(self) -> bool:
        """Whether there is not the time for all that could be asked."""
        is_late = self._elapsed_s > self._wish.limit_s / 4
        return is_late or self._sampled_tokens < self._wish.max_tokens

    @property
    def _sampled_tokens(self) -> int:
        """Of one more sampled answer. Many short ones bound a fault better than a few long ones."""
        return self._state.pace.tokens(
            self._wish.max_tokens, within_s=min(self._left_s, self._wish.limit_s / _WAVES)
        )

    @property
    def _greedy_tokens(self) -> int:
        """Of one greedy answer: text that is asked for once, as it repeats. Of few prompts it has to be long."""
        enough = greedy.tokens_for(greedy.MARGIN)
        has_many = len(self._wish.prompts) * _GREEDY_TOKENS >= _PLENTY * enough
        most = min(_GREEDY_TOKENS if has_many else enough, self._wish.max_tokens)
        return self._state.pace.tokens(most, within_s=self._left_s / 2)

    def _one(self, sampling: Sampling, prompt: Prompt, max_tokens: int) -> _Result:
        began = time.monotonic()
        try:
            one = self._session.generate(prompt, sampling, max_tokens=max_tokens)
            generated = time.monotonic()
            one = self._session.scored(one)
        except Refused as error:
            self._state.unused[prompt.name] = error.message
            return sampling, None, 0.0, 0.0
        ended = time.monotonic()
        return sampling, one, ended - began, ended - generated

    def _take(self, sampling: Sampling, one: Answer, took_s: float, scoring_s: float) -> None:
        state = self._state
        state.requests += 1
        state.tokens += len(one.positions)
        state.pace.add(took_s, len(one.ids))
        state.first += [one] if len(state.first) < _FIRST else []
        state.scored += len(one.prompt_ids) + len(one.ids)
        state.scoring_s += scoring_s / self._wish.concurrency
        if sampling.temperature == 0:
            state.answers.append(one)
            return
        state.collectors[sampling].add(sampled.tally(one.positions, sampling))

    def _greedy(self) -> Greedy | None:
        """Suspects are scored again, alone, nothing behind them: what passes then is the prefill's own noise."""
        if Sampling(0.0) not in self._wish.samplings:
            return None
        state, tolerance = self._state, self._wish.tie_tolerance
        found = [item for one in state.answers for item in greedy.suspects(one, tie_tolerance=tolerance)]
        confirmed: list[Suspect] = []
        checked = 0
        for item in found:
            if checked >= _SUSPECTS and (confirmed or self._elapsed_s > self._wish.limit_s):
                break
            one = item.answer
            again = self._alone(partial(self._session.score, one.prompt_ids, one.ids[: item.index + 1]))
            checked += 1
            if not again or again[-1].gap > tolerance:
                confirmed.append(item)
        judged = greedy.judge(
            state.answers,
            confirmed,
            unstable=checked - len(confirmed),
            unchecked=len(found) - checked,
            tie_tolerance=tolerance,
        )
        cut = sum(len(one.ids) >= self._wish.max_tokens for one in state.answers)
        return replace(judged, unasked=len(state.cold), cut=cut)

    def _against(self, other: Session) -> Against:
        self._phase = "comparing with the other server"
        jobs = (partial(_pair, self._session, other, mine) for mine in self._state.answers)
        pairs = list(self._results(jobs, concurrency=self._wish.concurrency))
        return prompts.compare(
            pairs, url=other.client.root, model=other.model, tie_tolerance=self._wish.tie_tolerance
        )

    def _reserved_s(self) -> float:
        """The time that the smoke tests are expected to take, the long text included if it is to be written."""
        limit_s, cost_s = self._wish.limit_s, self._context_s()
        context_s = cost_s if cost_s is not None and cost_s <= limit_s / _CONTEXT_SHARE else 0.0
        return context_s + (limit_s / _SMOKE_SHARE if self._wish.smoke else 0.0)

    def _context_s(self) -> float | None:
        limit = place(self._session.max_model_len, self._wish.draft_limit)
        if not self._wish.smoke or limit is None or not self._state.scoring_s:
            return None
        return 2 * limit * self._state.scoring_s / self._state.scored

    def _context(self) -> Smoke:
        limit, cost_s = place(self._session.max_model_len, self._wish.draft_limit), self._context_s()
        if limit is None:
            return skipped(CONTEXT, "the server does not say how long a text may be")
        if cost_s is None or not self._state.requests:
            return skipped(CONTEXT, "nothing was scored: how long it takes is not known")
        if cost_s > self._wish.limit_s / _CONTEXT_SHARE:
            return skipped(
                CONTEXT,
                f"{limit} tokens would take about {cost_s:.0f} s: `--seconds {cost_s * _CONTEXT_SHARE:.0f}`",
            )
        self._phase = f"a text of {limit} tokens"
        ids = [token for one in self._state.first for token in (*one.prompt_ids, *one.ids)]
        test = partial(long_context, ids=ids, limit=limit, tie_tolerance=self._wish.tie_tolerance)
        return self._alone(partial(tried, CONTEXT, test, self._session))


_Result = tuple[Sampling, Answer | None, float, float]


def _timed(session: Session, prompt: Prompt) -> float:
    """Ask a prompt, score the answer and return the seconds it took. Raises Refused."""
    began = time.monotonic()
    one = session.generate(prompt, Sampling(0.0), max_tokens=_PROBE_TOKENS)
    session.score(one.prompt_ids, one.ids)
    return time.monotonic() - began


def _numbered(number: int, test: Callable[[], Smoke]) -> tuple[int, Smoke]:
    return number, test()


def _pair(session: Session, other: Session, mine: Answer) -> prompts.Pair:
    """The same prompt, as token ids, to the other server; and what both think of this one's text."""
    theirs = replace(
        other.go_on(mine.prompt_ids, max_tokens=len(mine.ids)), prompt=mine.prompt, prompt_ids=mine.prompt_ids
    )
    seen_there = other.score(mine.prompt_ids, mine.ids)
    seen_again = session.score(mine.prompt_ids, mine.ids)
    return prompts.Pair(mine, seen_there, other.scored(theirs), seen_again)


def _speculation(before: Metrics | None, after: Metrics | None) -> Speculation:
    if before is None or after is None:
        return Speculation(None)
    if not after.speculates:
        return Speculation(is_on=False)
    return Speculation(is_on=True, acceptance=since_by_engine(before.acceptance, now=after.acceptance))


def overall(parts: Sequence[Greedy | Sampled]) -> Verdict:
    """The worst of them; INCONCLUSIVE if there is none."""
    order = list(Verdict)
    return max((part.verdict for part in parts), key=order.index, default=Verdict.INCONCLUSIVE)
