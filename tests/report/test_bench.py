"""A benchmark's report in all forms: what it says, and that a name from outside stays a name."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from specserve.measure.bench.passes import Progress
from specserve.measure.bench.result import LengthPart, Result
from specserve.measure.intervals import Estimate
from specserve.measure.verdict import COSTS, INCONCLUSIVE, NO_DIFFERENCE, PAYS, Kept, Verdict
from specserve.report.bench import BenchView, rendered
from tests.report.conftest import Terminal

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from bench_result import example

FORMS = ("text", "markdown", "html", "json")
Golden = Callable[[str, str], None]
VOID = {"meta", "br", "line", "rect", "circle", "polygon", "polyline"}
EVIL = (
    "</title></script><script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x' | `a` "
    "@team #12 https://e.x \x1b[2J\u202e"
)


class Page(HTMLParser):
    """A strict reader: every element is closed, in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def with_everything(value: Any, text: str) -> Any:
    """The same data with every text that comes from outside replaced."""
    if isinstance(value, Verdict):
        return dataclasses.replace(value, sentence=value.sentence + text)
    if isinstance(value, Kept):
        return value
    if isinstance(value, str):
        return f"{value}{text}"
    if isinstance(value, tuple):
        return tuple(with_everything(item, text) for item in value)
    if isinstance(value, dict):
        return {key: with_everything(item, text) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return type(value)(**{name: with_everything(item, text) for name, item in fields.items()})
    return value


def with_names(text: str) -> Result:
    """The example with `text` behind every text in it."""
    result: Result = with_everything(example(), text)
    stops = {
        ", ".join([variant + text, workload + text, temperature]): clause
        for (variant, workload, temperature), clause in (
            (key.split(", "), clause) for key, clause in result.stops_paying.items()
        )
    }
    return dataclasses.replace(result, stops_paying=stops)


def plain(result: Result, form: str) -> str:
    return rendered(result, form=form, stream=io.StringIO())


@pytest.mark.parametrize(
    ("form", "ending"), [("text", "txt"), ("json", "json")]
)  # test_page.py has the forms
def test_the_example(golden: Golden, form: str, ending: str) -> None:
    result = example()
    if form == "json":  # one of each has every key
        cell = next(cell for cell in result.cells if cell.promises)
        cell = dataclasses.replace(cell, promises=cell.promises[:1], invalid="what makes it so")
        result = dataclasses.replace(
            result, cells=(cell,), comparisons=result.comparisons[:1], variants=result.variants[1:2]
        )
    golden(f"report/bench.{ending}", plain(result, form))


def test_text_has_80_columns() -> None:
    long = with_names("-and-a-long-name-behind-it")
    for result in (example(), dataclasses.replace(long, notes=())):
        lines = plain(result, "text").splitlines()
        tables = [line for line in lines if re.search(r"^ +\d* +\S+ .*(\d \(|\d/\d)", line)]
        assert tables and max(map(len, tables)) <= 80


def test_a_terminal_sees_verdicts_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = rendered(example(), form="text", stream=Terminal())
    assert "\x1b[32mPAYS\x1b[0m" in shown and "\x1b[31mCOSTS\x1b[0m" in shown and "\x1b[31mmissed" in shown


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_that_it_is_measured_within_one_launch_or_over_several(form: str) -> None:
    several = dataclasses.replace(example(), launches=3)
    if form == "json":
        assert json.loads(plain(several, form))["launches"] == 3
    else:
        assert "1 launch of each variant" in plain(example(), form)
        assert "within one launch" not in plain(several, form)
        assert "3 launches" in plain(several, form)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_the_report_leads_with_the_answer_its_interval_and_what_to_do(form: str) -> None:
    shown = " ".join(re.sub(r"<[^>]*>|\*\*", " ", plain(example(), form)).split())
    words = ["pays at 3, inconclusive at 2, costs at 1 of 6 points",
             "0.83x (0.79-0.87) at worst on creative, concurrency 16",
             "2.17x (2.08-2.25) at best on chat, concurrency 1",
             "not decided at chat, concurrency 16, temperature 0.7: it needs about 4 more blocks",
             "inconclusive: it needs about 4 more blocks"]  # fmt: skip
    places = [shown.replace("\\", "").index(word) for word in words]
    assert places == sorted(places)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_an_invalid_cell_shows_its_reason_and_no_figure_and_a_part_says_so(form: str) -> None:
    shown = plain(dataclasses.replace(example(), is_complete=False), form)
    assert "the load generator used 0.97 of its core" in shown and "289.0" not in shown
    assert "ot complete: some cells" in shown and "ot complete" not in plain(example(), form)


@pytest.mark.parametrize(
    ("verdict", "advice"),
    [
        (
            Verdict(PAYS, "good"),
            "pays; 2.00x (1.90-2.10) on chat, concurrency 1, temperature 0.7; serve with it",
        ),
        (Verdict(COSTS, "bad"), "serve without it, or let `specserve tune` look for a K that pays"),
        (Verdict(NO_DIFFERENCE, "bad"), "profile: no difference; 2.00x"),
        (Verdict(INCONCLUSIVE, "open", "it needs 2 more launches"), "not decided: it needs 2 more launches"),
    ],
)
def test_text_begins_with_the_answer_and_what_to_do(verdict: Verdict, advice: str) -> None:
    (first, *_) = [item for item in example().comparisons if item.variant == "profile"]
    only = dataclasses.replace(first, verdict=verdict, speedup=Estimate(2.0, 1.9, 2.1))
    shown = plain(dataclasses.replace(example(), comparisons=(only,)), "text")
    assert shown.startswith("profile: ")
    assert advice in " ".join(shown.split("\n\n")[0].split())


def test_requests_that_waited_for_room_stand_beside_their_load() -> None:
    cells = tuple(
        dataclasses.replace(cell, figures=dataclasses.replace(cell.figures, queue_ms=900.0, preemptions=7))
        if cell.figures and (cell.variant, cell.point.concurrency) == ("profile", 16)
        else cell
        for cell in example().cells
    )
    variants = tuple(dataclasses.replace(variant, kv_cache_tokens=12_345) for variant in example().variants)
    result = dataclasses.replace(example(), cells=cells, variants=variants)
    text = " ".join(plain(result, "text").split())
    assert "at concurrency 16, requests waited 900 ms before they ran, 7 were preempted" in text
    assert "KV cache of 12,345 tokens" in text
    room = {"baseline": 20_000, "profile": 12_345}
    variants = tuple(
        dataclasses.replace(each, kv_cache_tokens=room.get(each.name), is_baseline=each.name == "baseline")
        for each in variants
    )
    text = " ".join(plain(dataclasses.replace(result, variants=variants), "text").split())
    assert "costs 38 % of the KV cache: 12,345 tokens instead of 20,000" in text
    assert "| waited, ms | preempted |" in plain(result, "markdown")


def test_servers_without_a_baseline_are_compared_with_the_first() -> None:
    variants = tuple(dataclasses.replace(each, is_baseline=False) for each in example().variants)
    shown = plain(dataclasses.replace(example(), variants=variants), "html")
    assert "over those of baseline" in shown and "serve with" not in shown


@pytest.mark.parametrize("form", FORMS)
def test_a_result_without_any_cell_can_be_shown(form: str) -> None:
    empty = Result("x", "yesterday", 0.0, {}, 1, (), {}, (), ())
    assert plain(empty, form).endswith("\n")


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    page = Page(plain(example(), "html"))
    assert page.open == []
    assert not set(page.tags) & {"script", "link", "img", "iframe", "object", "image", "use", "foreignobject"}
    assert not [
        item for item in page.attributes if item[1] in ("src", "href", "xlink:href", "style", "srcset")
    ]
    assert not [item for item in page.attributes if item[1].startswith("on")]
    text = plain(example(), "html")
    assert not re.search(r"url\(|@import|https?://", text)
    assert text.count("<svg viewBox") == text.count('role="img"') + text.count('aria-hidden="true"')


def test_no_name_from_outside_becomes_more_than_text_on_a_page() -> None:
    tame, wild = Page(plain(example(), "html")), Page(plain(with_names(EVIL), "html"))
    del wild.tags["code"], tame.tags["code"]  # what stands in backticks becomes code
    assert wild.open == [] and wild.tags == tame.tags
    assert [item[:2] for item in wild.attributes] == [item[:2] for item in tame.attributes]
    assert any("<script>alert(1)" in words for words in wild.words)
    assert not re.search("[\x1b\u202e]", plain(with_names(EVIL), "html"))


def code_spans_removed(text: str) -> Iterator[str]:
    """Lines without what stands in backticks."""
    for line in text.splitlines():
        yield re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line)


def test_no_name_from_outside_becomes_more_than_text_in_markdown_text_and_json() -> None:
    tame, wild = plain(example(), "markdown"), plain(with_names(EVIL), "markdown")
    assert len(tame.splitlines()) == len(wild.splitlines())
    for line, before in zip(code_spans_removed(wild), code_spans_removed(tame), strict=True):
        if before.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", before))
        assert "<script" not in line and "<img" not in line
        assert not re.search(r"@(?!&#8203;)|#(?!&#8203;|\d+;|#)\d|://", line.replace("###", ""))
    for text in (wild, plain(with_names(EVIL), "text"), plain(with_names(EVIL), "json")):
        assert not re.search("[\x1b\u202e]", text)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_user_and_password_of_a_url_are_not_shown(form: str) -> None:
    variants = tuple(
        dataclasses.replace(variant, url="http://me:geheim@host:8000", argv=("x", "http://me:geheim@host"))
        for variant in example().variants
    )
    shown = plain(
        dataclasses.replace(example(), variants=variants, notes=("http://me:geheim@host failed",)), form
    )
    assert "geheim" not in shown


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (("good", "good", "bad"), "at concurrency 1, pays up to about 400 tokens of prompt"),
        (("bad", "good", "good"), None),
        (("good", "open", "open"), None),
        (("good", "good", "good"), None),
    ],
)
def test_up_to_which_length_it_pays_is_said_only_if_longer_prompts_surely_do_not(
    levels: tuple[Any, ...], said: str | None
) -> None:
    first, *others = example().comparisons
    parts = tuple(
        LengthPart(at * 200 + 1, at * 200 + 200, Estimate(1.2, 1.1, 1.3), Verdict("X", level))
        for at, level in enumerate(levels)
    )
    result = dataclasses.replace(
        example(), comparisons=(dataclasses.replace(first, by_length=parts), *others)
    )
    text = " ".join(plain(result, "text").split())
    assert said in text if said else "of prompt" not in text and "length of the prompt" not in text
    assert "Speedup by length of the prompt" in plain(result, "markdown")


def test_a_progress_line_that_is_cut_keeps_the_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with BenchView() as view:
        text = "baseline, summarise, concurrency 16, temperature 0.7: 123.4 tokens/s"
        view(Progress(text, done=7, total=240, left_s=332.0))
    line = capsys.readouterr().err.split("\r\x1b[K")[1]
    assert (
        line.startswith("7/240, about 5.5 min left; baseline, summarise, concurrency 16") and len(line) < 80
    )
