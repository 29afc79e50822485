"""`specserve convert`: the profile is data, the changes are talk; nothing is overwritten, nothing crashes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.run import lint_text
from specserve.cli.app import _run
from specserve.convert.command import profile_of
from specserve.convert.convert import FILE, converted
from specserve.convert.reading import read, read_source
from specserve.errors import SpecserveError

Write = Callable[..., Path]
OLD = "vllm serve org/target -tp 4 --speculative-model org/draft --num-speculative-tokens 5\n"


def test_the_profile_goes_to_stdout_and_the_changes_to_stderr(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["convert", str(write(OLD, "serve.sh"))]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Converted from `vllm serve` in serve.sh.\n")
    assert "\ntarget:\n  model: org/target\n" in out
    assert "note: `speculation.model`: formerly `--speculative-model`\n" in err
    assert err.endswith("Converted with 3 changes; the profile passes lint\n")


def test_stdin_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OLD.encode())))
    assert _run(["convert", "-"]) == 0
    assert "in stdin" in capsys.readouterr().out


def test_a_profile_that_is_there_is_not_overwritten(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write(OLD, "serve.sh"), tmp_path / "made.yaml"
    assert _run(["convert", str(source), "-o", str(target)]) == 0
    target.write_text("mine")
    assert _run(["convert", str(source), "-o", str(target)]) == 2
    assert target.read_text() == "mine" and "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ('"$SPEC"', "the source does not say the value of `--speculative-config`: it reads `$SPEC`"),
        ("'{…}'", "the value of `--speculative-config` is not JSON: expecting property name"),
        ("{method:ngram}", "the value of `--speculative-config` is not JSON: expecting property name"),
        ("", "`--speculative-config` needs a value, so `speculation` is missing from the profile"),
        ("'[1]'", "`speculation` must be a mapping or `null`; found a list"),
    ],
)
def test_a_block_that_cannot_be_read_is_an_error_and_no_note(
    value: str, why: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["convert", str(write(f"vllm serve org/m --speculative-config {value}\n", "serve.sh"))]) == 1
    out, err = capsys.readouterr()
    assert why in err and "1 error left to fix" in err
    if "[" not in value:
        assert "so `speculation` is missing from the profile" in err and "# - TODO: " in out
        assert "`TODO` marks each missing value there" in err
        assert _run(["lint", str(write(out, "my.yaml"))]) == 1
        assert "error[SD105]: `convert` left this open\n" in capsys.readouterr().out


def test_notes_have_the_lines_of_what_they_are_about_in_order(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "#!/bin/sh\nexport VLLM_USE_V1=1\nexport HF_TOKEN=hf_abcdefghijklmnopqrstu\n"
        "exec vllm serve org/m --host 127.0.0.1 --swap-space 4\n"
    )
    assert _run(["convert", str(write(text, "serve.sh"))]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert [note.partition(":")[2][:25] for note in notes] == [
        " line 2: `VLLM_USE_V1` is",
        " line 3: `HF_TOKEN` is le",
        " line 4: `--swap-space` i",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--max-modle-len 8", "did you mean `target.max_model_len`?"),
        ("--max-num-seqs many", "error[SD105]"),
        ("""--speculative-config '{"method": "medusa", "num_speculative_tokens": 3}'""", "error[SD006]"),
    ],
)
def test_what_vllm_refuses_stays_in_the_profile_and_is_exit_code_1(
    options: str, said: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["convert", str(write(f"vllm serve org/m {options}", "serve.sh"))]) == 1
    assert said in capsys.readouterr().err


def test_other_engines_of_a_file_are_named_and_can_be_picked(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"f() {{\nvllm serve org/plain\n}}\nf\n{OLD}"
    source = str(write(text, "serve.sh"))
    assert _run(["convert", source]) == 0
    out, err = capsys.readouterr()
    assert "model: org/target" in out
    assert "the source starts 2 engines: 1 `vllm serve` (line 2), 2 `vllm serve` (line 5)" in err
    assert _run(["convert", source, "--pick", "1"]) == 0
    assert "model: org/plain" in capsys.readouterr().out
    without = str(write("vllm serve --port 1\nvllm serve org/plain --port 2\n", "two.sh"))
    assert _run(["convert", without]) == 0
    assert "model: org/plain" in capsys.readouterr().out
    assert _run(["convert", source, "--pick", "3"]) == 2
    assert "`3` is no launch of `" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("serve.sh", "vllm serve 'org\n", "` as a shell script:"),
        ("offline.py", "LLM(\n", "is not Python"),
        ("serve.sh", "vllm serve --port 80\n", "does not specify a model"),
    ],
)
def test_bad_input_is_a_clear_error(
    name: str, text: str, message: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["convert", str(write(text, name))]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_or_no_text_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["convert", str(tmp_path / "none.sh")]) == 2
    capsys.readouterr()
    assert _run(["convert", "--", "ls"]) == 2
    assert (
        "cannot read `ls`: no such file or directory, and it is not a command that starts vLLM"
        in capsys.readouterr().err
    )
    (tmp_path / "bytes.sh").write_bytes(b"\xff\xfe\0vllm")
    assert _run(["convert", str(tmp_path / "bytes.sh")]) == 2
    assert _run(["convert", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


PIECES = [
    "vllm", "serve", "docker", "run", "-e", "A=b", "HF_TOKEN=hf_abcdefghijklmnopqrstu", "python", "-m",
    "vllm.entrypoints.openai.api_server", "--model", "org/m", "--speculative-config", "'", '"', "\\", "\n", "$X",
    '{"method":"ngram","num_speculative_tokens":3}', "${X:-3}", "$(ls)", "`", "#", "--", "-tp", "4", "-O3", "[]",
    "--speculative-config.method", "--speculative-model", "[ngram]", "--num-speculative-tokens", "--config", "x.yaml",
    "<<EOF", "EOF", "&&", "|", ";", "(", ")", "A=(", "vllm/vllm-openai", "sglang.launch_server", "--model-path",
    "--speculative-algorithm", "EAGLE", "--enable-prefix-caching", "False", "--api-key", "sk-1234567890123456",
    "--served-model-name", "-1", "--compilation-config", "--x.y", "-", "--limit-mm-per-prompt", '{"a":1', "export",
]  # fmt: skip
WORD = st.sampled_from(PIECES) | st.text(max_size=8)
TEXT = st.lists(st.tuples(WORD, st.sampled_from([" ", "\n", " \\\n", ""])), max_size=20).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
)
SECRETS = ("hf_abcdefghijklmnopqrstu", "sk-1234567890123456")
# a word of its own: within `disk-1234567890123456` it is none
SECRET = re.compile(f"(?<![A-Za-z0-9])(?:{'|'.join(SECRETS)})")


UNRESOLVED = re.compile("[$\ue000-\uf8ff]")


def values(text: str) -> list[str]:
    """The lines of a profile that are no comments."""
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def no_traceback(text: str, *, name: str) -> None:
    """Any text gives profiles without a secret that are at least YAML, or a clear error."""
    try:
        for start in read(text, file=name, folder=Path("nowhere")):
            result = converted(start, origin=name)
            assert not SECRET.search(result.text)
            assert not UNRESOLVED.search("".join(values(result.text)))
            findings = [] if result.unresolved else lint_text(result.text, file=FILE)
            assert not {finding.code for finding in findings} & {"SD002", "SD004"}
    except SpecserveError as error:
        assert error.message


@given(TEXT)
def test_any_shell_text_gives_a_profile_or_a_clear_error(text: str) -> None:
    no_traceback(text, name="x.sh")
    no_traceback(f"vllm serve org/m {text}", name="x.sh")


@given(
    st.lists(st.sampled_from([*"(){}[],=:*-+.\n 1x", "LLM(", "model=", "'m'", "speculative_config", "**"]))
)
def test_any_python_text_gives_a_profile_or_a_clear_error(parts: list[str]) -> None:
    text = "".join(parts)
    no_traceback(text, name="x.py")
    no_traceback(f"LLM('org/m', {text})", name="x.py")


@given(st.lists(WORD, max_size=12))
def test_any_command_gives_a_profile_findings_or_a_clear_error(words: list[str]) -> None:
    for start in ([], ["vllm", "serve", "org/m"], ["python", "-m", "sglang.launch_server"]):
        try:
            if len([*start, *words]) > 1:
                converted(read_source([*start, *words])[0], origin="x")
            profile, findings = profile_of([*start, *words])
            assert profile or findings
            assert not any(SECRET.search(finding.message) for finding in findings)
        except SpecserveError as error:
            assert error.message
