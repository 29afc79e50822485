"""SGLang's options: how its command line is read, and what its flags for speculation say together.

Source: ServerArgs, sglang/srt/server_args.py, 0.4 to 0.5. It has no positional arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specserve.convert.given import Given, Note, Setting
from specserve.convert.speculative import inferred_method
from specserve.convert.words import unresolved
from specserve.plan.replacements import SGLANG, Replacement
from specserve.plan.table import Argument, VllmTable, flag_of
from specserve.profile.tree import Node

_DEFAULT_K = 3
_ALIASES = {alias: name for name, item in SGLANG.items() for alias in item.aliases}


def replacement(name: str) -> Replacement | None:
    """What says the same in vLLM as this option, if its name or its values differ."""
    return SGLANG.get(_ALIASES.get(name, name))


def options(table: VllmTable) -> dict[str, tuple[Argument, bool]]:
    """SGLang's option strings over those of vLLM: most options that both engines have share a name."""
    known = dict(table.options())
    for name, item in SGLANG.items():
        flag = item.form == "flag" or "true" in (item.values or ())
        ours = {**table.engine, **table.frontend}.get((item.now or ".").split(".")[1])
        argument = Argument(name, flag_of(name), "bool" if flag else "str", "flag" if flag else "value")
        if ours and item.values is None:
            argument = replace(ours, name=name, flag=flag_of(name))
        elif not flag and (item.now or "").endswith(("_tokens", "_parallel")):
            argument = replace(argument, kind="int")
        for spelling in (name, *item.aliases):
            known[flag_of(spelling)] = (argument, False)
    return known


def rendezvous(setting: Setting) -> dict[str, Node]:
    """`master_addr` and `master_port` for `--dist-init-addr HOST:PORT`."""
    host, _, port = str(setting.node.value).rpartition(":")
    if not host or not port.isdigit():
        return {"engine.master_addr": setting.node}
    address = replace(setting.node, value=host, raw=host)
    return {"engine.master_addr": address, "engine.master_port": replace(address, value=int(port), raw=port)}


def speculation(given: Given, notes: list[Note]) -> dict[str, Node]:
    """The keys of `speculation` that SGLang's flags amount to; none if it does not speculate."""
    said = {name: setting for name, setting in given.settings.items() if _place(name)}
    if not said:
        return {}
    algorithm, draft = said.get("speculative_algorithm"), said.get("speculative_draft_model_path")
    method = _method(algorithm, draft, notes)
    place = (algorithm or draft or next(iter(said.values()))).node
    keys = {"method": Node(method, place.span, key=place.key)} if method else {}
    for name, key in (
        ("speculative_draft_model_path", "model"),
        ("speculative_draft_model_revision", "revision"),
        ("speculative_draft_model_quantization", "quantization"),
    ):
        setting = said.get(name)
        if setting and method != "ngram":
            keys[key] = setting.node
        elif setting:
            notes.append(_note(setting, f"`{setting.written}` is left out: n-grams need no draft"))
    keys["num_speculative_tokens"] = _count(said, method, notes)
    return keys


def _place(name: str) -> bool:
    item = SGLANG.get(name)
    return item is not None and (item.now or "").startswith("speculation.")


def _note(setting: Setting, text: str, *, path: str = "") -> Note:
    return Note(path, text, setting.place.line)


def _method(algorithm: Setting | None, draft: Setting | None, notes: list[Note]) -> str | None:
    """vLLM's method for SGLang's algorithm; without one, that of the draft's name."""
    inferred = inferred_method(str(draft.node.value)) if draft else None
    methods: Mapping[str, str] = SGLANG["speculative_algorithm"].values or {}
    if algorithm and unresolved(str(algorithm.node.value)):
        return str(algorithm.node.value)
    method = methods.get(str(algorithm.node.value).lower()) if algorithm else None
    if algorithm and method == "eagle" and draft is None:
        text = "without a draft SGLang's EAGLE runs the target's own prediction layers"
        notes.append(_note(algorithm, text, path="speculation.method"))
        return "mtp"
    if method == "draft_model" and inferred == "mtp":
        return inferred
    if method or draft is None:
        if algorithm and method is None:
            text = f"`{algorithm.written} {algorithm.node.value}` is left out: vLLM has no such method"
            notes.append(_note(algorithm, text))
        return method
    what = f"vLLM has no algorithm `{algorithm.node.value}`" if algorithm else "the source names no algorithm"
    notes.append(_note(draft, f"{what}; the draft's name says `{inferred}`", path="speculation.method"))
    return inferred


def _count(said: Mapping[str, Setting], method: str | None, notes: list[Note]) -> Node:
    """K: SGLang's steps; its draft tokens count the root of the tree too."""
    path = "speculation.num_speculative_tokens"
    steps, drafts = said.get("speculative_num_steps"), said.get("speculative_num_draft_tokens")
    ours = said.get("num_speculative_tokens")
    for setting in (ours, steps, drafts):
        if setting and unresolved(str(setting.node.value)):
            return setting.node
    if ours and isinstance(ours.node.value, int):
        notes.append(_note(ours, "SGLang has no `--num-speculative-tokens`; it is taken as K", path=path))
        return ours.node
    if steps and isinstance(steps.node.value, int) and steps.node.value > 0:
        text = "SGLang's steps are vLLM's K: tokens drafted one after the other"
        more = f"; `{drafts.written} {drafts.node.value}` is left out" if drafts else ""
        notes.append(_note(steps, text + more, path=path))
        return steps.node
    if drafts and isinstance(drafts.node.value, int) and drafts.node.value > 1:
        chained = method not in ("ngram", None)
        value = drafts.node.value - 1 if chained else drafts.node.value
        why = "; SGLang counts the verified token too" if chained else ""
        notes.append(_note(drafts, f"from `--speculative-num-draft-tokens`{why}", path=path))
        return replace(drafts.node, value=value, raw=None)
    first = next(iter(said.values()))
    text = f"SGLang picks a number by the model; {_DEFAULT_K} is a starting point"
    notes.append(_note(first, text, path=path))
    return Node(_DEFAULT_K, first.node.span, raw=str(_DEFAULT_K))
