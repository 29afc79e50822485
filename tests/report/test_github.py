"""SARIF, valid by the standard's own schema, and workflow commands, which a runner reads back: each at its place.

`schemas/sarif-2.1.0.json` is the schema of OASIS, as the JSON Schema Store (Apache-2.0) carries it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.run import lint
from specserve.diagnostics import Finding, Related, Report, Severity, Span
from specserve.report.formats import github, sarif
from specserve.report.manual import pages

SCHEMA = Path(__file__).parent / "schemas" / "sarif-2.1.0.json"
AT = Span("child.yaml", 5, 31, 5, 32, "a.b")
FINDING = Finding("SD104", "split-draft", Severity.ERROR, "draft is split", AT)


@lru_cache
def validator() -> Any:
    return jsonschema.Draft7Validator(
        json.loads(SCHEMA.read_text(encoding="utf-8")), format_checker=jsonschema.FormatChecker()
    )


def log(*findings: Finding, **more: Any) -> Any:
    """The one run of a report, checked by the schema."""
    content = json.loads(sarif(Report(tuple(findings), **more)))
    validator().validate(content)
    (run,) = content["runs"]
    return run


def test_a_run_of_lint_is_valid(write: Callable[..., Path]) -> None:
    report = lint([str(write("target: {model: a/b, x: 1}\nvllm: 3\nserver: [")), "no-such.yaml"])
    assert report.findings
    validator().validate(json.loads(sarif(report)))


def test_every_code_has_a_description_for_code_scanning() -> None:
    findings = [FINDING._replace(code=code) for code in pages()]
    rules = log(*findings)["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(pages())
    for rule in rules:
        assert rule["shortDescription"]["text"] and rule["fullDescription"]["text"]
        assert rule["helpUri"].endswith(f"docs/rules.md#{rule['id'].lower()}-{rule['name']}")


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("a b/ü%.yaml", "a%20b/%C3%BC%25.yaml"),
        ("a#b?c.yaml", "a%23b%3Fc.yaml"),
        ("./x/../child.yaml", "child.yaml"),
        ("no\udcff.yaml", "no%FF.yaml"),
        ("/elsewhere/a b.yaml", "file:///elsewhere/a%20b.yaml"),
    ],
)
def test_a_file_is_a_percent_encoded_uri_seen_from_the_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, uri: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = log(FINDING._replace(span=AT._replace(file=name)))["results"][0]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == uri
    assert ("uriBaseId" in place) is not uri.startswith("file:")


@given(
    text=st.text(),
    name=st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), max_size=20),
)
def test_any_text_gives_a_valid_log(text: str, name: str) -> None:
    related = (Related(AT._replace(file=f"y{name}"), text), Related(AT))
    span = AT._replace(file=f"x{name}", path=text)
    run = log(FINDING._replace(span=span, message=text or "m", label=text, notes=(text,), related=related))
    assert len(run["results"]) == 1


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def parsed(command: str) -> tuple[str, dict[str, str], str]:
    """What a runner reads out of one line."""
    match = re.fullmatch(r"::(\w+) ([^\n]*?)::([^\n\r]*)\n", command)
    assert match, command
    properties = dict(item.split("=", 1) for item in match[2].split(","))
    return match[1], {name: unquote(value) for name, value in properties.items()}, unquote(match[3])


def test_columns_are_left_out_where_a_finding_spans_lines() -> None:
    over = FINDING._replace(span=Span("child.yaml", 5, 31, 7, 4))
    _, properties, _ = parsed(github([over]))
    assert set(properties) == {"title", "file", "line", "endLine"}
    assert properties["endLine"] == "7"


@pytest.mark.parametrize("name", ["-", "--set server.port", "<command>"])
def test_what_is_no_file_has_no_place(name: str) -> None:
    _, properties, text = parsed(github([FINDING._replace(span=AT._replace(file=name))]))
    assert set(properties) == {"title"}
    assert text.startswith(f"{name}:5:31: ")


def test_a_file_is_seen_from_the_repository_wherever_the_step_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "serving" / "configs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "serving")
    for name in ("configs/a.yaml", "./configs/../configs/a.yaml", str(tmp_path / "serving/configs/a.yaml")):
        _, properties, _ = parsed(github([FINDING._replace(span=AT._replace(file=name))]))
        assert properties["file"] == "serving/configs/a.yaml"
