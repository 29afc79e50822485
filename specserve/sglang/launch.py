"""A profile to the command that serves it with SGLang: everything that it says, or an error with its place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specserve.errors import UsageError
from specserve.profile.schema import Profile, Speculation, Target, keys_of
from specserve.sglang.mapping import (
    ALGORITHMS,
    ARGUMENTS,
    BLOCK_VERIFICATION,
    CHAINS,
    GRAPHS,
    OPTIONS,
    REFUSED,
    REJECTION_SAMPLING,
    VERSION,
    NoCounterpart,
    draft_options,
    option_for,
)
from specserve.vllm.arguments import tokens

_RUNNING = 48
"""Requests that SGLang runs at most when it speculates and nobody says how many.

Source: srt/arg_groups/speculative_hook.py 0.5.23, "Max running requests is reset to 48".
"""
_MEANT_OTHERWISE = ("method", "num_speculative_tokens", "draft_tensor_parallel_size")


@dataclass(frozen=True, slots=True)
class SglangLaunch:
    """One launch of SGLang. `argv` starts with the program; `env` is what is set on top of the inherited one."""

    name: str
    fingerprint: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[str, ...]
    """What the same setting means to SGLang, and what needs no option there."""


@dataclass(slots=True)
class _Options:
    """The options of one launch as they are found, with the settings that have no counterpart."""

    profile: Profile
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def put(self, place: str, value: Any) -> None:
        """Sets the option for a value of the profile, notes that none is needed, or refuses it."""
        if value is None:
            return
        try:
            found = option_for(place, value)
        except NoCounterpart as error:
            self.refused.append((place, str(error)))
            return
        key = place.partition(".")[2]
        if found is None:
            self.notes.append(f"`{key}: {_shown(value)}` needs no option: SGLang does this by default")
            return
        name, written = found
        names: tuple[str, ...] = (name,)
        if name == "disable_cuda_graph":
            names = GRAPHS
            flags = " and ".join(ARGUMENTS[one].flag or "" for one in GRAPHS)
            self.notes.append(f"`{key}` is {flags}, formerly {ARGUMENTS[name].flag}")
        self.values |= dict.fromkeys(names, written)
        if name in OPTIONS and OPTIONS[name].caution:
            self.notes.append(f"{ARGUMENTS[name].flag}: {OPTIONS[name].caution}")


def launch_sglang(profile: Profile) -> SglangLaunch:
    """Returns the command for SGLang of mapping.VERSION. Raises UsageError that names all without counterpart."""
    from specserve.profile.schema import fingerprint

    options = _Options(profile)
    for name, key in keys_of(Target).items():
        value = getattr(profile.target, name)
        if value != key.default:
            options.put(f"target.{name}", value)
    if profile.speculation:
        _speculate(options, profile.speculation)
    for section, values in (("engine", profile.engine), ("frontend", profile.frontend)):
        for name, value in values.items():
            if not _is_said_otherwise(options, f"{section}.{name}", value):
                options.put(f"{section}.{name}", value)
    _serve(options)
    if options.refused:
        raise _refusal(options)
    words = [word for name, value in options.values.items() for word in tokens(ARGUMENTS[name], value)]
    return SglangLaunch(
        name=profile.name,
        fingerprint=fingerprint(profile),
        argv=("sglang", "serve", *words),
        env=_environment(profile),
        notes=tuple(options.notes),
    )


def _speculate(options: _Options, block: Speculation) -> None:
    """The options that draft as the block says."""
    method, k, keys = block.method, block.num_speculative_tokens, block.keys
    if method not in ALGORITHMS:
        options.refused.append(("speculation.method", f"SGLang has no method like `{method}`"))
        return
    options.values["speculative_algorithm"] = ALGORITHMS[method]
    options.put("speculation.model", block.model)
    if k is None:
        text = "SGLang picks the number of draft tokens by the model: write `num_speculative_tokens`"
        options.refused.append(("speculation", text))
    else:
        found = draft_options(method, k)
        options.values |= found
        said = " ".join(f"{ARGUMENTS[name].flag} {value}" for name, value in found.items())
        if method in (*CHAINS, "ngram", "dflash"):
            said += "; its draft tokens count the last verified token too"
        options.notes.append(f"K = {k} is {said}")
    tensor = options.profile.target.tensor_parallel_size
    size = keys.get("draft_tensor_parallel_size")
    if size == tensor:
        options.notes.append(
            f"`draft_tensor_parallel_size: {size}` needs no option: SGLang splits a draft like its target"
        )
    elif size is not None:
        text = f"SGLang splits a draft like its target, here by {tensor}"
        options.refused.append(("speculation.draft_tensor_parallel_size", text))
    for key, value in keys.items():
        if key in _MEANT_OTHERWISE or key == "model" or value is None:
            continue
        if why := _unsampled(method, key, keys):
            options.refused.append((f"speculation.{key}", why))
        else:
            options.put(f"speculation.{key}", value)
    if options.profile.engine.get("max_num_seqs") is None:
        options.notes.append(
            f"without `max_num_seqs` SGLang runs {_RUNNING} requests at most when it speculates"
        )


def _unsampled(method: str, key: str, keys: Mapping[str, Any]) -> str | None:
    """Why SGLang cannot draft or verify as this key says; None if it can."""
    sampled = keys.get("draft_sample_method")
    if key == "draft_sample_method":
        if method in ("dflash", "dspark"):
            return f"SGLang decides itself how a {ALGORITHMS[method]} draft is sampled"
        if sampled == "probabilistic" and method not in REJECTION_SAMPLING:
            return f"SGLang drafts greedily with {ALGORITHMS[method]}"
    if key == "rejection_sample_method" and keys[key] == "block":
        if method not in BLOCK_VERIFICATION:
            return f"SGLang has no block verification with {ALGORITHMS[method]}"
        if method in REJECTION_SAMPLING and sampled != "probabilistic":
            return "SGLang verifies blocks of sampled drafts only: write `draft_sample_method: probabilistic` too"
    return None


def _is_said_otherwise(options: _Options, place: str, value: Any) -> bool:
    """Whether another option, or its value, already says this; sets it."""
    profile = options.profile
    if (
        place == "frontend.enable_auto_tool_choice"
        and value is True
        and profile.frontend.get("tool_call_parser")
    ):
        options.notes.append("`enable_auto_tool_choice` needs no option beside --tool-call-parser")
        return True
    if place == "engine.enable_expert_parallel" and value is True:
        if profile.engine.get("data_parallel_size") in (None, 1):
            options.values["ep_size"] = profile.target.tensor_parallel_size
        else:
            options.refused.append((place, "SGLang spreads experts over the ranks of one replica only"))
        return True
    return False


def _serve(options: _Options) -> None:
    """Where it listens, under which name; and what no launch of SGLang here has."""
    profile, server = options.profile, options.profile.server
    options.put("server.served_model_name", server.served_model_name)
    options.values |= {"host": server.host, "port": server.port, "enable_metrics": True}
    options.notes.append("--enable-metrics: without it SGLang has no /metrics, which vLLM always has")
    if server.port == 0:
        options.refused.append(("server.port", REFUSED["server.port"]))
    if server.api_key_env:
        options.refused.append(("server.api_key_env", REFUSED["server.api_key_env"]))
    if profile.hardware and profile.hardware.nodes > 1:
        options.refused.append(("hardware.nodes", REFUSED["hardware.nodes"]))
    if profile.hardware and profile.hardware.accelerator == "cpu":
        options.refused.append(("hardware.accelerator", REFUSED["hardware.accelerator"]))
    for name in profile.env:
        if name.startswith("VLLM_"):
            options.refused.append((f"env.{name}", "only vLLM reads this variable"))


def _environment(profile: Profile) -> dict[str, str]:
    devices = profile.hardware.devices if profile.hardware else None
    chosen = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices else {}
    return {**profile.env, **chosen}


def _refusal(options: _Options) -> UsageError:
    """One error for all settings without a counterpart, each with its place in the profile."""
    many = len(options.refused)
    lines = [f"{options.profile.span(place)}: `{place}`: {why}" for place, why in options.refused]
    what = "1 setting of the profile" if many == 1 else f"{many} settings of the profile"
    removable = next(
        (place for place, _ in options.refused if place.startswith(("engine.", "frontend."))), None
    )
    removable = removable or next((place for place, _ in options.refused if place.count(".") == 1), None)
    hint = (
        f"`--set {removable}=null` leaves that setting to SGLang"
        if removable and removable != "speculation.method"
        else None
    )
    return UsageError(f"SGLang {VERSION} has no counterpart for {what}", hint=hint, causes=tuple(lines))


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def command(launch: SglangLaunch) -> str:
    """The launch as one command for a POSIX shell, an option a line."""
    return " \\\n".join(_lines(launch)) + "\n"


def _lines(launch: SglangLaunch) -> Iterator[str]:
    for name, value in launch.env.items():
        yield f"{name}={shlex.quote(value)}"
    line = " ".join(launch.argv[:2])
    for word in launch.argv[2:]:
        if word.startswith("--"):
            yield line
            line = f"  {shlex.quote(word)}"
        else:
            line += f" {shlex.quote(word)}"
    yield line
