"""Draw docs/pictures/*.svg from the import graph, from measured runs and from a check; --check: say if one is stale."""

from __future__ import annotations

import ast
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import wrap

import grimp

from specserve.report.charts import HEIGHT, Chart, Series, Value, key

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
_STYLE = """\
svg { background: #fff; font-family: system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
text { fill: #17202b; font-size: 12px; text-anchor: middle; }
.small { font-size: 10.5px; fill: #55606e; } .start { text-anchor: start; } .end { text-anchor: end; }
.strong { font-weight: 600; font-size: 13px; }
.tick, .axis { fill: #55606e; } .grid { stroke: #d9dde3; } .reference { stroke: #17202b; stroke-dasharray: 5 4; }
.box { fill: #f6f7f9; stroke: #6b7480; } .arrow { fill: none; stroke: #6b7480; }
.line, .range { fill: none; stroke: var(--c); stroke-width: 2; } .mark, .bar { fill: var(--c); }
.s0 { --c: #6b7480; } .s1 { --c: #0072b2; } .s2 { --c: #c24a00; } .s3 { --c: #007a5a; } .s4 { --c: #a8407f; }
.s5 { --c: #8a6500; } .line.s2 { stroke-dasharray: 7 3; } .line.s3 { stroke-dasharray: 2 3; }
.line.s4 { stroke-dasharray: 9 3 2 3; } .between { opacity: 0.45; }
.pays { fill: #d9f2e5; } .costs { fill: #fde3d8; } .same { fill: #eef0f3; }
"""
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{title}">
<title>{title}</title>
<style>
{style}</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path \
d="M0 0 8 4 0 8z" fill="#6b7480"/></marker></defs>
<rect width="{width}" height="{height}" fill="#fff"/>"""


def picture(title: str, width: int, height: int, lines: Iterable[str]) -> str:
    """A whole SVG file that needs no style from outside."""
    head = _HEAD.format(width=width, height=height, title=html.escape(title), style=_STYLE)
    return "\n".join([head, *lines, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{html.escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{kind}"/>'


def arrow(*points: tuple[float, float]) -> str:
    path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="{path}" class="arrow" marker-end="url(#head)"/>'


def chart(drawn: Chart) -> str:
    """A chart of specserve's reports with its title and its legend."""
    inner = drawn.svg("chart").split("</desc>\n")[1].removesuffix("</svg>")
    lines = [text(240, 18, drawn.title, "strong"), f'<g transform="translate(40 26)">{inner}</g>']
    for number, each in enumerate(drawn.series):
        at = HEIGHT + 42 + 18 * number
        lines += [
            f'<g transform="translate(60 {at - 11})">{key(each.colour)}</g>',
            text(98, at, each.name, "start"),
        ]
    height = HEIGHT + 46 + 18 * len(drawn.series)
    return picture(f"{drawn.title}, {drawn.unit}", 480, height, lines)


_COMMON = ("errors", "diagnostics")
"""Every room may import these; they are not drawn."""


def architecture() -> str:
    """The rooms by the layers of the import contract; an arrow for each import that no longer way explains."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.findall(
        r'^  "([a-z |]+)",$', contract.partition("layers = [")[2].partition("]")[0], flags=re.MULTILINE
    )
    rows = [layer.split(" | ") for layer in layers if layer not in _COMMON]
    imports = _imports({room for row in rows for room in row})
    width, box_height, gap = 760, 46, 30
    places: dict[str, tuple[float, float, float]] = {}
    lines: list[str] = []
    for number, row in enumerate(rows):
        box_width = (width - 40 - 16 * (len(row) - 1)) / len(row) if len(row) > 1 else 236
        left = 20 if len(row) > 1 or row == ["convert"] else (width - box_width) / 2
        for room in row:
            top = 14 + number * (box_height + gap)
            places[room] = (left, top, box_width)
            lines += [rectangle(left, top, box_width, box_height, "box"), *_room(room, left, top, box_width)]
            left += box_width + 16
    drawn = []
    for upper, lower in sorted(imports):
        (x1, y1, w1), (x2, y2, w2) = places[upper], places[lower]
        start, end = x1 + w1 / 2, x2 + w2 / 2
        if abs(end - start) > w1 / 2:
            start = min(max(end, x1 + 20), x1 + w1 - 20)
            end = min(max(start, x2 + 20), x2 + w2 - 20)
        drawn.append(arrow((start, y1 + box_height), (end, y2 - 2)))
    height = 14 + len(rows) * (box_height + gap)
    return picture("The rooms of specserve and what they import", width, height, [*drawn, *lines])


def _imports(rooms: set[str]) -> set[tuple[str, str]]:
    """Direct imports between rooms, without those that a longer way implies."""
    graph = grimp.build_graph("specserve")
    found = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            ends = module.split(".")[1:2] + imported.split(".")[1:2]
            if len(ends) == 2 and ends[0] != ends[1] and rooms.issuperset(ends):
                found.add((ends[0], ends[1]))

    def reachable(start: str) -> set[str]:
        below = {end for begin, end in found if begin == start}
        return below | {far for near in below for far in reachable(near)}

    return {
        (start, end)
        for start, end in found
        if not any(end in reachable(other) for begin, other in found if begin == start and other != end)
    }


def _room(room: str, left: float, top: float, width: float) -> list[str]:
    module = ROOT / "specserve" / room / "__init__.py"
    module = module if module.is_file() else module.parent.with_suffix(".py")
    about = (ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").split("\n")[0]
    words = wrap(re.split(r"[.:;]", about)[0], int(width / 5.6))[:2]
    middle = left + width / 2
    return [
        text(middle, top + 16, room, "strong"),
        *(text(middle, top + 29 + 12 * n, line, "small") for n, line in enumerate(words)),
    ]


def costs() -> str:
    """What a step brings and what it costs, by load: the table of the demo in docs/measurements.md."""
    table = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8").partition("Temperature 0:")[2]
    rows = re.findall(
        r"^\| (\d+) \| all \|.*\| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|$", table, flags=re.MULTILINE
    )
    rows = rows[:4]
    gain = tuple(Value(float(length)) for _, _, length in rows)
    cost = tuple(Value(round(float(length) / float(ratio), 2)) for _, ratio, length in rows)
    names = [load for load, _, _ in rows]
    series = [
        Series("tokens per step (the gain)", 1, gain),
        Series("time per step, relative to a plain step (the cost)", 2, cost),
    ]
    title = "Speculation pays while the gain is above the cost"
    return chart(
        Chart("lines", title, "ratio to a plain step", "concurrency (demo, K = 4)", names, series, 1.0)
    )


def speedups() -> str:
    """The speedup of every K by load, from a sweep."""
    points = [
        point
        for point in json.loads((ROOT / "scripts" / "sweep_demo.json").read_text(encoding="utf-8"))["points"]
        if point["workload"] == "code" and point["temperature"] == 0
    ]
    counts = sorted({point["num_speculative_tokens"] for point in points} - {0})
    series = []
    for number, load in enumerate(sorted({point["concurrency"] for point in points}), start=1):
        found = {each["num_speculative_tokens"]: each for each in points if each["concurrency"] == load}
        values = tuple(
            Value(each["speedup"], each["speedup"] - each["half_width"], each["speedup"] + each["half_width"])
            for each in (found[count] for count in counts)
        )
        series.append(Series(f"concurrency {load}", number, values))
    names = [str(count) for count in counts]
    return chart(
        Chart("lines", "The best K depends on the load", "speedup", "K (demo, code)", names, series, 1.0)
    )


_VERDICTS = {"PAYS": 1, "NO DIFFERENCE": 5, "INCONCLUSIVE": 3, "COSTS": 8}
"""The K of the sweep at concurrency 8 that has each verdict."""


def verdicts() -> str:
    """How an interval becomes a verdict, on four figures of the sweep."""
    points = json.loads((ROOT / "scripts" / "sweep_demo.json").read_text(encoding="utf-8"))["points"]
    found = {
        each["num_speculative_tokens"]: each
        for each in points
        if (each["workload"], each["temperature"], each["concurrency"]) == ("code", 0.0, 8)
    }
    left, right, low, high = 150, 600, 0.85, 1.10

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    lines = [
        rectangle(left, 40, x(0.97) - left, 190, "costs"),
        rectangle(x(0.97), 40, x(1.03) - x(0.97), 190, "same"),
        rectangle(x(1.03), 40, right - x(1.03), 190, "pays"),
        text((left + x(0.97)) / 2, 32, "slower"), text(x(1.0), 32, "no difference"),
        text((x(1.03) + right) / 2, 32, "faster"),
    ]  # fmt: skip
    for tick in (0.85, 0.9, 0.97, 1.0, 1.03, 1.1):
        lines.append(text(x(tick), 248, f"{tick:g}x", "tick"))
    for number, (verdict, count) in enumerate(_VERDICTS.items()):
        y, each = 65 + 45 * number, found[count]
        start, end = x(each["speedup"] - each["half_width"]), x(each["speedup"] + each["half_width"])
        lines += [
            text(140, y + 1, verdict, "end strong"), text(140, y + 15, f"K = {count}", "end small"),
            f'<g class="s1"><line class="range" x1="{start:g}" y1="{y}" x2="{end:g}" y2="{y}"/>'
            f'<circle class="mark" cx="{x(each["speedup"]):g}" cy="{y}" r="4"/></g>',
        ]  # fmt: skip
    lines.append(
        text(320, 272, "speedup with its 95 % confidence interval (demo, code, concurrency 8)", "axis")
    )
    return picture("An interval becomes a verdict", 620, 284, lines)


def scoring() -> str:
    """How verify compares what a server writes with what its target would write."""
    boxes = {
        "write": (20, 44, "1. The server writes", "prompt → text, with speculation"),
        "score": (20, 150, "2. The server scores", "prompt + text → log-probabilities, a plain prefill"),
        "greedy": (400, 40, "temperature 0", "is every token the most likely one?"),
        "sampled": (400, 100, "temperature above 0", "do tokens come as often as q says?"),
        "end": (400, 170, "LOSSLESS, NO FAULT FOUND, LOSSY", "with what the run excludes at 99 %"),
    }
    lines = [text(170, 32, "one server, no restart", "small")]
    for left, top, title, about in boxes.values():
        lines += [
            rectangle(left, top, 300, 46, "box"),
            text(left + 150, top + 19, title, "strong"),
            text(left + 150, top + 36, about, "small"),
        ]
    lines += [
        arrow((170, 90), (170, 148)), text(180, 126, "token ids", "small start"),
        arrow((320, 165), (360, 165), (360, 63), (398, 63)), arrow((360, 123), (398, 123)),
        arrow((550, 146), (550, 168)), arrow((700, 63), (710, 63), (710, 193), (702, 193)),
    ]  # fmt: skip
    return picture("How verify decides", 720, 230, lines)


_MACHINE, _PROFILE = "4xH100-80GB", "configs/llama70b-8b.yaml"


def memory() -> str:
    """The memory of one GPU by part, as `check` computes it for a shipped profile without the network."""
    command = [
        sys.executable,
        "-m",
        "specserve",
        "check",
        "--offline",
        "--assume",
        _MACHINE,
        "--format",
        "json",
        _PROFILE,
    ]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    parts = json.loads(done.stdout)["profiles"][0]["memory"]["per_gpu_bytes"]
    outside = parts["total"] - parts["budget"]
    rows = [
        ("weights of the target", parts["target_weights"], "exact", "s1"),
        ("weights of the draft", parts["draft_weights"], "exact", "s2"),
        ("activations", parts["activation"], "bounds", "s3"),
        ("CUDA, communication, graphs, buffers", parts["other"], "bounds", "s4"),
        ("KV cache: what is left", parts["kv_cache"], "at least the lower bound", "s5"),
        ("outside of gpu_memory_utilization", outside, "not used by vLLM", "s0"),
    ]
    left, width, lines, at = (
        20.0,
        640.0,
        [text(340, 26, f"One GPU of {_MACHINE}, {_PROFILE}", "strong")],
        20.0,
    )
    for number, (name, size, basis, colour) in enumerate(rows):
        is_interval = isinstance(size, dict)
        drawn = (
            (size["low" if name.startswith("KV") else "high"] if is_interval else size)
            / parts["total"]
            * width
        )
        low, high = (size["low"], size["high"]) if is_interval else (size, size)
        shown = f"{low / 2**30:.1f}" + (f" to {high / 2**30:.1f}" if is_interval else "") + f" GiB ({basis})"
        row = 112 + 20 * number
        lines += [
            f'<g class="{colour}"><rect class="bar" x="{at:.1f}" y="44" width="{drawn:.1f}" height="36"/>'
            f'<rect class="bar" x="{left:g}" y="{row - 10}" width="12" height="12"/></g>',
            text(left + 20, row, name, "start"), text(left + 290, row, shown, "start"),
        ]  # fmt: skip
        at += drawn
    return picture("What fills the memory of a GPU", 680, 228, lines)


PICTURES: Mapping[str, Callable[[], str]] = {
    "architecture": architecture,
    "costs": costs,
    "speedups": speedups,
    "verdicts": verdicts,
    "scoring": scoring,
    "memory": memory,
}


def main(arguments: Iterable[str]) -> int:
    """Exit code 1 with --check if a picture is stale."""
    stale = []
    for name, drawn in PICTURES.items():
        file, made = FOLDER / f"{name}.svg", drawn()
        if "--check" in arguments:
            stale += [name] if not file.is_file() or file.read_text(encoding="utf-8") != made else []
        else:
            file.write_text(made, encoding="utf-8")
    print(
        f"stale: {', '.join(stale)}; run scripts/draw_pictures.py" if stale else f"{len(PICTURES)} pictures"
    )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
