"""What `drafts` shows: the published drafts of a target as a table with their sources, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from specserve.checks.published import JudgedDraft
from specserve.models.drafts import Draft, Reported, as_of
from specserve.report.console import clean, filled
from specserve.report.numbers import NONE, count
from specserve.report.serializer import json_document, json_values
from specserve.report.table import Column, Table
from specserve.vllm.speculation import OWN_LAYERS

_COLUMNS = (
    Column("draft", "name"),
    Column("method", "code"),
    Column("K"),
    Column("size"),
    Column("tokens/step"),
    Column("rules", "text"),
)
_WITHOUT = (
    "`ngram` and `suffix` need no draft. tokens/step is what the authors report, on workloads that differ; "
    "`specserve bench` measures yours."
)


def drafts_text(target: str, judged: Sequence[JudgedDraft]) -> str:
    """Returns the table, then for each draft what its authors report and where."""
    if not judged:
        lines = [f"no published draft for {clean(target)} is in the catalogue of {as_of()}"]
        return "\n".join([*lines, "", filled(_WITHOUT, lead="", stream=sys.stdout)])
    lines = [f"{count(len(judged), 'draft')} for {clean(target)}, as of {as_of()}:", ""]
    lines += Table(_COLUMNS, [_row(each) for each in judged], keys=1).text()
    for each in judged:
        lines += ["", f"  {clean(_name(each.draft))}", *_about(each)]
    return "\n".join([*lines, "", filled(_WITHOUT, lead="", stream=sys.stdout)])


def drafts_json(target: str, judged: Sequence[JudgedDraft]) -> str:
    """Returns the same for scripts."""
    rows = [
        {
            **json_values(each.draft),
            "refused": each.is_refused,
            "findings": [{"code": found.code, "message": found.message} for found in each.findings],
        }
        for each in judged
    ]
    return json_document({"target": target, "as_of": str(as_of()), "drafts": rows})


def _name(draft: Draft) -> str:
    return draft.model or ("layers of the target" if draft.method in OWN_LAYERS else "no draft model")


def _row(each: JudgedDraft) -> tuple[str, ...]:
    draft = each.draft
    codes = ", ".join(dict.fromkeys(found.code for found in each.findings))
    return (
        _name(draft),
        draft.method,
        str(draft.num_speculative_tokens or NONE),
        f"{draft.parameters / 1e9:.1f}B" if draft.parameters else NONE,
        f"{draft.length:.2f}" if draft.length else NONE,
        (f"refused: {codes}" if each.is_refused else codes) or "ok",
    )


def _about(each: JudgedDraft) -> Iterator[str]:
    draft = each.draft
    facts = [
        f"license {draft.license}" if draft.license else "",
        f"trained for {count(draft.context, 'token')} of context" if draft.context else "",
        f"needs vLLM {draft.vllm} or later" if draft.vllm else "",
        "parallel_drafting: true" if draft.parallel_drafting else "",
        draft.note or "",
    ]
    for text in (*filter(None, facts), *map(_reported, draft.reported)):
        yield filled(clean(text), lead="    ", stream=sys.stdout)
    yield from (f"    {clean(source.url)}" for source in draft.sources)


def _reported(said: Reported) -> str:
    figures = [
        f"{said.length:g} tokens/step" if said.length else "",
        f"{said.rate:.0%} of the draft tokens accepted" if said.rate else "",
        f"{said.speedup:g}x as fast" if said.speedup else "",
    ]
    conditions = [
        said.workload,
        f"K = {said.k}" if said.k else "",
        "" if said.temperature is None else f"temperature {said.temperature:g}",
    ]
    return f"{', '.join(filter(None, figures))} ({', '.join(filter(None, conditions))})"
