"""Every block of a report, in the three forms that people read."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest

from specserve.report.charts import Chart, Series, Value
from specserve.report.page import (
    Card,
    Cards,
    Charts,
    Details,
    Document,
    Items,
    Paragraph,
    Section,
    Verbatim,
    render,
)
from specserve.report.text import Column, Table

SERIES = (
    Series("baseline", 0, (Value(1.0), Value(1.0))),
    Series("profile", 1, (Value(2.1, 2.0, 2.2), None)),
)
ROWS = [
    ("1", "profile", "82.6", "PAYS", ""),
    ("1", "baseline", "38.1", "", ""),
    ("4", "profile", "1,204", "COSTS", ""),
]
COLUMNS = (
    Column("load"),
    Column("variant", "code"),
    Column("tokens/s"),
    Column("verdict", "verdict"),
    Column("empty", "text"),
)
DOCUMENT = Document(
    "benchmark",
    "demo",
    [
        Cards([Card("Choice", "K = 4", ["2.1 times as fast as `baseline`", "measured"])]),
        Paragraph("A sentence about `a|b` and <b>bold</b>, @someone and #1.", is_muted=True),
        Section(
            "By load",
            [
                Charts([Chart("lines", "Speedup", "times", "load", ("1", "4"), SERIES, reference=1.0)]),
                Table(COLUMNS, ROWS, caption="Higher is better", keys=2),
                Items([("PAYS", "at load 1"), ("a label that is longer than the others", "x" * 60)]),
            ],
        ),
        Details("How", [Verbatim("vllm serve x\n  --flag")]),
    ],
)


@pytest.mark.parametrize(("form", "ending"), [("text", "txt"), ("markdown", "md"), ("html", "html")])
def test_every_block_has_its_form(form: str, ending: str, golden: Callable[[str, str], None]) -> None:
    text = render(DOCUMENT, form=form, stream=io.StringIO())
    text = re.sub(r"<style>.*?</style>\n", "", text, flags=re.DOTALL)
    golden(f"report/page.{ending}", re.sub(r"specserve \d[\w.]*", "specserve VERSION", text))
