"""`specserve bench --show`: a run that is there, without measuring."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specserve.cli.app import _run
from specserve.report.bench import rendered

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from bench_result import example


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text(rendered(example(), form="json"), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("form", "beginning"),
    [
        ("text", "profile: pays at 3, inconclusive at 2"),
        ("markdown", "### Bench"),
        ("html", "<!doctype"),
        ("json", '{\n  "version": 1'),
    ],
)
def test_a_run_is_shown_again_in_any_form(
    run: Path, form: str, beginning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["bench", "--show", str(run), "--format", form]) == 0
    stdout, stderr = capsys.readouterr()
    assert stdout.startswith(beginning) and stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--show", "nowhere"], "cannot read `nowhere`: No such file or directory"),
        (["demo.yaml", "--show", "a"], "measures nothing"),
        (["--show", "a", "-o", "b"], "measures nothing"),
    ],
)
def test_what_cannot_be_done_says_why(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["bench", *arguments]) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == "" and message in stderr.replace("\n  ", " ")
