"""One verification from the first request to the verdict. Starts no server, prints nothing."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from specserve.errors import TrafficError
from specserve.measure.verify import greedy, sampled, smoke
from specserve.measure.verify.greedy import Suspect, TextPair
from specserve.measure.verify.result import (
    Against,
    Greedy,
    Sampled,
    Sampling,
    ServerSpeculation,
    Smoke,
    Verification,
    VerifyVerdict,
)
from specserve.measure.verify.sampled import Collector
from specserve.measure.verify.session import GREEDY, JobResult, ScoredText, VerifySession, results_of
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import since_by_engine
from specserve.metrics.prometheus import Metrics
from specserve.serve.requests import RequestRefused

CONCURRENCY = 8
MAX_TOKENS = 128
"""Of an answer: scoring a longer one needs more memory beside the KV cache."""
_WARM_UP = "warm-up requests, not counted"
_GREEDY_TOKENS = 64
_PLENTY = 4
"""Answers may end early: if there are prompts enough, so many times the tokens of a verdict are requested."""
_SUSPECTS = 32
"""So many tokens that look wrong are scored again in any case; more until one is confirmed or the time is over."""
_PATIENCE_S = 120.0
"""No answer at all for so long, or for twice the limit: the server is given up."""
_SMOKE_CONCURRENCY = 4
_SMOKE_SHARE = 4
"""This part of the time is left for the smoke tests, which come last: on a slow server they take long."""
_WAVES = 4
"""A sampled answer takes at most this part of the time."""
FEWEST_TOKENS = 24
"""Shorter answers cost more for their prompts than they tell."""
_FEWEST_REQUESTS = 4
"""Of the fewest tokens and at each temperature, even if the time is over: fewer give no useful interval."""
_PROBE_TOKENS = 16
_CONTEXT_ANSWERS = 4
"""Of the first few answers the long text is made."""
_CONTEXT_SHARE = 10
"""A long text may take this part of the time."""
_PACE_REQUESTS = 8
_PACE_MARGIN = 1.2


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is to be verified, and how much it may cost."""

    samplings: tuple[Sampling, ...]
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


class _Timed(NamedTuple):
    """One answer with its times; none if the server refused the prompt."""

    sampling: Sampling
    answer: ScoredText | None = None
    took_s: float = 0.0
    scoring_s: float = 0.0


class Verifier:
    """One run. `on_tick` is called often, and may raise to end it.

    `draft_limit`: the most tokens that the draft can follow, if that is known.
    """

    def __init__(
        self,
        session: VerifySession,
        request: VerifyRequest,
        *,
        draft_limit: int | None = None,
        show: Callable[[VerifyStatus], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._session, self._request = session, request
        self._limit_s = request.limit_s
        self._context_limit = smoke.context_limit(session.max_model_len, draft_limit)
        self._show, self._on_tick = show, on_tick
        self._collectors = {one: Collector(one) for one in request.samplings if one.temperature > 0}
        self._is_greedy = GREEDY in request.samplings
        self._unasked = list(request.prompts) if self._is_greedy else []
        """Prompts that are still to be sent at temperature 0."""
        self._greedy_answers: list[ScoredText] = []
        self._context_ids: list[int] = []
        self._unused: dict[str, str] = {}
        self._requests = self._tokens = 0
        self._scored_tokens, self._scoring_s = 0, 0.0
        self._pace: tuple[tuple[float, int], ...] = ()
        """Seconds and tokens of the last requests; replaced, never changed, since other threads read it."""
        self._began = self._heard_at_s = time.monotonic()
        self._phase = _WARM_UP

    def run(self, *, other: VerifySession | None = None) -> Verification:
        """Returns the verification. Raises TrafficError if the server cannot be verified, and what `on_tick` raises."""
        session = self._session
        self._probe()
        before = session.client.metrics()
        sampling_s = self._sample()
        self._phase = "scoring what looks wrong a second time"
        greedy_result = self._judge_greedy() if self._is_greedy else None
        results = tuple(collector.judged() for collector in self._collectors.values())
        parts: list[Greedy | Sampled] = [*([greedy_result] if greedy_result else []), *results]
        tests = [*self._smoke(), self._context()] if self._request.smoke else []
        likeness = self._against(other) if other is not None else None
        speculation = _speculation(before, session.client.metrics())
        if self._request.smoke:
            tests.append(smoke.drafts(speculation, tokens=self._tokens))
        return Verification(
            url=session.client.root,
            model=session.model,
            mode=session.mode,
            verdict=_worst(parts),
            elapsed_s=self._elapsed_s,
            requests=self._requests,
            concurrency=CONCURRENCY,
            speculation=speculation,
            greedy=greedy_result,
            sampled=results,
            smoke=tuple(tests),
            against=likeness,
            tokens_per_s=self._tokens / sampling_s if sampling_s else None,
            unused_prompts=dict(self._unused),
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _tick(self) -> None:
        self._on_tick()
        silent_s = time.monotonic() - self._heard_at_s
        if silent_s > max(_PATIENCE_S, 2 * self._limit_s):
            raise TrafficError(
                f"the server has not answered for {silent_s:.0f} s", hint="its log may say why"
            )
        elapsed_s = None if self._phase == _WARM_UP else self._elapsed_s
        self._show(VerifyStatus(self._phase, elapsed_s, self._tokens))

    def _results(self, jobs: Iterator[Callable[[], JobResult]], concurrency: int) -> Iterator[JobResult]:
        for found in results_of(jobs, concurrency=concurrency, on_tick=self._tick):
            self._heard_at_s = time.monotonic()
            yield found

    def _alone(self, job: Callable[[], JobResult]) -> JobResult:
        """One job, in a thread: whoever waits for it can be interrupted."""
        (found,) = self._results(iter([job]), 1)
        return found

    def _probe(self) -> None:
        """Send the first prompt that the server takes, and score the answer; a missing feature ends the run here."""
        refusals: list[RequestRefused] = []
        for prompt in self._request.prompts:
            try:
                self._alone(partial(self._session.warm_up, prompt))
                # the first requests may make the server compile: they are not part of the time limit
                self._began = time.monotonic()
                first = self._alone(partial(self._timed, GREEDY, prompt, _PROBE_TOKENS))
            except RequestRefused as error:
                refusals.append(error)
            else:
                # beside others it may take as many times longer: a guess until the first of them ended
                self._pace = ((first.took_s * CONCURRENCY, _PROBE_TOKENS),)
                return
        raise refusals[-1]

    def _timed(self, sampling: Sampling, prompt: Prompt, max_tokens: int) -> _Timed:
        """Write and score one answer. Raises Refused."""
        began = time.monotonic()
        one = self._session.generate(prompt, sampling, max_tokens=max_tokens)
        generated = time.monotonic()
        one = self._session.scored(one)
        return _Timed(sampling, one, time.monotonic() - began, time.monotonic() - generated)

    def _timed_or_unused(self, sampling: Sampling, prompt: Prompt, max_tokens: int) -> _Timed:
        try:
            return self._timed(sampling, prompt, max_tokens)
        except RequestRefused as error:
            self._unused[prompt.id] = error.message
            return _Timed(sampling)

    def _sample(self) -> float:
        """Write and score answers until there is a verdict or the time is over. Returns the seconds it took."""
        self._phase = "comparing tokens with a plain prefill"
        began_s = self._elapsed_s
        for item in self._results(self._jobs(), CONCURRENCY):
            if item.answer is not None:
                self._add(item, item.answer)
        if not self._requests:
            name, said = next(iter(self._unused.items()), ("", "no prompt"))
            raise TrafficError(f"the server refused every prompt; its message for `{name}` was: {said}")
        return self._elapsed_s - began_s

    def _jobs(self) -> Iterator[Callable[[], _Timed]]:
        """Greedy requests first, then all kinds mixed in one batch: both are paths of their own in vLLM."""
        unasked = self._unasked
        requested: Counter[Sampling] = Counter()
        enough = greedy.tokens_for(greedy.MARGIN)
        for turn in itertools.count():
            open_ones = [one for one, found in self._collectors.items() if not found.is_decided]
            is_first = turn < CONCURRENCY
            is_over = not is_first and self._left_s <= FEWEST_TOKENS * self._token_s
            if is_over:
                open_ones = [one for one in open_ones if requested[one] < _FEWEST_REQUESTS * FEWEST_TOKENS]
                if not open_ones:
                    return
            if open_ones and not is_first and self._is_slow and requested[GREEDY] >= enough:
                unasked.clear()
            is_alone = is_first and self._sampled_tokens > FEWEST_TOKENS
            if unasked and not is_over and (is_alone or turn % 2 == 0 or not open_ones):
                sampling, prompt, tokens = GREEDY, unasked.pop(0), self._greedy_tokens
            elif open_ones:
                sampling = min(open_ones, key=lambda one: requested[one])
                prompt, tokens = (
                    self._request.prompts[turn % len(self._request.prompts)],
                    self._sampled_tokens,
                )
            else:
                return
            requested[sampling] += tokens
            yield partial(self._timed_or_unused, sampling, prompt, tokens)

    @property
    def _left_s(self) -> float:
        """The time that is left for answers; the smoke tests have a part of their own."""
        context_s = self._context_s or 0.0
        reserved_s = context_s if context_s <= self._limit_s / _CONTEXT_SHARE else 0.0
        reserved_s += self._limit_s / _SMOKE_SHARE if self._request.smoke else 0.0
        return self._limit_s - self._elapsed_s - reserved_s

    @property
    def _token_s(self) -> float:
        """Seconds for each token of one more answer, rather more than less."""
        last = self._pace
        return _PACE_MARGIN * sum(took_s for took_s, _ in last) / sum(tokens for _, tokens in last)

    def _fitting(self, most: int, *, within_s: float) -> int:
        """The tokens of one more answer that should end within a time: at most `most`, at least 24 of them."""
        return min(most, max(FEWEST_TOKENS, int(within_s / self._token_s)))

    @property
    def _is_slow(self) -> bool:
        """Whether there is not the time for all that could be requested."""
        return self._elapsed_s > self._limit_s / 4 or self._sampled_tokens < MAX_TOKENS

    @property
    def _sampled_tokens(self) -> int:
        """Of one more sampled answer. Many short ones bound a fault better than a few long ones."""
        return self._fitting(MAX_TOKENS, within_s=min(self._left_s, self._limit_s / _WAVES))

    @property
    def _greedy_tokens(self) -> int:
        """Of one greedy answer: text that is requested once, as it repeats. Of few prompts it has to be long."""
        has_many = len(self._request.prompts) * _GREEDY_TOKENS >= _PLENTY * greedy.tokens_for(greedy.MARGIN)
        return self._fitting(_GREEDY_TOKENS if has_many else MAX_TOKENS, within_s=self._left_s / 2)

    def _add(self, item: _Timed, answer: ScoredText) -> None:
        if self._requests < _CONTEXT_ANSWERS:
            self._context_ids += [*answer.prompt_ids, *answer.ids]
        self._requests += 1
        self._tokens += len(answer.positions)
        self._pace = (*self._pace, (item.took_s, max(1, len(answer.ids))))[-_PACE_REQUESTS:]
        self._scored_tokens += len(answer.prompt_ids) + len(answer.ids)
        self._scoring_s += item.scoring_s / CONCURRENCY
        if item.sampling == GREEDY:
            self._greedy_answers.append(answer)
        else:
            self._collectors[item.sampling].add(sampled.tally(answer.positions, item.sampling))

    def _judge_greedy(self) -> Greedy:
        """Suspects are scored again, alone, nothing behind them: what passes then is the prefill's own noise."""
        found = [item for answer in self._greedy_answers for item in greedy.suspects(answer)]
        confirmed: list[Suspect] = []
        checked = 0
        for item in found:
            if checked >= _SUSPECTS and (confirmed or self._elapsed_s > self._limit_s):
                break
            one = item.answer
            again = self._alone(partial(self._session.score, one.prompt_ids, one.ids[: item.index + 1]))
            checked += 1
            if not again or again[-1].gap > greedy.TIE_TOLERANCE:
                confirmed.append(item)
        return greedy.judge(
            self._greedy_answers,
            confirmed,
            unstable=checked - len(confirmed),
            unchecked=len(found) - checked,
            unasked=len(self._unasked),
            cut=sum(len(one.ids) >= MAX_TOKENS for one in self._greedy_answers),
        )

    def _against(self, other: VerifySession) -> Against:
        self._phase = "comparing with the other server"
        jobs = (partial(_pair, self._session, other, mine) for mine in self._greedy_answers)
        return greedy.compare(
            list(self._results(jobs, CONCURRENCY)), url=other.client.root, model=other.model
        )

    def _smoke(self) -> list[Smoke]:
        self._phase = "smoke tests"
        jobs = [partial(self._smoke_test, name, test) for name, test in smoke.TESTS.items()]
        found = {result.name: result for result in self._results(iter(jobs), _SMOKE_CONCURRENCY)}
        return [found[name] for name in smoke.TESTS]

    def _smoke_test(self, name: str, test: smoke.SmokeTest) -> Smoke:
        if self._elapsed_s >= self._limit_s:
            return Smoke(name, smoke.SKIPPED, "no time left for this test: raise `--seconds`")
        return smoke.smoke_test(name, test, self._session)

    @property
    def _context_s(self) -> float | None:
        """The time that the long text should take; None if there is none, or nothing to tell it from."""
        if not self._request.smoke or self._context_limit is None or not self._scoring_s:
            return None
        return 2 * self._context_limit * self._scoring_s / self._scored_tokens

    def _context(self) -> Smoke:
        name, limit, cost_s = smoke.LONG_CONTEXT, self._context_limit, self._context_s
        if limit is None:
            return Smoke(name, smoke.SKIPPED, "the server does not say how long a text may be")
        if cost_s is None:
            return Smoke(name, smoke.SKIPPED, "nothing was scored: how long it takes is not known")
        if cost_s > self._limit_s / _CONTEXT_SHARE:
            way = f"`--seconds {math.ceil(cost_s * _CONTEXT_SHARE)}` makes room for it"
            return Smoke(name, smoke.SKIPPED, f"{limit:,} tokens would take about {cost_s:.0f} s; {way}")
        self._phase = f"long-context test of {limit:,} tokens"
        test = partial(smoke.long_context, ids=self._context_ids, limit=limit)
        return self._alone(partial(smoke.smoke_test, name, test, self._session))


def _pair(session: VerifySession, other: VerifySession, mine: ScoredText) -> TextPair:
    """The same prompt, as token ids, to the other server; and what both think of this one's text."""
    theirs = other.go_on(mine.prompt_ids, max_tokens=len(mine.ids))
    theirs = other.scored(replace(theirs, prompt=mine.prompt, prompt_ids=mine.prompt_ids))
    seen_there = other.score(mine.prompt_ids, mine.ids)
    return TextPair(mine, seen_there, theirs, session.score(mine.prompt_ids, mine.ids))


def _speculation(before: Metrics | None, after: Metrics | None) -> ServerSpeculation:
    if before is None or after is None:
        return ServerSpeculation(None)
    if not after.speculates:
        return ServerSpeculation(is_on=False)
    return ServerSpeculation(is_on=True, acceptance=since_by_engine(before.acceptance, now=after.acceptance))


def _worst(parts: Sequence[Greedy | Sampled]) -> VerifyVerdict:
    order = list(VerifyVerdict)
    return max((part.verdict for part in parts), key=order.index, default=VerifyVerdict.INCONCLUSIVE)
