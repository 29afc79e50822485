"""`specserve lint`: files, folders, stdin; what is printed where."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specserve.cli.app import _run
from specserve.profile import source
from tests.cli.conftest import Told

Captured = pytest.CaptureFixture[str]
Write = Callable[..., Path]
GOOD = "target: {model: ./models/target}\n"
WIDE = GOOD + "server: {host: 0.0.0.0}\n"
WARNED = GOOD + "env: {LD_PRELOAD: y}\n"


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (GOOD, [], 0),
        (WIDE, [], 1),
        (WARNED, [], 0),
        (WARNED, ["--strict"], 1),
        ("target: [", [], 1),
    ],
)
@pytest.mark.parametrize("form", ["text", "concise", "json", "github", "sarif"])
def test_the_exit_code_is_one_where_there_is_an_error(
    write: Write, told: Told, text: str, options: list[str], code: int, form: str
) -> None:
    stdout, stderr = told(code, "lint", str(write(text)), "--format", form, *options)
    if form == "json":
        assert json.loads(stdout)["version"] == 1
        assert stderr == ""
        return
    if form == "sarif":
        assert bool(json.loads(stdout)["runs"][0]["results"]) == (text != GOOD)
    else:
        assert ("error" in stdout or "warning" in stdout) == (text != GOOD)
    assert stderr.startswith(("Found ", "All checks passed"))


def test_of_a_folder_the_profiles_are_judged_and_other_files_named(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    for name in ("a.yaml", "deep/er/b.yml", "_base.yaml", ".hidden/c.yaml", "d.json"):
        write(GOOD, f"f/{name}")
    write("{'target': {model: a/b}}", "f/flow.yaml")
    write("target: [", "f/broken.yaml")
    for number in range(7):
        write("services: {web: {target: x}}", f"f/other{number}.yaml")
    (tmp_path / "f" / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "f" / "pipe.yaml")
    (tmp_path / "f" / "self.yaml").symlink_to("self.yaml")
    (tmp_path / "f" / "deep" / "loop").symlink_to(tmp_path / "f")
    monkeypatch.chdir(tmp_path)
    out, err = told(1, "lint", "f", "./f/a.yaml", str(tmp_path / "f"), "--format", "json")
    found = [Path(item["file"]).name for item in json.loads(out)["verdicts"]]
    assert found == ["a.yaml", "broken.yaml", "b.yml", "flow.yaml"]
    assert "`f/other0.yaml`, `f/other1.yaml`" in err and "`f/other6.yaml`" in err
    (tmp_path / "empty").mkdir()
    assert "there is no profile in `empty`" in told(2, "lint", "empty")[1]


def test_a_file_that_is_named_is_a_profile_whatever_its_name_and_is_judged_once(
    write: Write, told: Told
) -> None:
    file = str(write(GOOD, "_base.txt"))
    assert len(json.loads(told(0, "lint", file, file, "--format", "json")[0])["verdicts"]) == 1


@pytest.fixture
def piped(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Lints this text from stdin."""

    def run(text: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(source, "_KEPT", {})
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        code = _run(["lint", "-", *options])
        return (code, *capsys.readouterr())

    return run


def test_stdin_is_a_profile_whose_lines_and_comments_count_as_those_of_a_file(
    piped: Callable[..., tuple[int, str, str]],
) -> None:
    assert piped(GOOD)[0] == 0
    code, out, _ = piped(WIDE)
    assert code == 1 and "--> -:2:16" in out and "2 | server: {host: 0.0.0.0}" in out
    code, out, err = piped(WIDE.replace("0.0.0.0}", "0.0.0.0}  # specserve: ignore[SD108] behind a firewall"))
    assert (code, out) == (0, "") and "1 ignored" in err


def test_a_job_of_github_actions_gets_annotations_unless_it_asks_otherwise(
    write: Write, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    file = str(write(WIDE))
    assert told(1, "lint", file)[0].startswith("::error title=specserve (SD108),file=")
    assert told(1, "lint", file, "--format", "text")[0].startswith("error[SD108]")


def test_pick_passes_over_what_is_no_profile_and_nothing_at_all_is_well(write: Write, told: Told) -> None:
    other = str(write("services: {}", "compose.yaml"))
    assert told(0, "lint", "--pick", other)[1].startswith("All checks passed: 0 profiles")
    assert _run(["lint", "--pick", other, str(write(WIDE))]) == 1


def test_a_value_can_be_overridden_before_it_is_judged(write: Write, told: Told) -> None:
    file = str(write(WIDE))
    assert _run(["lint", file, "--set", "server.host=127.0.0.1"]) == 0
    assert _run(["lint", file, "--set", "server.api_key_env=KEY"]) == 0
    assert "--set server.port" in told(1, "lint", file, "--set", "server.port=99999999")[0]


def test_the_shipped_profiles_have_neither_errors_nor_warnings(told: Told) -> None:
    _, summary = told(0, "lint", "--strict", str(Path(__file__).parents[2] / "configs"))
    assert summary.startswith("All checks passed: ") and summary.endswith(" infos\n")
    assert "error" not in summary and "warning" not in summary
