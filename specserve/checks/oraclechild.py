"""The child process that vLLM's answers come from, and what it says of a vLLM without a table."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from specserve import __version__
from specserve.engine.jsonlines import message_in
from specserve.errors import FactError
from specserve.files import write_whole
from specserve.models.hub import answer_cache
from specserve.vllm import versions
from specserve.vllm.arguments import VllmTable, table_of
from specserve.vllm.versions import Installed, Vllm, table

CHILD = (sys.executable, "-P", "-m", "specserve.engine.oracle")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_GPU = {"name": "NVIDIA H100-80GB", "capability": [9, 0], "total_bytes": 85 * 10**9}
"""Pretended, because vLLM's parser asks for a device; what it accepts does not depend on it."""
_LIMIT_S = 300.0
"""The child itself waits less for vLLM."""


@dataclass(frozen=True, slots=True)
class VllmChange:
    """An argument of the command line that vLLM runs with another value, and its words on that."""

    argument: str
    value: Any
    effective: Any
    why: Sequence[str] = ()


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
    """Why the question could not be answered here."""
    at: str = ""
    """The line of vLLM that refused."""
    step: str = ""
    """What vLLM was doing when it refused; empty: the configuration."""
    loc: tuple[str, ...] = ()
    effective: Mapping[str, Any] = field(default_factory=dict)
    """What decides about context, batches, graphs and attention, by name."""
    changed: tuple[VllmChange, ...] = ()
    build: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the models, built without memory: bytes of weights (`stages`), and what vLLM's
    planner makes of a low and a high budget (`plans`)."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Steps that cannot be taken here, with the reason."""
    warnings: tuple[str, ...] = ()


def answers(
    command: Sequence[str], requests: Iterable[Mapping[str, Any]], *, limit_s: float = _LIMIT_S
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each request with its answer, as they come from a running `engine/oracle.py`.

    The `models` of a request are laid out as folders that hold a config.json. `limit_s`: from one
    answer to the next. In the end nothing of the child is left. Raises FactError.
    """
    with tempfile.TemporaryDirectory(prefix="specserve-oracle-") as folder:
        lines = []
        for at, request in enumerate(requests):
            sent = {"id": at, **request}
            for role, config in sent.pop("models", {}).items():
                sent["folder"] = f"{folder}/{at}"
                model = Path(sent["folder"]) / role
                model.mkdir(parents=True)
                (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
            lines.append(json.dumps(sent) + "\n")
        asked, log = Path(folder) / "stdin", Path(folder) / "stderr"
        asked.write_text("".join(lines), encoding="utf-8")
        with asked.open("rb") as stdin, log.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=folder,
                start_new_session=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
            )
        assert process.stdout is not None
        stream, unread, left = process.stdout.fileno(), b"", set(range(len(lines)))
        try:
            while left:
                if not select.select([stream], [], [], limit_s)[0]:
                    raise FactError(f"vLLM did not answer within {limit_s:g} s")
                if not (more := os.read(stream, 1 << 20)):
                    raise FactError(f"asking vLLM failed: {_last_words(log)}")
                *said, unread = (unread + more).split(b"\n")
                for answer in filter(None, map(message_in, said)):
                    if (number := answer.pop("id", None)) in left:
                        left.remove(number)
                        text = json.dumps(answer).replace(f"{folder}/{number}/", "")
                        yield number, json.loads(text)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    if "Failed to infer device type" in last:  # vllm/config/device.py
        last = "this vLLM is not for the platform of the profile; try `--assume`"
    return last[:300]


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
    """The table of an installed vLLM.

    A vLLM without a shipped table is asked once, in a child of about 10 s, and its answer is kept.
    If it gives none, the nearest shipped table serves, marked as not exact.
    """
    known = table(found.version)
    return known if known.exact else ask_installed(found, command=CHILD) or known


def installed_vllm() -> Vllm | None:
    """The vLLM of this Python, with what it accepts; None where there is none."""
    found = versions.installed()
    return Vllm(installed_table(found), found.version, found.platform, found) if found else None


def ask_installed(found: Installed, *, command: Sequence[str] = CHILD) -> VllmTable | None:
    """What an installed vLLM says of itself, or said before; None if it gives no answer."""
    sources = (found.package / "engine").glob("*.py")  # an editable one may keep its version
    changed = max((each.stat().st_mtime_ns for each in sources), default=0)
    file = answer_cache() / "vllm" / f"{found.version}-{changed}-{__version__}.json"
    gpu = () if found.platform == "cpu" else ("--gpu", json.dumps(_GPU))
    for kept in (kept_answer(file), None):
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError, FactError
        ):
            said = kept
            if said is None:
                ((_, answer),) = answers([*command, *gpu], [{"accepted": True}])
                said = answer["accepted"]
            read = table_of(said, version=found.version)
            if kept is None:
                keep_answer(file, said)
            return read
    return None
