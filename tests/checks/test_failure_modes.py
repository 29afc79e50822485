"""The table of public failures in the docs: every row is there, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specserve.checks.rules import all_rules
from specserve.profile.tree import NAMES

PAGE = Path(__file__).parents[2] / "docs" / "failure-modes.md"


ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d+ \|", line)
]


def test_every_failure_stands_in_the_table_once() -> None:
    assert sorted(int(row[0]) for row in ROWS) == list(range(1, 90))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_has_a_source_and_every_code_of_it_is_a_finding_that_exists(row: list[str]) -> None:
    assert len(row) == 4 and re.search(r"\.py|#\d+|[\w-]+/[\w-]+|model cards", row[3])
    known = {rule.code for rule in all_rules()} | set(NAMES)
    assert set(re.findall(r"SD\d{3}", row[2])) <= known
