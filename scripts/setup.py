"""Prepare `.venv`: CPU engine, specserve, demo pair; each step once, and again when its input changed.

Standard library only, and readable by the Pythons that it turns away. It knows no profile and no vLLM flag.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "build" / "setup.log"
REQUIREMENTS = ROOT / "scripts/cpu_engine/requirements.txt"
SHIM = ROOT / "scripts/cpu_engine/vllm_cpu_shim"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # PyPI has no +cpu build of torch
# Byte code of all packages would double the time; that of the largest is made in a step of its own, on all cores.
PIP = ["-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-input", "--no-compile"]
# Where PYTHONDONTWRITEBYTECODE is set, each start of vLLM would compile them anew: 15 s more.
BYTE_CODE = """
import compileall, importlib.util
for name in ("vllm", "torch", "transformers"):
    compileall.compile_dir(importlib.util.find_spec(name).submodule_search_locations[0], quiet=2, workers=0)
"""
WIDE_MB, CACHE_MB = 820, 600  # demo/wide; what pip keeps in its own cache


class SetupError(Exception):
    """A step cannot be done; the second argument says the way out."""


class Step(NamedTuple):
    """One thing to do once, and once more when the text of an input changes."""

    name: str
    title: str
    inputs: tuple[Path, ...]
    disk_mb: int  # measured
    commands: list[list[str]]  # arguments for the environment's python; the second and later are fall-backs


def steps(*, dev: bool) -> list[Step]:
    """All steps inside the virtual environment, in order."""
    pyproject, shim = ROOT / "pyproject.toml", tuple(sorted(SHIM.glob("*.*")))
    torch = next(pin for pin in pins() if pin.startswith("torch=="))
    install = [*PIP, "--no-deps"]
    # pip's own sources first: a mirror or a folder of wheels may have the CPU build; else PyTorch's index.
    torch_commands = [[*install, torch], [*install, "--index-url", TORCH_INDEX, torch]]
    engine = [*install, "-r", str(REQUIREMENTS)]
    start = ["-m", "vllm.entrypoints.cli.main", "--version"]
    todo = [
        Step("torch", torch.replace("==", " "), (REQUIREMENTS,), 750, torch_commands),
        # torch is there by now: this leaves it alone.
        Step("engine", f"vLLM for the CPU, {len(pins())} packages", (REQUIREMENTS,), 1250, [engine]),
        Step("bytecode", "byte code of the engine", (REQUIREMENTS,), 180, [["-c", BYTE_CODE]]),
        Step("specserve", "specserve", (pyproject, *shim), 20, [[*PIP, "-e", str(ROOT), str(SHIM)]]),
        Step("start", "first start of vLLM", (REQUIREMENTS, *shim), 70, [start]),
    ]
    if dev:
        todo.append(Step("dev", "tools of the tests", (pyproject,), 240, [[*PIP, *dev_group()]]))
    return todo


def pins() -> list[str]:
    """The distributions of the CPU engine, `name==version` each."""
    lines = [line.strip() for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def dev_group() -> list[str]:
    """The `dev` group of pyproject.toml; the pip that comes with Python 3.11 cannot read groups."""
    import tomllib

    group = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["dev"]
    return [str(requirement) for requirement in group]


def unsupported(*, system: str, machine: str, libc: tuple[str, str], cpuinfo: str) -> str | None:
    """One line that says what is supported, where this machine is something else."""
    glibc = libc[0] == "glibc" and tuple(map(int, libc[1].split(".")[:2])) >= (2, 31)
    old_cpu = re.search(r"\bavx2\b", cpuinfo) is None
    if system == "Linux" and machine == "x86_64" and glibc and not old_cpu:
        return None
    here = " ".join(filter(None, [system, machine, *libc, "without AVX2" if cpuinfo and old_cpu else ""]))
    return (
        f"this is {here}; the CPU engine runs on Linux x86-64 (glibc 2.31 or newer, AVX2) with Python 3.11. "
        "`pip install .` gives the rest of specserve"
    )


def check_python(version: tuple[int, int], *, has_venv: bool) -> None:
    """Turn away a Python that cannot make the environment."""
    if version != (3, 11):
        raise SetupError(
            f"the CPU engine is pinned for Python 3.11, this is {version[0]}.{version[1]}",
            "Debian, Ubuntu: apt install python3.11 python3.11-venv; anywhere: pyenv install 3.11; "
            "or name one: make setup PYTHON=/path/to/python3.11",
        )
    if not has_venv:
        raise SetupError("this Python has no venv module", "Debian, Ubuntu: apt install python3.11-venv")


def check_disk(need_mb: int, *, free_mb: int) -> None:
    """Say at the start what would be a broken download at the end."""
    if free_mb < need_mb:
        raise SetupError(
            f"{free_mb / 1000:.1f} GB are free on this disk, set-up needs {need_mb / 1000:.1f} GB",
            f"free some space, or clone to another disk than that of {ROOT}",
        )


def digest(paths: tuple[Path, ...]) -> str:
    """Changes when the name or the text of one of the files does."""
    seen = hashlib.sha256()
    for path in paths:
        seen.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return seen.hexdigest()


def is_usable(venv: Path) -> bool:
    """Whether `venv` has a Python 3.11 that runs and was made here: its scripts hold absolute paths."""
    probe = [str(venv / "bin/python"), "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 11))"]
    place = venv / ".done" / "place"
    moved = place.exists() and place.read_text(encoding="utf-8") != str(venv)
    return not moved and Path(probe[0]).exists() and subprocess.run(probe, check=False).returncode == 0


def pending(todo: list[Step], venv: Path) -> list[Step]:
    """The steps whose stamp is missing or was written for other inputs."""
    stamps = {path.name: path.read_text(encoding="utf-8") for path in (venv / ".done").glob("*")}
    return [step for step in todo if stamps.get(step.name) != digest(step.inputs)]


def why(log: str) -> str:
    """The way out, from what pip said."""
    if "No space left on device" in log:
        return "the disk is full: free some space and start again"
    if re.search(
        r"NewConnectionError|name resolution|ConnectTimeout|unreachable|Max retries|ProxyError", log
    ):
        return "the package index cannot be reached: check the network, or pip's proxy and index settings"
    if "No matching distribution" in log:
        return "pip's index lacks this version: `pip config list` names the index; a mirror can lag behind"
    return "correct what the log says and start again: finished steps are not repeated"


def run(argv: list[str], tick: Callable[[], None]) -> int:
    """Run with the output in LOG, calling `tick` every second; the exit status."""
    ends = {signal.SIGTERM, signal.SIGINT}
    # An exception raised by a signal inside subprocess leaves pip behind or a lock held; the loop asks for signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*ends, signal.SIGCHLD})
    try:
        with LOG.open("a", encoding="utf-8") as out:
            print(f"$ {shlex.join(argv)}", file=out, flush=True)
            with subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env={**os.environ, "PIP_USER": "0"},
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),  # noqa: PLW1509  # no threads
            ) as child:
                while child.poll() is None:
                    seen = signal.sigtimedwait({*ends, signal.SIGCHLD}, 1)
                    if seen is None:
                        tick()
                    elif seen.si_signo in ends:  # Ctrl-C, or SIGTERM from make: leave no pip behind
                        child.terminate()
                        child.wait()
                        signal.raise_signal(seen.si_signo)
            return child.returncode
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def perform(title: str, commands: list[list[str]]) -> None:
    """Do one step with its fall-backs: one line on the terminal, with the seconds it took."""
    started, live = time.monotonic(), sys.stdout.isatty()

    def say(end: str = "") -> None:
        if live or end:
            line = f"  {title:<36} {time.monotonic() - started:4.0f} s"
            print("\r" + line if live else line, end=end, flush=True)

    LOG.parent.mkdir(exist_ok=True)
    LOG.touch()
    before = len(LOG.read_text(encoding="utf-8", errors="replace"))
    say()
    if all(run(argv, say) != 0 for argv in commands):
        text = LOG.read_text(encoding="utf-8", errors="replace")[before:]
        said = [line[:300] for line in text.splitlines() if not line.startswith("$ ")]
        print("\n".join(["", *said[-15:]]), file=sys.stderr)
        raise SetupError(f"the step `{title}` failed (all output: {LOG})", why(text))
    say("\n")


def set_up(venv: Path, *, dev: bool) -> None:
    """Make or complete the environment and the demo pair."""
    todo, usable, stamps = steps(dev=dev), is_usable(venv), venv / ".done"
    missing = pending(todo, venv) if usable else todo
    need_mb = sum(step.disk_mb for step in missing) + (CACHE_MB if len(missing) > 2 else 0)
    need_mb += 0 if (ROOT / "demo/wide").exists() else WIDE_MB
    free_mb = shutil.disk_usage(ROOT).free // 1_000_000
    check_disk(need_mb, free_mb=free_mb)
    if missing:
        print(
            f"Setting up {venv}: up to {need_mb / 1000:.1f} GB of disk, a few minutes the first time",
            flush=True,
        )
    if not usable:
        perform("virtual environment", [[sys.executable, "-m", "venv", "--clear", str(venv)]])
    stamps.mkdir(exist_ok=True)
    (stamps / "place").write_text(str(venv), encoding="utf-8")
    python = str(venv / "bin/python")
    for step in missing:
        perform(step.title, [[python, *command] for command in step.commands])
        (stamps / step.name).write_text(digest(step.inputs), encoding="utf-8")
    perform("demo pair, widened", [[python, str(ROOT / "scripts/widen_demo.py")]])
    if missing:
        print(
            f"{venv} is ready: `source {os.path.relpath(venv)}/bin/activate` puts `specserve` on the PATH",
            flush=True,
        )


def main() -> int:
    """0: done; 1: a step failed or this machine is not supported; 130, 143: interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dev", action="store_true", help="also what the tests need")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", metavar="DIR")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cpuinfo = Path("/proc/cpuinfo")
    problem = unsupported(
        system=platform.system(),
        machine=platform.machine(),
        libc=platform.libc_ver(),
        cpuinfo=cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else "",
    )
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    try:
        check_python(sys.version_info[:2], has_venv=importlib.util.find_spec("ensurepip") is not None)
        set_up(args.venv.absolute(), dev=args.dev)
    except SetupError as error:
        print(f"error: {error.args[0]}\nhint: {error.args[1]}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
