"""A launch plan as text: a shell command to paste, JSON for scripts, and where each piece was written."""

from __future__ import annotations

import shlex
from typing import Any

from specserve.plan.launchplan import FromEnv, LaunchPlan


def shell(plan: LaunchPlan) -> str:
    """One command for a POSIX shell; pasted, it starts the same server. Keys stay in their variables."""
    words = list(plan.argv)
    start = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    lines = [" ".join(shlex.quote(word) for word in words[:start])]
    for word in words[start:]:
        if word.startswith("--"):
            lines.append("  " + shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    if plan.env:
        assignments = []
        for name, value in plan.env.items():
            assignments.append(
                f'{name}="${value.name}"' if isinstance(value, FromEnv) else f"{name}={shlex.quote(value)}"
            )
        lines = ["env", *(f"  {assignment}" for assignment in assignments), "  " + lines[0], *lines[1:]]
        lines[0:2] = [f"env {assignments[0]}"]
    return " \\\n".join(lines) + "\n"


def as_json(plan: LaunchPlan) -> dict[str, Any]:
    """The stable form: `version` 1, keys are never removed within it."""
    return {
        "version": 1,
        "name": plan.name,
        "fingerprint": plan.fingerprint,
        "vllm": plan.vllm,
        "platform": plan.platform,
        "argv": list(plan.argv),
        "env": {
            name: {"from_env": value.name} if isinstance(value, FromEnv) else value
            for name, value in plan.env.items()
        },
        "engine_kwargs": dict(plan.engine_kwargs),
        "added": [{"key": item.key, "why": item.why} for item in plan.added],
    }


def origins(plan: LaunchPlan) -> list[tuple[str, str, str]]:
    """Each flag or variable, its value, and `file:line:column`, or `added` where specserve put it."""
    return [(item.key, item.value, str(item.span) if item.span else "added") for item in plan.origins]
