"""SGLang's options and what says the same in a profile: `convert` reads by them, `render` writes.

`arguments.json` holds such options of one version as `scripts/update_sglang.py` reads them from its
wheel; `mapping.json` what they mean, which a person decides. Facts about speculation, with their
sources in SGLang 0.5.23:
- Along a chain (`eagle_topk` 1) a step drafts one token, and verification counts the last verified
  token too: `draft_tokens = steps + 1` (srt/arg_groups/speculative_hook.py,
  `_handle_eagle_family`). vLLM's K is the steps.
- The drafts of NGRAM begin with the last token (kernels/jit/csrc/ngram_corpus/result.cpp,
  `fillResult`), and so does a DFLASH block (srt/speculative/dflash_worker_v2.py, "pos 0 = anchor"):
  both are K + 1 long. DSPARK's block is K long.
- NEXTN is EAGLE (`_resolve_speculative_algorithm_alias`), with the layers of the target itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specserve.errors import UsageError
from specserve.plan.arguments import tokens
from specserve.profile.schema import Profile, Speculation, Target, defaults_of, fingerprint
from specserve.vllm.arguments import Argument, flag_of, python_value
from specserve.vllm.facts import Replacement
from specserve.vllm.speculation import METHODS


@dataclass(frozen=True, slots=True)
class Counterpart(Replacement):
    """What an option of SGLang is in a profile, and what to mind when it is written from one."""

    written: Mapping[str, Any] = field(default_factory=dict)
    """SGLang's value by the profile's, where `values` does not say it the other way round."""
    aliases: tuple[str, ...] = ()
    caution: str = ""
    """How the number means something else to SGLang."""


_TABLE: dict[str, Any] = json.loads(Path(__file__).with_name("arguments.json").read_text("utf-8"))
_MAPPING: dict[str, Any] = json.loads(Path(__file__).with_name("mapping.json").read_text("utf-8"))
VERSION: str = _TABLE["version"]
"""The SGLang whose options these are."""
ARGUMENTS: dict[str, Argument] = {}
"""The options that a profile has a word for."""
for _name, _facts in _TABLE["arguments"].items():
    _facts = {key: tuple(one) if isinstance(one, list) else one for key, one in _facts.items()}
    ARGUMENTS[_name] = Argument(_name, **{"flag": flag_of(_name), **_facts})
OPTIONS: Mapping[str, Counterpart] = {
    name: Counterpart(**data) for name, data in _MAPPING["options"].items()
}
"""Options, of earlier versions too, that a profile says by another name or value, or not at all."""
SAME: frozenset[str] = frozenset(_MAPPING["same"])
"""Options with the same name and meaning in both engines."""
DEFAULTS: Mapping[str, Any] = _MAPPING["defaults"]
"""By dotted place, the value that SGLang acts by if no option is given."""
LEFT_OUT: Mapping[str, str] = _MAPPING["left_out"]
"""By dotted place, why SGLang has no counterpart, where only speed or memory depends on it."""
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
_HEADS = {name for name, item in METHODS.items() if item.draft == "head" and not item.in_one_pass}
"""Methods whose drafts SGLang can sample (srt/arg_groups/speculative_hook.py)."""
_RUNNING = 48
"""Requests that SGLang runs at most when it speculates and nobody says how many.

Source: srt/arg_groups/speculative_hook.py 0.5.23, "Max running requests is reset to 48".
"""


def draft_options(method: str, k: int) -> dict[str, Any]:
    """The options that make SGLang draft K tokens a step, along a chain as vLLM does."""
    if method == "dspark":
        return {"speculative_dspark_block_size": k}
    found: dict[str, Any] = {"speculative_num_draft_tokens": k + 1}
    if method == "ngram":
        found |= {"speculative_ngram_max_bfs_breadth": 1}
    elif method != "dflash":
        found = {"speculative_num_steps": k, "speculative_eagle_topk": 1, **found}
    return found


@dataclass(frozen=True, slots=True)
class SglangLaunch:
    """One launch of SGLang; `env` is what is set on top of the inherited environment."""

    name: str
    fingerprint: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[str, ...]
    """What a setting means to SGLang, what needs no option there, and what is left out."""


@dataclass(slots=True)
class _Options:
    """The options of one launch as they are found, and by place the settings that have none."""

    profile: Profile
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def put(self, place: str, value: Any, *, left_out: str | None = None) -> None:
        """Set the option for a value of the profile, note that there is none, or refuse it."""
        key, left_out = place.partition(".")[2], left_out or LEFT_OUT.get(place)
        if value is None:
            return
        own = key if key in SAME else None
        named = (name for name, item in OPTIONS.items() if item.now == place and name in ARGUMENTS)
        name = next(named, own)
        shown = f"`{key}: {json.dumps(value)}`" if isinstance(value, bool) else f"`{key}: {value}`"
        if left_out:
            self.notes.append(f"`{key}` is left out: {left_out}")
        elif place in DEFAULTS and DEFAULTS[place] == value:
            self.notes.append(f"{shown} needs no option: SGLang does this by default")
        elif place in REFUSED or name is None:
            self.refused[place] = REFUSED.get(place, "SGLang has no such option")
        else:
            self._put(place, OPTIONS.get(name, Counterpart()), ARGUMENTS[name], value)

    def _put(self, place: str, item: Counterpart, argument: Argument, value: Any) -> None:
        ours, is_flag = python_value(argument, value), argument.form == "flag"
        theirs = item.written.get(ours) if isinstance(ours, str) else None
        if theirs is None and ours not in argument.choices:
            for name, known in (item.values or {}).items():
                is_same = known == ours and type(known) is type(ours)
                if is_same and (name in argument.choices or not argument.choices):
                    theirs = is_flag or name
                    break
        theirs = ours if theirs is None else theirs
        is_wrong = bool(argument.choices) and theirs not in argument.choices
        if argument.kind in ("int", "float"):
            is_wrong = isinstance(theirs, bool | str) or theirs < 0
        if is_wrong or (is_flag and not isinstance(theirs, bool)):
            self.refused[place] = f"SGLang's `{argument.flag}` cannot be `{theirs}`"
        elif theirs is not False or not is_flag or argument.negatable:
            if argument.name == "disable_cuda_graph":
                flags = " and ".join(ARGUMENTS[one].flag or "" for one in GRAPHS)
                self.notes.append(f"`enforce_eager` is {flags}, formerly {argument.flag}")
                self.values |= dict.fromkeys(GRAPHS, theirs)
            else:
                self.values[argument.name] = theirs
            if item.caution:
                self.notes.append(f"{argument.flag}: {item.caution}")


def launch_sglang(profile: Profile) -> SglangLaunch:
    """The launch by SGLang of VERSION. Raises UsageError with all that has no counterpart."""
    options, server, hardware = _Options(profile), profile.server, profile.hardware
    for name, default in defaults_of(Target).items():
        value = getattr(profile.target, name)
        if value != default:
            options.put(f"target.{name}", value)
    if profile.speculation:
        _speculate(options, profile.speculation)
    engine, frontend, tensor = dict(profile.engine), dict(profile.frontend), profile.target
    if engine.get("enable_expert_parallel") is True:
        del engine["enable_expert_parallel"]
        options.values["ep_size"] = tensor.tensor_parallel_size
        if engine.get("data_parallel_size") not in (None, 1):
            why = "SGLang spreads experts over the ranks of one replica only"
            options.refused["engine.enable_expert_parallel"] = why
    if frontend.get("enable_auto_tool_choice") is True and frontend.get("tool_call_parser"):
        del frontend["enable_auto_tool_choice"]
        options.notes.append("`enable_auto_tool_choice` needs no option beside --tool-call-parser")
    for section, values in (("engine", engine), ("frontend", frontend)):
        for name, value in values.items():
            options.put(f"{section}.{name}", value)
    options.put("server.served_model_name", server.served_model_name)
    options.values |= {"host": server.host, "port": server.port, "enable_metrics": True}
    options.notes.append("--enable-metrics: without it SGLang has no /metrics, which vLLM has")
    asked = {
        "server.port": server.port == 0,
        "server.api_key_env": bool(server.api_key_env),
        "hardware.nodes": bool(hardware and hardware.nodes > 1),
        "hardware.accelerator": bool(hardware and hardware.accelerator == "cpu"),
    }
    options.refused |= {place: REFUSED[place] for place, is_asked in asked.items() if is_asked}
    for name in profile.env:
        if name.startswith("VLLM_"):
            options.refused[f"env.{name}"] = "only vLLM reads this variable"
    if count := len(options.refused):
        what = f"{count} setting{'s' if count > 1 else ''} of the profile"
        text = f"SGLang {VERSION} has no counterpart for {what}"
        each = [f"{profile.span(at)}: `{at}`: {why}" for at, why in options.refused.items()]
        free = next((at for at in options.refused if at.startswith(("engine", "frontend"))), None)
        hint = f"`--set {free}=null` leaves that setting to SGLang" if free else None
        raise UsageError(text, hint=hint, causes=tuple(each))
    words = [
        word for name, value in options.values.items() for word in tokens(ARGUMENTS[name], value)
    ]
    devices = hardware.devices if hardware else None
    return SglangLaunch(
        name=profile.name,
        fingerprint=fingerprint(profile),
        argv=("sglang", "serve", *words),
        env={**profile.env}
        | ({"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices else {}),
        notes=tuple(options.notes),
    )


def _speculate(options: _Options, block: Speculation) -> None:
    """The options that draft as the block says."""
    method, k, keys = block.method, block.num_speculative_tokens, block.keys
    if method not in ALGORITHMS:
        options.refused["speculation.method"] = f"SGLang has no method like `{method}`"
        return
    options.values["speculative_algorithm"] = ALGORITHMS[method]
    options.put("speculation.model", block.model)
    if k is None:
        text = "SGLang picks the number of draft tokens: write `num_speculative_tokens`"
        options.refused["speculation"] = text
    else:
        found = draft_options(method, k)
        options.values |= found
        said = " ".join(f"{ARGUMENTS[name].flag} {value}" for name, value in found.items())
        if method != "dspark":
            said += "; its draft tokens count the last verified token too"
        options.notes.append(f"K = {k} is {said}")
    is_sampled = method in _HEADS and keys.get("draft_sample_method") == "probabilistic"
    left_out: dict[str, str] = {}
    if method not in _HEADS:
        text = f"SGLang decides itself how it drafts with {ALGORITHMS[method]}"
        left_out["draft_sample_method"] = f"{text}, which changes how many drafts are accepted"
    if keys.get("rejection_sample_method") == "block":
        can_block = is_sampled or (METHODS[method].draft == "head" and method not in _HEADS)
        text = "SGLang verifies blocks of drafts that a head samples, which changes only the speed"
        left_out |= {} if can_block else {"rejection_sample_method": text}
    for key, value in keys.items():
        if key not in ("method", "model", "num_speculative_tokens"):
            options.put(f"speculation.{key}", value, left_out=left_out.get(key))
    if options.profile.engine.get("max_num_seqs") is None:
        text = f"without `max_num_seqs` SGLang runs {_RUNNING} requests at most when it speculates"
        options.notes.append(text)
