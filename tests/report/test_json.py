"""The report as JSON: the keys that scripts hold on to, in the shapes that are promised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema

from specserve.checks.run import lint
from specserve.diagnostics import Report, Skipped
from specserve.report.formats import report_json

POSITION = {"type": "integer", "minimum": 1}
PLACE = {
    "type": "object",
    "properties": {
        "file": {"type": "string"},
        "path": {"type": "string"},
        "label": {"type": "string"},
        **dict.fromkeys(("line", "column", "end_line", "end_column"), POSITION),
    },
    "required": ["file", "line", "column", "end_line", "end_column", "path"],
}
FINDING = {
    "type": "object",
    "properties": {
        "code": {"pattern": r"^SD\d{3}$"},
        "name": {"type": "string"},
        "severity": {"enum": ["error", "warning", "info"]},
        "message": {"type": "string"},
        "location": PLACE,
        "related": {"type": "array", "items": {**PLACE, "required": [*PLACE["required"], "label"]}},
        "notes": {"type": "array", "items": {"type": "string"}},
        "help": {"type": ["string", "null"]},
    },
    "required": ["code", "name", "severity", "message", "location", "related", "notes", "help"],
    "additionalProperties": False,
}
SKIPPED = {
    "type": "object",
    "properties": {
        "profile": {"type": "string"},
        "group": {"enum": ["models", "hardware", "host", "vllm"]},
        "codes": {"type": "array", "items": {"type": "string"}},
        "reason": {"type": "string"},
        "cause": {"enum": ["by_request", "unreachable", "unsupported"]},
    },
    "required": ["profile", "group", "codes", "reason", "cause"],
}
PROFILE = {
    "type": "object",
    "properties": {
        "file": {"type": "string"},
        "name": {"type": ["string", "null"]},
        "fingerprint": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[0-9a-f]{64}$"}]},
        "verdict": {"enum": ["ok", "warnings", "errors", "invalid", "incomplete"]},
    },
    "required": ["file", "name", "fingerprint", "verdict"],
}
COUNTS = ["profiles", "errors", "warnings", "infos", "suppressed"]
REPORT = {
    "type": "object",
    "properties": {
        "version": {"const": 1},
        "findings": {"type": "array", "items": FINDING},
        "skipped": {"type": "array", "items": SKIPPED},
        "profiles": {"type": "array", "items": PROFILE},
        "summary": {"type": "object", "required": COUNTS, "additionalProperties": {"type": "integer"}},
    },
    "required": ["version", "findings", "skipped", "profiles", "summary"],
    "additionalProperties": False,
}


def test_a_report_has_the_promised_shape_and_starts_with_its_version(write: Callable[..., Path]) -> None:
    files = [
        write("target: {model: a/b}", "good.yaml"),
        write("target: {model: a/b, x: 1}\nvllm: 3", "broken.yaml"),
        write(
            """
            target: {model: a/b, tensor_parallel_size: 4}
            speculation: {method: mtp, num_speculative_tokens: 2, draft_tensor_parallel_size: 2}
            env: {VLLM_X: "ü"}
            server: {host: 0.0.0.0}  # specserve: ignore[SD108]
            """,
            "bad.yaml",
        ),
    ]
    text = report_json(lint(map(str, files)))
    content = json.loads(text)

    jsonschema.validate(content, REPORT)
    assert next(iter(content)) == "version"
    assert [item["verdict"] for item in content["profiles"]] == ["ok", "invalid", "errors"]
    assert content["summary"]["suppressed"] == 1
    assert content["summary"]["errors"] == sum(item["severity"] == "error" for item in content["findings"])
    (split,) = [item for item in content["findings"] if item["code"] == "SD104"]
    assert split["location"]["path"] == "speculation.draft_tensor_parallel_size"
    assert split["related"][0]["label"] == "target runs on 4"


def test_a_skipped_group_says_why() -> None:
    skipped = Skipped("a.yaml", "models", ("SD201",), "no network", "unreachable")
    content = json.loads(report_json(Report(skipped=(skipped,))))
    jsonschema.validate(content, REPORT)
    assert content["skipped"][0]["codes"] == ["SD201"]


def test_an_empty_report_is_complete_too() -> None:
    jsonschema.validate(json.loads(report_json(Report())), REPORT)
