"""The words on the terminal: facts in lower case without a full stop, ways out in hints, no word that scolds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = sorted(file for file in (ROOT / "specserve").rglob("*.py") if "engine" not in file.parts)
MESSAGES = {"Violation": 1, "problem": 1}
"""Calls that take a message, and which argument it is; errors take it first."""
BANNED = re.compile(
    r"(?i)\b(illegal|simply|please|oops|obviously|just|invalid syntax|sorry|bad luck)\b|!(?!=)"
)
NAMES = re.compile(r"vLLM|SGLang|NVIDIA|CUDA|[A-Z]{2,}|[A-Z]-[A-Z]+\b|[A-Z]\w+[A-Z]|Python|YAML|`|\{|[A-Z]\b")
"""What a message may begin with although it is no lower-case word: names, code, a value."""
IMPERATIVE = re.compile(r"^(write|set|use|add|remove|install|run|leave|try|choose|move|name|check)\b ")


def messages() -> Iterator[tuple[str, str]]:
    """Every message that stands in the source, f-string values as `{}`, with its place."""
    for file in PACKAGE:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = str(getattr(node.func, "id", "") or getattr(node.func, "attr", ""))
            position = 0 if name.endswith(("Error", "Failed")) else MESSAGES.get(name)
            if position is not None and len(node.args) > position:
                text = literal(node.args[position])
                if text:
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def helps() -> Iterator[tuple[str, str]]:
    """Every way out that stands in the source."""
    for file in PACKAGE:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in ("help", "hint"):
                text = literal(node.value)
                if text:
                    yield f"{file.relative_to(ROOT)}:{node.value.lineno}", text


def literal(node: ast.expr) -> str | None:
    """The text of a literal; None for what is only known when it runs."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
    return None


def wrong(text: str) -> list[str]:
    """What a message does that none should."""
    sentences = re.search(r"[.;:] [A-Z]", text)
    return [
        fault
        for fault, found in {
            "begins with a capital": not (text[0].islower() or NAMES.match(text) or text[0] in "-0123456789"),
            "ends with a full stop": text.endswith(".") and not sentences,
            "has a word that scolds or shouts": BANNED.search(text),
            "opens a backtick and does not close it": text.count("`") % 2,
            "says what to do": IMPERATIVE.match(text),
        }.items()
        if found
    ]


def test_a_message_is_a_fact_in_lower_case_without_a_full_stop() -> None:
    everything = sorted(set(messages()))
    assert len(everything) > 100
    assert [f"{place} {wrong(text)}: {text}" for place, text in everything if wrong(text)] == []


def test_no_way_out_scolds_or_shouts() -> None:
    everything = sorted(set(helps()))
    assert len(everything) > 50
    found = [(place, text) for place, text in everything if BANNED.search(text) or text.count("`") % 2]
    assert found == []
