"""SGLang's options and what says the same in a profile: `convert` reads by this table, `render` writes by it.

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

from specserve.vllm.arguments import Argument, flag_of, python_value
from specserve.vllm.versions import Replacement


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
CHAINS = ("draft_model", "eagle", "eagle3", "mtp")
"""Methods that draft one token a step, by SGLang's EAGLE workers."""
REJECTION_SAMPLING = ("eagle", "eagle3", "mtp")
"""Methods whose drafts SGLang may sample too (srt/arg_groups/speculative_hook.py, `_handle_eagle_family`)."""
BLOCK_VERIFICATION = (*REJECTION_SAMPLING, "dflash", "dspark")


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
