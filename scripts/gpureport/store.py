"""The files of a report: one JSON for each finished step, so that an interrupted run goes on with what is missing."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpureport.step import PARTS, Step

VERSION = 1
KIND = "gpu-report"
FINISHED = ("done", "failed", "skipped")


class StoreError(Exception):
    """The folder holds something else."""


def write_json(file: Path, content: Any) -> None:
    """Write the whole file or leave the old one, whatever ends the process meanwhile."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_text(file, text)


def write_text(file: Path, text: str) -> None:
    """The same for text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    with part.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(file)


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in the file; None if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def claim(root: Path, identity: Mapping[str, Any]) -> bool:
    """Take the folder for this run; True if it resumes one. Raises StoreError for another machine's or size's run."""
    file = root / "run.json"
    found = read_json(file)
    if found is None:
        if root.exists() and any(file.name != "models" for file in root.iterdir()):
            raise StoreError(f"{root} holds other files: name a folder that is empty or holds only `models`")
        write_json(file, {"version": VERSION, "identity": dict(identity), "began": now()})
        return False
    if found.get("identity") != dict(identity):
        raise StoreError(f"{root} holds a run of another machine, vLLM or size: name another folder")
    return True


def now() -> str:
    """The time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def record_file(root: Path, key: str) -> Path:
    """Where a step's result is kept."""
    return root / "steps" / f"{key}.json"


def finished(root: Path, key: str) -> dict[str, Any] | None:
    """The record of a step that need not run again."""
    found = read_json(record_file(root, key))
    return found if found and found.get("status") in FINISHED else None


def not_run(step: Step, reason: str, *, estimate_s: float) -> dict[str, Any]:
    """The record of a step without a result; it is kept in no file, so that a later run computes it."""
    return {
        **head(step),
        "status": "not_run",
        "cause": reason,
        "estimate_s": round(estimate_s, 1),
        "commands": {},
        "result": {},
    }


def head(step: Step) -> dict[str, str]:
    """What names a step in its record."""
    return {"key": step.key, "part": step.part, "title": step.title}


def shell(argv: Sequence[str]) -> str:
    """A command as it is typed; placeholders stay readable."""
    return " ".join(word if word.startswith("{") else shlex.quote(word) for word in argv)


def asked(step: Step) -> dict[str, Any]:
    """What a step runs, as its record has it."""
    return {
        "commands": {name: shell(argv) for name, argv in step.commands.items()},
        "profiles": {name: dict(profile) for name, profile in step.profiles.items()},
    }


def is_of(record: Mapping[str, Any], step: Step) -> bool:
    """Whether a record came from the same commands and profiles."""
    return all(record.get(name) == value for name, value in asked(step).items())


def assemble(
    root: Path, *, machine: Mapping[str, Any], records: Iterable[Mapping[str, Any]], minutes: float
) -> dict[str, Any]:
    """The report of what is there: written to report.json, its memory points to points.jsonl."""
    steps = sorted(records, key=lambda record: PARTS.index(record["part"]))
    began = (read_json(root / "run.json") or {}).get("began")
    points = [record["result"]["point"] for record in steps if record["result"].get("point")]
    report = {
        "version": VERSION,
        "kind": KIND,
        "created": began,
        "finished": now(),
        "minutes": minutes,
        "machine": dict(machine),
        "steps": [dict(record) for record in steps],
        "points": points,
    }
    write_json(root / "report.json", report)
    write_text(root / "points.jsonl", "".join(json.dumps(point) + "\n" for point in points))
    return report
