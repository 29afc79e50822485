"""SGLang's options and what says the same in a profile: `convert` reads by this table, a launch is written by it.

`arguments.json` holds the options of one version as `scripts/update_sglang.py` reads them from its wheel;
`mapping.json` what they mean, which a person decides. Facts about speculation, with their sources in SGLang 0.5.23:
- Along a chain (`eagle_topk` 1) a step drafts one token, and verification counts the last verified token too:
  `draft_tokens = steps + 1` (srt/arg_groups/speculative_hook.py, `_handle_eagle_family`). vLLM's K is the steps.
- The drafts of NGRAM begin with the last token (kernels/jit/csrc/ngram_corpus/result.cpp, `fillResult`), and so does a
  DFLASH block (srt/speculative/dflash_worker_v2.py, "pos 0 = anchor"): both are K + 1 long. DSPARK's block is K long.
- NEXTN is EAGLE (`_resolve_speculative_algorithm_alias`), here with the layers of the target itself.
- A draft is split like its target: there is no size of its own (srt/arg_groups/fields/spec.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specserve.errors import UsageError
from specserve.plan.arguments import tokens
from specserve.plan.replacements import Replacement
from specserve.profile.schema import Profile, Speculation, Target, fingerprint, keys_of
from specserve.vllm.arguments import Argument, flag_of, python_value
from specserve.vllm.speculation import METHODS


@dataclass(frozen=True, slots=True)
class Counterpart(Replacement):
    """What an option of SGLang is in a profile, and what to mind when it is written from one."""

    written: Mapping[str, Any] = field(default_factory=dict)
    """SGLang's value by the profile's, where `values` does not say it the other way round."""
    caution: str = ""
    """How the number means something else to SGLang."""


class NoCounterpart(ValueError):
    """SGLang has nothing that says the same; the text says why, as far as it is known."""


def _argument(name: str, data: Mapping[str, Any]) -> Argument:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in data.items()
        if key != "default"
    }
    return Argument(name, **{"flag": flag_of(name), **values})


_HERE = Path(__file__).parent
_TABLE: dict[str, Any] = json.loads((_HERE / "arguments.json").read_text(encoding="utf-8"))
_MAPPING: dict[str, Any] = json.loads((_HERE / "mapping.json").read_text(encoding="utf-8"))
VERSION: str = _TABLE["version"]
"""The SGLang whose options these are."""
ARGUMENTS: Mapping[str, Argument] = {
    name: _argument(name, data) for name, data in _TABLE["arguments"].items()
}
OPTIONS: Mapping[str, Counterpart] = {name: Counterpart(**data) for name, data in _MAPPING["options"].items()}
"""SGLang's options that a profile says by another name, with other values, or not at all; earlier versions' too."""
SAME: frozenset[str] = frozenset(_MAPPING["same"])
"""Options with the same name and meaning in both engines."""
DEFAULTS: Mapping[str, Any] = _MAPPING["defaults"]
"""By dotted place, the value that SGLang acts by if no option is given."""
REFUSED: Mapping[str, str] = _MAPPING["refused"]
"""By dotted place, why SGLang has no counterpart."""
GRAPHS = ("disable_decode_cuda_graph", "disable_prefill_cuda_graph")
"""Together what vLLM's `enforce_eager` says; `--disable-cuda-graph` is deprecated."""
ALGORITHMS: Mapping[str, str] = {
    method: algorithm.upper()
    for algorithm, method in (OPTIONS["speculative_algorithm"].values or {}).items()
    if algorithm != "mtp"
}
"""SGLang's algorithm by vLLM's method."""
_HEADS = {name for name, method in METHODS.items() if method.draft == "head" and not method.in_one_pass}
CHAINS = ("draft_model", *_HEADS)
"""Methods that draft one token a step, by SGLang's EAGLE workers; it may sample the drafts of heads too.

(srt/arg_groups/speculative_hook.py, `_handle_eagle_family`)
"""


def draft_options(method: str, k: int) -> dict[str, Any]:
    """The options that make SGLang draft K tokens a step by this method, along a chain as vLLM does."""
    if method in CHAINS:
        return {
            "speculative_num_steps": k,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": k + 1,
        }
    if method == "ngram":
        return {"speculative_num_draft_tokens": k + 1, "speculative_ngram_max_bfs_breadth": 1}
    if method == "dspark":
        return {"speculative_dspark_block_size": k}
    return {"speculative_num_draft_tokens": k + 1}


def option_for(place: str, value: Any) -> tuple[str, Any] | None:
    """SGLang's option for a value at a dotted place of a profile, and its value; None if SGLang acts so anyway.

    Raises NoCounterpart.
    """
    if place in DEFAULTS and DEFAULTS[place] == value:
        return None
    if place in REFUSED:
        raise NoCounterpart(REFUSED[place])
    name = next((name for name, item in OPTIONS.items() if item.now == place and name in ARGUMENTS), None)
    plain = place.partition(".")[2]
    if name is None and plain not in SAME:
        raise NoCounterpart("SGLang has no such option")
    argument = ARGUMENTS[name or plain]
    value = _written_value(OPTIONS.get(argument.name), argument, python_value(argument, value))
    if argument.form == "flag" and value is False and not argument.negatable:
        return None
    return argument.name, value


def _written_value(item: Counterpart | None, argument: Argument, value: Any) -> Any:
    """SGLang's value for the profile's. Raises NoCounterpart for one that SGLang does not take."""
    if item and isinstance(value, str) and value in item.written:
        value = item.written[value]
    elif item and item.values and value not in argument.choices:
        ours = [
            theirs for theirs, known in item.values.items() if known == value and type(known) is type(value)
        ]
        known = [theirs for theirs in ours if not argument.choices or theirs in argument.choices]
        if known:
            value = argument.form == "flag" or known[0]
    wrong = argument.choices and value not in argument.choices
    if argument.kind in ("int", "float"):
        wrong = isinstance(value, (bool, str)) or value < 0
    if wrong or (argument.form == "flag" and not isinstance(value, bool)):
        raise NoCounterpart(f"SGLang's `{argument.flag}` cannot be `{value}`")
    return value


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
            shown = str(value).lower() if isinstance(value, bool) else value
            self.notes.append(f"`{key}: {shown}` needs no option: SGLang does this by default")
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
    """Return the launch by SGLang of VERSION. Raises UsageError that names all settings without a counterpart."""
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
        if METHODS[method].in_one_pass:
            return f"SGLang decides itself how a {ALGORITHMS[method]} draft is sampled"
        if sampled == "probabilistic" and method not in _HEADS:
            return f"SGLang drafts greedily with {ALGORITHMS[method]}"
    if key == "rejection_sample_method" and keys[key] == "block":
        if METHODS[method].draft != "head":
            return f"SGLang has no block verification with {ALGORITHMS[method]}"
        if method in _HEADS and sampled != "probabilistic":
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
    if place != "engine.enable_expert_parallel" or value is not True:
        return False
    if profile.engine.get("data_parallel_size") in (None, 1):
        options.values["ep_size"] = profile.target.tensor_parallel_size
    else:
        options.refused.append((place, "SGLang spreads experts over the ranks of one replica only"))
    return True


def _serve(options: _Options) -> None:
    """Where it listens, under which name; and what no launch of SGLang here has."""
    profile, server, hardware = options.profile, options.profile.server, options.profile.hardware
    options.put("server.served_model_name", server.served_model_name)
    options.values |= {"host": server.host, "port": server.port, "enable_metrics": True}
    options.notes.append("--enable-metrics: without it SGLang has no /metrics, which vLLM always has")
    asked = {
        "server.port": server.port == 0,
        "server.api_key_env": bool(server.api_key_env),
        "hardware.nodes": bool(hardware and hardware.nodes > 1),
        "hardware.accelerator": bool(hardware and hardware.accelerator == "cpu"),
    }
    options.refused += [(place, REFUSED[place]) for place, is_asked in asked.items() if is_asked]
    for name in profile.env:
        if name.startswith("VLLM_"):
            options.refused.append((f"env.{name}", "only vLLM reads this variable"))


def _environment(profile: Profile) -> dict[str, str]:
    devices = profile.hardware.devices if profile.hardware else None
    chosen = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices else {}
    return {**profile.env, **chosen}


def _refusal(options: _Options) -> UsageError:
    """One error for all settings without a counterpart, each with its place in the profile."""
    places = [place for place, _ in options.refused]
    lines = [f"{options.profile.span(place)}: `{place}`: {why}" for place, why in options.refused]
    what = "1 setting of the profile" if len(places) == 1 else f"{len(places)} settings of the profile"
    single = [place for place in places if place.count(".") == 1]
    optional = [place for place in places if place.startswith(("engine.", "frontend."))]
    removable = next(iter([*optional, *single]), "speculation.method")
    hint = f"`--set {removable}=null` leaves that setting to SGLang"
    hint_or_none = None if removable == "speculation.method" else hint
    return UsageError(
        f"SGLang {VERSION} has no counterpart for {what}", hint=hint_or_none, causes=tuple(lines)
    )
