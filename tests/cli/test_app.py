"""The program as a whole: exit codes, words instead of tracebacks, lazy imports, help, completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve import __version__
from specserve.cli.app import _run
from specserve.cli.commands import COMMANDS
from tests.cli.conftest import Told

Captured = pytest.CaptureFixture[str]
Run = Callable[..., subprocess.CompletedProcess[bytes]]
ROOT = Path(__file__).parents[2]
DEMO = "configs/demo.yaml"
CLIENTS = {"torch", "vllm", "openai", "httpx", "httpx2", "prometheus_client", "psutil"}
HEAVY = {*CLIENTS, "rich", "pydantic", "jinja2", "huggingface_hub", "tokenizers", "pynvml", "tomllib"}
ROOMS_OF_OTHERS = (
    *("specserve.measure", "specserve.memory", "specserve.metrics", "specserve.serve"),
    *("specserve.models.drafts", "specserve.plan.replacements"),
)


def test_without_a_word_the_program_explains_itself_and_its_version_is_data(
    capsys: Captured,
    told: Told,
) -> None:
    stdout, _ = told(
        0,
    )
    assert stdout.startswith("Usage: specserve") and all(name in stdout for name in COMMANDS)
    assert _run(["--version"]) == 0
    assert capsys.readouterr() == (f"specserve {__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["lint", "configs"]])
def test_a_full_disk_behind_stdout_is_said_and_is_no_bug(tmp_path: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "specserve", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "SPECSERVE_STATE_DIR": str(tmp_path)},
            cwd=ROOT,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    to = b"" if arguments == ["--help"] else b" to stdout"  # the library prints the help
    assert b"error: cannot write%b: No space left on device" % to in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lnit", "x"], "there is no command `lnit`\n\nhint: did you mean `specserve lint`?"),
        (["lint"], "`specserve lint --help` lists its arguments and options"),
        (["lint", "--bogus", DEMO], "no such option: --bogus"),
        (["--verison"], "no such option: --verison\n\nhint: did you mean `--version`?"),
        (["up", "configs/dmo.yaml"], "error[SD002]: cannot read the file: no such file"),
        (["lint", "demo/draft"], "hint: a profile is a *.yaml or *.yml with a top-level `target` or"),
        (["lint", "--format", "xml", DEMO], "xml"),
        (["plan", DEMO, "--vllm", "nightly"], "vLLM nightly is not among the versions"),
        (["plan", DEMO, "--set", "nonsense"], "`--set` takes `key.path=value`"),
        (["plan", "configs"], "is not a valid profile"),
    ],
)
def test_a_command_line_that_cannot_work_ends_with_words_and_code_two(
    arguments: list[str], said: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    out, text = told(2, *arguments)
    assert out == "" and said in text and "error" in text and "Traceback" not in text


WAITING = """
import time
import specserve.checks.run as run
def lint(*_, **__):
    print(flush=True)
    time.sleep(60)
run.lint = lint
from specserve.cli.app import main
main()
"""


def test_an_interrupt_is_code_130_and_a_word() -> None:
    command = [sys.executable, "-c", WAITING, "lint", DEMO]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read().strip() == b"interrupted"


@pytest.mark.parametrize(("arguments", "code"), [(["lint", "configs", "x"], 1), (["--help"], 0)])
def test_a_reader_that_has_gone_ends_nothing_with_a_traceback(arguments: list[str], code: int) -> None:
    read, written = os.pipe()
    os.close(read)
    stderr = subprocess.PIPE if code else written
    command = [sys.executable, "-m", "specserve", *arguments]
    done = subprocess.run(command, stdout=written, stderr=stderr, cwd=ROOT, timeout=120, check=False)
    os.close(written)
    assert done.returncode == code
    assert b"Traceback" not in (done.stderr or b"") and b"Exception" not in (done.stderr or b"")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([b"plan", b"no\xff.yaml"], 2),
        ([b"lint", b"no\xff.yaml", b"--format", b"json"], 1),
        ([b"pl\xffan"], 2),
        ([b"plan", DEMO.encode(), b"--alternative", b"\xff"], 2),
        ([b"plan", DEMO.encode(), b"--set", b"target.model=\xff"], 2),
    ],
)
def test_bytes_that_are_no_text_are_an_error_like_any_other(
    told: Told, arguments: list[bytes], code: int
) -> None:
    stdout, stderr = told(code, *map(os.fsdecode, arguments))
    assert "Traceback" not in stderr
    if b"json" in arguments:
        assert len(json.loads(stdout)["findings"]) == 1


def imported(*commands: list[str]) -> set[str]:
    """What is imported when these commands have run one after the other."""
    code = (
        "import contextlib, sys\n"
        "from specserve.cli.app import main\n"
        f"for words in {commands!r}:\n"
        "    sys.argv = ['specserve', *words]\n"
        "    with contextlib.suppress(SystemExit): main()\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


def test_lint_imports_nothing_heavy_and_help_and_plan_no_engine_and_no_client() -> None:
    names = imported(
        *(["lint", DEMO, "--format", form] for form in ("text", "concise", "json", "github", "sarif"))
    )
    assert "yaml" in names and not {name.split(".")[0] for name in names} & HEAVY
    assert not [name for name in names if name.startswith(ROOMS_OF_OTHERS)]
    assert not imported(["--help"], ["plan", DEMO, "--vllm", "0.32"]) & CLIENTS


def test_a_shell_can_complete_commands_and_options(specserve: Run) -> None:
    env = {
        "_SPECSERVE_COMPLETE": "complete_bash",
        "COMP_WORDS": "specserve lint --str",
        "COMP_CWORD": "2",
    }
    done = specserve(env=env)
    assert done.stdout.decode().split() == ["--strict"], done.stderr
