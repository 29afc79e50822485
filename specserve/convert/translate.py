"""A start in the words of one vLLM version: arguments of earlier vLLMs and of SGLang translated, each change noted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specserve.convert import sglang
from specserve.convert.given import Given, Note, Setting
from specserve.convert.speculative import current_block
from specserve.convert.values import merged
from specserve.convert.words import unresolved
from specserve.plan.replacements import ARGUMENTS, KEYS, VARIABLES, Replacement
from specserve.plan.table import Argument, VllmTable
from specserve.profile.problems import quoted
from specserve.profile.scalars import meaning
from specserve.profile.tree import Node

_REFUSED: Mapping[str, str] = {
    "grpc": "specserve talks HTTP to the servers it starts",
    "model_tag": "it is the target",
}
_UNTAKEN = object()


@dataclass(slots=True)
class _Translation:
    """What becomes of a start's settings: those of today, the keys of `speculation`, and what there is to say."""

    known: Mapping[str, Argument]
    settings: dict[str, Setting] = field(default_factory=dict)
    block: dict[str, Node] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(self, setting: Setting, text: str, *, path: str = "") -> None:
        self.notes.append(Note(path, text, setting.place.line))

    def leave_out(self, setting: Setting, why: str) -> None:
        self.note(setting, f"`{setting.written}` is left out: {why}")

    def put(self, setting: Setting, place: str, node: Node, text: str | None) -> None:
        """Sets what a dotted place of the profile says; what the source says there by its name of today wins."""
        section, name, *keys = place.split(".")
        if section == "speculation":
            self.block[name] = node
        else:
            for key in reversed(keys):
                node = Node({key: replace(node, key=setting.node.key)}, node.span, key=setting.node.key)
            there = self.settings.get(name)
            if there and there.node.value == node.value:
                return None
            if there and (there.node.mapping is None or node.mapping is None):
                return self.leave_out(setting, f"`{there.written}` says otherwise")
            self.settings[name] = Setting(
                name, merged(node, there.node) if there else node, setting.written, self.known.get(name)
            )
        if text:
            self.note(setting, text, path=f"{section}.{name}")
        return None


def translated(given: Given, *, table: VllmTable) -> Given:
    """The same start for one vLLM version; what that version lacks is left out and noted."""
    made = _Translation({**table.engine, **table.frontend}, notes=list(given.notes))
    later: list[tuple[Setting, Replacement]] = []
    foreign = given.engine == "sglang"
    for name, setting in _without_negatives(given.settings, made.known).items():
        old = sglang.replacement(name) if foreign else None
        argument = made.known.get(name)
        if old is None and argument is None and name != "model":
            old = ARGUMENTS.get(name)
        if old:
            later.append((setting, old))
        elif name in _REFUSED:
            made.leave_out(setting, _REFUSED[name])
        elif argument and "has no effect" in (argument.deprecated or ""):
            made.leave_out(setting, f"vLLM {table.minor} says it has no effect")
        elif argument or name == "model":
            made.settings[name] = _without_earlier_keys(setting, argument, later)
        else:
            kind = "vLLM has nothing of the kind" if foreign else "no vLLM that specserve knows has it"
            made.leave_out(setting, kind)
    for setting, old in later:
        _replace(setting, old, made, foreign=foreign)
    for name, old in VARIABLES.items():
        if name in given.env and name not in table.env and old.now:
            _replace_variable(name, given.env[name], old.now, made)
    if foreign:
        made.block |= sglang.speculation(given, made.notes)
    config = made.settings.get("speculative_config")
    if made.block or config:
        node = current_block(config, made.block, given.place, made.notes, old_flags=not foreign)
        made.settings["speculative_config"] = Setting("speculative_config", node, "speculative_config")
    return replace(given, settings=made.settings, notes=made.notes)


def _without_earlier_keys(
    setting: Setting, argument: Argument | None, later: list[tuple[Setting, Replacement]]
) -> Setting:
    """A mapping without the keys that something else replaced, which are added to `later`."""
    keys = setting.node.mapping or {}
    for key, node in keys.items():
        old = ARGUMENTS.get(f"{setting.name}.{key}")
        if old and argument and key not in argument.keys:
            later.append((Setting(f"{setting.name}.{key}", node, f"{setting.written}.{key}"), old))
            keys = {name: item for name, item in keys.items() if name != key}
    return replace(setting, node=replace(setting.node, value=keys)) if setting.node.mapping else setting


def _without_negatives(settings: Mapping[str, Setting], known: Mapping[str, Argument]) -> dict[str, Setting]:
    """`--no-x` as `--x` with the value false, for a switch that is gone."""
    positive: dict[str, Setting] = {}
    for name, setting in settings.items():
        bare = name.removeprefix("no_")
        if bare != name and name not in known and (bare in known or bare in ARGUMENTS):
            node = replace(setting.node, value=not setting.node.value)
            positive[bare] = replace(setting, name=bare, node=node)
        else:
            positive[name] = setting
    return positive


def _replace(setting: Setting, old: Replacement, made: _Translation, *, foreign: bool) -> None:
    """One setting under what took its place, or left out."""
    if old.now and foreign and old.now.startswith("speculation."):
        return  # SGLang's flags for speculation make sense only together
    if foreign and old.now == "engine.master_addr":
        for place, node in sglang.rendezvous(setting).items():
            made.put(setting, place, node, None)
        return
    node = setting.node
    if old.now is None and setting.name in KEYS:
        made.block[setting.name] = node  # what is said today depends on the rest of the block
        return
    value = _current_value(node, old, made.known)
    if old.now is None or value is _UNTAKEN:
        name = json.dumps(node.value) if isinstance(node.value, bool | int) else quoted(str(node.value))
        made.leave_out(setting, old.why or f"vLLM does not have {name}")
    elif value is None:
        made.leave_out(setting, "that is what vLLM does anyway")
    else:
        if old.values is not None:
            node = replace(node, value=value, raw=None)
        written = f"{setting.written} {setting.node.value}" if isinstance(value, str) else setting.written
        text = f"formerly `{setting.written}`"
        if foreign:
            why = f": {old.why}" if old.why else ""
            text = f"SGLang's `{written}`{why}" if value != setting.node.value else ""
        made.put(setting, old.now, node, text)
        for place, also in old.also.items():
            made.put(setting, place, replace(node, value=also, raw=None), None)


def _current_value(node: Node, old: Replacement, known: Mapping[str, Argument]) -> Any:
    """The value of today; None for vLLM's own default, _UNTAKEN if nothing says the same."""
    if old.values is None or old.now is None or (isinstance(node.value, str) and unresolved(node.value)):
        return node.value
    read = meaning(node.value) if isinstance(node.value, str) else node.value
    written = json.dumps(read, default=str) if isinstance(read, bool | int) else str(node.value)
    if written in old.values:
        return old.values[written]
    argument = known.get(old.now.split(".")[1])
    if argument and written in (*argument.known, *argument.choices):
        return written
    return old.values.get("*", _UNTAKEN)


def _replace_variable(name: str, node: Node, place: str, made: _Translation) -> None:
    if isinstance(node.value, str) and not unresolved(node.value):
        value = node.value.removesuffix("_VLLM_V1")  # the V1 engine's backends were first called so
        setting = Setting(name, replace(node, value=value, raw=value), name)
        made.put(setting, place, setting.node, f"formerly the variable `{name}`")
