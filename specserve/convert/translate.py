"""A start in the words of one vLLM version: what earlier vLLMs and SGLang called otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from specserve.convert.arguments import Setting, merged, option_strings
from specserve.convert.launch import Launch
from specserve.convert.words import Note, unresolved
from specserve.profile.tree import Node, meaning
from specserve.sglang import options as sglang
from specserve.vllm.arguments import Argument, VllmTable, flag_of
from specserve.vllm.facts import ARGUMENTS, KEYS, VARIABLES, Replacement

_DEFAULT_K = 3
_ALIASES = {alias: name for name, item in sglang.OPTIONS.items() for alias in item.aliases}
_UNTAKEN = object()  # the value of today where vLLM has no counterpart


def options(table: VllmTable) -> dict[str, tuple[Argument, bool]]:
    """SGLang's option strings over vLLM's: most options that both engines have share a name."""
    known = dict(option_strings(table))
    for argument in sglang.ARGUMENTS.values():
        for spelling in filter(None, (argument.flag, *argument.aliases)):
            known.setdefault(spelling, (argument, False))
    for name, item in sglang.OPTIONS.items():
        is_switch = "true" in (item.values or ())
        ours = _argument(table, (item.now or ".").split(".")[1])
        form, kind = ("flag", "bool") if is_switch else ("value", "str")
        argument = Argument(name, flag_of(name), kind, form)  # type: ignore[arg-type]
        if ours and item.values is None:
            argument = ours._replace(name=name, flag=flag_of(name))
        elif name in sglang.ARGUMENTS:
            argument = sglang.ARGUMENTS[name]._replace(choices=())
        elif (item.now or "").endswith(("_tokens", "_parallel")) and not is_switch:
            argument = argument._replace(kind="int")
        for spelling in (name, *item.aliases):
            known[flag_of(spelling)] = (argument, False)
    return known


def _argument(table: VllmTable, name: str) -> Argument | None:
    return table.engine.get(name) or table.frontend.get(name)


class _Translation:
    """What becomes of a start's settings: those of today, and the keys of `speculation`."""

    def __init__(self, given: Launch, table: VllmTable) -> None:
        self.table, self.foreign, self.notes = table, given.engine == "sglang", list(given.notes)
        self.settings: dict[str, Setting] = {}
        self.block: dict[str, Node] = {}

    def leave_out(self, setting: Setting, why: str) -> None:
        """Notes what is not in the profile."""
        self.notes.append(Note("", f"`{setting.written}` is left out: {why}", setting.place.line))

    def put(self, setting: Setting, place: str, node: Node, text: str) -> None:
        """Sets a dotted place of the profile; what the source says by today's name wins."""
        section, name, *keys = place.split(".")
        for key in reversed(keys):
            inner = replace(node, key=setting.node.key)
            node = Node({key: inner}, node.span, key=setting.node.key)
        there = self.settings[name].node if name in self.settings else None
        there = self.block.get(name) if section == "speculation" else there
        if there and there.mapping is None and there.value != node.value:
            why = f"the source sets another value by the current name, `{name}`"
            return self.leave_out(setting, why)
        node = merged(node, there) if there else node
        if section == "speculation":
            self.block[name] = node
        else:
            argument = _argument(self.table, name)
            self.settings[name] = Setting(name, node, setting.written, argument)
        if text:
            self.notes.append(Note(f"{section}.{name}", text, setting.place.line))
        return None

    def apply(self, setting: Setting, old: Replacement) -> None:
        """Sets what took a setting's place, or leaves it out."""
        node, now = setting.node, old.now or ""
        if self.foreign and now.startswith("speculation."):
            return  # these make sense only together
        value = _current_value(node, old, self.table)
        if not now or value is _UNTAKEN:
            self.leave_out(setting, old.why or f"vLLM does not have `{node.value}`")
        elif value is None:
            self.leave_out(setting, "vLLM does this by default")
        else:
            text = f"formerly `{setting.written}`"
            if self.foreign:
                written = f" {node.value}" if isinstance(value, str) else ""
                is_same = value == node.value
                text = old.why if is_same else f"SGLang's `{setting.written}{written}`"
            new = node if old.values is None else replace(node, value=value, raw=None)
            self.put(setting, now, new, text)
            for place, also in old.also.items():
                self.put(setting, place, replace(node, value=also, raw=None), "")


def translated(given: Launch, *, table: VllmTable) -> Launch:
    """The same start for one vLLM version; what that version lacks is left out and noted."""
    made = _Translation(given, table)
    later: list[tuple[Setting, Replacement]] = []
    old: Replacement | None
    given = _combined(given, made.notes) if made.foreign else given
    old_names = [name for name in given.env if name in VARIABLES and name not in table.env]
    variables = {
        name: given.env[name] for name in old_names if not unresolved(given.env[name].text)
    }
    old_ones = [Setting(name, word.node(), name) for name, word in variables.items()]
    for setting in (*given.settings.values(), *old_ones):
        name, argument = setting.name, _argument(table, setting.name)
        old = sglang.OPTIONS.get(_ALIASES.get(name, name)) if made.foreign else None
        if old is None and name != "model" and not argument:
            old = ARGUMENTS.get(name) or VARIABLES.get(name)
        if old:
            later.append((setting, old))
        elif made.foreign and not (argument or name == "model" or unresolved(name)):
            made.leave_out(setting, "vLLM has nothing of the kind")
        else:
            kept = dict(setting.node.mapping or {})
            for key, node in (setting.node.mapping or {}).items():
                if changed := _replaced_key(name, key, node, argument):
                    inner = Setting(f"{name}.{key}", node, f"{setting.written}.{key}")
                    later.append((inner, changed))
                    del kept[key]
            node = replace(setting.node, value=kept) if setting.node.mapping else setting.node
            made.settings[name] = replace(setting, node=node)
    config = made.settings.get("speculative_config")
    written = (config.node.mapping if config else None) or {}
    made.block = {key.replace("-", "_"): node for key, node in written.items()}
    for setting, old in later:
        made.apply(setting, old)
    if made.foreign:
        made.block |= _speculation(given, made.notes)
    if made.block or (config and config.node.mapping == {}):
        whole = config.node if config else Node(None, given.start.span, key=given.start.span)
        node = replace(whole, value=made.block or None)
        made.settings["speculative_config"] = Setting("speculative_config", node, "")
    env = {name: word for name, word in given.env.items() if name not in variables}
    return replace(given, settings=made.settings, env=env, notes=made.notes)


def _replaced_key(name: str, key: str, node: Node, argument: Argument | None) -> Replacement | None:
    """What took the place of a key of a mapping."""
    if name != "speculative_config":
        is_gone = argument and key not in argument.keys
        return ARGUMENTS.get(f"{name}.{key}") if is_gone else None
    old = KEYS.get(key.replace("-", "_"))
    if old is None or (old.values is not None and str(node.value) not in old.values):
        return None
    return replace(old, now=f"speculation.{old.now}" if old.now else None)


def _current_value(node: Node, old: Replacement, table: VllmTable) -> Any:
    """The value of today; None for vLLM's own default, _UNTAKEN if nothing says the same."""
    value, values = node.value, old.values
    if values is None or old.now is None or (isinstance(value, str) and unresolved(value)):
        return value
    read = meaning(value) if isinstance(value, str) else value
    written = json.dumps(read, default=str) if isinstance(read, bool | int) else str(value)
    argument = _argument(table, old.now.split(".")[1])
    if written not in values and argument:
        if written in (*argument.known, *argument.choices):
            return written
        if argument.kind == "int" and type(read) is int:
            return values.get("*", read)
    return values.get(written, values.get("*", _UNTAKEN))


def _combined(given: Launch, notes: list[Note]) -> Launch:
    """With what several of SGLang's options say together, such as no graphs at all."""
    settings = dict(given.settings)
    if settings.keys() >= set(sglang.GRAPHS):
        graphs = [settings.pop(name) for name in sglang.GRAPHS]
        settings["disable_cuda_graph"] = replace(graphs[0], name="disable_cuda_graph")
    for name in ("quantization", "speculative_draft_model_quantization"):
        if name in settings and settings[name].node.value == "unquant":
            text = f"`{settings[name].written} unquant` is left out: without it vLLM quantizes"
            notes.append(Note("", f"{text} nothing either", settings.pop(name).place.line))
    if "enable_dp_attention" in settings and (size := settings.pop("dp_size", None)):
        text = "is left out: with DP attention it splits the ranks of `--tp-size`; vLLM's"
        text = f"`{size.written}` {text} `data_parallel_size` adds replicas"
        notes.append(Note("", text, size.place.line))
    return replace(given, settings=settings)


def _speculation(given: Launch, notes: list[Note]) -> dict[str, Node]:
    """The keys of `speculation` that SGLang's flags amount to; none if it does not speculate."""
    said: dict[str, Node] = {}
    keys: dict[str, Node] = {}
    for name, setting in given.settings.items():
        item = sglang.OPTIONS.get(name)
        section, _, key = ((item and item.now) or "").partition(".")
        if section == "speculation" and item:
            said[name] = setting.node
            is_on = setting.node.value is True and (item.values or {}).get("true")
            if key not in ("method", "num_speculative_tokens"):
                keys[key] = replace(setting.node, value=is_on, raw=None) if is_on else setting.node
    if not said:
        return {}
    place = next(iter(said.values()))
    line = (place.key or place.span).line
    asked = said.get("speculative_algorithm")
    written = str(asked.value) if asked else ""
    method = (sglang.OPTIONS["speculative_algorithm"].values or {}).get(written.lower())
    if unresolved(written):
        method = written
    elif method == "eagle" and "speculative_draft_model_path" not in said:
        text = "without a draft, `--speculative-algorithm EAGLE` uses the target's own layers"
        notes.append(Note("speculation.method", text, line))
        method = "mtp"
    elif method is None and written:
        text = f"`--speculative-algorithm {written}` is left out: vLLM has no such method"
        notes.append(Note("speculation.method", text, line))
    if method:
        keys = {"method": Node(method, place.span, key=place.key), **keys}
    keys["num_speculative_tokens"], text = _count(said, method)
    notes.append(Note("speculation.num_speculative_tokens", text, line))
    return keys


def _count(said: dict[str, Node], method: str | None) -> tuple[Node, str]:
    """K and where it comes from: SGLang's steps, or its drafts, which count one token more."""
    steps = said.get("num_speculative_tokens") or said.get("speculative_num_steps")
    drafts, flag = said.get("speculative_num_draft_tokens"), "--speculative-num-draft-tokens"
    block = said.get(f"speculative_{method}_block_size")
    if block:
        steps, drafts, flag = None, block, f"--speculative-{method}-block-size"
    elif drafts and method in ("dflash", "dspark", "ngram"):
        steps = None  # SGLang runs them with one step, whatever is said
    if steps:
        is_chain = isinstance(steps.value, int) and drafts and drafts.value == steps.value + 1
        more = f", not `{flag}`, which counts a tree" if drafts and not is_chain else ""
        return steps, f"SGLang's steps are vLLM's K{more}"
    if drafts and isinstance(drafts.value, int) and not (block and method == "dspark"):
        less = replace(drafts, value=drafts.value - 1, raw=None)
        return less, f"from `{flag}`; SGLang counts the verified token too"
    if drafts:
        return drafts, f"from `{flag}`"
    text = f"SGLang picks a number by the model if none is said; {_DEFAULT_K} is a starting point"
    return Node(_DEFAULT_K, next(iter(said.values())).span), text
