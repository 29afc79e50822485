"""Reports as JSON, version 1: keys are never removed within a version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Finding, Report, Severity, Span, Verdict
from specserve.report.console import json_text

if TYPE_CHECKING:
    from specserve.facts.comparison import TokenizerComparison
    from specserve.plan.memory.estimate import Interval, MemoryEstimate


def report_json(report: Report) -> str:
    """The whole report as one JSON document."""
    content = {
        "version": 1,
        "findings": [_finding(finding) for finding in report.findings],
        "skipped": [
            {
                "profile": item.profile,
                "group": item.group,
                "codes": list(item.codes),
                "reason": item.reason,
                "cause": item.cause,
            }
            for item in report.skipped
        ],
        "profiles": [_profile(item) for item in report.verdicts],
        "summary": {
            "profiles": report.profiles,
            "errors": report.count(Severity.ERROR),
            "warnings": report.count(Severity.WARNING),
            "infos": report.count(Severity.INFO),
            "suppressed": report.suppressed,
        },
    }
    return json_text(json.dumps(content, indent=2, ensure_ascii=False))


def _profile(verdict: Verdict) -> dict[str, Any]:
    content: dict[str, Any] = {
        "file": verdict.file,
        "name": verdict.name,
        "fingerprint": verdict.fingerprint,
        "verdict": verdict.verdict,
    }
    if type(verdict) is Verdict:  # of `lint`, which must not pay for the imports of `check`
        return content
    from specserve.checks.check import Checked

    if isinstance(verdict, Checked):
        content["tokenizer"] = _tokenizer(verdict.tokenizer)
        content["memory"] = _memory(verdict.memory)
        if verdict.vllm:
            from specserve.report.effective import effective_json

            content["vllm"] = effective_json(verdict.vllm)
    return content


def _tokenizer(comparison: TokenizerComparison | None) -> dict[str, Any]:
    from specserve.facts.comparison import TokenizerComparison

    if comparison is None:
        comparison = TokenizerComparison("not_applicable")
    first = comparison.first_difference
    return {
        "verdict": comparison.verdict,
        "overlap": comparison.overlap,
        "mismatch_by_occurrence": comparison.mismatch_by_occurrence,
        "first_difference": {"id": first.id, "target": first.target, "draft": first.draft} if first else None,
        "reasons": list(comparison.reasons),
    }


def _memory(estimate: MemoryEstimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    per_gpu, alone = estimate.per_gpu_bytes, estimate.without_speculation_kv_cache_tokens
    return {
        "verdict": estimate.verdict,
        "rank": estimate.rank,
        "per_gpu_bytes": {
            "total": per_gpu.total,
            "budget": per_gpu.budget,
            "target_weights": per_gpu.target_weights,
            "draft_weights": None if estimate.unknown_draft else per_gpu.draft_weights,
            "activation": _bytes(per_gpu.activation),
            "other": _bytes(per_gpu.other),
            "kv_cache": _bytes(per_gpu.kv_cache),
        },
        "max_model_len": estimate.max_model_len,
        **_kv_cache(estimate),
        "without_speculation": {"kv_cache_tokens": _bytes(alone)} if alone else None,
        "knobs": [
            {"path": knob.path, "value": knob.value, "frees_bytes": knob.frees_bytes, "verdict": knob.verdict}
            for knob in estimate.knobs
        ],
        "basis": estimate.basis,
        "calibration": estimate.calibration,
        "notes": list(estimate.notes),
    }


def _kv_cache(estimate: MemoryEstimate) -> dict[str, Any]:
    """What the KV cache holds; nulls for what is not known: the draft, or an architecture's cache."""
    content: dict[str, Any] = {
        "kv_bytes_per_token": {
            "target": estimate.target_kv_bytes_per_token,
            "draft": None if estimate.unknown_draft else estimate.draft_kv_bytes_per_token,
        },
        "kv_bytes_per_request_fixed": {
            "target": estimate.target_kv_bytes_fixed,
            "draft": None if estimate.unknown_draft else estimate.draft_kv_bytes_fixed,
        },
        "largest_max_model_len": _bytes(estimate.largest_max_model_len),
        "kv_cache_tokens": _bytes(estimate.kv_cache_tokens),
        "max_concurrency": _bounds(estimate.max_concurrency),
    }
    return content if estimate.is_kv_known else dict.fromkeys(content)


def _bytes(interval: Interval) -> dict[str, Any]:
    return {"low": int(interval.low), "high": int(interval.high), "logs": interval.logs}


def _bounds(interval: Interval) -> dict[str, Any]:
    return {"low": round(interval.low, 2), "high": round(interval.high, 2), "logs": interval.logs}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "message": finding.message,
        "location": _span(finding.span) | {"label": finding.label},
        "related": [_span(item.span) | {"label": item.label} for item in finding.related],
        "notes": list(finding.notes),
        "help": finding.help,
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "file": span.file,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
        "path": span.path,
    }
