"""The reports of `bench` and `tune` in all forms: what they say, and that a name from outside stays a name."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from bench_result import example

from specserve.measure.bench.passes import Progress
from specserve.measure.bench.plan import BenchPlan, Variant
from specserve.measure.bench.result import Point, Result
from specserve.measure.bench.summary import summarise
from specserve.measure.tune.choose import Choice, Row
from specserve.measure.tune.plan import Setting
from specserve.measure.tune.run import TuneResult, remark
from specserve.measure.verdict import COSTS, INCONCLUSIVE, NO_DIFFERENCE, PAYS, Estimate, Kept, Verdict
from specserve.report.bench import BenchView, rendered, tune_document
from tests.measure.bench.making import blocks_of
from tests.report.conftest import Terminal

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
    stops = {}
    for key, clause in result.stops_paying.items():
        variant, workload, temperature = key.split(", ")
        stops[f"{variant}{text}, {workload}{text}, {temperature}"] = clause
    return dataclasses.replace(result, stops_paying=stops)


def plain(result: Result, form: str) -> str:
    return rendered(result, form=form, stream=io.StringIO())


@pytest.mark.parametrize(("form", "ending"), [("text", "txt"), ("json", "json")])
def test_the_example(golden: Golden, form: str, ending: str) -> None:
    result = example()
    if form == "json":  # one of each has every key
        cell = next(cell for cell in result.cells if cell.promises)
        cell = dataclasses.replace(cell, promises=cell.promises[:1], invalid="what makes it so")
        result = dataclasses.replace(
            result, cells=(cell,), comparisons=result.comparisons[:1], variants=result.variants[1:2]
        )
    golden(f"report/bench.{ending}", plain(result, form))


def test_a_request_rate_is_told_by_latencies(golden: Golden) -> None:
    at = Point("chat", 0.0, 0, 2.5)
    baseline, profile = (
        Variant(name, url=f"http://127.0.0.1:{port}", is_baseline=port == 1)
        for port, name in enumerate(("baseline", "profile"), 1)
    )
    passes = blocks_of("baseline", [2.0, 2.1, 1.9, 2.05, 1.95, 2.0], point=at)
    passes += blocks_of("profile", [1.0, 1.05, 0.95, 1.02, 0.98, 1.0], point=at)
    about = dataclasses.replace(
        example(), variants=(baseline.info, profile.info), cells=(), comparisons=(), notes=()
    )
    found = summarise(BenchPlan((baseline, profile), (), (at,), 6), passes, about=about)
    share = Estimate(0.97, 0.9, 1.0)
    cells = tuple(dataclasses.replace(cell, goodput=share) for cell in found.cells)
    found = dataclasses.replace(found, cells=cells)
    golden("report/bench-rate.txt", plain(found, "text"))
    assert "as fast as baseline" in plain(found, "html")


def test_a_terminal_sees_verdicts_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = rendered(example(), form="text", stream=Terminal())
    assert "\x1b[32mPAYS\x1b[0m" in shown and "\x1b[31mCOSTS\x1b[0m" in shown and "\x1b[31mmissed" in shown


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_a_part_says_that_it_is_one_and_hides_users_of_urls(form: str) -> None:
    variants = tuple(
        dataclasses.replace(variant, url="http://me:geheim@host:8000", argv=("x", "http://me:geheim@host"))
        for variant in example().variants
    )
    notes = ("http://me:geheim@host failed",)
    part = dataclasses.replace(example(), is_complete=False, variants=variants, notes=notes, launches=3)
    shown = plain(part, form)
    assert "ot complete: some cells" in shown and "ot complete" not in plain(example(), form)
    assert "3 launches of each variant" in shown and "geheim" not in shown


@pytest.mark.parametrize(
    ("verdict", "advice"),
    [
        (
            Verdict(PAYS, "good"),
            "pays; 2.00x (1.90-2.10) on chat, concurrency 1, temperature 0.7; serve with",
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


@pytest.mark.parametrize(
    ("queue_ms", "preemptions", "is_told"),
    [(900.0, 0, True), (0.0, 7, True), (None, 7, True), (1.0, 0, False)],
)
def test_requests_that_waited_for_room_stand_beside_their_load(
    queue_ms: float | None, preemptions: int, is_told: bool
) -> None:
    cells = tuple(
        dataclasses.replace(
            cell, figures=dataclasses.replace(cell.figures, queue_ms=queue_ms, preemptions=preemptions)
        )
        if cell.figures and (cell.variant, cell.point.concurrency) == ("profile", 16)
        else cell
        for cell in example().cells
    )
    room = {"baseline": 20_000, "profile": 12_345, "eagle3": 19_999}
    variants = tuple(
        dataclasses.replace(one, kv_cache_tokens=room[one.name], kv_cache_requests=room[one.name] / 4096)
        for one in example().variants
    )
    result = dataclasses.replace(example(), cells=cells, variants=variants)
    text = " ".join(plain(result, "text").split())
    assert text.count("requests waited") == 2 * is_told  # on two workloads
    waited = "-" if queue_ms is None else f"{queue_ms:.0f}"
    said = f"at concurrency 16, requests waited {waited} ms before they ran, {preemptions} were preempted"
    assert (said in text) == is_told
    assert (
        "costs 38 % of the KV cache: 12,345 tokens instead of 20,000, concurrency 3.0 instead of 4.9" in text
    )
    assert "KV cache of 19,999 tokens" in text
    table = plain(result, "markdown")
    assert ("| waited, ms |" in table, "| preempted |" in table) == (queue_ms is not None, preemptions > 0)


def test_a_result_without_any_cell_can_be_shown() -> None:
    empty = Result("x", "yesterday", 0.0, {}, 1, (), {}, (), ())
    assert all(plain(empty, form).endswith("\n") for form in ("text", "markdown", "html", "json"))


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    page, text = Page(plain(example(), "html")), plain(example(), "html")
    assert page.open == []
    assert not set(page.tags) & {"script", "link", "img", "iframe", "object", "image", "use", "foreignobject"}
    names = {name for _, name, _ in page.attributes}
    assert not names & {"src", "href", "xlink:href", "style", "srcset"}
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?://", text)
    assert text.count("<svg viewBox") == text.count('role="img"') + text.count('aria-hidden="true"')


def test_no_name_from_outside_becomes_more_than_text_on_a_page() -> None:
    tame, wild = Page(plain(example(), "html")), Page(plain(with_names(EVIL), "html"))
    del wild.tags["code"], tame.tags["code"]  # what stands in backticks becomes code
    assert wild.open == [] and wild.tags == tame.tags
    assert [item[:2] for item in wild.attributes] == [item[:2] for item in tame.attributes]
    assert any("<script>alert(1)" in words for words in wild.words)
    assert not re.search("[\x1b\u202e]", plain(with_names(EVIL), "html"))


def code_spans_removed(text: str) -> list[str]:
    """Lines without what stands in backticks."""
    return [re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line) for line in text.splitlines()]


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


def row(load: int, tokens: int, value: float, *, word: str | None = None) -> Row:
    judged = Verdict(word, "good") if word else None
    speedup = Estimate(value, 0.95 * value, 1.05 * value)
    return Row(Point("code", 0.0, load), tokens, 2.5, 1.2, speedup, judged)


BEST = Choice(
    Verdict("PAYS", "good", "K = 4 is the best of what was measured"),
    Setting(4),
    {"method": "draft_model", "model": "small", "num_speculative_tokens": 4},
    Estimate(1.84, 1.7, 1.99),
)
RESULT = TuneResult(
    name="demo",
    created="2026-11-27T12:00:00+00:00",
    duration_s=312.0,
    host={"accelerator": "cpu", "vllm": "0.32.0+cpu"},
    launches=3,
    choice=BEST,
    rows=(row(1, 4, 2.1, word="PAYS"), row(1, 5, 2.0), row(8, 2, 1.1), row(8, 4, 0.9, word="COSTS")),
    missing=("K = 8: out of memory \x1b[2J<blink>",),
)


def tuned(found: TuneResult) -> str:
    return tune_document(found).text(io.StringIO())


def told(choice: Choice) -> str:
    return " ".join(tuned(dataclasses.replace(RESULT, choice=choice)).split())


def test_the_first_line_answers_and_all_lines_are_short() -> None:
    lines = tuned(RESULT).splitlines()
    assert lines[0].startswith("PAYS: K = 4: 1.84x (1.70-1.99) the tokens/s of no speculation")
    assert all(len(line) <= 80 for line in lines)
    shown = " ".join(" ".join(lines).split())
    assert '"num_speculative_tokens": 4' in shown
    assert "COSTS on code, concurrency 8, temperature 0: send such load to a server" in shown
    assert "1 0 1.00 1.00x 4 2.50 2.10x (1.99-2.21) PAYS" in shown
    assert "5 2.50 2.00x (1.90-2.10) predicted 8 0 1.00 1.00x" in shown
    assert "cpu, vLLM 0.32.0+cpu, 2026-11-27, 5.2 min, 3 launches" in shown


def test_what_comes_from_outside_steers_nothing() -> None:
    page = tune_document(RESULT).html()
    assert "\x1b" not in tuned(RESULT) + page and "<blink>" not in page
    assert "out of memory" in page


def test_a_schedule_names_both_ranges() -> None:
    choice = dataclasses.replace(BEST, setting=Setting(5, 4, 2, 8))
    assert told(choice).startswith("PAYS: K = 5 up to 4 requests, K = 2 above: 1.84x")
    assert '"num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 8, 2]]' in told(choice)


def test_no_speculation_and_no_answer_say_what_to_do() -> None:
    costs = Choice(Verdict("COSTS", "bad", "the best K that was measured, 1, does not pay"),
                   speedup=Estimate(0.8, 0.7, 0.9))  # fmt: skip
    assert told(costs).startswith("COSTS: run without speculation: the best K that was measured")
    unsure = Choice(Verdict("INCONCLUSIVE", "open", "no K was measured at every load"))
    assert told(unsure).startswith(
        "INCONCLUSIVE: no K was measured at every load; the same command with a longer `--budget`"
    )
    whole = " ".join(tuned(dataclasses.replace(RESULT, choice=unsure, missing=())).split())
    assert whole.startswith("INCONCLUSIVE: no K was measured at every load; `specserve bench` ")


def test_the_comment_in_a_profile_says_when_where_and_why() -> None:
    head = "specserve tune: 2026-11-27, cpu, vLLM 0.32.0+cpu: "
    assert remark(RESULT) == f"{head}measured 1.84x (1.70-1.99)"
