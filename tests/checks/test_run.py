"""The machine that runs the rules: many files, parents, ignore comments, one report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.check import check
from specserve.checks.collect import CheckOptions
from specserve.checks.oraclechild import VllmVerdict
from specserve.checks.rule import Context
from specserve.checks.run import lint, run_rules
from specserve.diagnostics import Report, Severity
from specserve.profile.load import examine, load_profile

Write = Callable[..., Path]
WIDE = "target: {model: ./target}\nserver:\n  host: 0.0.0.0"


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def test_one_bad_profile_does_not_hide_the_others(write: Write, tmp_path: Path) -> None:
    files = [
        write("target: [", "broken.yaml"),
        write('target: {model: ./m}\nvllm: "==0.20"', "old.yaml"),
        write("target: {model: ./m}", "good.yaml"),
        write(WIDE, "wide.yaml"),
        write("target: {model: ./m}\nenv: {LD_PRELOAD: y}", "warned.yaml"),
    ]
    report = lint([*map(str, files), str(tmp_path / "none.yaml")])
    assert [item.verdict for item in report.verdicts] == [
        "invalid", "ok", "ok", "errors", "warnings", "invalid",
    ]  # fmt: skip
    assert codes(report) == ["SD002", "SD402", "SD108", "SD111", "SD002"]
    assert [item.fingerprint is None for item in report.verdicts] == [True, False, False, False, False, True]
    assert len(report.verdicts) == 6 and report.count(Severity.ERROR) == 3


def test_what_a_shared_parent_says_wrong_is_told_once_and_fails_each_child(write: Write) -> None:
    write("target: {model: ./target}\nengine: {max_num_sequences: 3}", "_base.yaml")
    children = [write("extends: ./_base.yaml", f"{name}.yaml") for name in "ab"]
    report = lint(map(str, children))
    assert codes(report) == ["SD102"]
    assert report.findings[0].span.file.endswith("_base.yaml")
    assert [item.verdict for item in report.verdicts] == ["errors", "errors"]


@pytest.mark.parametrize(
    "comment", ["# specserve: ignore[SD108]", "# why  # specserve: ignore[SD101, SD108] behind a proxy"]
)
def test_a_comment_hides_the_finding_of_its_line(write: Write, comment: str) -> None:
    report = lint([str(write(f"{WIDE}  {comment}"))])
    assert "SD108" not in codes(report)
    assert report.suppressed == 1


def test_a_comment_hides_nothing_of_another_code_or_line(write: Write) -> None:
    report = lint([str(write(f"# specserve: ignore[SD108]\n{WIDE}  # specserve: ignore[SD107]"))])
    assert codes(report) == ["SD100", "SD108", "SD100"]
    assert [item.message for item in report.findings if item.code == "SD100"] == [
        "this comment hides no finding SD108",
        "this comment hides no finding SD107",
    ]


def test_of_several_codes_the_one_that_hides_nothing_is_marked(write: Write) -> None:
    (finding,) = lint([str(write(f"{WIDE}  # specserve: ignore[SD108, SD104]"))]).findings
    assert (finding.code, finding.severity) == ("SD100", Severity.WARNING)
    assert (finding.span.line, finding.span.column, finding.span.end_column) == (3, 45, 50)


def test_a_comment_in_a_parent_hides_what_is_wrong_there_and_is_never_called_unused(write: Write) -> None:
    write(f"{WIDE}  # specserve: ignore[SD108]", "_base.yaml")
    uses = write("extends: ./_base.yaml", "uses.yaml")
    does_not = write("extends: ./_base.yaml\nserver: {host: 127.0.0.1}", "not.yaml")
    report = lint([str(uses), str(does_not)])
    assert (codes(report), report.suppressed) == ([], 1)


@pytest.mark.parametrize("code", ["SD290", "SD301", "SD405", "SD501"])
def test_a_comment_for_what_lint_does_not_look_at_is_not_called_unused(write: Write, code: str) -> None:
    file = write(f"target: {{model: ./none}}  # specserve: ignore[{code}] on the other machine")
    assert codes(lint([str(file)])) == []
    wanted = CheckOptions(offline=True, here=False)  # the model may be missing elsewhere
    found = check([(str(file), *examine(str(file)))], wanted=wanted)
    assert "SD100" not in codes(found) or code == "SD405"


def test_problems_of_the_file_itself_cannot_be_hidden(write: Write) -> None:
    assert codes(lint([str(write("target: {model: ./m}\nnmae: x  # specserve: ignore[SD005]"))])) == ["SD005"]


@pytest.mark.parametrize(
    ("without", "path"),
    [
        (None, "target.model"),
        (VllmVerdict(warnings=("too slow",)), "target.model"),
        (VllmVerdict(refused="too slow"), "target.model"),
        (VllmVerdict(), "speculation.method"),
    ],
)
def test_words_of_vllm_that_name_nothing_stand_at_the_method_if_only_speculation_brings_them(
    write: Write, without: VllmVerdict | None, path: str
) -> None:
    loaded = load_profile(write("target: {model: ./m}\nspeculation: {method: suffix}"))
    verdict = VllmVerdict(path="speculation", warnings=("too slow",), without=without)
    context = Context(loaded, ("0.33",), vllm=(verdict,))
    (finding,) = [item for item in run_rules(context).findings if item.code == "SD503"]
    assert finding.span.path == path
