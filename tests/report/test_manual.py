"""The manual pages: every code has one, it fits the terminal, and it is found by what a person types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gen_rules import document

from specserve.checks.rules import all_rules
from specserve.report.manual import find, listing, manual_text, pages

PACKAGE = Path(__file__).parents[2] / "specserve"


def test_every_page_fits_eighty_columns() -> None:
    for page in pages().values():
        text = manual_text(page)
        assert page.summary in " ".join(text.split())
        assert not [line for line in text.splitlines() if len(line) > 80 and " " in line]


def test_every_code_that_is_written_in_the_package_has_a_page() -> None:
    known = set(pages())
    assert {rule.code for rule in all_rules()} <= known
    literal = re.compile(r"[\"'](SD\d{3})[\"']")
    written = {code for file in PACKAGE.rglob("*.py") for code in literal.findall(file.read_text("utf-8"))}
    assert written <= known
    assert list(known) and list(pages()) == sorted(known)


def test_a_page_under_another_heading_is_named_with_the_one_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (PACKAGE / "checks" / "pages.md").read_text(encoding="utf-8")
    (tmp_path / "pages.md").write_text(whole.replace("## SD138 small", "## SD138 tiny"), encoding="utf-8")
    monkeypatch.setattr("specserve.checks.__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(LookupError, match=r": ## SD138 small-steps, ## SD138 tiny-steps$"):
        pages()


def test_what_cannot_be_silenced_is_not_offered_a_comment() -> None:
    for code in ("SD002", "SD100"):
        assert "cannot be silenced*" in manual_text(find(code)).splitlines()[2]


ROOT = Path(__file__).parents[2]


def test_the_list_fits_eighty_columns_and_has_every_code_once() -> None:
    text = listing(pages().values())
    assert max(map(len, text.splitlines())) <= 80
    assert all(re.match(r"SD\d{3}  | {7}\S", line) for line in text.splitlines())
    assert re.findall(r"^SD\d{3}", text, flags=re.M) == list(pages())


def test_the_document_is_up_to_date() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == document(pages().values()), "run scripts/gen_rules.py"
