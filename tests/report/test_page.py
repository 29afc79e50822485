"""Every block of a report, in the three forms that people read."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable

import pytest

from specserve.measure.verdict import Estimate
from specserve.report.page import Chart, Document, Items, Section, render
from specserve.report.text import Column, Table

SPEEDUPS = {
    "profile": {"1": Estimate(2.1, 2.0, 2.2), "4": Estimate(0.9, 0.8, math.inf)},
    "other": {"4": Estimate(1.5, 1.4, 1.6), "16": Estimate(1e13, 0.0, 1e13)},
}
ROWS = [
    ("1", "profile", "82.6", "PAYS", ""),
    ("1", "baseline", "38.1", "", ""),
    ("4", "profile", "1,204", "COSTS", ""),
]
COLUMN_NAMES = ("load", "variant", "tokens/s", "verdict")
COLUMNS = (
    Column("load"),
    Column("variant", "name"),
    Column("tokens/s"),
    Column("verdict", "name"),
    Column("empty", "text"),
)
DOCUMENT = Document(
    "benchmark",
    "demo",
    [
        "A sentence about `a|b` and <b>bold</b>, @someone and #1.",
        Section(
            "By load",
            [
                Chart("Speedup", "times", "load", SPEEDUPS),
                Table(COLUMNS, ROWS, keys=2),
                Items([("PAYS", "at load 1"), ("a label that is longer than the others", "x" * 60)]),
            ],
        ),
        Section("How", [Items([("server", "`vllm serve x --flag`")])], is_folded=True),
    ],
    answers=[("PAYS", "K = 4: 2.1 times as fast as `baseline`"), ("", "a second sentence")],
)


@pytest.mark.parametrize(("form", "ending"), [("text", "txt"), ("markdown", "md")])
def test_every_block_has_its_form(form: str, ending: str, golden: Callable[[str, str], None]) -> None:
    text = render(DOCUMENT, form=form, stream=io.StringIO())
    golden(f"report/page.{ending}", re.sub(r"specserve \d[\w.]*", "specserve VERSION", text))


def test_a_page_has_every_block_a_chart_of_what_is_bounded_and_loads_nothing() -> None:
    page = render(DOCUMENT, form="html", stream=io.StringIO())
    assert "default-src 'none'; style-src 'unsafe-inline'" in page and 'content="no-referrer"' in page
    assert "<title>demo · benchmark</title>" in page and "<h2>By load</h2>" in page
    assert "<code>a|b</code> and &lt;b&gt;bold&lt;/b&gt;, @someone and #1." in page
    assert (
        '<dt><span class="chip good">PAYS</span></dt><dd>K = 4: 2.1 times as fast as <code>baseline</code>'
        in page
    )
    circles = re.findall(r'<circle class="(s\d)" r="4" cx="(\d+\.\d)" cy="(\d+\.\d)"/>', page)
    assert circles == [("s1", "100.0", "48.8"), ("s2", "208.0", "104.0")]
    rows = [re.sub(r"(<[^>]*>)+", " ", row).split() for row in re.findall(r"<tr.*?</tr>", page)]
    assert rows == [[*COLUMN_NAMES], *([cell for cell in row if cell] for row in ROWS)]
    assert "<details><summary>How</summary>" in page and "<code>vllm serve x --flag</code>" in page
