"""The list of all codes, and docs/rules.md, which is made of their pages."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from specserve.report.manual import listing, listing_json, pages

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from gen_rules import document

ROOT = Path(__file__).parents[2]


def test_the_list_fits_eighty_columns_and_has_every_code_once() -> None:
    text = listing(pages().values())
    assert max(map(len, text.splitlines())) <= 80
    assert re.findall(r"^SD\d{3}", text, flags=re.M) == list(pages())


def test_json_has_every_code_with_what_a_script_may_want() -> None:
    content = json.loads(listing_json(pages().values()))
    assert next(iter(content)) == "version" and content["version"] == 1
    assert [rule["code"] for rule in content["rules"]] == list(pages())
    for rule in content["rules"]:
        assert set(rule) == {"code", "name", "severity", "needs", "summary", "url"}
        assert rule["severity"] in {"error", "warning", "info"}
        assert rule["needs"] in {"nothing", "models", "hardware", "host", "vllm"}


def test_the_document_is_up_to_date() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == document(pages().values()), "run scripts/gen_rules.py"


def test_every_link_of_the_document_has_its_heading() -> None:
    text = document(pages().values())
    anchors = {re.sub(r"[^\w -]", "", line[3:]).lower().replace(" ", "-")
               for line in text.splitlines() if line.startswith("## ")}  # fmt: skip
    links = re.findall(r"\]\(#([^)]+)\)", text)
    assert len(links) == len(pages()) and set(links) <= anchors
