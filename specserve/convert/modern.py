"""Arguments of earlier vLLMs to those of today, each change noted. Knows no section of a profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from specserve.convert.given import Given, Note
from specserve.convert.settings import Setting
from specserve.convert.speculative import inferred_method
from specserve.convert.words import UNKNOWN
from specserve.plan.old import ARGUMENTS, KEYS
from specserve.plan.table import VllmTable
from specserve.profile.problems import quoted
from specserve.profile.tree import Node

_MANY_REQUESTS = 512
_PLAIN_NOW = re.compile(r"speculation\.(\w+)")
_REFUSED: Mapping[str, str] = {
    "headless": "specserve starts servers that answer",
    "grpc": "specserve talks HTTP to the servers it starts",
    "model_tag": "it is the target",
}


def modern(given: Given, *, table: VllmTable) -> Given:
    """The same start in the words of one vLLM version; what that version lacks is left out and noted."""
    notes = list(given.notes)
    known = {**table.engine, **table.frontend}
    settings: dict[str, Setting] = {}
    block: dict[str, Node] = {}
    for name, setting in given.settings.items():
        if _unknown_value(setting, notes):
            continue
        if name in _REFUSED:
            notes.append(_note(setting, f"`{setting.written}` is left out: {_REFUSED[name]}"))
        elif name in known and "has no effect" in (known[name].deprecated or ""):
            notes.append(
                _note(setting, f"`{setting.written}` is left out: vLLM {table.minor} says it has no effect")
            )
        elif name in known or name == "model":
            settings[name] = setting
        else:
            _merge(settings, _replaced(setting, block, notes))
    config = settings.get("speculative_config")
    if block or config:
        settings |= _block(config, block, given, notes)
    return Given(given.engine, given.what, given.place, settings, given.env, notes)


def _merge(settings: dict[str, Setting], more: Mapping[str, Setting]) -> None:
    """Adds settings; a mapping to one that is there adds its keys."""
    for name, setting in more.items():
        there = settings.get(name)
        if there and there.node.mapping is not None and setting.node.mapping is not None:
            node = replace(there.node, value={**setting.node.mapping, **there.node.mapping})
            settings[name] = replace(there, node=node)
        else:
            settings[name] = setting


def _note(setting: Setting, text: str, *, path: str = "") -> Note:
    return Note(path, text, setting.place.line)


def _unknown_value(setting: Setting, notes: list[Note]) -> bool:
    """A value that only a shell or Python could know: left out, but for a key, which is only named."""
    value = setting.node.value
    match = UNKNOWN.search(value) if isinstance(value, str) else None
    if match is None or setting.name in ("api_key", "model"):
        return False
    what = f"`{setting.written}` is left out: its value is {quoted(match[1])}, which the text does not say"
    notes.append(_note(setting, what))
    return True


def _replaced(setting: Setting, block: dict[str, Node], notes: list[Note]) -> dict[str, Setting]:
    """What says the same as an argument that is gone: a key of the block, other arguments, or nothing."""
    old = ARGUMENTS.get(setting.name)
    if old is None:
        notes.append(_note(setting, f"`{setting.written}` is left out: no vLLM that specserve knows has it"))
        return {}
    key = _PLAIN_NOW.fullmatch(old.now or "")
    if key and setting.name != "spec_decoding_acceptance_method":
        block[key[1]] = setting.node
        notes.append(_note(setting, f"`{setting.written}` of old", path=f"speculation.{key[1]}"))
        return {}
    if setting.name == "speculative_disable_by_batch_size":
        block["disable_by_batch_size"] = setting.node
        return {}
    other = _argument(setting)
    text = (
        f"`{setting.written}` became `{next(iter(other))}`"
        if other
        else f"`{setting.written}` is left out: {old.why}"
    )
    notes.append(_note(setting, text))
    return other


def _argument(setting: Setting) -> dict[str, Setting]:
    """An argument of today with the value that an old one had."""
    node, value = setting.node, setting.node.value
    made: tuple[str, Node] | None = None
    match setting.name:
        case "worker_use_ray" if value is True:
            made = "distributed_executor_backend", replace(node, value="ray", raw="ray")
        case "guided_decoding_backend" if isinstance(value, str):
            made = "structured_outputs_config", replace(node, value={"backend": node})
        case "rope_scaling" | "rope_theta" if value is not None:
            made = "hf_overrides", replace(node, value={setting.name: node})
        case "disable_mm_preprocessor_cache" if value is True:
            made = "mm_processor_cache_gb", replace(node, value=0, raw="0")
        case "cuda_graph_sizes":
            sizes = value if isinstance(value, list) else [node]
            made = "cudagraph_capture_sizes", replace(node, value=sizes)
        case "override_pooler_config" if isinstance(value, dict):
            made = "pooler_config", node
        case "enable_multimodal_encoder_data_parallel" if value is True:
            made = "mm_encoder_tp_mode", replace(node, value="data", raw="data")
        case "num_redundant_experts" | "eplb_window_size" | "eplb_step_interval" | "eplb_log_balancedness":
            made = "eplb_config", replace(node, value={setting.name.removeprefix("eplb_"): node})
        case "enable_microbatching" if value is True:
            made = "enable_dbo", node
        case "task" if value in ("embed", "embedding", "classify", "score", "reward"):
            made = "runner", replace(node, value="pooling", raw="pooling")
    return {made[0]: Setting(made[0], made[1], setting.written)} if made else {}


def _block(
    config: Setting | None, flags: dict[str, Node], given: Given, notes: list[Note]
) -> dict[str, Setting]:
    """`speculative_config` with keys of today, from its own text and the flags of old."""
    written = (config.node.mapping if config else None) or {}
    keys = {**{name.replace("-", "_"): node for name, node in written.items()}, **flags}
    line = config.place.line if config else given.place.line
    for name in [name for name in keys if name in KEYS]:
        node = keys.pop(name)
        old = KEYS[name]
        if old.now:
            keys.setdefault(old.now, node)
            notes.append(Note(f"speculation.{old.now}", f"`{name}` of old", line))
        elif name.endswith("disable_by_batch_size"):
            notes.append(Note("speculation", _schedule(node, keys), line))
        else:
            notes.append(Note("speculation", f"`{name}` is left out: {old.why}", line))
    _verification(keys, notes, line)
    for name, node in list(keys.items()):
        match = UNKNOWN.search(node.value) if isinstance(node.value, str) else None
        if match:
            del keys[name]
            notes.append(
                Note("speculation", f"`{name}` is left out: the text does not say {quoted(match[1])}", line)
            )
    _window(keys, notes, line, old=bool(flags))
    _method(keys, notes, line, old=bool(flags))
    if not _speculates(keys, notes, line):
        return {"speculative_config": _none(given)}
    place = config.node if config else Node({}, given.place, key=given.place)
    return {
        "speculative_config": Setting("speculative_config", replace(place, value=keys), "speculative_config")
    }


def _none(given: Given) -> Setting:
    return Setting("speculative_config", Node(None, given.place), "speculative_config")


def _schedule(node: Node, keys: Mapping[str, Node]) -> str:
    """What says today that speculation ends where many requests run."""
    k = keys["num_speculative_tokens"].value if "num_speculative_tokens" in keys else "K"
    last = node.value if isinstance(node.value, int) else 0
    rows = f"[[1, {last - 1}, {k}], [{last}, {max(_MANY_REQUESTS, last)}, 0]]"
    return f"`disable_by_batch_size: {last}` is gone; `num_speculative_tokens_per_batch_size: {rows}` says so today"


def _verification(keys: dict[str, Node], notes: list[Note], line: int) -> None:
    """`rejection_sample_method` under its values of today."""
    node = keys.get("rejection_sample_method")
    if node is None or node.value not in ("strict", "probabilistic"):
        return
    del keys["rejection_sample_method"]
    if node.value == "probabilistic":
        keys["draft_sample_method"] = node
        text = "`rejection_sample_method: probabilistic` of old"
        notes.append(Note("speculation.draft_sample_method", text, line))
    else:
        notes.append(Note("speculation", "`rejection_sample_method: strict` is what vLLM does anyway", line))


def _window(keys: dict[str, Node], notes: list[Note], line: int, *, old: bool) -> None:
    """The shortest n-gram of the flags of old was 1; today's default is the longest one."""
    longest = keys.get("prompt_lookup_max")
    if old and longest is not None and "prompt_lookup_min" not in keys:
        keys["prompt_lookup_min"] = replace(longest, value=1, raw="1", key=None)
        text = "the default of that time; vLLM would now look for the longest n-grams only"
        notes.append(Note("speculation.prompt_lookup_min", text, line))


def _method(keys: dict[str, Node], notes: list[Note], line: int, *, old: bool) -> None:
    """Writes the method down that vLLM would infer."""
    model, count = keys.get("model"), keys.get("num_speculative_tokens")
    if old and model is None and "method" not in keys and count is not None:
        keys["method"] = replace(count, value="mtp", raw="mtp", key=None)
        text = "without a draft the flags of old meant the target's own prediction layers"
        notes.append(Note("speculation.method", text, line))
    if "method" in keys or model is None or not isinstance(model.value, str):
        return
    name = inferred_method(model.value)
    if name is None:
        return
    method = Node(name, model.span)
    rest = dict(keys)
    keys.clear()
    keys |= {"method": method, **rest}
    why = "what vLLM takes for this model's name, where no method is said"
    notes.append(Note("speculation.method", why, line))


def _speculates(keys: Mapping[str, Node], notes: list[Note], line: int) -> bool:
    """False where the block asks for something that is no speculation, or is gone."""
    method = keys["method"].value if "method" in keys else None
    count = keys["num_speculative_tokens"].value if "num_speculative_tokens" in keys else None
    if method in ("medusa", "mlp_speculator", "extract_hidden_states"):
        why = (
            "extracts states and speculates nothing"
            if method == "extract_hidden_states"
            else "is gone from vLLM"
        )
        notes.append(Note("", f"speculation is left out: the method `{method}` {why}", line))
        return False
    if count == 0 and not isinstance(count, bool):
        notes.append(Note("", "speculation is left out: `num_speculative_tokens` is 0", line))
        return False
    return bool(keys)
