"""Whether a regular expression takes linear time for any text, by its structure and not by a clock.

A search is quadratic if a repeat without an upper bound can run over the same characters again and again: from
each place where the expression may begin, or for each end of the repeat before it. It cannot if the fixed text that
leads to it contains a character that the repeat does not accept, because then no two of its runs overlap; if nothing
that follows it can fail; or if it is the first repeat of an expression that begins at the start of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

MOST_WAYS = 250_000
"""From one beginning, by all repeats that have an upper bound."""
_ALPHABET = frozenset(map(chr, range(128))) | {"é", "→"}
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


@dataclass(frozen=True)
class _Repeat:
    least: int
    most: int | None
    chars: frozenset[str]
    bodies: tuple[tuple[Any, ...], ...]
    """Of a repeated group, the sequences that it may be; a single character has none."""


_At = str
_Item = frozenset[str] | _Repeat | _At


def problems(pattern: re.Pattern[Any]) -> list[str]:
    """What may make a search for the pattern slower than linear; empty if nothing does."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = sre_parser.parse(text, pattern.flags & ~re.UNICODE)
    many = bool(pattern.flags & re.MULTILINE)
    return sorted({problem for items in _sequences(tree) for problem in _check(items, many_lines=many)})


def _check(items: Sequence[_Item], *, many_lines: bool) -> Iterator[str]:
    leads: list[frozenset[str]] = []
    """What must stand before the next repeat, and in no run of an endless one since."""
    is_anchored = bool(items) and items[0] == "start"
    for at, item in enumerate(items):
        if isinstance(item, frozenset):
            leads.append(item)
        if not isinstance(item, _Repeat):
            continue
        yield from _check_bodies(item)
        if item.most is not None:
            continue
        rest = items[at + 1 :]
        is_anchored = is_anchored and not (many_lines and "\n" in item.chars)
        if not (is_anchored or any(not chars & item.chars for chars in leads) or _cannot_fail(item, rest)):
            yield f"an endless repeat of {_shown(item.chars)} may run over the same text again and again"
        if _has_one_end(item, rest):
            leads = [chars for chars in leads if not chars & item.chars]
        else:
            leads, is_anchored = [], False
        leads += [item.chars] * bool(item.least)
    if (ways := _ways(items)) > MOST_WAYS:
        yield f"its bounded repeats can be combined in {ways:,} ways"


def _check_bodies(repeat: _Repeat) -> Iterator[str]:
    """A repeat within a repeat needs an end of its own, else there are many ways to share a text between the two."""
    for body in repeat.bodies:
        for item in body:
            if isinstance(item, _Repeat) and (item.most is None or repeat.most is None):
                ends = [other for other in body if isinstance(other, frozenset)]
                if not any(not chars & item.chars for chars in ends):
                    yield f"a repeat of {_shown(item.chars)} within a repeat has no end of its own"


def _ways(items: Sequence[_Item]) -> int:
    ways = 1
    for item in items:
        if isinstance(item, _Repeat):
            ways *= max((_ways(body) for body in item.bodies), default=1)
            ways *= 1 if item.most is None else item.most - item.least + 1
    return ways


def _has_one_end(repeat: _Repeat, rest: Sequence[_Item]) -> bool:
    """Whether a run of the repeat can end at one place only: where what follows it begins."""
    return not _first(rest) & repeat.chars


def _first(items: Sequence[_Item]) -> frozenset[str]:
    """The characters with which a sequence may begin; all if it may be empty."""
    found: frozenset[str] = frozenset()
    for item in items:
        if isinstance(item, _Repeat):
            found |= frozenset().union(*map(_first, item.bodies)) if item.bodies else item.chars
            if item.least:
                return found
        elif isinstance(item, frozenset):
            return found | item
    return _ALPHABET


def _cannot_fail(repeat: _Repeat, rest: Sequence[_Item]) -> bool:
    runs_to_the_end = _ALPHABET - repeat.chars <= {"\n"}
    return all(item == "end" and runs_to_the_end for item in rest)


def _shown(chars: frozenset[str]) -> str:
    few = chars if len(chars) <= len(_ALPHABET) // 2 else _ALPHABET - chars
    return f"{'' if few is chars else 'not '}{''.join(sorted(few))[:40]!r}"


def _sequences(tree: Any) -> list[tuple[_Item, ...]]:
    """Every sequence of characters, repeats and anchors that a pattern may be: one for each choice of alternatives."""
    parts = [_alternatives(operation, argument) for operation, argument in tree]
    return [tuple(item for part in choice for item in part) for choice in product(*parts)]


def _alternatives(operation: Any, argument: Any) -> list[tuple[_Item, ...]]:
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, most, body = argument
        if most == 1:
            return [*_sequences(body), *([()] if not least else [])]
        bodies = _sequences(body)
        chars = frozenset().union(*(_chars(item) for items in bodies for item in items))
        single = all(len(items) == 1 and isinstance(items[0], frozenset) for items in bodies)
        limit = None if most == sre.MAXREPEAT else int(most)
        return [(_Repeat(int(least), limit, chars, () if single else tuple(bodies)),)]
    if operation is sre.SUBPATTERN:
        return _sequences(argument[3])
    if operation is sre.BRANCH:
        return [items for branch in argument[1] for items in _sequences(branch)]
    if operation is sre.ASSERT and argument[0] < 0:
        return _sequences(argument[1])
    if operation in (sre.ASSERT, sre.ASSERT_NOT):
        return [("look",)]
    if operation is sre.AT:
        starts = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
        ends = (sre.AT_END, sre.AT_END_STRING)
        return [("start" if argument in starts else "end" if argument in ends else "look",)]
    if operation is sre.GROUPREF:
        return [(_ALPHABET,)]
    return [(_accepted(operation, argument),)]


def _chars(item: _Item) -> frozenset[str]:
    return item.chars if isinstance(item, _Repeat) else item if isinstance(item, frozenset) else frozenset()


def _accepted(operation: Any, argument: Any) -> frozenset[str]:
    """The characters that one node accepts, of an alphabet that has some of each kind."""
    if operation is sre.LITERAL:
        return frozenset({chr(argument)})
    if operation is sre.NOT_LITERAL:
        return _ALPHABET - {chr(argument)}
    if operation is sre.ANY:
        return _ALPHABET - {"\n"}
    if operation is sre.RANGE:
        return frozenset(char for char in _ALPHABET if argument[0] <= ord(char) <= argument[1])
    if operation is sre.CATEGORY:
        return frozenset(char for char in _ALPHABET if re.match(_CATEGORIES[argument], char))
    assert operation is sre.IN, operation
    inside = frozenset().union(*(_accepted(*each) for each in argument if each[0] is not sre.NEGATE))
    return _ALPHABET - inside if argument[0][0] is sre.NEGATE else inside
