"""How messages are written: a guard for the rules of style that a machine can hold; reading them is for people."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ERRORS = re.compile(
    r"[A-Z]\w*(Error|Failed|Cached|Unreachable|Interrupted|NotFound|NoStart)|problem|Violation"
)
NAMES = ("FlashInfer", "LoRA")
SCOLDS = re.compile(
    r"(?i)\b(illegal|simply|please|oops|obviously|just|invalid syntax|sorry|bad luck)\b|!(?!=)"
)
IMPERATIVE = re.compile(r"(write|set|use|add|remove|install|run|leave|try|choose|move|name|check) ")
CONDITIONS = re.compile(r"(?:^|[,;:] )where (?!the |other |it is|node )")


def forbidden() -> list[str]:
    """The first column of the glossary's second table."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").partition("## Words that messages")[2]
    cells = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    return [word for cell in cells for word in cell.split(", ")]


def text_of(node: ast.expr) -> str | None:
    """A literal, with `{}` for what is filled in; None for what is none."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case _:
            return None


def messages() -> Iterator[tuple[str, str, bool]]:
    """Each text that is given to an error or a finding, with its place, and whether it is a way out."""
    for file in sorted((ROOT / "specserve").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                hints = [item.value for item in node.keywords if item.arg in ("help", "hint")]
                values = [*((value, False) for value in node.args), *((value, True) for value in hints)]
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = "problem" if node.targets[0].id in ("hint", "message", "help_text") else ""
                values = [(node.value, node.targets[0].id != "message")]
            else:
                continue
            for value, is_hint in values if ERRORS.fullmatch(name) else ():
                if " " in (text := text_of(value) or ""):
                    yield f"{file.name}:{node.lineno}", text, is_hint


ALL = list(messages())
MESSAGES = [(place, text) for place, text, _ in ALL]


def test_there_are_messages_and_words_to_look_at() -> None:
    assert len(MESSAGES) > 300 and len(forbidden()) >= 10


def test_a_message_starts_in_lower_case_and_ends_without_a_full_stop() -> None:
    wrong = [
        (place, text)
        for place, text in MESSAGES
        if (re.match(r"[A-Z][a-z]", text) and not text.startswith(NAMES)) or re.search(r"[a-z`]\.$", text)
    ]
    assert not wrong, f"what is written so, such as `LoRA`, stands in NAMES of this file: {wrong}"


def test_no_message_scolds_or_shouts_and_each_backtick_is_closed() -> None:
    assert [(place, text) for place, text in MESSAGES if SCOLDS.search(text) or text.count("`") % 2] == []


def test_a_message_is_a_fact_and_its_hint_says_what_to_do() -> None:
    assert [(place, text) for place, text, is_hint in ALL if not is_hint and IMPERATIVE.match(text)] == []


def test_a_condition_says_if() -> None:
    assert [(place, text) for place, text in MESSAGES if CONDITIONS.search(text)] == []


def test_a_plural_is_counted_and_not_put_in_brackets() -> None:
    assert [(place, text) for place, text in MESSAGES if "(s)" in text] == []


@pytest.mark.parametrize("word", forbidden())
def test_no_message_uses_a_word_of_the_glossarys_list(word: str) -> None:
    assert [(place, text) for place, text in MESSAGES if re.search(rf"\b{word}\b", text)] == []
