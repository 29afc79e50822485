"""Every SD0xx code against its own manual page: the example is found and nothing else, the advice is clean."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent

import pytest

from specserve.diagnostics import Code, Severity
from specserve.profile.load import examine
from specserve.profile.problems import CODES

HEADINGS = ["Why is this bad?", "Example", "Use instead", "Source"]
PACKAGE = Path(__file__).parents[2] / "specserve"
each = pytest.mark.parametrize("code", CODES, ids=lambda code: code.code)


def section(code: Code, heading: str) -> str:
    """The text under a heading of the manual page."""
    return dedent(cleandoc(code.doc).partition(f"## {heading}\n")[2].partition("\n## ")[0]).strip("\n")


def found(text: str, write: Callable[..., Path]) -> list[str]:
    """The codes of what is wrong with a file, or with the one that a `specserve lint` names."""
    command = re.fullmatch(r"\$ specserve lint (\S+)", text)
    file = PACKAGE.parent / command[1] if command else write(text)
    return [finding.code for finding in examine(file)[1]]


@each
def test_a_manual_page_says_what_why_how_and_where(code: Code) -> None:
    assert re.findall(r"## (.+)", code.doc) == HEADINGS
    assert code.doc.splitlines()[0].endswith(".")
    assert code.severity is Severity.ERROR


@each
def test_the_example_is_found_and_nothing_else(code: Code, write: Callable[..., Path]) -> None:
    assert found(section(code, "Example"), write) == [code.code]


@each
def test_what_the_page_advises_is_clean(code: Code, write: Callable[..., Path]) -> None:
    assert found(section(code, "Use instead"), write) == []


@each
def test_its_source_is_a_file_of_specserve(code: Code) -> None:
    match = re.fullmatch(r"specserve, (\S+\.py)", section(code, "Source"))
    assert match and (PACKAGE / match[1]).exists()


def test_codes_and_names_are_unique_and_in_order() -> None:
    codes = [code.code for code in CODES]
    assert codes == sorted(set(codes))
    assert all(re.fullmatch(r"SD0\d\d", code) for code in codes)
    assert len({code.name for code in CODES}) == len(CODES)
