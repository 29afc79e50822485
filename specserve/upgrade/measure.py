"""Both sides of an upgrade launched and asked the same: speed, acceptance, memory, start, text."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import fmean
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.passes import OnProgress, Pass, Progress, paired, passes_of
from specserve.measure.bench.plan import BenchPlan, BenchRequest, Variant, plan_bench
from specserve.measure.bench.run import Bench, new_directory
from specserve.measure.bench.summary import figures, invalid_reason, sample, speedup
from specserve.measure.servers import Running, described
from specserve.measure.verdict import (
    COSTS,
    INCONCLUSIVE,
    KNOWN,
    NO_DIFFERENCE,
    PAYS,
    Estimate,
    LogEstimate,
    RateSample,
    Verdict,
    ratio,
    verdict,
)
from specserve.measure.verify.judge import TIE_TOLERANCE, Position, ScoredText
from specserve.measure.verify.run import VerifySession, load_prompts, results_of
from specserve.measure.workloads import Prompt
from specserve.metrics import Acceptance, total_acceptance
from specserve.plan.launch import LaunchOptions, plan_launch
from specserve.profile.schema import Profile
from specserve.serve.process import stop_on_signals
from specserve.upgrade.sides import Side
from specserve.vllm.versions import Vllm, table

OLD, NEW = "old", "new"
WORSE, UNDECIDED, BETTER, SAME = WORDS = ("WORSE", "UNDECIDED", "BETTER", "SAME")
"""What a figure became, the word that matters most first."""
_MORE = {PAYS: BETTER, COSTS: WORSE, NO_DIFFERENCE: SAME, INCONCLUSIVE: UNDECIDED}
_LESS = {**_MORE, PAYS: WORSE, COSTS: BETTER}
"""Of seconds."""
_TEXTS, _TOKENS = 16, 64
_TOO_FEW = "fewer than two blocks were measured: give `--measure` more time"


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """One figure on both sides; None: it is not known."""

    name: str
    unit: str
    old: float | None
    new: float | None
    ratio: Estimate | None
    """New over old, with its 95 % interval; of a position in a draft: of 1 + its share."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Parting:
    """Where the greedy texts after a prompt part."""

    prompt: str
    token: int
    """Its place in the answer, from 0; -1: the prompts already differ, in tokens."""
    old: str
    new: str
    gaps: tuple[float, float] = (0.0, math.inf)
    """Of either side: how far its token is behind the best one by its own plain prefill, nats."""
    is_tie: bool = False
    """Both sides hold both tokens to be as good as the best: rounding decides."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All of it; its fields are the keys of its JSON."""

    figures: tuple[MeasuredFigure, ...]
    partings: tuple[Parting, ...]
    starts: int
    """Of each side."""
    host: Mapping[str, str]
    duration_s: float
    directory: str
    """Passes, and the logs of the servers."""
    notes: tuple[str, ...] = ()

    @property
    def is_worse(self) -> bool:
        """Whether any figure is."""
        return any(each.verdict.word == WORSE for each in self.figures)


class UpgradeBench(Bench):
    """A benchmark of both sides that also reads the greedy text of each, once."""

    @cached_property
    def texts(self) -> dict[str, dict[str, ScoredText]]:
        """By side and prompt."""
        return {}

    @contextmanager
    def session(self, *given: Any, **more: Any) -> Iterator[tuple[dict[str, Running], Any]]:
        """As for every benchmark; text is read one request at a time: a batch would round it."""
        with super().session(*given, **more) as (servers, generator):
            for name in servers.keys() - self.texts.keys():
                self.on_progress(Progress(f"reading the greedy text of {name}"))
                asked = VerifySession(servers[name].client)
                jobs = [partial(_greedy, asked, prompt) for prompt in load_prompts()[:_TEXTS]]
                found = results_of(jobs, concurrency=1, on_tick=partial(self._tick, servers))
                self.texts[name] = {text.prompt: text for text in found}
            yield servers, generator


def _greedy(asked: VerifySession, prompt: Prompt) -> ScoredText:
    text = asked.generate(prompt, 0.0, max_tokens=_TOKENS)
    return replace(text, positions=asked.score(text.prompt_ids, text.ids))


def measure_upgrade(
    profile: Profile,
    sides: tuple[Side, Side],
    *,
    budget: str,
    notices: Notices,
    open_view: Callable[[], AbstractContextManager[OnProgress]],
) -> Measured:
    """Launch both, one after the other if they do not fit side by side, and compare them.

    `budget`: time for measuring, launches not counted. Raises UsageError, LaunchError,
    TrafficError, Interrupted; no server is left.
    """
    pair = zip((OLD, NEW), sides, strict=True)
    variants = tuple(plan_side(profile, side, name) for name, side in pair)
    request, began_s = BenchRequest(budget=budget), time.monotonic()
    plan = plan_bench(request, notices=notices, planned=(profile, variants))
    with (
        new_directory(plan, None) as directory,
        stop_on_signals() as stop,
        open_view() as view,
    ):
        notices.say(f"measuring {sides[0].label} and {sides[1].label} in {directory.path}")
        bench = UpgradeBench(plan, directory, view, stop)
        bench.run()
        speed, drafts = speeds(plan, bench.passes), acceptance(plan, bench.passes)
        starts = [bench.starts_s[name] for name in (OLD, NEW)]
        room = [bench.kv_tokens.get(name) for name in (OLD, NEW)]
        text, partings = compare_texts(bench.texts[OLD], bench.texts[NEW])
        return Measured(
            (*speed, *drafts, kv_cache(*room), time_to_ready(*starts), text),
            partings,
            starts=len(starts[0]),
            host=described(plan.platform),
            duration_s=time.monotonic() - began_s,
            directory=str(directory.path),
            notes=tuple(bench.notes),
        )


def plan_side(profile: Profile, side: Side, name: str) -> Variant:
    """The launch of a side by its own interpreter, whatever range of versions the profile names.

    Raises UsageError for a side that cannot be started here, or does not take the profile.
    """
    if side.python is None:
        hint = "give the interpreter or the virtual environment that has it"
        raise UsageError(f"`--measure` cannot start `{side.label}`", hint=hint)
    here = Vllm(table(side.version), side.version, "cpu" if "+cpu" in side.version else "cuda")
    server = replace(profile.server, host="127.0.0.1")  # nobody else is to reach it
    mine = replace(profile, vllm=None, server=server)
    _, plan, _ = plan_launch(mine, LaunchOptions(port=0, python=side.python), here=here)
    return Variant(name, plan, api_key_env=plan.api_key_env)


def _verdict(word: str, sentence: str) -> Verdict:
    return Verdict(word, {WORSE: "bad", UNDECIDED: "open"}.get(word, "good"), sentence)  # type: ignore[arg-type]


def _figure(
    name: str,
    unit: str,
    values: Sequence[float | None],
    found: LogEstimate | None,
    *,
    why: str,
    words: Mapping[str, str] = _MORE,
) -> MeasuredFigure:
    """A figure with the verdict of bench on the ratio of both sides. `why`: there is none."""
    old, new = values
    if found is None or not math.isfinite(found.error):
        return MeasuredFigure(name, unit, old, new, None, _verdict(UNDECIDED, why))
    said = verdict(found)
    judged = _verdict(words[said.word], said.sentence)
    return MeasuredFigure(name, unit, old, new, found.estimate, judged)


def speeds(plan: BenchPlan, passes: Sequence[Pass]) -> Iterator[MeasuredFigure]:
    """Output tokens/s at each workload and load."""
    for at in plan.points:
        both = [passes_of(passes, name, at) for name in (OLD, NEW)]
        why = next((why for each in both if each and (why := invalid_reason(each))), None)
        found = None if why else speedup(passes, variant=NEW, against=OLD, at=at)
        rates = [each.output_tokens_per_s if each else None for each in map(figures, both)]
        name = f"{at.workload} at concurrency {at.concurrency}"
        yield _figure(name, "tokens/s", rates, found, why=why or _TOO_FEW)


def acceptance(plan: BenchPlan, passes: Sequence[Pass]) -> Iterator[MeasuredFigure]:
    """Tokens per step, and how often each position of a draft is accepted; all points together.

    A side that drafts nothing has 1 token per step. A position is judged by 1 + its share, the
    tokens of a step that drafts nothing else: a share of next to nothing may double.
    """
    pairs = [paired(passes, OLD, NEW, at) for at in plan.points]
    both = [[one for pair in pairs for one in pair[side]] for side in (0, 1)]
    totals = [total_acceptance(one.acceptance or Acceptance() for one in side) for side in both]
    last = max(len(total.accepted_per_position) for total in totals)
    for place in range(-1, last if any(total.drafts for total in totals) else -1):

        def accepted(own: Acceptance, place: int = place) -> int:
            positions = (*own.accepted_per_position, *[0] * last)
            return own.accepted_tokens if place < 0 else positions[place]

        old, new = (
            [
                sample(one, steps + accepted(own), steps)
                for one in side
                for own in (one.acceptance or Acceptance(),)
                for steps in (own.drafts or 1,)
            ]
            for side in both
        )
        of_all = place < 0
        name = "mean acceptance length" if of_all else f"accepted at position {place + 1}"
        values = [of_all + accepted(total) / (total.drafts or 1) for total in totals]
        unit, found = "tokens/step" if of_all else "share", ratio(new, against=old)
        yield _figure(name, unit, values, found, why=_TOO_FEW)


def kv_cache(old: int | None, new: int | None) -> MeasuredFigure:
    """Tokens of the KV cache by the logs: a count, so its ratio has no spread."""
    found = LogEstimate(math.log(new / old), 0.0, KNOWN, 0, 1, 0) if old and new else None
    return _figure("KV cache", "tokens", (old, new), found, why="a log does not say it")


def time_to_ready(old: Sequence[float], new: Sequence[float]) -> MeasuredFigure:
    """Mean seconds from the start of a server until it answers."""
    samples = [
        [
            RateSample("start", str(at), took_s, 1.0, launch=str(at))
            for at, took_s in enumerate(side)
        ]
        for side in (old, new)
    ]
    found, why = ratio(samples[1], against=samples[0]), "each was started once"
    return _figure("time to ready", "s", (fmean(old), fmean(new)), found, why=why, words=_LESS)


def compare_texts(
    old: Mapping[str, ScoredText], new: Mapping[str, ScoredText]
) -> tuple[MeasuredFigure, tuple[Parting, ...]]:
    """Whether the greedy texts are equal, and where they part: at near-ties they are the same."""
    common = [name for name in old if name in new]
    partings = tuple(filter(None, (parting(old[name], new[name]) for name in common)))
    real = [each.gaps for each in partings if not each.is_tie]
    equal, ties = len(common) - len(partings), len(partings) - len(real)
    sentence = f"{equal} of {len(common)} texts are equal, {ties} part at a near-tie"
    word = SAME if common else UNDECIDED
    if real:
        is_mended = all(mine > TIE_TOLERANCE >= theirs for mine, theirs in real)
        word, sentence = BETTER if is_mended else WORSE, f"{sentence}, {len(real)} at no tie"
    return MeasuredFigure("greedy text", "", None, None, None, _verdict(word, sentence)), partings


def parting(old: ScoredText, new: ScoredText) -> Parting | None:
    """Where two texts part; None: nowhere."""
    if old.prompt_ids != new.prompt_ids:
        return Parting(old.prompt, -1, "", "")
    if old.ids == new.ids:
        return None
    both = [*zip(old.positions, new.positions, strict=False)]
    for token, (mine, theirs) in enumerate(both):
        if mine.token != theirs.token:
            gaps = [_gap(by, each.token) for by in (mine, theirs) for each in (mine, theirs)]
            before, after = (json.dumps(each.text, ensure_ascii=False) for each in (mine, theirs))
            is_tie = max(gaps) <= TIE_TOLERANCE
            return Parting(old.prompt, token, before, after, (gaps[0], gaps[3]), is_tie)
    return Parting(old.prompt, len(both), "", "")  # one of them ends


def _gap(position: Position, token: int) -> float:
    """How far a token is behind the best one there; infinite if it is not among the likeliest."""
    scores = {**dict(position.top), position.token: position.logprob}
    return max(0.0, position.top[0][1] - scores.get(token, -math.inf))
