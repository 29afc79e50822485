"""The launch plan: what is started, exactly; as a shell command; and two of them side by side."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from specserve.diagnostics import Span
from specserve.profile.schema import Profile
from specserve.profile.secrets import masked

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
    memory: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What a check asked and predicted of the memory of this launch; empty: it was not checked."""
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


def node_count(profile: Profile) -> int:
    """How many nodes take a command of their own: 1 where Ray spreads the ranks."""
    nodes = profile.hardware.nodes if profile.hardware else 1
    return 1 if profile.engine.get("distributed_executor_backend") == "ray" else nodes


def value_at(plan: LaunchPlan, name: str) -> int:
    """Where in the argv the value of an argument stands: no value begins with a dash there."""
    return plan.argv.index(f"--{name.replace('_', '-')}") + 1


def leader_at(plan: LaunchPlan, profile: Profile) -> int | None:
    """Where the address of node 0 stands, if the profile does not name it."""
    is_asked = plan.node_rank is not None and not profile.engine.get("master_addr")
    return value_at(plan, "master_addr") if is_asked else None


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


@dataclass(frozen=True, slots=True)
class Written:
    """A value and where it was written; without a place: specserve added it."""

    value: Any
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same on both sides, secrets starred out; None: it is not there."""

    key: str
    a: Written | None
    b: Written | None


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: what it is called, its profile, and the launch that it makes."""

    label: str
    profile: Profile
    plan: LaunchPlan


def compare(a: Side, b: Side) -> dict[str, list[Difference]]:
    """What differs in `argv` and `env`, in the order of the first; True is not 1."""
    found: dict[str, list[Difference]] = {"argv": [], "env": []}
    for part, differences in found.items():
        ours, theirs = (dict(_leaves(side, is_env=part == "env")) for side in (a, b))
        for key in {**ours, **theirs}:
            sides = (ours.get(key), theirs.get(key))
            if len({repr(side and side.value) for side in sides}) > 1:
                shown = (side and Written(masked(key, side.value), side.span) for side in sides)
                differences.append(Difference(key, *shown))
    return found


def _leaves(side: Side, *, is_env: bool) -> Iterator[tuple[str, Written]]:
    """The flags, or the variables. Of JSON each key by itself, as vLLM takes them: `--x.method`.

    A flag without a value is on; `--no-x` is `--x`, off.
    """
    for origin in side.plan.origins:
        key, value, span = origin.key, origin.value, origin.span
        if (key in side.plan.env) is not is_env:
            continue
        if isinstance(value, FromEnv):
            value = f"${value.name}"
        elif not value and key.startswith("--"):
            key, value = f"--{key[2:].removeprefix('no-')}", not key.startswith("--no-")
        elif value.startswith("{") and not is_env:
            with suppress(ValueError):
                value = json.loads(value)
        yield from _flat(key, value, span, side.profile)


def _flat(
    key: str, value: Any, span: Span | None, profile: Profile
) -> Iterator[tuple[str, Written]]:
    """The leaves of nested mappings with dotted keys, each at its place or that of its holder."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            place = span and (profile.place(f"{span.path}.{name}") or span)
            yield from _flat(f"{key}.{name}", item, place, profile)
    else:
        yield key, Written(value, span)
