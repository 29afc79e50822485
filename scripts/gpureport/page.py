"""A report as one HTML page, with specserve's own charts. The only part that imports specserve's report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gpureport.memory import is_inside
from gpureport.step import PARTS
from gpureport.summary import compared, headline, results_of, speedups
from specserve.report.charts import Chart, Series, Value, clean_value
from specserve.report.page import (
    Block,
    Card,
    Cards,
    Charts,
    Details,
    Document,
    Items,
    Paragraph,
    Section,
    Verbatim,
    html_page,
)
from specserve.report.text import Column, Table

_GIB = 2**30
_INSIDE, _OUTSIDE = 1, 2
"""Colours."""
_STATUS = {
    "done": "done",
    "failed": "failed",
    "not_run": "not run",
    "partial": "partial",
    "skipped": "skipped",
}
_TITLES = {
    "serve": "Does it serve, and is the text right?",
    "memory": "Memory: predicted and logged",
    "judge": "Profiles, right and wrong: `check` and vLLM",
    "speed": "Speed",
}


def html(report: Mapping[str, Any]) -> str:
    """The whole page; every text of the report is escaped."""
    machine = report["machine"]
    blocks: list[Block] = [*_lead(report), Cards(list(_cards(report)))]
    parts: dict[str, Callable[..., Iterator[Block]]] = {
        "serve": _serve,
        "memory": partial(_memory, total_gib=machine["total_bytes"] / _GIB),
        "judge": _judge,
        "speed": _speed,
    }
    for part in PARTS:
        steps = [step for step in report["steps"] if step["part"] == part]
        if steps:
            blocks.append(Section(_TITLES[part], [*parts[part](results_of(steps)), *_open(steps)]))
    blocks.append(Section("Every step", [_every_step(report), *_commands(report)]))
    title = (
        "CPU, tiny shapes" if machine["is_small"] else str(machine.get("device") or machine["accelerator"])
    )
    return html_page(Document("GPU report", title, blocks))


def _lead(report: Mapping[str, Any]) -> Iterator[Block]:
    machine, versions = report["machine"], report["machine"]["versions"]
    memory = f"{machine['total_bytes'] / _GIB:.1f} GiB"
    where = f"{machine['accelerator']} with {memory}, {machine['cores']} CPU cores"
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Paragraph(f"{where}, measured {str(report['created'])[:16].replace('T', ' ')} UTC.")
    yield Paragraph(f"{software}.", is_muted=True)
    if machine["is_small"]:
        words = (
            "A run with tiny shapes on a CPU: it shows that the measurement works. "
            "None of its figures says anything about a GPU."
        )
    else:
        words = (
            "No trained large model was used. The speed is that of the demo pair whose target is "
            "widened by layers that compute nothing, until a step reads the bytes of an 8B model; acceptance is that "
            "of the trained pair. Memory is that of published shapes with dummy weights."
        )
    yield Paragraph(words, is_muted=True)


def _cards(report: Mapping[str, Any]) -> Iterator[Card]:
    for part in PARTS:
        steps = [step for step in report["steps"] if step["part"] == part]
        if steps:
            done = sum(step["status"] == "done" for step in steps)
            failed = sum(step["status"] == "failed" for step in steps)
            progress = f"{done} of {len(steps)} steps done" + (f", {failed} failed" if failed else "")
            figure, words = headline(part, results_of(steps))
            yield Card(part, figure, [words, progress])


def _open(steps: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Steps of a part that gave no figure, with the cause and the end of the log."""
    for step in steps:
        if step["status"] in ("failed", "not_run", "skipped"):
            yield Items([(_STATUS[step["status"]], f"{step['title']}: {step['cause']}")])
        if step["status"] == "failed" and step.get("log_tail"):
            yield Details("the end of its log", [Verbatim(step["log_tail"])])


def _serve(results: Mapping[str, Mapping[str, Any]]) -> Iterator[Block]:
    rows = []
    for key, found in results.items():
        if key == "serve-models":
            continue
        if not found.get("is_ready"):
            rows.append([key, found["runner"].upper(), "", "", "", "", "", found["cause"]])
            continue
        rates = found["tokens_per_s"]
        rows.append(
            [
                key, found["runner"].upper(), f"{found['ready_s']:.0f}",
                f"{found['same_text']} of {found['prompts']}", _rate(found["acceptance"]["0"]),
                _rate(found["acceptance"]["0.7"]),
                f"{_figure(rates['baseline'])} → {_figure(rates['speculation'])}",
                f"{found['verify']['verdict']} ({found['verify']['tokens']:,} tokens)",
            ]
        )  # fmt: skip
    columns = [
        Column("step", "name"), Column("runner", "name"), Column("ready, s"), Column("greedy text equal"),
        Column("acceptance, T = 0"), Column("acceptance, T = 0.7"), Column("tokens/s without → with, 1 request"),
        Column("verify", "text"),
    ]  # fmt: skip
    yield Table(columns, rows)


def _memory(results: Mapping[str, Mapping[str, Any]], *, total_gib: float) -> Iterator[Block]:
    both = {key: row for key, found in results.items() if (row := compared(found))}
    for unit in ("GiB", "tokens"):
        drawn = {key: row for key, row in both.items() if row[3] == unit}
        if drawn:
            yield from _memory_chart(drawn, unit, total_gib=total_gib)
            break
    rows = []
    for key, found in results.items():
        said, estimate = found["logged"], found["predicted"] or {}
        shown = [_both(said.get(name), estimate.get(name)) for name in ("weights_gib", "activation_gib")]
        shown.append(_figure(said.get("graphs_gib")))
        shown += [_both(said.get(name), estimate.get(name)) for name in ("kv_gib", "kv_tokens")]
        boot = [key.removeprefix("memory-"), found["outcome"], found["runner"].upper()]
        rows.append([*boot, *shown, estimate.get("verdict", "-")])
    columns = [
        Column("boot", "name"), Column("vLLM", "verdict"), Column("runner", "name"), Column("weights, GiB"),
        Column("activations, GiB"), Column("graphs, GiB"), Column("KV cache, GiB"), Column("KV cache, tokens"),
        Column("check", "name"),
    ]  # fmt: skip
    yield Table(columns, rows, "Logged by vLLM; in brackets, what `check` predicted")
    yield Items(
        [(key.removeprefix("memory-"), found["cause"]) for key, found in results.items() if found["cause"]]
    )


def _memory_chart(
    rows: Mapping[str, tuple[float, float, float, str]], unit: str, *, total_gib: float
) -> Iterator[Block]:
    """The predicted bounds around what was logged: a bar that crosses zero holds it."""
    groups = [str(number) for number in range(1, len(rows) + 1)]
    values: dict[int, list[Value | None]] = {_INSIDE: [], _OUTSIDE: []}
    for said, low, high, _ in rows.values():
        whole = total_gib if unit == "GiB" else said
        least, most = 100 * (low - said) / whole, 100 * (high - said) / whole
        colour = _INSIDE if is_inside(said, low, high) else _OUTSIDE
        for each, column in values.items():
            column.append(Value((least + most) / 2, least, most) if each == colour else None)
    meanings = {_INSIDE: "bounds that hold the logged figure", _OUTSIDE: "bounds that do not"}
    series = [Series(meanings[each], each, tuple(column)) for each, column in values.items() if any(column)]
    of_what = "% of the GPU" if unit == "GiB" else "% of the tokens logged"
    unit = f"{of_what}; the bar goes from bound to bound"
    yield Charts([Chart("lines", "KV cache: predicted less logged", unit, "boot", groups, series, 0.0)])
    yield Items([(number, key.removeprefix("memory-")) for number, key in zip(groups, rows, strict=True)])


def _judge(results: Mapping[str, Mapping[str, Any]]) -> Iterator[Block]:
    cases = [case for found in results.values() for case in found["cases"]]
    heads, sides = ("refuses", "changes", "accepts"), ("error", "warning", "ok")
    matrix = [
        [f"check: {side}"]
        + [str(sum(case["check"] == side and case["vllm"] == head for case in cases) or "") for head in heads]
        for side in sides
    ]
    if cases:
        yield Table([Column("", "name"), *(Column(f"vLLM {head}") for head in heads)], matrix)
    rows = [
        [
            case["about"], ", ".join(case["findings"]) or "nothing", case["vllm"],
            "agree" if case["agrees"] else "differ", (case["cause"] or "")[:160],
        ]
        for case in cases
    ]  # fmt: skip
    columns = [
        Column("profile", "text"), Column("check finds", "text"), Column("vLLM", "name"), Column("", "verdict"),
        Column("vLLM's words", "text"),
    ]  # fmt: skip
    yield Table(columns, rows)


def _speed(results: Mapping[str, Mapping[str, Any]]) -> Iterator[Block]:
    rows = speedups(results)
    bench = results.get("speed-sweep") or results.get("speed-bench", {})
    if rows:
        yield _speed_chart(rows)
        yield _speed_table(rows, results.get("speed-tune"))
        yield Items([("stops paying", text) for text in bench.get("stops_paying", ())])
    facts = []
    if tune := results.get("speed-tune"):
        chosen = ", ".join(f"K = {k} at concurrency {load}" for load, k in tune["by_concurrency"].items())
        facts.append(("tune chooses", chosen or "no speculation"))
    if start := results.get("speed-start"):
        facts.append(
            ("time to ready", f"up {start['up_s']:.1f} s, bare vLLM command {start['bare_s']:.1f} s")
        )
        facts.append(("memory of up", f"{start['resident_mb']:.0f} MB while serving"))
    if verify := results.get("speed-verify"):
        facts.append(("verify", f"{verify['verdict']} on {verify['tokens']:,} tokens"))
    yield Items(facts)


def _speed_chart(rows: Sequence[Mapping[str, Any]]) -> Charts:
    loads = sorted({row["concurrency"] for row in rows})
    by_place = {(row["k"], row["concurrency"]): row["speedup"] for row in rows}
    many = sorted({row["k"] for row in rows})
    series = [
        Series(f"K = {k}", number, tuple(_interval(by_place.get((k, load))) for load in loads))
        for number, k in enumerate(many, start=1)
    ]
    unit = "output tokens/s over no speculation, 95 % interval"
    groups = [str(load) for load in loads]
    return Charts([Chart("lines", "Speedup by concurrency", unit, "concurrency", groups, series, 1.0)])


def _interval(found: Mapping[str, float] | None) -> Value | None:
    return clean_value(found["value"], found["low"], found["high"]) if found else None


def _speed_table(rows: Sequence[Mapping[str, Any]], tune: Mapping[str, Any] | None) -> Table:
    predicted = {(row["k"], row["concurrency"]): row["predicted"] for row in (tune or {}).get("rows", ())}
    shown = []
    for row in rows:
        found, estimate = row["speedup"], predicted.get((row["k"], row["concurrency"]))
        shown.append(
            [
                str(row["k"]), str(row["concurrency"]),
                f"{found['value']:.2f}x ({found['low']:.2f}-{found['high']:.2f})" if found else "-", row["verdict"],
                f"{_figure(row['baseline_tokens_per_s'])} → {_figure(row['tokens_per_s'])}",
                _figure(row["acceptance_rate"]), f"{estimate['value']:.2f}x" if estimate else "-",
            ]
        )  # fmt: skip
    columns = [
        Column("K"), Column("concurrency"), Column("speedup, 95 % interval"), Column("verdict", "verdict"),
        Column("tokens/s without → with"), Column("acceptance"), Column("predicted by tune"),
    ]  # fmt: skip
    return Table(columns, shown)


def _every_step(report: Mapping[str, Any]) -> Table:
    rows = [
        [
            step["key"], _STATUS[step["status"]], step.get("line") or step.get("cause") or "",
            _seconds(step.get("estimate_s")), _seconds(step.get("took_s")),
        ]
        for step in report["steps"]
    ]  # fmt: skip
    columns = [
        Column("step", "name"), Column("", "verdict"), Column("what it found", "text"), Column("estimated, s"),
        Column("took, s"),
    ]  # fmt: skip
    return Table(columns, rows)


def _commands(report: Mapping[str, Any]) -> Iterator[Block]:
    for step in report["steps"]:
        lines = "\n".join(step["commands"].values())
        if lines:
            yield Details(f"commands of {step['key']}", [Verbatim(lines)])


def _both(said: float | None, estimate: Any) -> str:
    """A logged figure, and in brackets the predicted one, which is a value or bounds."""
    if not isinstance(estimate, Mapping):
        return f"{_figure(said)} ({_figure(estimate)})"
    low, high = estimate["low"], estimate["high"]
    return (
        f"{_figure(said)} ({_figure(low)} to {_figure(high)})" if low is not None else f"{_figure(said)} (-)"
    )


def _rate(found: Mapping[str, float] | None) -> str:
    return f"{found['rate']:.2f}" if found else "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        f"{value:,.0f}"
        if abs(value) >= 1000 or isinstance(value, int)
        else f"{value:.2f}"
        if abs(value) < 100
        else f"{value:.1f}"
    )
