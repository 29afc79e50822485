"""The child process that vLLM's answers come from."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import specserve
from specserve.engine.jsonlines import message_in
from specserve.files import write_whole

CHILD = (sys.executable, "-P", "-m", "specserve.engine.oracle")
"""-P: a folder named vllm in the working directory must not be taken for the library."""


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
    fixed: VllmVerdict | None = None
    """Of the same launch without its schedule of K; None if it has no schedule."""
    refused: str | None = None
    not_judged: str | None = None
    """Why the question could not be answered here."""
    at: str = ""
    """The line of vLLM that refused."""
    step: str = ""
    """What vLLM was doing when it refused; empty: the configuration."""
    loc: Sequence[str] = ()
    effective: Mapping[str, Any] = field(default_factory=dict)
    """What decides about context, batches, graphs and attention, by name."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """If it was asked for: every value by its dotted name."""
    changed: tuple[VllmChange, ...] = ()
    build: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the models, built without memory: bytes of weights (`target`, `draft`), kinds of
    KV cache (`kv`), and what vLLM's planner makes of a low and a high budget (`plans`)."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Steps that cannot be taken here, with the reason."""
    warnings: tuple[str, ...] = ()


def answers(
    command: Sequence[str],
    requests: Sequence[Mapping[str, Any]],
    *,
    limit_s: float | None = None,
) -> list[dict[str, Any]]:
    """What a child that runs `engine/oracle.py` answers; `not_judged` says why there is no answer.

    The `models` of a request are laid out as folders that hold a config.json. `limit_s`: for all;
    by default what the child itself may take. In the end nothing of the child is left.
    """
    limit_s, inherited = limit_s or 240 + 60 * len(requests), dict(os.environ)
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
        # for another interpreter, which may lack it, and must not find our libraries
        (Path(folder) / "specserve").symlink_to(Path(specserve.__file__).parent)
        asked, log = Path(folder) / "stdin", Path(folder) / "stderr"
        asked.write_text("".join(lines), encoding="utf-8")
        with (
            asked.open("rb") as stdin,
            log.open("wb") as stderr,
            subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=folder,
                start_new_session=True,
                env={
                    **inherited,
                    "HF_HUB_OFFLINE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "PYTHONPATH": os.pathsep.join([folder, inherited.get("PYTHONPATH", "")]),
                },
            ) as process,
        ):
            try:
                said, why = process.communicate(timeout=limit_s)[0], ""
            except subprocess.TimeoutExpired as error:
                said, why = error.output or b"", f"vLLM did not answer within {limit_s:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if not why:
            words = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.strip() for line in reversed(words) if line.strip()), "no word")
            if "Failed to infer device type" in last:  # vllm/config/device.py
                last = "this vLLM is not for the platform of the profile; try `--assume`"
            why = f"asking vLLM failed: {last[:300]}"
        said = re.sub(rb"%s/\d+/" % re.escape(folder.encode()), b"", said)
    found = {each.pop("id", None): each for each in map(message_in, said.split(b"\n")) if each}
    return [found.get(at, {"not_judged": why}) for at in range(len(requests))]


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
