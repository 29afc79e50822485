"""Settings to the tree of a profile: each argument to the section that has it, speculation with its method.

Source: SpeculativeConfig, vllm/config/speculative.py, 0.26 to 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from specserve.convert.arguments import Setting, said_twice
from specserve.convert.words import UNKNOWN
from specserve.diagnostics import Finding, Severity, Span
from specserve.errors import quoted
from specserve.plan.arguments import ELSEWHERE, REFUSED
from specserve.plan.launch import DRAIN_MARGIN_S
from specserve.profile import schema
from specserve.profile.validate import name_of
from specserve.profile.values import Node, meaning
from specserve.vllm.arguments import VllmTable
from specserve.vllm.speculation import METHODS, Key, retyped

API_KEY = "api_key"
SECRETS = (API_KEY, "hf_token")
_PLACES = {**schema.ELSEWHERE, **ELSEWHERE}
_NGRAM = ("ngram", "[ngram]")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_GEMMA_ASSISTANT = re.compile(r"gemma-?4.*assistant", re.I)
_EVERY = frozenset(key for keys in METHODS.values() for key in keys)


def profile_tree(
    settings: Mapping[str, Setting],
    *,
    place: Span,
    table: VllmTable,
    env: Mapping[str, Node],
    found: list[Finding],
) -> Node:
    """The tree that `validate` reads. `place` stands for what is written nowhere.

    Unknown arguments go to `engine`, where the rules report them; what has no place is reported to `found`.
    """
    model = settings["model"].node if "model" in settings else None
    sections: dict[str, dict[str, Node]] = {"target": {"model": model} if model else {}, "env": dict(env)}
    config = settings.get("speculative_config")
    block = dict(config.node.mapping or {}) if config else {}
    at = config.node if config else None
    for name, setting in settings.items():
        if name in SECRETS or (name in REFUSED and setting.node.value):
            found.append(_without_place(setting))
        if name in (*SECRETS, *REFUSED) and name != API_KEY:
            continue
        node = _node(setting, found)
        default = f"{'frontend' if name in table.frontend else 'engine'}.{name}"
        section, _, key = _PLACES.get(name, default).partition(".")
        if section == "speculation" and key:
            if key in block:
                found.append(said_twice(block[key].key or block[key].span, setting, refused=True))
            block[key], at = node, at or replace(node, value={})
        elif section != "speculation" and (node.value is not None or section != "server"):
            sections.setdefault(section, {})[key] = node
    tree = {
        name: Node(values, place, key=place)
        for name, values in sections.items()
        if values or name == "target"
    }
    if at and block:
        tree["speculation"] = _speculation(replace(at, value=block), found)
    elif at and at.value is not None:
        tree["speculation"] = at
    if model and isinstance(model.value, str):
        last = model.value.rstrip("/").rpartition("/")[2]
        tree["name"] = Node(name_of(f"{last}.x"), model.span)
    return Node(tree, place)


def _node(setting: Setting, found: list[Finding]) -> Node:
    """The value as a profile has it: one name, a time-out that counts to the end, the variable of a key."""
    node, value = setting.node, setting.node.value
    if setting.name == API_KEY:
        return Node(_key_variable(node), node.span, key=node.key)
    if setting.name == "shutdown_timeout" and isinstance(value, int):
        return replace(node, value=value + DRAIN_MARGIN_S, raw=None)
    if setting.name != "served_model_name" or not isinstance(value, list) or not value:
        return node
    for other in value[1:]:
        message = f"specserve serves under one name: {quoted(str(other.value))} is left out"
        found.append(Finding("SD103", "misplaced-argument", Severity.INFO, message, other.span))
    return replace(value[0], key=node.key, value=str(value[0].value))


def _key_variable(node: Node) -> str:
    """The variable that holds the server's key: the one that the source names, or vLLM's own."""
    items = node.value if isinstance(node.value, list) else [node]
    names = [match[1] for item in items if (match := UNKNOWN.fullmatch(str(item.value)))]
    return next((name for name in names if name.isidentifier()), "VLLM_API_KEY")


def _without_place(setting: Setting) -> Finding:
    """About an argument that vLLM takes, and that a profile never holds."""
    if setting.name in SECRETS:
        variable = _key_variable(setting.node) if setting.name == API_KEY else "HF_TOKEN"
        return Finding(
            "SD107", "secret-in-profile", Severity.WARNING,
            f"`{setting.written}` shows a secret to every user of the machine: export it as `{variable}`",
            setting.node.span, help="leave the option out",
        )  # fmt: skip
    message, severity = f"`{setting.written}` is left out: {REFUSED[setting.name]}", Severity.WARNING
    if setting.name == "headless":
        message = "this worker answers no requests; everything else is judged as on the first node"
        severity = Severity.INFO
    return Finding("SD103", "misplaced-argument", severity, message, setting.place)


def _speculation(config: Node, found: list[Finding]) -> Node:
    """The block with vLLM's spelling and the method that vLLM would infer; reports and leaves out what vLLM ignores."""
    if config.mapping is None:
        return config
    keys = {name.replace("-", "_"): node for name, node in config.mapping.items() if node.value is not None}
    model, written = _text(keys.get("model")), _text(keys.get("method"))
    name = written
    if "method" not in keys and (name := inferred_method(model)):
        keys = {"method": Node(name, keys["model"].span, key=config.key), **keys}
    elif written == "[ngram]" or (written or "").endswith("_mtp"):
        name = "ngram" if written == "[ngram]" else "mtp"
        keys["method"] = replace(keys["method"], value=name, raw=name)
        message = f"{quoted(f'method: {written}')} is an old name of `{name}`"
        found.append(_ignored(message, keys["method"].span, help=f"write `{name}`"))
    if name in ("ngram", "ngram_gpu", "suffix") and model in _NGRAM:
        keys.pop("model")  # another name of the method
    takes = METHODS.get(name or "", {})
    for key in [key for key in keys if takes and key not in takes and key in _EVERY]:
        node = keys.pop(key)
        message = f"`{key}` has no effect with `{name}`"
        found.append(_ignored(message, node.key or node.span, help="leave it out"))
    return replace(config, value={key: _typed(takes.get(key), node) for key, node in keys.items()})


def _ignored(message: str, span: Span, *, help: str) -> Finding:
    """A warning about a block that vLLM reads differently from what a person expects."""
    return Finding("SD006", "wrong-value", Severity.WARNING, message, span, help=help)


def inferred_method(model: str | None) -> str | None:
    """The method that vLLM takes for a block without one, as far as the model's name tells."""
    if model is None:
        return None
    if model in _NGRAM:
        return "ngram"
    if _IMPORT_PATH.fullmatch(model):
        return "custom_class"
    if _GEMMA_ASSISTANT.search(model):
        return "mtp"
    change = retyped("draft_model", model)
    return change[0] if change else "draft_model"


def _text(node: Node | None) -> str | None:
    return node.value if node and isinstance(node.value, str) else None


def _typed(key: Key | None, node: Node) -> Node:
    """Numbers and switches in quotes as what they are, because vLLM reads them so."""
    if key is None or key.kind not in ("int", "float", "bool") or not isinstance(node.value, str):
        return node
    value = meaning(node.value)
    return replace(node, value=value, raw=node.value) if isinstance(value, (int, float)) else node
