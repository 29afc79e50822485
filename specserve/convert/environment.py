"""The variables of a start: which a profile keeps, and which it must not, or need not, have. Knows no argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specserve.convert.given import Note
from specserve.convert.secrets import looks_secret, names_a_secret
from specserve.convert.settings import Setting
from specserve.convert.words import UNKNOWN
from specserve.plan.support import known_versions, table
from specserve.plan.table import VllmTable
from specserve.profile.problems import quoted
from specserve.profile.sections import ENV_NAME
from specserve.profile.tree import Node

_ARGUMENTS: Mapping[str, str] = {
    "VLLM_ATTENTION_BACKEND": "attention_backend",
    "VLLM_ALL2ALL_BACKEND": "all2all_backend",
}
_NOT_READ_BY_VLLM = ("VLLM_WHEEL_LOCATION",)


def as_settings(env: Mapping[str, Node], table: VllmTable, notes: list[Note]) -> dict[str, Setting]:
    """The variables of old that are arguments today."""
    settings: dict[str, Setting] = {}
    for name, argument in _ARGUMENTS.items():
        node = env.get(name)
        if node and name not in table.env and isinstance(node.value, str) and not UNKNOWN.search(node.value):
            value = node.value.removesuffix("_VLLM_V1")  # as the V1 engine's backends were called at first
            settings[argument] = Setting(
                argument, replace(node, value=value, raw=value), name, table.engine.get(argument)
            )
            notes.append(Note(f"engine.{argument}", f"the variable `{name}` of old", node.span.line))
    return settings


def kept_environment(env: Mapping[str, Node], notes: list[Note]) -> dict[str, Node]:
    """The variables that a profile may hold; every other one is noted, without its value."""
    known = {name for version in known_versions() for name in table(version).env}
    kept: dict[str, Node] = {}
    for name, node in env.items():
        value = node.value
        if not isinstance(value, (str, int, float, bool)) or not ENV_NAME.fullmatch(name):
            continue
        text = str(value) if node.raw is None else node.raw
        why = _why_not(name, text, known)
        if name in _ARGUMENTS and name not in known:
            continue
        if why:
            notes.append(Note("", f"{quoted(name)} is left out: {why}", node.span.line))
        else:
            kept[name] = Node(text, node.span, key=node.key)
    return kept


def _why_not(name: str, text: str, known: set[str]) -> str | None:
    if names_a_secret(name) or looks_secret(text):
        return "a secret stands in the environment of who starts the server, not in a profile"
    if UNKNOWN.search(text):
        return "its value is not in the text"
    if name.startswith("VLLM_") and name not in known and name not in _NOT_READ_BY_VLLM:
        return "no vLLM that specserve knows reads it"
    if name == "HF_ENDPOINT":
        return "a profile never says where tokens are sent"
    return None
