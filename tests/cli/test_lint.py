"""`specserve lint`: files, folders, stdin; what is printed where."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run
from specserve.profile.find import profiles

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
    assert len(json.loads(capsys.readouterr().out)["verdicts"]) == 1


def test_a_name_without_a_suffix_may_be_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["lint", "nothere/"]) == 1
    assert "no such file or folder\n" in capsys.readouterr().out


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


def test_stdin_is_a_profile_too(specserve: Run) -> None:
    assert specserve("lint", "-", stdin=GOOD.encode()).returncode == 0
    done = specserve("lint", "-", stdin=WIDE.encode())
    assert done.returncode == 1
    assert b"--> -:2:16" in done.stdout


def test_lines_and_comments_of_stdin_count_as_those_of_a_file(specserve: Run) -> None:
    done = specserve("lint", "-", stdin=WIDE.encode())
    assert b"2 | server: {host: 0.0.0.0}" in done.stdout
    quiet = WIDE.replace("0.0.0.0}", "0.0.0.0}  # specserve: ignore[SD108] behind a firewall")
    done = specserve("lint", "-", stdin=quiet.encode())
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"1 ignored" in done.stderr


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


def test_one_file_by_two_names_is_judged_once(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(GOOD, "f/a.yaml")
    monkeypatch.chdir(tmp_path)
    assert _run(["lint", "f", "./f/a.yaml", "f/*.yaml", str(tmp_path / "f")]) == 0
    assert capsys.readouterr().err.startswith("All checks passed: 1 profile")


def test_a_path_without_a_profile_is_said_where_others_have_one(
    write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(write(GOOD))
    (tmp_path / "empty").mkdir()
    assert _run(["lint", file, str(tmp_path / "empty")]) == 0
    told = capsys.readouterr().err
    assert f"warning: there is no profile in `{tmp_path / 'empty'}`" in told
    assert told.count("there is no profile") == 1


def test_pick_passes_over_what_is_no_profile_and_nothing_at_all_is_well(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(write("services: {}", "compose.yaml"))
    assert _run(["lint", "--pick", other]) == 0
    assert capsys.readouterr().err.startswith("All checks passed: 0 profiles")
    assert _run(["lint", "--pick", other, str(write(WIDE))]) == 1


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


def test_a_value_can_be_overridden_before_it_is_judged(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(WIDE))
    assert _run(["lint", file, "--set", "server.host=127.0.0.1"]) == 0
    assert _run(["lint", file, "--set", "server.api_key_env=KEY"]) == 0
    assert _run(["lint", file, "--set", "server.port=99999999"]) == 1
    assert "--set server.port" in capsys.readouterr().out


def test_files_of_a_folder_that_are_no_profiles_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "_base.yaml").write_text("engine: {}\n")
    (tmp_path / "bad.yaml").write_text("models: {target: org/m}\n")
    assert _run(["lint", str(tmp_path)]) == 0
    assert f"warning: `{tmp_path / 'bad.yaml'}` is not a profile: no top-level" in capsys.readouterr().err
    (tmp_path / "tab.yaml").write_text("\ttarget: {model: org/m}\n")
    assert _run(["lint", str(tmp_path)]) == 0
    names = ", ".join(f"`{tmp_path / name}`" for name in ("bad.yaml", "tab.yaml"))
    assert f"warning: {names} are not profiles: no top-level" in capsys.readouterr().err
    for number in range(5):
        (tmp_path / f"other{number}.yaml").write_text("a: 1\n")
    assert _run(["lint", str(tmp_path)]) == 0
    assert "other3.yaml` and 2 more YAML files are not profiles" in capsys.readouterr().err


def test_the_shipped_profiles_have_neither_errors_nor_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["lint", "--strict", str(Path(__file__).parents[2] / "configs")]) == 0
    summary = capsys.readouterr().err
    assert summary.startswith("All checks passed: ") and summary.endswith(" infos\n")
    assert "error" not in summary and "warning" not in summary


@pytest.mark.parametrize("name", ["*.yaml", "**/*.yaml", "[ab]ad.yaml", "ba?.yaml"])
def test_a_file_that_is_named_like_a_glob_hides_nothing_that_the_glob_matches(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    literal = tmp_path / name
    literal.parent.mkdir(exist_ok=True)
    literal.write_text("target: {model: org/m, max_model_len: none}\n")
    (tmp_path / "bad.yaml").write_text("target: {model: org/m}\nfoo: 1\n")
    assert _run(["lint", str(literal), "--format", "concise"]) == 1
    out = capsys.readouterr().out
    assert f"{literal}:1" in out and f"{tmp_path / 'bad.yaml'}:2:1: error[SD005]" in out
    (tmp_path / "bad.yaml").unlink()
    assert _run(["lint", str(literal), "--format", "concise"]) == 1
    assert "SD005" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tagret: {model: org/m}\n", "unknown key `tagret` in a profile%0Ahelp: did you mean `target`?"),
        ("name: x\nTarget: {'model': org/m}\n", "did you mean `target`?"),
        ("extend: good.yaml\nengine: {max_num_seqs: 4}\n", "did you mean `extends`?"),
        ("speculation: {method: ngram, num_speculative_tokens: 2}\n", "`target.model` is missing"),
    ],
)
def test_a_file_in_a_folder_that_looks_like_a_profile_is_judged_as_one(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(text)
    for path in (tmp_path, tmp_path / "*.yaml"):
        assert _run(["lint", str(path), "--format", "github"]) == 1
        shown = capsys.readouterr()
        assert re.search(r"^::error .*bad\.yaml,.*" + re.escape(said), shown.out, re.MULTILINE)
        assert "is not a profile" not in shown.err


@pytest.mark.parametrize(
    "text",
    [
        "name: shop\ntarget-path: out\nmodel-paths: [m]\nmodel: x\n",
        "services: {llm: {image: vllm, model: m}}\n",
        "targets: [a]\nname: x\nserver: {model: y}\n",
    ],
)
def test_a_file_of_another_program_is_no_profile(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "other.yaml").write_text(text)
    assert _run(["lint", str(tmp_path)]) == 0
    assert "other.yaml` is not a profile" in capsys.readouterr().err


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
