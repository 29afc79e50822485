"""The prompts that are asked, and two servers on the same prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.errors import FactError
from specserve.measure.verify.greedy import Answer, Position, before, tokens_for
from specserve.measure.verify.result import Against, Likeness, Parting

SHIPPED = Path(__file__).with_name("prompts.jsonl")
MOST_PROMPTS = 64
_MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text, or the messages of a chat."""

    name: str
    text: str
    messages: tuple[dict[str, Any], ...] = ()


def left_out(path: str) -> int:
    """Lines of a file of prompts beyond those that are used."""
    with Path(path).open("rb") as stream:
        lines = sum(bool(line.strip()) for line in stream.read(_MOST_BYTES).split(b"\n"))
    return max(0, lines - MOST_PROMPTS)


def prompts(path: str | None = None) -> tuple[Prompt, ...]:
    """The first 64 prompts of a file of lines `{id?, prompt | messages}`; without a file those that ship.

    Raises FactError for what cannot be read.
    """
    file = Path(path) if path is not None else SHIPPED
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES)
    except OSError as error:
        raise FactError(f"cannot read `{file}`: {error.strerror}") from error
    found = tuple(_read(data, str(file)))
    if not found:
        raise FactError(f"`{file}` has no prompt", hint='a line is `{"prompt": "…"}` or `{"messages": […]}`')
    return found


def _read(data: bytes, file: str) -> Iterator[Prompt]:
    count = 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        if count == MOST_PROMPTS:
            return
        try:
            yield _prompt(json.loads(line), number)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise FactError(
                f"{file}:{number} is no prompt", hint='a line is `{"prompt": "…"}` or `{"messages": […]}`'
            ) from None
        count += 1


def _prompt(content: Any, number: int) -> Prompt:
    name = str(content.get("id", f"line {number}"))
    if "messages" in content:
        messages = tuple(dict(message) for message in content["messages"])
        if not messages:
            raise ValueError
        return Prompt(name, "\n\n".join(str(message.get("content") or "") for message in messages), messages)
    text = content["prompt"]
    if not isinstance(text, str) or not text:
        raise ValueError
    return Prompt(name, text)


MEAN_TOLERANCE = 0.1
"""Nats: the same weights on other kernels differ by a few hundredths on average, other weights by more."""
OWN_TOLERANCE = 0.002
"""Nats on average that are rounding in any case; beside it, what a server differs from itself."""
_TIMES_OWN = 5.0
_MARGIN = 0.015


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt: the text of this server as it scores it itself, the same as the other one scores it, and its text."""

    mine: Answer
    seen_there: tuple[Position, ...]
    theirs: Answer
    seen_again: tuple[Position, ...] = ()
    """What this server thinks of the text a second time."""


def compare(pairs: Sequence[Pair], *, url: str, model: str, tie_tolerance: float) -> Against:
    """What the pairs say together."""
    partings = tuple(found for pair in pairs if (found := parting(pair, tie_tolerance=tie_tolerance)))
    both = [item for pair in pairs for item in zip(pair.mine.positions, pair.seen_there, strict=False)]
    again = [item for pair in pairs for item in zip(pair.mine.positions, pair.seen_again, strict=False)]
    other_best = sum(_prefers_another(here, there, tie_tolerance) for here, there in both)
    differences = [abs(here.logprob - there.logprob) for here, there in both]
    mean, own = _mean(differences), _mean([abs(here.logprob - there.logprob) for here, there in again])
    reasons = []
    if faults := sum(not item.is_near_tie for item in partings):
        reasons.append(f"{faults} text{'s' if faults > 1 else ''} part where neither server sees a near-tie")
    if other_best:
        reasons.append(f"after the same text the best token is another one {_times(other_best)}")
    if mean > MEAN_TOLERANCE:
        reasons.append(f"the same tokens are {mean:.2f} nats more or less likely")
    is_rounding = mean <= max(OWN_TOLERANCE, _TIMES_OWN * own)
    verdict = Likeness.SAME if is_rounding else Likeness.CLOSE
    if reasons:
        verdict = Likeness.DIFFERENT
    elif len(differences) < tokens_for(_MARGIN):
        verdict = Likeness.INCONCLUSIVE
    return Against(
        url=url,
        model=model,
        verdict=verdict,
        texts=len(pairs),
        equal=len(pairs) - len(partings),
        tokens=len(differences),
        partings=partings,
        mean_difference=mean,
        largest_difference=max(differences, default=0.0),
        own_difference=own,
        other_best=other_best,
        reasons=tuple(reasons),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _prefers_another(here: Position, there: Position, tie_tolerance: float) -> bool:
    """Whether the best tokens differ, and neither server sees a near-tie between them."""
    mine, theirs = here.top[0][0], there.top[0][0]
    return mine != theirs and min(_gap(here, mine, theirs), _gap(there, theirs, mine)) > tie_tolerance


def parting(pair: Pair, *, tie_tolerance: float) -> Parting | None:
    """The first token in which the texts differ; None where they are equal, or one is the other's beginning."""
    both = zip(pair.mine.ids, pair.theirs.ids, strict=False)
    index = next((at for at, (mine, theirs) in enumerate(both) if mine != theirs), None)
    if index is None or index >= min(
        len(pair.mine.positions), len(pair.seen_there), len(pair.theirs.positions)
    ):
        return None  # or beyond what fits into a prompt again
    mine, theirs = pair.mine.ids[index], pair.theirs.ids[index]
    here, there = pair.mine.positions[index], pair.seen_there[index]
    gaps = _gap(here, mine, theirs), _gap(there, theirs, mine)
    return Parting(
        prompt=pair.mine.prompt,
        index=index,
        before=before(pair.mine.positions, index),
        here=here.text,
        there=pair.theirs.positions[index].text,
        gap_here=gaps[0],
        gap_there=gaps[1],
        is_near_tie=max(map(abs, gaps)) <= tie_tolerance,
    )


def _gap(position: Position, one: int, other: int) -> float:
    """How much likelier `one` is than `other`; at least that, where one of them is beyond the likeliest."""
    known = {**dict(position.top), position.token: position.logprob}
    last = position.top[-1][1]
    return known.get(one, last) - known.get(other, last)
