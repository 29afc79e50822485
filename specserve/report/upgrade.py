"""`specserve upgrade` in words: a line that answers, then what differs, sorted by what it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from specserve.diagnostics import Finding
from specserve.errors import gib
from specserve.report.page import Block, Document, Items, Section
from specserve.report.text import (
    Column,
    Table,
    count,
    duration,
    figure,
    json_document,
    with_spread,
)
from specserve.upgrade.compare import Change, Upgrade
from specserve.upgrade.measure import BETTER, SAME, UNDECIDED, WORDS, WORSE, Measured

_MOST_ITEMS = 4
_MEASURED = (
    Column("measured", "name"),
    Column("old"),
    Column("new"),
    Column("new/old, 95 %"),
    Column("verdict", "name"),
)
_DIGITS = {"tokens": 0, "tokens/s": 1, "s": 1}
_MOST_TEXTS = 3


def upgrade_json(found: Upgrade, measured: Measured | None) -> str:
    """Returns all of it; `refuses`, `kv_share` and each WORSE decide about the exit code."""
    names = "profile machine old new refuses kv_share kv_cache_tokens found mended changes notes"
    content = {name: getattr(found, name) for name in names.split()}
    return json_document({**content, "measured": measured} if measured else content)


def upgrade_document(found: Upgrade, measured: Measured | None = None) -> Document:
    """Returns the report, in text or for a pull request."""
    old, new = found.old.version, found.new.version
    blocks: list[Block] = []
    for who, findings in ((new, found.found), (old, found.mended)):
        if findings:
            blocks.append(Section(f"Only vLLM {who} has", [Items(list(map(_finding, findings)))]))
    if found.changes:
        columns = [Column("decides about", "name"), Column("value", "name")]
        columns += [Column(name, "text") for name in (old, new, "set at")]
        table = Table(columns, list(map(_row, found.changes)), 2)
        where = f" on {found.machine}" if found.machine else ""
        blocks.append(Section(f"Other values of the same profile{where}", [table]))
    if found.notes:
        blocks.append(Section("To keep in mind", [Items([("", note) for note in found.notes])]))
    answers = [(f"vLLM {old} -> {new}", _answer(found))]
    if measured:
        answers.append(measured_answer(measured))
        blocks.append(measured_section(measured))
    return Document("upgrade", found.profile, blocks, answers)


def _answer(found: Upgrade) -> str:
    number = len(found.found) + len(found.mended) + len(found.changes or ())
    words = [count(number, "difference") if number else "no difference"]
    if found.refuses:
        words.insert(0, f"{found.new.version} refuses the profile")
    if found.changes is None:
        words[-1] += " by the rules alone"
    if found.kv_cache_tokens:
        old, new = found.kv_cache_tokens
        percent = f"{100 * (new / old - 1):+.0f} %" if new != old else "as large"
        both = f"{old:,} to {new:,}" if new != old else f"{new:,}"
        words.append(f"KV cache {percent} ({both} tokens)")
    return ", ".join(words)


def _finding(found: Finding) -> tuple[str, str]:
    help_ = f"; {found.help}" if found.help else ""
    return found.code, f"{found.severity}: {found.span}: {found.message}{help_}"


def _row(found: Change) -> list[str]:
    old, new = found.old, found.new
    if isinstance(old, list) and isinstance(new, list) and max(len(old), len(new)) > _MOST_ITEMS:
        shown = [_others(ours, theirs) for ours, theirs in ((old, new), (new, old))]
    else:
        shown = [_value(found.name, each) for each in (old, new)]
    return [found.effect, found.name, *shown, str(found.span or "-")]


def _others(items: Sequence[Any], known: Sequence[Any]) -> str:
    """What only one of two long lists has."""
    more = [str(each) for each in items if each not in known]
    etc = f" and {len(more) - _MOST_ITEMS} more" if len(more) > _MOST_ITEMS else ""
    only = f": only here {', '.join(more[:_MOST_ITEMS])}{etc}" if more else ""
    return f"{count(len(items), 'value')}{only}"


def _value(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes") and isinstance(value, int):
        return gib(value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def measured_answer(found: Measured) -> tuple[str, str]:
    """Return the word that matters most, and which figures are not the same, the worst first."""
    names = defaultdict[str, list[str]](list)
    for each in found.figures:
        is_changed = each.ratio and each.verdict.word in (WORSE, BETTER)
        how = f" {with_spread(each.ratio, 'x')}" if is_changed else ""
        names[each.verdict.word].append(f"{each.name}{how}")
    same = f"{count(len(names.pop(SAME, ())), 'figure')} the same"
    groups = [(word, ", ".join(names[word])) for word in WORDS if word in names]
    parts = [f"{word.lower()}: {text}" for word, text in groups[1:]]
    return (groups or [(SAME, "")])[0][0], "; ".join(
        [*(text for _, text in groups[:1]), *parts, same]
    )


def measured_section(found: Measured) -> Section:
    """Return every figure of both sides, why some are not decided, and where texts part."""
    rows, undecided, lines = [], defaultdict[str, list[str]](list), []
    for each in found.figures:
        name = f"{each.name}, {each.unit}" if each.unit in _DIGITS else each.name
        values = [figure(value, _DIGITS.get(each.unit, 2)) for value in (each.old, each.new)]
        rows.append([name, *values, with_spread(each.ratio, "x"), each.verdict.word])
        if not each.unit:
            lines.append((each.name, each.verdict.sentence))
        elif each.verdict.word == UNDECIDED:
            undecided[each.verdict.sentence].append(each.name)
    lines += [(UNDECIDED, f"{', '.join(names)}: {why}") for why, names in undecided.items()]
    for parting in found.partings[:_MOST_TEXTS]:
        where = f"{parting.prompt}, token {parting.token}"
        what = f"{parting.old} -> {parting.new}" if parting.new else "the lengths or prompts differ"
        lines.append((where, f"{what}: {'' if parting.is_tie else 'no '}near-tie"))
    machine, cores = found.host.get("accelerator", "cpu"), f"{found.host.get('cores')} CPU cores"
    where = f"{cores if machine == 'cpu' else machine}, {count(found.starts, 'start')} of each side"
    lines.append(("measured", f"{where}, {duration(found.duration_s)}; logs: {found.directory}"))
    lines += [("note", note) for note in found.notes]
    title = "Measured: the same prompts to both, in turns"
    return Section(title, [Table(_MEASURED, rows), Items(lines)])
