"""A launch plan as text: a shell command to paste, JSON for scripts, and where each piece was written."""

from __future__ import annotations

import shlex
from typing import Any

from specserve.plan.launchplan import FromEnv, LaunchPlan


def shell(plan: LaunchPlan) -> str:
    """One command for a POSIX shell; pasted, it starts the same server. Keys stay in their variables.

    The shell refuses to start it where such a variable is unset or empty, for vLLM would serve without a key.
    """
    start = next((i for i, word in enumerate(plan.argv) if word.startswith("--")), len(plan.argv))
    # assignments, not `env NAME=…`: the argv of `env` shows for a moment in the process list
    lines = [f"{name}={_assigned(value)}" for name, value in plan.env.items()]
    lines.append(" ".join(shlex.quote(word) for word in plan.argv[:start]))
    for word in plan.argv[start:]:
        if word.startswith("--"):
            lines.append("  " + shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return " \\\n".join(lines) + "\n"


def _assigned(value: str | FromEnv) -> str:
    return f'"${{{value.name}:?}}"' if isinstance(value, FromEnv) else shlex.quote(value)


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
