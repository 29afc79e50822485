"""The list of all codes, and docs/rules.md, which is made of their pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from specserve.report.manual import listing, pages

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from gen_rules import document

ROOT = Path(__file__).parents[2]


def test_the_list_fits_eighty_columns_and_has_every_code_once() -> None:
    text = listing(pages().values())
    assert max(map(len, text.splitlines())) <= 80
    assert re.findall(r"^SD\d{3}", text, flags=re.M) == list(pages())


def test_the_document_is_up_to_date() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == document(pages().values()), "run scripts/gen_rules.py"


def test_every_link_of_the_document_has_its_heading() -> None:
    text = document(pages().values())
    anchors = {re.sub(r"[^\w -]", "", line[3:]).lower().replace(" ", "-")
               for line in text.splitlines() if line.startswith("## ")}  # fmt: skip
    links = re.findall(r"\]\(#([^)]+)\)", text)
    assert len(links) == len(pages()) and set(links) <= anchors
