"""The launch plan: what is started, exactly; and the same as a shell command or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from specserve.diagnostics import Span

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class FromEnv:
    """A value in the environment variable `name` of whoever launches; the plan never holds it."""

    name: str


@dataclass(frozen=True, slots=True)
class Added:
    """Something that the profile does not say and the plan adds, with the reason."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a flag or variable of the plan was written; `span` is None where specserve added it."""

    key: str
    value: str
    span: Span | None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch of vLLM. `argv` starts with the program; `env` is set over the inherited one."""

    name: str
    fingerprint: str
    vllm: str
    """The vLLM version the plan is for, e.g. `0.32.0+cpu`, or a minor such as `0.33`."""
    platform: str
    """`cpu` or `cuda`."""
    argv: tuple[str, ...]
    env: Mapping[str, str | FromEnv]
    engine_kwargs: Mapping[str, Json]
    """Keyword arguments of `vllm.LLM` for the same engine, offline."""
    host: str
    port: int
    model: str
    """The name that clients send: the served model name, or else the target itself."""
    stall_timeout_s: float
    shutdown_timeout_s: float
    speculation: Mapping[str, Json] | None = None
    added: tuple[Added, ...] = ()
    origins: tuple[Origin, ...] = field(default=(), repr=False)
    node_rank: int | None = None
    """Which of several nodes it is for; None where there is one. Only node 0 answers requests."""

    @property
    def api_key_env(self) -> str | None:
        """The environment variable that holds the server's key; None without a key."""
        return next((value.name for value in self.env.values() if isinstance(value, FromEnv)), None)

    def with_env(self, name: str, value: str, why: str) -> LaunchPlan:
        """The plan with a variable that specserve adds."""
        origins = (
            *(origin for origin in self.origins if origin.key != name),
            Origin(name, value, None),
        )
        added = (*self.added, Added(name, why))
        return replace(self, env={**self.env, name: value}, added=added, origins=origins)

    def with_option(
        self, flag: str, value: str, *, span: Span | None = None, why: str = ""
    ) -> LaunchPlan:
        """The plan with an option of vLLM, in the place of the one of that name if there is one.

        `span`: where it is written; `why`: the reason why specserve adds it.
        """
        argv, origins, words = (
            list(self.argv),
            list(self.origins),
            [flag, value] if value else [flag],
        )
        at = argv.index(flag) if flag in argv else len(argv)
        argv[at : at + len(words)] = words
        place = next((i for i, origin in enumerate(origins) if origin.key == flag), len(origins))
        origins[place : place + 1] = [Origin(flag, value, span)]
        added = (*self.added, Added(flag, why)) if why else self.added
        return replace(self, argv=tuple(argv), added=added, origins=tuple(origins))

    @property
    def answers(self) -> bool:
        """Whether requests can be sent to this launch."""
        return not self.node_rank

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the server."""
        scheme = "https" if "--ssl-certfile" in self.argv else "http"
        return f"{scheme}://{host_in_url(self.host)}:{self.port}"


def host_in_url(host: str) -> str:
    """Where a client on the server's machine reaches a host, as it stands in a URL."""
    found = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"[{found.replace('%', '%25')}]" if ":" in found else found


class Startable(Protocol):
    """What a shell can start."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""

    @property
    def env(self) -> Mapping[str, str | FromEnv]:
        """What is set on top of the inherited environment."""


def shell(plan: Startable) -> str:
    """One command for a POSIX shell that starts the same server. Keys stay in their variables.

    The shell refuses it where such a variable is unset: vLLM would serve without a key.
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
