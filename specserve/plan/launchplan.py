"""The launch plan: what is started, exactly. Serve runs it, deploy writes it, measure compares two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specserve.diagnostics import Span

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class FromEnv:
    """A value that stands in the environment variable `name` of whoever launches; the plan never holds it."""

    name: str


@dataclass(frozen=True, slots=True)
class Added:
    """Something that the profile does not say and the plan adds, with the reason."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a piece of the plan was written: `key` is a flag or variable, `span` None where specserve added it."""

    key: str
    value: str
    span: Span | None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch of vLLM. `argv` starts with the program; `env` is what is set on top of the inherited one."""

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
        """The environment variable that holds the server's key; None if the server takes requests without one."""
        return next((value.name for value in self.env.values() if isinstance(value, FromEnv)), None)

    @property
    def answers(self) -> bool:
        """Whether requests can be sent to this launch."""
        return not self.node_rank

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the server."""
        reached_at = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]", "": "127.0.0.1"}  # noqa: S104
        host = reached_at.get(self.host, self.host)
        scheme = "https" if "--ssl-certfile" in self.argv else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"
