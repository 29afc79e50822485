"""Each Python that specserve starts: it runs nothing of the working directory, and may print what it likes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.oracle import VllmQuestion, VllmToAsk, ask
from specserve.hardware.accelerators import assume
from specserve.models.hub import read_model
from specserve.plan.launch import launch
from specserve.profile.schema import Profile
from specserve.serve.process import JsonChild, resolve_env
from specserve.vllm.versions import known_versions, table

ROOT = Path(__file__).parents[2]
STRANGERS = ("psutil.py", "yaml.py", "json.py", "torch.py", "sitecustomize.py", "usercustomize.py")
PACKAGES = ("vllm", "specserve", "huggingface_hub", "tokenizers", "transformers")
NOISY = """
import atexit, os, sys
os.write(1, b"a library starts\\n\\n[1]\\n7\\nnull\\n\\xff\\n")
print("half a line", end="")
atexit.register(print, "a library ends")
"""
UNENDED = NOISY.replace("null", "loading ").replace("\\n\\xff\\n", "")
SPEAKER = """
from specserve.engine.jsonlines import JsonLines
lines = JsonLines()
print("a library works")
for message in lines.read():
    said = message if "event" in message else {"effective": {"model_runner": "V2"}}
    lines.write({"id": message.get("id"), **said})
"""


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory has modules of the names of libraries; each that is executed is noted here."""
    here, noted = tmp_path / "here", tmp_path / "executed"
    for name in (*STRANGERS, *(f"{package}/__init__.py" for package in PACKAGES)):
        file = here / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"open({str(noted)!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return noted


@pytest.fixture(params=[NOISY, UNENDED], ids=["lines", "no end of line"])
def noise(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported when a Python starts prints to stdout, at once and later."""
    folder = tmp_path / "noisy"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(request.param)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")


def test_what_a_server_starts_executes_nothing_of_the_working_directory(marks: Path) -> None:
    """vllm/model_executor/models/registry.py starts `python -m`."""
    command = [sys.executable, "-c", "import psutil, yaml"]
    subprocess.run(command, check=True, env=resolve_env({}), stdin=subprocess.DEVNULL)
    module = [sys.executable, "-m", "json.tool", "--help"]
    subprocess.run(module, check=False, env=resolve_env({}), stdin=subprocess.DEVNULL, capture_output=True)
    assert not marks.exists()
    unsafe = resolve_env({"PYTHONSAFEPATH": ""})  # for who wants it, in `env` of the profile
    subprocess.run(command, check=True, env=unsafe, stdin=subprocess.DEVNULL)
    assert "psutil.py" in marks.read_text()


def test_every_python_that_is_started_has_a_safe_path() -> None:
    started = [
        (path.name, match[1])
        for path in sorted((ROOT / "specserve").rglob("*.py"))
        for match in re.finditer(r'[\[(](?:sys\.executable|python), "(-\w)"', path.read_text("utf-8"))
    ]
    assert len(started) >= 5 and {option for _, option in started} == {"-P"}, started


@pytest.mark.usefixtures("noise")
def test_what_is_printed_is_no_answer_of_vllm(
    profile: Callable[[str], Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "cache"))
    plan = launch(profile(""), table=table(known_versions()[-1]), platform="cuda")
    target = read_model(str(ROOT / "demo" / "target"), offline=True)
    question = VllmQuestion(plan, assume("1xH100-80GB"), VllmToAsk("0.33.0"), target)
    (answer,) = ask([question], command=(sys.executable, "-P", "-c", SPEAKER), limit_s=60)
    assert answer.effective == {"model_runner": "V2"}


@pytest.mark.usefixtures("noise")
def test_what_is_printed_is_no_message_of_an_engine(tmp_path: Path) -> None:
    child = JsonChild((sys.executable, "-P", "-c", SPEAKER), env=resolve_env({}), log_path=tmp_path / "log")
    try:
        child.tell({"event": "heard"})
        answer = child.receive(60)
    finally:
        child.close()
    assert answer is not None and answer["event"] == "heard"
