"""Text from elsewhere gives no orders: to a terminal, to GitHub, to a viewer of SARIF or Markdown, to a table."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import Script, serving

from specserve.cli.app import _run as run
from specserve.diagnostics import Finding, Related, Report, Severity, Skipped, Span
from specserve.errors import LaunchError
from specserve.files import private
from specserve.plan.launchplan import LaunchPlan
from specserve.report.console import escaped, in_one_line, json_text
from specserve.report.findings import concise, failure, render
from specserve.report.formats import github, report_json, sarif
from specserve.report.servers import JsonView, TextView, print_log, table
from specserve.report.text import json_document
from specserve.serve import events, records
from specserve.serve.client import shown
from specserve.serve.records import Record, Seen

Captured = pytest.CaptureFixture[str]
ORDERS = "\x1b[2J\x1b]0;t\x07\x9b31m\x90\x08\x7f\r\u202egnp\u2066\u2028\u200f\u061c"
EVIL = f"a{ORDERS}b\n::error file=x,line=1::pwned\n##[error]pwned\n[click](https://evil) <script>|`%0A,:"
_ORDER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
SPAN = Span("p.yaml", 1, 1, 1, 4, path="target.model")


def finding(text: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(
        "SD101", "missing-num-speculative-tokens", severity, text, SPAN, label=text, help=text, notes=(text,),
        related=(Related(SPAN, text),),
    )  # fmt: skip


def report(text: str) -> Report:
    return Report(
        findings=(finding(text),), suppressed=0, skipped=(Skipped("p.yaml", "models", text, "offline"),)
    )


@given(st.text() | st.text(st.sampled_from(ORDERS + "ab\n\t")))
def test_no_order_survives_the_cleaning(text: str) -> None:
    assert not _ORDER.search(escaped(text))
    assert not _ORDER.search(in_one_line(text)) and not set(in_one_line(text)) & set("\n\t")
    assert not _ORDER.search(shown(text))


@given(st.text())
def test_json_means_the_same_and_gives_no_orders(text: str) -> None:
    for ascii_only in (True, False):
        written = json_text(json.dumps([text], ensure_ascii=ascii_only))
        assert json.loads(written) == [text] and not _ORDER.search(written)


@pytest.mark.parametrize("severity", list(Severity))
def test_findings_and_errors_hold_no_order_in_any_form(severity: Severity) -> None:
    whole = replace(report(EVIL), findings=(found := finding(EVIL, severity),))
    error = LaunchError(EVIL, causes=(EVIL,), log_tail=(EVIL,), log_path=EVIL, hint=EVIL)
    forms = [render([found]), concise([found]), report_json(whole), sarif(whole), failure(error)]
    assert not any(_ORDER.search(text) for text in forms)
    assert all("pwned" in json.dumps(json.loads(text)) for text in forms[2:4])


@given(st.text(st.sampled_from("[]()\\a\n:/1")))
def test_a_text_makes_no_link_of_its_own_in_sarif(text: str) -> None:
    log = json.loads(sarif(report(text)))
    for message in messages(log["runs"][0]["results"]):
        links = re.findall(r"(?<!\\)\[(?:[^\[\]\\]|\\.)*(?<!\\)\]\(([^)]*)\)", message)
        assert set(links) <= {"1"}, message


def messages(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["message"]["text"]] if "message" in node else []
        return own + [text for value in node.values() for text in messages(value)]
    return [text for item in node for text in messages(item)] if isinstance(node, list) else []


@pytest.mark.parametrize("severity", list(Severity))
def test_a_finding_is_one_command_for_github_and_never_two(severity: Severity) -> None:
    evil = finding(EVIL, severity)
    name = "a,line=9::x\n::stop-commands::%0A.yaml"
    for one in (evil, Finding(evil.code, evil.name, severity, EVIL, Span(name, 1, 1, 1, 2))):
        lines = github([one]).splitlines()
        assert len(lines) == 1
        head, text = re.fullmatch(r"::(?:error|warning|notice) (.*?)::(.*)", lines[0]).groups()  # type: ignore[union-attr]
        assert {part.partition("=")[0] for part in head.split(",")} <= {
            "title", "file", "line", "col", "endLine", "endColumn",
        }  # fmt: skip
        assert not _ORDER.search(text)
    assert len(github([], skipped=[Skipped(name, "models", EVIL, "offline")]).splitlines()) == 1


RECORD = Record(
    name="demo", watcher=(2**31 - 2, 1), started_at_s=1.0, log_path=f"/l{EVIL}", profile=EVIL,
    alternative=EVIL, settings=(EVIL,), url="http://127.0.0.1:1", drafts=EVIL,
    api_key_env=EVIL, end=EVIL, cause=EVIL, hint=EVIL,
)  # fmt: skip


def test_a_table_of_servers_has_the_rows_that_it_has_and_no_other() -> None:
    record = replace(RECORD, drafts="ngram")
    text = table([Seen("demo", "dead", EVIL, record), Seen("lost", "dead", EVIL)])
    assert not _ORDER.search(text)
    lines = text.splitlines()
    assert [line[:4] for line in lines[:3]] == ["NAME", "demo", "lost"]
    assert all(line.startswith("  ") for line in lines[3:])
    assert not _ORDER.search(json_document({"servers": [Seen("demo", "dead", EVIL, RECORD)]}))


def test_a_servers_life_is_told_without_orders(
    fake_plan: Callable[..., LaunchPlan], capsys: Captured
) -> None:
    ready = events.Ready("http://127.0.0.1:1", EVIL, 1.0)
    for view in (TextView(fake_plan()), JsonView(fake_plan())):
        view(events.Started(1, f"/tmp/{ORDERS}"))
        view(ready)
        captured = capsys.readouterr()
        assert not _ORDER.search(captured.out + captured.err)


def test_the_command_that_is_shown_to_be_pasted_asks_and_does_nothing_else(
    fake_plan: Callable[..., LaunchPlan], capsys: Captured, tmp_path: Path
) -> None:
    model = "'; touch PWNED; '$(touch PWNED)`touch PWNED`"
    TextView(fake_plan())(events.Ready("http://127.0.0.1:1", model, 1.0))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("curl ")]
    (tmp_path / "curl").write_text('#!/bin/sh\nfor word in "$@"; do last=$word; done; printf "%s" "$last"\n')
    (tmp_path / "curl").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", line.removeprefix("curl").strip()], cwd=tmp_path, capture_output=True, timeout=30, check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert json.loads(done.stdout)["model"] == model
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(("status", "words"), [(200, []), (200, ["--format", "json"]), (400, [])])
def test_what_a_server_answers_gives_the_terminal_no_order(
    status: int, words: list[str], capsys: Captured
) -> None:
    refusal = json.dumps({"error": {"message": EVIL}})
    about: dict[str, Any] = {"has_template": False} if status == 200 else {"status": status, "body": refusal}
    with serving(Script(pieces=(ORDERS, "b"), reasoning=(ORDERS,), models=(EVIL,), **about)) as url:
        assert run(["ask", "hi", "--server", url, *words]) == (0 if status == 200 else 2)
    captured = capsys.readouterr()
    assert captured.out + captured.err and not _ORDER.search(captured.out + captured.err)
    assert not [line for line in captured.err.splitlines() if line.lstrip().startswith(("::", "##["))]


def test_a_log_is_shown_without_its_orders(state: Path, capsys: Captured) -> None:
    log = private(state / "logs") / "demo.log"
    log.write_text(f"INFO {ORDERS}\n", encoding="utf-8", newline="")
    records.write(replace(RECORD, log_path=str(log)))
    for words in (["logs", "demo"], ["ps"], ["down", "demo"]):
        assert run(words) == 0
        captured = capsys.readouterr()
        assert captured.out + captured.err and not _ORDER.search(captured.out + captured.err)


def test_in_a_job_of_github_a_log_gives_no_orders(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    print_log(["::error::boo", "  ::set-output name=a::b", "x ##[group]y", "C::D"])
    told = capsys.readouterr().out.splitlines()
    assert told == [r"\:error::boo", r"  \:set-output name=a::b", r"x \#[group]y", "C::D"]
    monkeypatch.delenv("GITHUB_ACTIONS")
    print_log(["::error::boo"])
    assert capsys.readouterr().out == "::error::boo\n"
