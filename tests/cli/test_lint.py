"""`specserve lint`: files, folders, stdin; what is printed where; the short way and the long way agree."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run
from specserve.cli.found import profiles
from specserve.cli.plainlint import plain_lint

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Write = Callable[..., Path]
GOOD = "target: {model: org/target}\n"
WIDE = GOOD + "server: {host: 0.0.0.0}\n"
WARNED = GOOD + "env: {VLLM_X: y}\n"


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (GOOD, [], 0),
        (WIDE, [], 1),
        (WARNED, [], 0),
        (WARNED, ["--strict"], 1),
        ("target: [", [], 1),
        ("", [], 1),
        ("just: text", [], 1),
    ],
)
@pytest.mark.parametrize("form", ["text", "concise", "json"])
def test_the_exit_code_is_one_where_there_is_an_error(
    write: Write, capsys: pytest.CaptureFixture[str], text: str, options: list[str], code: int, form: str
) -> None:
    assert _run(["lint", str(write(text)), "--format", form, *options]) == code
    stdout, stderr = capsys.readouterr()
    if form == "json":
        assert json.loads(stdout)["version"] == 1
        assert stderr == ""
    else:
        assert ("error" in stdout or "warning" in stdout) == (text != GOOD)
        assert stderr.startswith(("Found ", "All checks passed"))


@pytest.mark.parametrize(
    "options",
    [[], ["--strict"], ["--format", "json"], ["--format=concise"], ["--format", "json", "--strict"]],
)
def test_the_short_way_says_what_the_long_way_says(
    write: Write, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    from specserve.cli.commands import run

    arguments = ["lint", *options, str(write(WARNED)), str(write(WIDE, "b.yaml")), "no-such.yaml"]
    short = plain_lint(arguments), capsys.readouterr()
    assert short == (run(arguments), capsys.readouterr())
    assert short[0] == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["plan", "x"], ["lint"], ["lint", "--help"], ["lint", "--format"], ["lint", "x", "--format", "xml"],
     ["lint", "--set", "a=1", "x"], ["lint", "--", "x"], ["lint", "x", "--str"]],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_the_long_way(arguments: list[str]) -> None:
    assert plain_lint(arguments) is None


def test_of_a_folder_the_profiles_are_judged_and_nothing_else(write: Write, tmp_path: Path) -> None:
    write(GOOD, "f/a.yaml")
    write("extends: ./a.yaml", "f/deep/er/b.yml")
    write(GOOD, "f/_base.yaml")
    write(GOOD, "f/.hidden/c.yaml")
    write(GOOD, "f/d.json")
    write("services: {web: {target: x}}", "f/compose.yaml")
    write("- target: x", "f/list.yaml")
    write("{{ helm }}: [", "f/template.yaml")
    write("", "f/empty.yaml")
    write("{target: {model: a/b}}", "f/flow.yaml")
    write("target: [", "f/broken.yaml")
    (tmp_path / "f" / "folder.yaml").mkdir()
    found = [Path(name).relative_to(tmp_path / "f").as_posix() for name in profiles(str(tmp_path / "f"))]
    assert found == ["a.yaml", "broken.yaml", "deep/er/b.yml", "flow.yaml"]


def test_a_file_that_is_named_is_a_profile_whatever_its_name_and_is_judged_once(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(GOOD, "_base.txt"))
    assert _run(["lint", file, file, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["profiles"] == 1


def test_a_file_that_may_not_be_read_is_a_finding(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(GOOD, "f/secret.yaml")
    real = Path.open

    def denied(self: Path, *args: object, **kwargs: object) -> object:
        if self == file:
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", denied)
    assert _run(["lint", str(file.parent)]) == 1
    assert "permission denied" in capsys.readouterr().out


def test_stdin_is_a_profile_too(specserve: Run) -> None:
    assert specserve("lint", "-", stdin=GOOD.encode()).returncode == 0
    done = specserve("lint", "-", stdin=WIDE.encode())
    assert done.returncode == 1
    assert b"--> -:2:16" in done.stdout


def test_a_value_can_be_overridden_before_it_is_judged(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(WIDE))
    assert _run(["lint", file, "--set", "server.host=127.0.0.1"]) == 0
    assert _run(["lint", file, "--set", "server.api_key_env=KEY"]) == 0
    assert _run(["lint", file, "--set", "server.port=99999999"]) == 1
    assert "--set server.port" in capsys.readouterr().out


def test_the_shipped_profiles_have_neither_errors_nor_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["lint", "--strict", str(Path(__file__).parents[2] / "configs")]) == 0
    summary = capsys.readouterr().err
    assert summary.startswith("Found ") and summary.rstrip().endswith("profiles") and "info" in summary
    assert "error" not in summary and "warning" not in summary
