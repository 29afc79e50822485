"""A tune's reports: what they say, what they call measured, and that a name from outside stays a name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from specserve.measure.bench.result import from_json
from specserve.measure.tune.result import TuneResult
from specserve.report.page import html_page
from specserve.report.tune import result_json, tune_document

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from tune_result import example


def text(found: TuneResult) -> str:
    return tune_document(found).text(sys.stdout).rstrip()


BAD = '<script>alert("x")</script>\x1b[31m'


def test_the_text_is_what_was_agreed(golden: Callable[[str, str], None]) -> None:
    golden("report/tune.txt", text(example()) + "\n")


def test_without_speculation_it_says_so_and_why(golden: Callable[[str, str], None]) -> None:
    told = text(example(speculates=False))
    assert "Run without speculation; " in told
    assert "less than 1.03x at every load" in " ".join(told.split())
    golden("report/tune-none.txt", told + "\n")


def test_the_page_is_what_was_agreed(golden: Callable[[str, str], None]) -> None:
    page = re.sub(r"<style>.*?</style>\n", "", html_page(tune_document(example())), flags=re.DOTALL)
    golden("report/tune.html", re.sub(r"specserve \d[\w.]*", "specserve VERSION", page))


def test_every_rate_says_whether_it_was_measured() -> None:
    rows = [line for line in text(example()).splitlines() if re.match(r"\s+\d+\s+\d+\.\d\d\s", line)]
    assert len(rows) == 7
    for line in rows:
        assert len(re.findall(r"(?:\d+p/)?[\d.]+[mp](?= |$)", line)) == 4


def test_a_miss_of_more_than_10_percent_is_a_warning() -> None:
    assert "missed 1 of 2 points by more than 10%" in text(example())


def test_what_costs_nothing_is_no_cause() -> None:
    found = example()
    (none,) = (replace(each, share=0.004) for each in found.causes if each.name == "prefill")
    told = text(replace(found, causes=(none, *found.causes[:1])))
    assert "prefill" not in told
    assert told.count("what changes it") == 1


def test_the_table_shows_what_the_choice_was_made_by() -> None:
    found = example()
    shown = {goal: text(replace(found, objective=goal)) for goal in ("throughput", "tpot", "goodput")}
    captions = {
        goal: set(re.findall(r"^  (\S+ \S+(?: \S+)?) by concurrency$", shown[goal], re.M)) for goal in shown
    }
    assert captions["throughput"] == {"output tokens/s"}
    assert captions["tpot"] == {"ms per token"}
    assert captions["goodput"] == {"output tokens/s", "ms per token"}


def test_a_result_is_read_back_from_its_json() -> None:
    found = example()
    again = from_json(TuneResult, result_json(found))
    assert result_json(again) == result_json(found)
    assert text(again) == text(found)
    exact = {**(found.choice.speculation or {}), "threshold": 0.123456789}
    found = replace(found, choice=replace(found.choice, speculation=exact))
    assert from_json(TuneResult, result_json(found)).choice == found.choice


def test_json_begins_with_its_version_and_names_the_basis_of_each_figure() -> None:
    content = json.loads(result_json(example()))
    assert next(iter(content.items())) == ("version", 1)
    assert {point["step_basis"] for point in content["points"]} == {"measured", "predicted"}
    assert {point["mean_acceptance_length_basis"] for point in content["points"]} == {"measured", "stitched"}
    assert max(point["num_speculative_tokens"] for point in content["points"]) == 6
    chosen = content["choice"]["num_speculative_tokens_by_concurrency"]
    assert set(chosen) == {"1", "2", "4", "8"}
    assert content["choice"]["speculation"]["num_speculative_tokens"] == max(chosen.values())


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)


@pytest.mark.parametrize("speculates", [True, False])
def test_a_name_from_outside_stays_a_name(speculates: bool) -> None:
    found = example(name=BAD, speculates=speculates)
    page = html_page(tune_document(found))
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "\x1b" not in page
    assert "\x1b" not in text(found)
    assert json.loads(result_json(found))["name"] == BAD
