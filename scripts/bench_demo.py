"""What speculation gains on the demo: tokens/s with and without it, block by block in turn, and acceptance.

    python scripts/bench_demo.py [--quick] [PROFILE] [--concurrency 1,2,4,8] [--temperature 0,0.7]

Both servers run all the time; the one that is not asked is idle. The table goes to stdout. Exit code 1 where the
profile is the demo's and misses its targets (concurrency 1, temperature 0).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from bench_blocks import (
    Block,
    Pair,
    Point,
    Summary,
    idle_share,
    measure_pairs,
    others_share,
    read_blocks,
    summarize,
    warm_up,
)

from specserve.checks.prepare import prepare
from specserve.errors import SpecserveError
from specserve.plan.launch import LaunchOptions
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices, failure
from specserve.serve.logs import default_log
from specserve.serve.server import RunningServer, running

ROOT = Path(__file__).resolve().parents[1]
ALL = "all"
TARGETS = (  # kind, what, at least: for concurrency 1 at temperature 0
    (ALL, "acceptance", 0.5),
    (ALL, "ratio", 1.8),
    ("head", "ratio", 2.4),
)


def main() -> int:
    """The exit code: 0, 1 where a target is missed, 2 where a server failed, 130 or 143 for a signal."""
    args = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    blocks = read_blocks(args.prompt_file, prompts=args.prompts, block_size=args.block_size)
    try:
        with two_servers(args) as (plain, speculative):
            pairs, vllm = measured(plain, speculative, blocks, args), speculative.plan.vllm
    except SpecserveError as error:
        say(failure(error))
        return error.exit_code
    if not pairs:
        say("no time for a single pair: raise --limit-s")
        return 2
    groups = grouped(pairs)
    verdicts = judged(groups)
    if args.json:
        out(json.dumps(as_json(pairs, verdicts, vllm=vllm), indent=2))
    else:
        out(table(groups))
        out(machine(vllm))
        out(
            f"of one core: the idle server {idle_share(pairs):.0%}, everything else {others_share(pairs):.0%}"
        )
        out("\n".join(f"target: {text}: {'reached' if good else 'MISSED'}" for text, good in verdicts))
    return 0 if all(good for _, good in verdicts) else 1


def arguments() -> argparse.Namespace:
    """The command line; `--quick` changes defaults only."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("profile", nargs="?", default=str(ROOT / "configs" / "demo.yaml"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value")
    parser.add_argument("--quick", action="store_true", help="16 prompts, concurrency 1, about two minutes")
    parser.add_argument("--prompt-file", type=Path, default=ROOT / "demo" / "prompts.jsonl")
    parser.add_argument("--prompts", type=int, metavar="N", help="the first N, half of each kind (64)")
    parser.add_argument("--max-tokens", type=int, default=48, help="of one answer (48)")
    parser.add_argument("--block-size", type=int, default=8, help="prompts in a block (8)")
    parser.add_argument("--concurrency", type=numbers(int), metavar="LIST", help="such as 1,2,4,8")
    parser.add_argument("--temperature", type=numbers(float), metavar="LIST", help="such as 0,0.7")
    parser.add_argument("--rounds", type=int, default=1, help="times that every block is sent (1)")
    parser.add_argument("--limit-s", type=float, default=720, help="no block begins after so long (720)")
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    args = parser.parse_args()
    args.prompts = args.prompts or (16 if args.quick else 64)
    args.concurrency = args.concurrency or ([1] if args.quick else [1, 2, 4, 8])
    args.temperature = args.temperature or [0.0, 0.7]
    return args


def numbers(kind: type[int] | type[float]) -> Any:
    """A converter for `1,2,4`."""
    return lambda text: [kind(part) for part in text.split(",")]


def leave(number: int, _frame: FrameType | None) -> None:
    """Unwind once, and let no second signal break into the stopping of the servers, which is bounded."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    say("stopping both servers")
    sys.exit(128 + number)


@contextlib.contextmanager
def two_servers(args: argparse.Namespace) -> Iterator[tuple[RunningServer, RunningServer]]:
    """The profile without and with speculation, on free ports. Raises SpecserveError."""
    with contextlib.ExitStack() as stack:
        servers = []
        for baseline in (True, False):
            _, plan = prepare(
                args.profile,
                LaunchOptions(settings=tuple(args.set), port=0, baseline=baseline),
                notices=StderrNotices(),
            )
            say(f"starting the server {'without' if baseline else 'with'} speculation")
            servers.append(stack.enter_context(running(plan, log_path=default_log(plan.name))))
        yield servers[0], servers[1]


def measured(
    plain: RunningServer, speculative: RunningServer, blocks: Sequence[Block], args: argparse.Namespace
) -> list[Pair]:
    """All pairs of blocks at all points, as far as the time goes."""
    say("warming up")
    for server in (plain, speculative):
        warm_up(server, blocks[:2])
    began, pairs = time.monotonic(), []
    for temperature in args.temperature:
        for concurrency in args.concurrency:
            point = Point(concurrency, temperature, args.max_tokens)
            for pair in measure_pairs(plain, speculative, blocks, point=point, rounds=args.rounds):
                pairs.append(pair)
                elapsed_s = time.monotonic() - began
                say(
                    f"{elapsed_s:4.0f} s  T {temperature:g}, concurrency {concurrency}, {pair.kind}: "
                    f"{pair.plain.tokens_per_s:.1f} → {pair.speculative.tokens_per_s:.1f} tokens/s"
                )
                if elapsed_s > args.limit_s:
                    say(f"{args.limit_s:g} s are over: the rest is left out")
                    return pairs
    return pairs


def grouped(pairs: Sequence[Pair]) -> dict[tuple[float, int, str], Summary]:
    """Summaries by temperature, concurrency and kind; the kind `all` takes the kinds together."""
    groups: dict[tuple[float, int, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.point.temperature, pair.point.concurrency, pair.kind), []).append(pair)
    for pair in pairs:
        groups.setdefault((pair.point.temperature, pair.point.concurrency, ALL), []).append(pair)
    return {
        key: summarize(members) for key, members in sorted(groups.items(), key=lambda item: place(item[0]))
    }


def place(key: tuple[float, int, str]) -> tuple[float, int, bool, str]:
    """Where a row stands: `all` after the kinds."""
    temperature, concurrency, kind = key
    return temperature, concurrency, kind == ALL, kind


def judged(groups: dict[tuple[float, int, str], Summary]) -> list[tuple[str, bool]]:
    """Each target that was measured, and whether it is reached."""
    verdicts = []
    for kind, what, at_least in TARGETS:
        summary = groups.get((0.0, 1, kind))
        if summary is not None:
            rate = summary.acceptance.acceptance_rate or 0.0
            found = summary.ratio if what == "ratio" else rate
            verdicts.append((f"{kind}, {what} {found:.2f}, at least {at_least:g}", found >= at_least))
    return verdicts


def table(groups: dict[tuple[float, int, str], Summary]) -> str:
    """80 columns: tokens/s of all blocks, ratio with the range of the pairs, acceptance."""
    lines = [
        "              tokens/s         ratio, and that of the pairs        accepted  tokens",
        "   T   c kind  without    with   overall  median  least   most         drafts  a step",
    ]
    for (temperature, concurrency, kind), each in groups.items():
        rate, length = each.acceptance.acceptance_rate, each.acceptance.mean_acceptance_length
        lines.append(
            f"{temperature:4g} {concurrency:3d} {kind:5}"
            f"{each.plain_tokens_per_s:7.1f} {each.speculative_tokens_per_s:7.1f}"
            f"{each.ratio:9.2f}x {each.median_ratio:6.2f}x {min(each.ratios):5.2f}x {max(each.ratios):5.2f}x"
            f"{f'{rate:.2f}' if rate is not None else '-':>14}"
            f"{f'{length:.2f}' if length is not None else '-':>8}"
        )
    return "\n".join(lines)


def as_json(pairs: Sequence[Pair], verdicts: Sequence[tuple[str, bool]], *, vllm: str) -> dict[str, Any]:
    """The table as data."""
    rows = [
        {
            "temperature": temperature,
            "concurrency": concurrency,
            "kind": kind,
            **dataclasses.asdict(each),
            "ratio": each.ratio,
            "acceptance_rate": each.acceptance.acceptance_rate,
            "mean_acceptance_length": each.acceptance.mean_acceptance_length,
        }
        for (temperature, concurrency, kind), each in grouped(pairs).items()
    ]
    targets = [{"target": text, "reached": good} for text, good in verdicts]
    return {
        "version": 1,
        "rows": rows,
        "targets": targets,
        "machine": machine(vllm),
        "idle_core_share": idle_share(pairs),
        "others_core_share": others_share(pairs),
    }


def machine(vllm: str) -> str:
    """Where and when this was measured."""
    import psutil

    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_gib = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {cores} cores of {names[0] if names else platform.machine()}, "
        f"{memory_gib:.0f} GiB, vLLM {vllm}"
    )


if __name__ == "__main__":
    sys.exit(main())
