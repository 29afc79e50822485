"""Every block of a report, in the three forms that people read."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable

import pytest

from specserve.measure.intervals import Estimate
from specserve.report.charts import Chart
from specserve.report.page import Document, Items, Section, render
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


@pytest.mark.parametrize(("form", "ending"), [("text", "txt"), ("markdown", "md"), ("html", "html")])
def test_every_block_has_its_form(form: str, ending: str, golden: Callable[[str, str], None]) -> None:
    text = render(DOCUMENT, form=form, stream=io.StringIO())
    text = re.sub(r"<style>.*?</style>\n", "", text, flags=re.DOTALL)
    golden(f"report/page.{ending}", re.sub(r"specserve \d[\w.]*", "specserve VERSION", text))
