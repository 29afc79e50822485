"""SGLang's options: how its command line is read, and what its flags for speculation say together.

Source: ServerArgs, sglang/srt/server_args.py, 0.4 to 0.5. It has no positional arguments.
"""

from __future__ import annotations

from dataclasses import replace

from specserve.convert.given import Given
from specserve.convert.profiletree import inferred_method
from specserve.convert.words import Note, unresolved
from specserve.profile.tree import Node
from specserve.vllm.replacements import SGLANG, Replacement
from specserve.vllm.table import Argument, VllmTable, flag_of

_DEFAULT_K = 3
_DRAFT = tuple(f"speculative_draft_model_{what}" for what in ("path", "revision", "quantization"))
_ALIASES = {alias: name for name, item in SGLANG.items() for alias in item.aliases}


def replacement(name: str) -> Replacement | None:
    """What says the same in vLLM as this option, if its name or its values differ."""
    return SGLANG.get(_ALIASES.get(name, name))


def options(table: VllmTable) -> dict[str, tuple[Argument, bool]]:
    """SGLang's option strings over those of vLLM: most options that both engines have share a name."""
    known = dict(table.options())
    for name, item in SGLANG.items():
        flag = "true" in (item.values or ())
        ours = {**table.engine, **table.frontend}.get((item.now or ".").split(".")[1])
        argument = Argument(name, flag_of(name), "bool" if flag else "str", "flag" if flag else "value")
        if ours and item.values is None:
            argument = replace(ours, name=name, flag=flag_of(name))
        elif not flag and (item.now or "").endswith(("_tokens", "_parallel")):
            argument = replace(argument, kind="int")
        for spelling in (name, *item.aliases):
            known[flag_of(spelling)] = (argument, False)
    return known


def speculation(given: Given, notes: list[Note]) -> dict[str, Node]:
    """The keys of `speculation` that SGLang's flags amount to; none if it does not speculate."""
    places = {name: (item.now or "").partition("speculation.")[2] for name, item in SGLANG.items()}
    said = {name: setting.node for name, setting in given.settings.items() if places.get(name)}
    if not said:
        return {}
    place = next(iter(said.values()))
    line = (place.key or place.span).line
    method = _method(said, notes, line)
    keys = {"method": Node(method, place.span, key=place.key)} if method else {}
    keys |= {places[name]: node for name, node in said.items() if name in _DRAFT}
    count, text = _count(said, method)
    notes.append(Note("speculation.num_speculative_tokens", text, line))
    return {**keys, "num_speculative_tokens": count}


def _method(said: dict[str, Node], notes: list[Note], line: int) -> str | None:
    """vLLM's method for SGLang's algorithm; without one, that of the draft's name."""
    draft = said.get("speculative_draft_model_path")
    written = str(said["speculative_algorithm"].value) if "speculative_algorithm" in said else ""
    method = (SGLANG["speculative_algorithm"].values or {}).get(written.lower())
    text = ""
    if unresolved(written):
        return written
    if method == "eagle" and draft is None:
        method, text = "mtp", "without a draft SGLang's EAGLE runs the target's own prediction layers"
    elif method is None and draft:
        method = inferred_method(str(draft.value))
        text = f"the draft's name says `{method}`, the source {f'`{written}`' if written else 'nothing'}"
    elif method is None and written:
        text = f"`--speculative-algorithm {written}` is left out: vLLM has no such method"
    if text:
        notes.append(Note("speculation.method", text, line))
    return method


def _count(said: dict[str, Node], method: str | None) -> tuple[Node, str]:
    """K and where it comes from: SGLang's steps; its draft tokens count the root of the tree too."""
    steps = said.get("num_speculative_tokens") or said.get("speculative_num_steps")
    drafts = said.get("speculative_num_draft_tokens")
    if steps:
        more = ", not its draft tokens, which form a tree" if drafts else ""
        return steps, f"SGLang's steps are vLLM's K{more}"
    if drafts and isinstance(drafts.value, int) and method not in ("ngram", None):
        text = "from `--speculative-num-draft-tokens`; SGLang counts the verified token too"
        return replace(drafts, value=drafts.value - 1, raw=None), text
    if drafts:
        return drafts, "from `--speculative-num-draft-tokens`"
    place = next(iter(said.values())).span
    return Node(_DEFAULT_K, place), f"SGLang picks a number by the model; {_DEFAULT_K} is a starting point"
