"""A report as one HTML page, with specserve's own charts. The only part that imports specserve's report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gpureport.memory import is_inside
from gpureport.step import PARTS
from gpureport.summary import compared, headline, results_of, speedups
from specserve.report.charts import Series, Value, Words, clean_value, intervals, mark
from specserve.report.html import Column, chip, escaped, figure, html_sentence, listed, page, pairs, table

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
    body = [_cards(report)]
    total_gib = report["machine"]["total_bytes"] / _GIB
    drawn: dict[str, Callable[..., Iterator[str]]] = {
        "serve": _serve,
        "memory": partial(_memory, total_gib=total_gib),
        "judge": _judge,
        "speed": _speed,
    }
    for part in PARTS:
        steps = [step for step in report["steps"] if step["part"] == part]
        if steps:
            body += [
                f"<h2>{html_sentence(_TITLES[part])}</h2>",
                *drawn[part](results_of(steps)),
                *_open(steps),
            ]
    body += ["<h2>Every step</h2>", _every_step(report), *_commands(report)]
    machine = report["machine"]
    return page(
        kind="GPU report",
        title="CPU, tiny shapes"
        if machine["is_small"]
        else str(machine.get("device") or machine["accelerator"]),
        lead=_lead(report),
        body=[part for part in body if part],
    )


def _lead(report: Mapping[str, Any]) -> Iterator[str]:
    machine, versions = report["machine"], report["machine"]["versions"]
    memory = f"{machine['total_bytes'] / _GIB:.1f} GiB"
    where = f"{machine['accelerator']} with {memory}, {machine['cores']} CPU cores"
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"<p>{escaped(where)}, measured {escaped(str(report['created'])[:16].replace('T', ' '))} UTC.</p>"
    yield f'<p class="muted">{escaped(software)}.</p>'
    if machine["is_small"]:
        yield (
            '<p class="muted">A run with tiny shapes on a CPU: it shows that the measurement works. '
            "None of its figures says anything about a GPU.</p>"
        )
    else:
        yield (
            '<p class="muted">No trained large model was used. The speed is that of the demo pair whose target is '
            "widened by layers that compute nothing, until a step reads the bytes of an 8B model; acceptance is that "
            "of the trained pair. Memory is that of published shapes with dummy weights.</p>"
        )


def _cards(report: Mapping[str, Any]) -> str:
    cards = []
    for part in PARTS:
        steps = [step for step in report["steps"] if step["part"] == part]
        if not steps:
            continue
        done = sum(step["status"] == "done" for step in steps)
        failed = sum(step["status"] == "failed" for step in steps)
        progress = f"{done} of {len(steps)} steps done" + (f", {failed} failed" if failed else "")
        figure_text, words = headline(part, results_of(steps))
        cards.append(
            f'<div class="card"><h3>{escaped(part)}</h3><p class="figure">{escaped(figure_text)}</p>'
            f'<p>{escaped(words)}</p><p class="muted small">{escaped(progress)}</p></div>'
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def _open(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Steps of a part that gave no figure, with the cause and the end of the log."""
    for step in steps:
        if step["status"] == "failed":
            yield f"<p>{chip('failed')} {html_sentence(step['title'])}: {escaped(step['cause'])}</p>"
            if step.get("log_tail"):
                yield f"<details><summary>the end of its log</summary><pre>{escaped(step['log_tail'])}</pre></details>"
        elif step["status"] in ("not_run", "skipped"):
            word = _STATUS[step["status"]]
            yield f'<p class="muted small">{chip(word)} {html_sentence(step["title"])}: {escaped(step["cause"])}</p>'


def _serve(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for key, found in results.items():
        if key == "serve-models":
            continue
        if not found.get("is_ready"):
            rows.append(
                [escaped(key), escaped(found["runner"].upper()), "", "", "", "", "", escaped(found["cause"])]
            )
            continue
        rates = found["tokens_per_s"]
        rows.append(
            [
                escaped(key), escaped(found["runner"].upper()), f"{found['ready_s']:.0f}",
                f"{found['same_text']} of {found['prompts']}", _rate(found["acceptance"]["0"]),
                _rate(found["acceptance"]["0.7"]),
                f"{_figure(rates['baseline'])} → {_figure(rates['speculation'])}",
                escaped(f"{found['verify']['verdict']} ({found['verify']['tokens']:,} tokens)"),
            ]
        )  # fmt: skip
    if rows:
        columns = [
            Column("step", is_name=True), Column("runner", is_name=True), Column("ready\ns"),
            Column("greedy text\nequal"),
            Column("acceptance\nT = 0"), Column("acceptance\nT = 0.7"), Column("tokens/s without\n→ with, 1 request"),
            Column("verify", is_name=True, wraps=True),
        ]  # fmt: skip
        yield table(columns, rows, stacks=True)


def _memory(results: Mapping[str, Mapping[str, Any]], *, total_gib: float) -> Iterator[str]:
    both = {key: row for key, found in results.items() if (row := compared(found))}
    for unit in ("GiB", "tokens"):
        drawn = {key: row for key, row in both.items() if row[3] == unit}
        if drawn:
            yield from _memory_chart(drawn, unit, total_gib=total_gib)
            break
    rows = []
    for key, found in results.items():
        said, estimate = found["logged"], found["predicted"]
        rows.append(
            [
                escaped(key.removeprefix("memory-")), chip(found["outcome"]), escaped(found["runner"].upper()),
                _both(said.get("weights_gib"), estimate and estimate["weights_gib"]),
                _both(said.get("activation_gib"), estimate and estimate["activation_gib"]),
                _figure(said.get("graphs_gib")), _both(said.get("kv_gib"), estimate and estimate["kv_gib"]),
                _both(said.get("kv_tokens"), estimate and estimate["kv_tokens"]),
                escaped(estimate["verdict"] if estimate else "-"),
            ]
        )  # fmt: skip
    if rows:
        columns = [
            Column("boot", is_name=True), Column("vLLM", is_name=True), Column("runner", is_name=True),
            Column("weights\nGiB"),
            Column("activations\nGiB"), Column("graphs\nGiB"), Column("KV cache\nGiB"), Column("KV cache\ntokens"),
            Column("check", is_name=True),
        ]  # fmt: skip
        yield table(
            columns, rows, caption="Logged by vLLM; below each figure, what check predicted", stacks=True
        )
    causes = {key: found["cause"] for key, found in results.items() if found["cause"]}
    yield listed(f"{escaped(key.removeprefix('memory-'))}: {escaped(cause)}" for key, cause in causes.items())


def _memory_chart(
    rows: Mapping[str, tuple[float, float, float, str]], unit: str, *, total_gib: float
) -> Iterator[str]:
    """The predicted bounds around what was logged: a bar that crosses zero holds it."""
    groups = [str(number) for number in range(1, len(rows) + 1)]
    series = []
    for number, (key, (said, low, high, _)) in enumerate(rows.items()):
        whole = total_gib if unit == "GiB" else said
        least, most = 100 * (low - said) / whole, 100 * (high - said) / whole
        drawn = Value((least + most) / 2, least, most)
        values = tuple(drawn if at == number else None for at in range(len(rows)))
        series.append(Series(key, _INSIDE if is_inside(said, low, high) else _OUTSIDE, values))
    of_what = "% of the GPU" if unit == "GiB" else "% of the tokens logged"
    words = Words(
        "kv", "KV cache: predicted less logged", f"{of_what}; the bar goes from bound to bound", "boot"
    )
    picture = intervals(words, groups, series, reference=0.0)
    meanings = {_INSIDE: "bounds that hold the logged figure", _OUTSIDE: "bounds that do not"}
    shown = {each.colour for each in series}
    legend = _legend({colour: text for colour, text in meanings.items() if colour in shown})
    yield f'{legend}<div class="charts">{figure(words.title, words.unit, picture)}</div>'
    listing = ", ".join(
        f"{number}: {key.removeprefix('memory-')}" for number, key in zip(groups, rows, strict=True)
    )
    yield f'<p class="muted small">{escaped(listing)}</p>'


def _judge(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    cases = [case for found in results.values() for case in found["cases"]]
    if not cases:
        return
    heads, sides = ("refuses", "changes", "accepts"), ("error", "warning", "ok")
    matrix = []
    for side in sides:
        counts = [sum(case["check"] == side and case["vllm"] == head for case in cases) for head in heads]
        matrix.append([f"check: {side}", *(f'<span class="value">{count or ""}</span>' for count in counts)])
    columns = [Column("", is_name=True), *(Column(f"vLLM {head}") for head in heads)]
    yield table(columns, matrix, kind="matrix")
    rows = [
        [
            escaped(case["about"]), escaped(", ".join(case["findings"]) or "nothing"), escaped(case["vllm"]),
            _agreement(case["agrees"]),
            escaped((case["cause"] or "")[:160]),
        ]
        for case in cases
    ]  # fmt: skip
    heads_of_rows = [
        Column("profile", is_name=True, wraps=True), Column("check finds", is_name=True, wraps=True),
        Column("vLLM", is_name=True), Column("", is_name=True), Column("vLLM's words", is_name=True, wraps=True),
    ]  # fmt: skip
    yield table(heads_of_rows, rows, stacks=True)


def _agreement(agrees: bool) -> str:
    return f'<span class="chip {"good" if agrees else "bad"}">{"agree" if agrees else "differ"}</span>'


def _speed(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = speedups(results)
    bench = results.get("speed-sweep") or results.get("speed-bench", {})
    if rows:
        yield from _speed_chart(rows)
        yield _speed_table(rows, results.get("speed-tune"))
        yield listed([html_sentence(text) for text in bench.get("stops_paying", ())])
    facts = {}
    if tune := results.get("speed-tune"):
        chosen = ", ".join(f"K = {k} at concurrency {load}" for load, k in tune["by_concurrency"].items())
        facts["tune chooses"] = escaped(chosen or "no speculation")
    if start := results.get("speed-start"):
        facts["time to ready"] = f"up {start['up_s']:.1f} s, bare vLLM command {start['bare_s']:.1f} s"
        facts["memory of up"] = f"{start['resident_mb']:.0f} MB while serving"
    if verify := results.get("speed-verify"):
        facts["verify"] = escaped(f"{verify['verdict']} on {verify['tokens']:,} tokens")
    yield pairs(facts)


def _speed_chart(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    loads = sorted({row["concurrency"] for row in rows})
    by_place = {(row["k"], row["concurrency"]): row["speedup"] for row in rows}
    many = sorted({row["k"] for row in rows})
    series = [
        Series(f"K = {k}", number, tuple(_interval(by_place.get((k, load))) for load in loads))
        for number, k in enumerate(many, start=1)
    ]
    words = Words(
        "speedup",
        "Speedup by concurrency",
        "output tokens/s over no speculation, 95 % interval",
        "concurrency",
    )
    picture = intervals(words, [str(load) for load in loads], series, reference=1.0)
    legend = _legend({each.colour: each.name for each in series})
    yield f'{legend}<div class="charts">{figure(words.title, words.unit, picture)}</div>'


def _interval(found: Mapping[str, float] | None) -> Value | None:
    return clean_value(found["value"], found["low"], found["high"]) if found else None


def _speed_table(rows: Sequence[Mapping[str, Any]], tune: Mapping[str, Any] | None) -> str:
    predicted = {(row["k"], row["concurrency"]): row["predicted"] for row in (tune or {}).get("rows", ())}
    shown = []
    for row in rows:
        found, estimate = row["speedup"], predicted.get((row["k"], row["concurrency"]))
        shown.append(
            [
                str(row["k"]), str(row["concurrency"]),
                f"{found['value']:.2f}x ({found['low']:.2f}-{found['high']:.2f})" if found else "-",
                chip(row["verdict"]),
                f"{_figure(row['baseline_tokens_per_s'])} → {_figure(row['tokens_per_s'])}",
                _figure(row["acceptance_rate"]), f"{estimate['value']:.2f}x" if estimate else "-",
            ]
        )  # fmt: skip
    columns = [
        Column("K"), Column("concurrency"), Column("speedup\n95 % interval"), Column("verdict", is_name=True),
        Column("tokens/s without\n→ with"), Column("acceptance"), Column("predicted\nby tune"),
    ]  # fmt: skip
    return table(columns, shown, stacks=True)


def _legend(names: Mapping[int, str]) -> str:
    """Which colour and mark is which."""
    lines = []
    for colour, name in names.items():
        line = f'<line class="range line s{colour}" x1="0" x2="30" y1="7" y2="7"/>{mark(colour, 15, 7)}'
        lines.append(f'<li><svg viewBox="0 0 30 14" aria-hidden="true">{line}</svg>{escaped(name)}</li>')
    return f'<ul class="legend">{"".join(lines)}</ul>'


def _every_step(report: Mapping[str, Any]) -> str:
    rows = [
        [
            escaped(step["key"]), chip(_STATUS[step["status"]]),
            escaped(step.get("line") or step.get("cause") or ""), _seconds(step.get("estimate_s")),
            _seconds(step.get("took_s")),
        ]
        for step in report["steps"]
    ]  # fmt: skip
    columns = [
        Column("step", is_name=True), Column("", is_name=True), Column("what it found", is_name=True, wraps=True),
        Column("estimated\ns"), Column("took\ns"),
    ]  # fmt: skip
    return table(columns, rows, stacks=True)


def _commands(report: Mapping[str, Any]) -> Iterator[str]:
    for step in report["steps"]:
        lines = "\n".join(step["commands"].values())
        if lines:
            yield f"<details><summary>commands of {escaped(step['key'])}</summary><pre>{escaped(lines)}</pre></details>"


def _both(said: float | None, estimate: Any) -> str:
    """A logged figure over the predicted one, which is a value or bounds."""
    if isinstance(estimate, Mapping):
        low, high = estimate["low"], estimate["high"]
        estimate_text = f"{_figure(low)} to {_figure(high)}" if low is not None else "-"
    else:
        estimate_text = _figure(estimate)
    return f'{_figure(said)}<br><span class="muted small">{estimate_text}</span>'


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
