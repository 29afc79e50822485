"""The child process that vLLM's answers come from, and what it says of an installed vLLM without a table."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from specserve import __version__
from specserve.engine.jsonlines import message_in
from specserve.errors import FactError
from specserve.files import write_whole
from specserve.models.hub import fact_cache
from specserve.vllm import versions
from specserve.vllm.arguments import VllmTable, loads
from specserve.vllm.versions import Installed, Vllm, is_newer, table

CHILD = (sys.executable, "-P", "-m", "specserve.engine.oracle")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_GPU = {"name": "NVIDIA H100-80GB", "capability": [9, 0], "total_bytes": 85 * 10**9}
"""Pretended, because vLLM's parser asks for a device; what it accepts does not depend on it."""
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class VllmArgument:
    """An argument of the command line, and the value that vLLM runs. `place`: where it is in the configuration."""

    argument: str
    value: Any
    effective: Any
    place: str
    is_changed: bool


@dataclass(frozen=True, slots=True)
class VllmVerdict:
    """What vLLM says of the launch of one variant: refused, not judged, or how it would run."""

    path: str = ""
    """`speculation`, `alternatives.NAME`, or empty without speculation."""
    basis: str = ""
    """Such as `vLLM 0.33.0, 4 x H100-80GB assumed`."""
    without: VllmVerdict | None = None
    """Of the same launch without speculation; None if this is that one."""
    refused: str | None = None
    not_judged: str | None = None
    """Why the question could not be answered without the GPU."""
    at: str = ""
    """The line of vLLM that refused."""
    step: str = ""
    """What vLLM was doing when it refused; empty: the configuration."""
    loc: tuple[str, ...] = ()
    effective: Mapping[str, Any] = field(default_factory=dict)
    asked: tuple[VllmArgument, ...] = ()
    build: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the models, built without memory."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Steps that cannot be taken without the GPU, with the reason."""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[VllmArgument, ...]:
        """What vLLM runs with another value than the one that is asked for."""
        return tuple(item for item in self.asked if item.is_changed)


class OracleChild:
    """A running `engine/oracle.py`; its process group outlives neither this object nor this process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="specserve-oracle-")
        self._log = Path(self._folder.name) / "stderr"
        self._rest = b""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder.name,
                start_new_session=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
            )
        self.pid = self._process.pid
        self._end = weakref.finalize(self, _end, self._process, self._folder)

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """The answer to one request; `models` are laid out as folders that hold a config.json. Raises FactError."""
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            for role, config in request["models"].items():
                (Path(folder) / role).mkdir()
                (Path(folder) / role / "config.json").write_text(json.dumps(config), encoding="utf-8")
            sent = {"id": 0, "folder": folder, **{key: request[key] for key in request if key != "models"}}
            try:
                return self._answer(sent, limit_s=limit_s)
            except FactError:
                self.close()
                raise
            except (OSError, TypeError, ValueError) as error:
                self.close()
                raise FactError(f"asking vLLM failed: {error}") from error

    def _answer(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        deadline, stream = time.monotonic() + limit_s, self._process.stdout.fileno()
        while True:
            *lines, self._rest = self._rest.split(b"\n")
            # the folder is another one each time
            said = (message_in(line.replace(f"{request['folder']}/".encode(), b"")) for line in lines)
            if (answer := next(filter(None, said), None)) is not None:
                return answer
            if not select.select([stream], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise FactError(f"vLLM did not answer within {limit_s:g} s")
            more = os.read(stream, 1 << 20)
            if not more:
                raise FactError(f"asking vLLM failed: {self._last_words()}")
            self._rest += more

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")[:300]
        if "Failed to infer device type" in last:  # vllm/config/device.py, 0.26-0.33
            return (
                "this build of vLLM is not for the platform of the profile; `--assume` names another machine"
            )
        return last

    def close(self) -> None:
        """End the child and all that it started."""
        self._end()
        child_of.cache_clear()


def _end(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
    folder.cleanup()


@lru_cache(maxsize=1)
def child_of(command: tuple[str, ...]) -> OracleChild:
    """The child of this command line, which the first question starts; the one of another ends: each takes 0.7 GB."""
    return OracleChild(command)


def kept_answer(file: Path) -> dict[str, Any] | None:
    """The kept answer, or None if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(file.read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else None
    return None


def keep_answer(file: Path, answer: Mapping[str, Any]) -> None:
    """Write the answer in one step; a cache that cannot be written is no reason to fail."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(file, json.dumps(answer))


@lru_cache
def installed_table(found: Installed) -> VllmTable:
    """The table of an installed vLLM. Raises UnknownVersion if it is too old.

    A vLLM that is newer than every shipped table is asked once, in a child of about 10 s, and its answer is kept. If
    it gives none, the newest shipped table serves, marked as not exact.
    """
    asked = ask_installed(found, command=CHILD) if is_newer(found.version) else None
    return asked or table(found.version)


def installed_vllm() -> Vllm | None:
    """The vLLM of this Python, with what it accepts; None where there is none."""
    found = versions.installed()
    return Vllm(installed_table(found), found.version, found.platform, found) if found else None


def ask_installed(found: Installed, *, command: Sequence[str] = CHILD) -> VllmTable | None:
    """What an installed vLLM says of itself, or said before; None if it gives no answer."""
    source = found.package / "engine" / "arg_utils.py"
    changed = source.stat().st_mtime_ns if source.is_file() else 0
    file = fact_cache() / "vllm" / f"{found.version}-{changed}-{__version__}.json"
    gpu = () if found.platform == "cpu" else ("--gpu", json.dumps(_GPU))
    for answer in (kept_answer(file), None):
        try:
            said = answer or _ask([*command, *gpu])
            known = loads(json.dumps({**said, "version": found.version, "distribution": found.distribution}))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, FactError):
            continue
        if answer is None:
            keep_answer(file, said)
        return known
    return None


def _ask(command: Sequence[str]) -> dict[str, object]:
    """The child's answer. Raises OSError, FactError or KeyError if it gives none."""
    with contextlib.closing(OracleChild(command)) as child:
        said: dict[str, object] = child.ask({"accepted": True, "models": {}}, limit_s=_LIMIT_S)["accepted"]
        return said
