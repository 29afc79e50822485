"""The launch plan: what is started, exactly; and the same as a shell command or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specserve.diagnostics import Span

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class FromEnv:
    """A value in the environment variable `name` of whoever launches; the plan never holds it."""

    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    """A flag or variable of the plan, and where it was written, or why specserve adds it."""

    key: str
    value: Any
    span: Span | None = None
    why: str = ""


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
    origins: tuple[Origin, ...] = field(default=(), repr=False)
    node_rank: int | None = None
    """Which of several nodes it is for; None where there is one. Only node 0 answers requests."""

    @property
    def speculation(self) -> Any:
        """vLLM's `speculative_config`; None without speculation."""
        return self.engine_kwargs.get("speculative_config")

    @property
    def added(self) -> tuple[Origin, ...]:
        """What the profile does not say."""
        return tuple(origin for origin in self.origins if origin.why)

    @property
    def api_key_env(self) -> str | None:
        """The environment variable that holds the server's key; None without a key."""
        return next((value.name for value in self.env.values() if isinstance(value, FromEnv)), None)

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


def shell(argv: Sequence[str], env: Mapping[str, str | FromEnv]) -> str:
    """One command for a POSIX shell that starts the same server. Keys stay in their variables.

    The shell refuses it where such a variable is unset: vLLM would serve without a key.
    """
    # assignments, not `env NAME=…`: the argv of `env` shows for a moment in the process list
    lines = [
        f'{name}="${{{value.name}:?}}"'
        if isinstance(value, FromEnv)
        else f"{name}={shlex.quote(value)}"
        for name, value in env.items()
    ]
    lines.append(shlex.quote(argv[0]))
    for word in argv[1:]:
        if word.startswith("--"):
            lines.append("  " + shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return " \\\n".join(lines) + "\n"
