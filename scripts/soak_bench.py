"""What `specserve bench` must reach, by long series on the demo pair. Each part runs alone, under a limit of time.

    python scripts/soak_bench.py                  every part, about an hour
    python scripts/soak_bench.py equal --runs 20  one part
    python scripts/soak_bench.py --list

simulation  intervals of 10,000 simulated benchmarks cover the truth 94-96 % of the time; equal arms get at most 1 %
            PAYS or COSTS
equal       one real server (the small pair) as both arms, 20 times: no PAYS and no COSTS
pays        the demo pair: PAYS, and the interval holds the ratio that an independent client (bench_demo.py) measures
bad         a draft of random weights: COSTS
ngram       n-gram drafts: PAYS on text that copies itself, not on creative text

Exit code 0 where all of it is reached, 1 where something is not, 2 where it could not be done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "configs" / "demo.yaml"
PROMPTS = ROOT / "demo" / "prompts.jsonl"
BENCH = [sys.executable, "-m", "specserve", "bench"]
SIDES = {"PAYS", "COSTS"}


class Failed(Exception):
    """A part could not be done."""


def run(command: list[str], *, limit_s: float) -> str:
    """A command's stdout; what it says goes to our stderr. Exit code 1 is an answer, too. Raises Failed."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done within {limit_s:g} s: {' '.join(command)}") from None
    if done.returncode not in (0, 1):
        raise Failed(f"exit code {done.returncode}: {' '.join(command)}")
    return done.stdout


def bench(*options: str, folder: Path, limit_s: float) -> dict[str, Any]:
    """One benchmark's result. SIGTERM by `timeout` would stop its servers; so does our own limit."""
    number = len(list(folder.iterdir()))
    command = [*BENCH, *options, "--format", "json", "-o", str(folder / f"run-{number}")]
    content: dict[str, Any] = json.loads(
        run(["timeout", "-k", "60", str(limit_s), *command], limit_s=limit_s + 90)
    )
    return content


def told(comparison: Mapping[str, Any]) -> str:
    """One comparison in a line."""
    speedup = comparison["speedup"]
    point = comparison["point"]
    place = f"{comparison['arm']} on {point['workload']}, temperature {point['temperature']:g}"
    if speedup is None:
        return f"{place}: no speedup"
    value, low, high = (speedup[key] for key in ("value", "low", "high"))
    length = comparison["mean_acceptance_length"]
    more = f", mean acceptance length {length:.2f}" if length else ""
    return f"{place}: {value:.3f} ({low:.3f}-{high:.3f}) {comparison['verdict']}{more}"


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """The small demo pair, detached and stopped again."""
    name = f"soak-bench-{os.getpid()}"
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state")}
    program = [sys.executable, "-m", "specserve"]
    small = ["--set", f"target.model={ROOT / 'demo' / 'target'}"]
    up = [*program, "up", str(DEMO), *small, "--port", "0", "--detach", "--name", name]
    subprocess.run(up, env=env, check=True, timeout=300, stdout=subprocess.DEVNULL)
    try:
        listed = subprocess.run(
            [*program, "ps", "--format", "json"],
            env=env,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        yield str(json.loads(listed.stdout)["servers"][0]["url"])
    finally:
        subprocess.run([*program, "down", name], env=env, check=False, timeout=120, stdout=subprocess.DEVNULL)


def simulation(args: argparse.Namespace, _folder: Path) -> bool:
    """Coverage and false alarms, at a known truth."""
    script = [sys.executable, str(ROOT / "scripts" / "bench_simulation.py"), "--trials", str(args.trials)]
    return subprocess.run(script, check=False, timeout=args.limit_s).returncode == 0


def equal(args: argparse.Namespace, folder: Path) -> bool:
    """The same server as both arms, again and again."""
    verdicts = []
    with server(folder) as url:
        runs = folder / "runs"
        runs.mkdir()
        for number in range(args.runs):
            result = bench(
                url,
                *("--with", f"again={url}", "-w", "code", "-c", "1", "-t", "0,0.7", "--blocks", "6"),
                *("--max-tokens", "32"),
                folder=runs,
                limit_s=args.limit_s / args.runs,
            )
            for comparison in result["comparisons"]:
                verdicts.append(comparison["verdict"])
                print(f"  {number + 1}/{args.runs} {told(comparison)}", flush=True)
    wrong = sum(verdict in SIDES for verdict in verdicts)
    print(f"{wrong} of {len(verdicts)} comparisons of a server with itself are PAYS or COSTS")
    return wrong == 0


def pays(args: argparse.Namespace, folder: Path) -> bool:
    """The demo pair, and somebody else's clock beside it."""
    result = bench(
        *(str(DEMO), "-w", str(PROMPTS), "-c", "1", "-t", "0", "--max-tokens", "48", "--blocks", "8"),
        folder=folder,
        limit_s=args.limit_s / 2,
    )
    (comparison,) = result["comparisons"]
    print(f"  {told(comparison)}", flush=True)
    script = [sys.executable, str(ROOT / "scripts" / "bench_demo.py"), "--json"]
    options = ["--concurrency", "1", "--temperature", "0", "--prompts", "64", "--max-tokens", "48"]
    other = json.loads(run([*script, *options], limit_s=args.limit_s / 2))
    ratio = next(row["ratio"] for row in other["rows"] if row["kind"] == "all")
    low, high = comparison["speedup"]["low"], comparison["speedup"]["high"]
    print(f"an independent client measured {ratio:.3f}; the interval is {low:.3f}-{high:.3f}")
    return bool(comparison["verdict"] == "PAYS" and low <= ratio <= high)


def bad(args: argparse.Namespace, folder: Path) -> bool:
    """A draft that knows nothing."""
    draft = folder / "bad-draft"
    shutil.copytree(ROOT / "demo" / "draft", draft)
    subprocess.run(
        [sys.executable, "-c", RANDOM_WEIGHTS, str(draft / "model.safetensors")], check=True, timeout=120
    )
    runs = folder / "runs"
    runs.mkdir()
    result = bench(
        *(str(DEMO), "--set", f"speculation.model={draft}", "-w", "code", "-c", "1", "-t", "0"),
        *("--set", "speculation.num_speculative_tokens=8", "--max-tokens", "32"),
        *("--blocks", "8"),
        folder=runs,
        limit_s=args.limit_s,
    )
    (comparison,) = result["comparisons"]
    print(f"  {told(comparison)}")
    return bool(comparison["verdict"] == "COSTS")


RANDOM_WEIGHTS = """
import sys, torch
from safetensors.torch import load_file, save_file
torch.manual_seed(1)
tensors = load_file(sys.argv[1])
save_file({name: torch.randn_like(each) * 0.05 if each.dim() > 1 else each for name, each in tensors.items()},
          sys.argv[1], metadata={"format": "pt"})
"""


def ngram(args: argparse.Namespace, folder: Path) -> bool:
    """N-grams of the prompt: good where the text repeats it, useless where it does not."""
    profile = folder / "ngram.yaml"
    content = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    content["target"]["model"] = str(ROOT / "demo" / "wide")
    content["speculation"] = {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    copying = folder / "copying.jsonl"
    copying.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in copies()))
    runs = folder / "runs"
    runs.mkdir()
    found = {}
    for workload, temperature in ((str(copying), "0"), ("creative", "1")):
        result = bench(
            *(str(profile), "-w", workload, "-c", "1", "-t", temperature, "--blocks", "8"),
            *("--max-tokens", "48"),
            folder=runs,
            limit_s=args.limit_s / 2,
        )
        (comparison,) = result["comparisons"]
        print(f"  {told(comparison)}", flush=True)
        found[comparison["point"]["workload"]] = comparison["verdict"]
    return bool(found["copying"] == "PAYS" and found["creative"] != "PAYS")


def copies() -> Iterator[str]:
    """Code that says the same thing again and again, cut off where it goes on so."""
    names = ["width", "height", "depth", "name", "color", "weight", "price", "count"]
    for start in range(16):
        ring = names[start % 8 :] + names[: start % 8]
        kind = "int" if start < 8 else "str"
        lines = ["class Record:", "    def __init__(self):"]
        lines += [f"        self._{name} = None" for name in ring]
        for name in ring[:4]:
            lines += [
                "",
                f"    def get_{name}(self):",
                f"        if self._{name} is None:",
                f'            raise ValueError("{name} is not set")',
                f"        return {kind}(self._{name})",
            ]
        yield "\n".join([*lines, "", f"    def get_{ring[4]}(self):"])


PARTS: Mapping[str, tuple[Callable[[argparse.Namespace, Path], bool], float]] = {
    "simulation": (simulation, 1200.0),
    "equal": (equal, 3600.0),
    "pays": (pays, 1800.0),
    "bad": (bad, 900.0),
    "ngram": (ngram, 1800.0),
}


def main() -> int:
    """Run the parts that are asked for, and say which were reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=True
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--list", action="store_true", help="the parts and their limits, and stop")
    parser.add_argument("--runs", type=int, default=20, help="of `equal` (20)")
    parser.add_argument("--trials", type=int, default=10_000, help="of `simulation` (10,000)")
    parser.add_argument("--limit-s", type=float, help="of each part, instead of its own")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped
    if args.list:
        print("\n".join(f"{name:11} at most {limit_s / 60:g} min" for name, (_, limit_s) in PARTS.items()))
        return 0
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    wanted, results = args.parts or list(PARTS), {}
    for name in wanted:
        part, limit_s = PARTS[name]
        began = time.monotonic()
        print(f"{name}:", flush=True)
        options = argparse.Namespace(**{**vars(args), "limit_s": args.limit_s or limit_s})
        with tempfile.TemporaryDirectory(prefix="specserve-soak-") as folder:
            try:
                results[name] = part(options, Path(folder))
            except (Failed, subprocess.SubprocessError) as error:
                print(f"error: {error}", file=sys.stderr)
                return 2
        state = "reached" if results[name] else "MISSED"
        print(f"{name}: {state} in {time.monotonic() - began:.0f} s", flush=True)
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
