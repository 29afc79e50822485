"""`specserve upgrade` in words: a line that answers, then what differs, sorted by what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specserve.diagnostics import Finding
from specserve.errors import gib
from specserve.report.page import Block, Document, Items, Section
from specserve.report.text import Column, Table, count, json_document
from specserve.upgrade.compare import Change, Upgrade

_MOST_ITEMS = 4


def upgrade_json(found: Upgrade) -> str:
    """Returns all of it; `refuses` and `kv_share` decide about the exit code."""
    names = "profile machine old new refuses kv_share kv_cache_tokens found mended changes notes"
    return json_document({name: getattr(found, name) for name in names.split()})


def upgrade_document(found: Upgrade) -> Document:
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
    return Document("upgrade", found.profile, blocks, [(f"vLLM {old} -> {new}", _answer(found))])


def _answer(found: Upgrade) -> str:
    number = len(found.found) + len(found.mended) + len(found.changes or ())
    words = [count(number, "difference") if number else "no difference"]
    if found.refuses:
        words.insert(0, f"{found.new.version} refuses the profile")
    if found.changes is None:
        words[-1] += " by the rules; of vLLM itself not both answered"
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
