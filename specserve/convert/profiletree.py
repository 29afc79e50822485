"""Settings to the tree of a profile: each argument to the section that has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specserve.convert.settings import Setting
from specserve.convert.speculative import speculation_node
from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.plan.arguments import REFUSED
from specserve.plan.launch import DRAIN_MARGIN_S
from specserve.plan.table import VllmTable
from specserve.profile.problems import quoted
from specserve.profile.schema import Target, keys_of
from specserve.profile.tree import Node
from specserve.profile.validate import name_of

API_KEY = "api_key"
SECRETS = (API_KEY, "hf_token")
_SPEC = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
_SERVER = ("host", "port")
_DEFAULT_KEY = "VLLM_API_KEY"


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
    rest = dict(settings)
    sections: dict[str, dict[str, Node]] = {
        name: {} for name in ("target", "speculation", "engine", "frontend", "server", "hardware")
    }
    model = rest.pop("model", None)
    if model:
        sections["target"]["model"] = model.node
    speculation = _speculation(rest, found)
    _server(rest, sections, found)
    for name, setting in rest.items():
        if name in keys_of(Target):
            sections["target"][name] = setting.node
        elif name in table.frontend:
            sections["frontend"][name] = setting.node
        else:
            sections["engine"][name] = setting.node
    tree = {name: Node(values, place, key=place) for name, values in sections.items() if values}
    tree["target"] = Node(sections["target"], place, key=place)
    if speculation:
        tree["speculation"] = speculation
    if env:
        tree["env"] = Node(dict(env), place, key=place)
    if model and isinstance(model.node.value, str):
        last = model.node.value.rstrip("/").rpartition("/")[2]
        tree["name"] = Node(name_of(f"{last}.x"), model.node.span)
    return Node(tree, place)


def _speculation(rest: dict[str, Setting], found: list[Finding]) -> Node | None:
    """`--speculative-config` with `--spec-method`, `--spec-model` and `--spec-tokens`."""
    config = rest.pop("speculative_config", None)
    node = config.node if config and config.node.value is not None else None
    for name, key in _SPEC.items():
        setting = rest.pop(name, None)
        if setting is None:
            continue
        keys = (node.mapping if node else None) or {}
        if key in keys:
            found.append(_exclusive(setting, keys[key]))
        base = node or Node({}, setting.node.span, key=setting.node.key)
        node = replace(base, value={**keys, key: setting.node})
    return speculation_node(node, found) if node else None


def _exclusive(setting: Setting, other: Node) -> Finding:
    related = (Related(other.key or other.span, "and here"),)
    message = f"`{setting.written}` is said twice, which vLLM refuses"
    return Finding(
        "SD143", "argument-refused-twice", Severity.ERROR, message, setting.place, label="here", related=related,
        help="leave one of them out",
    )  # fmt: skip


def _server(rest: dict[str, Setting], sections: dict[str, dict[str, Node]], found: list[Finding]) -> None:
    """What a profile says under `server` and `hardware`, and the secrets, which it never says."""
    server = sections["server"]
    for name in _SERVER:
        setting = rest.pop(name, None)
        if setting and setting.node.value is not None:
            server[name] = setting.node
    names = rest.pop("served_model_name", None)
    if names:
        server["served_model_name"] = _first(names, found)
    for name in REFUSED.keys() - SECRETS:
        setting = rest.pop(name, None)
        if setting and setting.node.value is True:
            found.append(_without_place(setting))
    for name in SECRETS:
        setting = rest.pop(name, None)
        if setting:
            found.append(_secret(setting))
            if name == API_KEY:
                server["api_key_env"] = Node(_DEFAULT_KEY, setting.node.span, key=setting.node.key)
    drain = rest.pop("shutdown_timeout", None)
    if drain and isinstance(drain.node.value, int):
        server["shutdown_timeout_s"] = replace(drain.node, value=drain.node.value + DRAIN_MARGIN_S, raw=None)
    devices = rest.pop("device_ids", None)
    if devices:
        sections["hardware"]["devices"] = devices.node


def _without_place(setting: Setting) -> Finding:
    """About an argument that vLLM takes, and that a profile does not have."""
    message = f"`{setting.written}` is left out: {REFUSED[setting.name]}"
    if setting.name == "headless":
        message = (
            "this worker is judged like the first node: `--headless` only keeps it from answering requests"
        )
    return Finding("SD103", "misplaced-argument", Severity.INFO, message, setting.place)


def _first(setting: Setting, found: list[Finding]) -> Node:
    """The first of several names: a profile has one."""
    names = setting.node.value
    if not isinstance(names, list) or not names:
        return setting.node
    for other in names[1:]:
        message = f"specserve serves under one name: {quoted(str(other.value))} is left out"
        found.append(Finding("SD103", "misplaced-argument", Severity.INFO, message, other.span))
    return replace(names[0], key=setting.node.key, value=str(names[0].value))


def _secret(setting: Setting) -> Finding:
    what = "API key" if setting.name == API_KEY else "token"
    variable = _DEFAULT_KEY if setting.name == API_KEY else "HF_TOKEN"
    return Finding(
        "SD107", "secret-in-profile", Severity.WARNING,
        f"`{setting.written}` puts the {what} where every user of the machine reads it",
        setting.node.span, help=f"export it as `{variable}`, and leave the option out",
    )  # fmt: skip
