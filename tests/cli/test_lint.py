"""`specserve lint`: files, folders, stdin; what is printed where."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run

Run = Callable[..., subprocess.CompletedProcess[bytes]]
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
        ("", [], 1),
        ("just: text", [], 1),
    ],
)
@pytest.mark.parametrize("form", ["text", "concise", "json", "github", "sarif"])
def test_the_exit_code_is_one_where_there_is_an_error(
    write: Write, capsys: pytest.CaptureFixture[str], text: str, options: list[str], code: int, form: str
) -> None:
    assert _run(["lint", str(write(text)), "--format", form, *options]) == code
    stdout, stderr = capsys.readouterr()
    if form == "json":
        assert json.loads(stdout)["version"] == 1
        assert stderr == ""
        return
    if form == "sarif":
        assert bool(json.loads(stdout)["runs"][0]["results"]) == (text != GOOD)
    else:
        assert ("error" in stdout or "warning" in stdout) == (text != GOOD)
    assert stderr.startswith(("Found ", "All checks passed"))


@pytest.mark.parametrize("head", ["AngelSlim/Qwen3-14B_eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"])
def test_a_head_of_another_model_fails_and_is_named_with_its_target(
    write: Write, capsys: pytest.CaptureFixture[str], head: str
) -> None:
    text = "target: {{model: {}}}\nspeculation: {{method: eagle3, model: {}, num_speculative_tokens: 3}}"
    assert _run(["lint", str(write(text.format("Qwen/Qwen3-32B", head)))]) == 1
    assert "error[SD237]: the head was trained for `" in capsys.readouterr().out
    assert _run(["lint", str(write(text.format("/models/foo", head)))]) == 0
    assert "SD237" not in capsys.readouterr().out


def test_of_a_folder_the_profiles_are_judged_and_other_files_named(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    assert _run(["lint", "f", "./f/a.yaml", str(tmp_path / "f"), "--format", "json"]) == 1
    shown = capsys.readouterr()
    found = [Path(item["file"]).name for item in json.loads(shown.out)["verdicts"]]
    assert found == ["a.yaml", "broken.yaml", "b.yml", "flow.yaml"]
    assert "`f/other4.yaml` and 2 more YAML files" in shown.err
    (tmp_path / "empty").mkdir()
    assert _run(["lint", "empty"]) == 2
    assert "there is no profile in `empty`" in capsys.readouterr().err


def test_a_file_that_is_named_is_a_profile_whatever_its_name_and_is_judged_once(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(GOOD, "_base.txt"))
    assert _run(["lint", file, file, "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["verdicts"]) == 1


def test_a_file_that_may_not_be_read_is_a_finding(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(GOOD, "f/secret.yaml")
    real = os.open

    def denied(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == file:
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", denied)
    assert _run(["lint", str(file.parent)]) == 1
    assert "permission denied" in capsys.readouterr().out


def test_stdin_is_a_profile_whose_lines_and_comments_count_as_those_of_a_file(specserve: Run) -> None:
    assert specserve("lint", "-", stdin=GOOD.encode()).returncode == 0
    done = specserve("lint", "-", stdin=WIDE.encode())
    assert done.returncode == 1
    assert b"--> -:2:16" in done.stdout and b"2 | server: {host: 0.0.0.0}" in done.stdout
    quiet = WIDE.replace("0.0.0.0}", "0.0.0.0}  # specserve: ignore[SD108] behind a firewall")
    done = specserve("lint", "-", stdin=quiet.encode())
    assert (done.returncode, done.stdout) == (0, b"") and b"1 ignored" in done.stderr


def test_an_editor_says_which_file_its_buffer_is(specserve: Run, write: Write, tmp_path: Path) -> None:
    write(GOOD, "f/_base.yaml")
    name = str(write("target: {model: other/on-disk}", "f/my.yaml"))
    buffer = b"extends: ./_base.yaml\nserver: {host: 0.0.0.0}\n"
    done = specserve("lint", "-", "--stdin-filename", name, "--format", "json", stdin=buffer)
    content = json.loads(done.stdout)
    assert [item["name"] for item in content["verdicts"]] == ["my"]
    assert [(item["code"], item["span"]["file"]) for item in content["findings"]] == [("SD108", name)]
    done = specserve("lint", "-", "--stdin-filename", name, stdin=buffer)
    assert b"2 | server: {host: 0.0.0.0}" in done.stdout


def test_a_job_of_github_actions_gets_annotations_unless_it_asks_otherwise(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    file = str(write(WIDE))
    assert _run(["lint", file]) == 1
    assert capsys.readouterr().out.startswith("::error title=specserve (SD108),file=")
    assert _run(["lint", file, "--format", "text"]) == 1
    assert capsys.readouterr().out.startswith("error[SD108]")


def test_pick_passes_over_what_is_no_profile_and_nothing_at_all_is_well(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(write("services: {}", "compose.yaml"))
    assert _run(["lint", "--pick", other]) == 0
    assert capsys.readouterr().err.startswith("All checks passed: 0 profiles")
    assert _run(["lint", "--pick", other, str(write(WIDE))]) == 1


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
    assert summary.startswith("All checks passed: ") and summary.endswith(" infos\n")
    assert "error" not in summary and "warning" not in summary


@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("engine", "max-num-seqs", "max_num_seqs"),
        ("frontend", "chat-template", "chat_template"),
        ("engine", "gpu-memory-utilization", "gpu_memory_utilization"),
    ],
)
def test_a_name_with_dashes_is_an_error_that_names_the_argument(
    section: str, key: str, meant: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["lint", str(write(f"{GOOD}{section}: {{{key}: 4}}\n"))]) == 1
    assert f"`{meant}`" in capsys.readouterr().out
    assert _run(["lint", str(write(GOOD)), "--set", f"{section}.{key}=4"]) == 1
    assert f"`{meant}`" in capsys.readouterr().out
