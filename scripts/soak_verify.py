"""Series of verifications on a real server: false alarms, wrong temperatures, and how long it takes.

    python scripts/soak_verify.py [--runs 100] [--answers 600] [--wide] [--record FILE]

Starts the small demo pair once. Answers are written and scored once for each temperature (0.7, 5 % hotter, 5 % colder,
judged as 0.7), then each run draws its answers from them in an order of its own. Exit code 1 where more than 1 in 200
right runs is LOSSY, or fewer than 95 in 100 wrong ones are. --wide: the widened demo as a user meets it, too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from specserve.hardware.host import free_port
from specserve.measure.verify.result import Sampling, VerifyVerdict
from specserve.measure.verify.sampled import Collector, Tally, tally
from specserve.measure.verify.server import load_prompts
from specserve.measure.verify.session import TOP, Position, ScoredText, VerifySession, results_of
from specserve.serve.client import Client
from specserve.serve.requests import endpoint

ROOT = Path(__file__).resolve().parents[1]
PROFILE = str(ROOT / "configs" / "demo.yaml")
SMALL = ["--set", f"target.model={ROOT / 'demo' / 'target'}"]
ASKED = Sampling(0.7)
FACTORS = (1.0, 1.05, 0.95)
RECORDED = 30


def answers(url: str, sampling: Sampling, *, count: int) -> list[ScoredText]:
    """So many answers with their scores."""
    asked, _ = load_prompts()
    with Client(endpoint(url)) as client:
        session = VerifySession(client)
        session.warm_up(asked[0])

        def job(number: int) -> Callable[[], ScoredText]:
            prompt = asked[number % len(asked)]
            return lambda: session.scored(session.generate(prompt, sampling, max_tokens=128))

        return list(results_of(map(job, range(count)), concurrency=8, on_tick=lambda: None))


def verdict(tallies: Sequence[Tally], *, seed: int) -> VerifyVerdict:
    """One run on these answers, each used once."""
    collector = Collector(ASKED)
    for one in random.Random(seed).sample(tallies, len(tallies)):
        collector.add(one)
        if collector.is_decided:
            break
    return collector.judged().verdict


def place(position: Position) -> int:
    """Of the emitted token among the likeliest; -1: beyond."""
    return next((at for at, (token, _) in enumerate(position.top[:TOP]) if token == position.token), -1)


def record(found: Sequence[ScoredText], file: Path) -> None:
    """Write what the unit tests simulate servers on."""
    rows = []
    for one in [item for item in found if len(item.positions) >= 16][:RECORDED]:
        rows.append({
            "token": [place(item) for item in one.positions],
            "own": [round(1000 * item.logprob) for item in one.positions],
            "top": [[round(1000 * logprob) for _, logprob in item.top[:TOP]] for item in one.positions],
        })  # fmt: skip
    about = (
        "Tokens of the small demo pair at temperature 0.7, with what the target thinks of them by a plain "
        "prefill: `token` is the emitted one's place among the 20 likeliest (-1: beyond), `own` its "
        "log-probability, `top` those of the 20, in thousandths of a nat."
    )
    head = {"about": about, "recorded": time.strftime("%Y-%m-%d"), "temperature": ASKED.temperature}
    data = json.dumps({**head, "answers": rows}, separators=(",", ":")).encode()
    file.write_bytes(gzip.compress(data, 9, mtime=0))


def series(url: str, *, runs: int, count: int, file: Path | None) -> bool:
    """Whether the verdicts are as they must be."""
    good = True
    for factor in FACTORS:
        began = time.monotonic()
        found = answers(url, Sampling(ASKED.temperature * factor), count=count)
        if file is not None and factor == 1.0:
            record(found, file)
        tallies = [tally(one.positions, ASKED) for one in found]
        many = 2 * runs if factor == 1.0 else runs
        seen = Counter(verdict(tallies, seed=seed).value for seed in range(many))
        tokens, took_s = sum(len(one.positions) for one in found), time.monotonic() - began
        print(
            f"drawn at {factor:g} times the temperature: {tokens:,} tokens in {took_s:.0f} s, {many} runs: {dict(seen)}"
        )
        lossy = seen[VerifyVerdict.LOSSY.value]
        good &= lossy <= many / 200 if factor == 1.0 else lossy >= 0.95 * many
    return good


def verify(target: str, *options: str, env: dict[str, str]) -> None:
    """`specserve verify` as a user runs it, with its time."""
    command = [sys.executable, "-m", "specserve", "verify", target, "--format", "json", *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if not done.stdout:
        print(done.stderr)
        return
    found = json.loads(done.stdout)
    parts = (
        [f"T = 0 {found['greedy']['verdict']} on {found['greedy']['tokens']} tokens"]
        if found["greedy"]
        else []
    )
    parts += [f"T = 0.7 {item['verdict']} on {item['tokens']} tokens" for item in found["sampled"]]
    bound = found["excluded_temperature_percent"]
    parts += [f"excludes a temperature wrong by {bound:.1f} %"] if bound is not None else []
    print(f"verify {target}: {found['verdict']} in {found['elapsed_s']:.0f} s ({', '.join(parts)})")


def main() -> int:
    """0: the series are as they must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--answers", type=int, default=600)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specserve-verify-") as state:
        env = {**os.environ, "SPECSERVE_STATE_DIR": state, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        port = free_port("127.0.0.1")
        start = [sys.executable, "-m", "specserve", "up", PROFILE, *SMALL, "--detach", "--port", str(port)]
        subprocess.run(start, env=env, check=True, capture_output=True)
        try:
            verify(f"http://127.0.0.1:{port}", env=env)
            good = series(f"http://127.0.0.1:{port}", runs=args.runs, count=args.answers, file=args.record)
        finally:
            subprocess.run(
                [sys.executable, "-m", "specserve", "down", "demo"], env=env, check=False, capture_output=True
            )
        if args.wide:
            verify(PROFILE, env=env)
            verify(PROFILE, "--seconds", "600", "--no-smoke", env=env)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
