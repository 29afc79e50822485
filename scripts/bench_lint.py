"""`specserve lint` as whole processes: one profile, beside check-jsonschema in the same run, and a thousand.

    python scripts/bench_lint.py [PROFILE] [--rounds 15] [--check-jsonschema PROGRAM | --install]

check-jsonschema validates the same file by configs/profile.schema.json; the two run in turn, so that a busy
machine slows both. Without it, its lines are left out; --install brings it into a temporary environment.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "configs" / "profile.schema.json"
MANY = 1000
LIMIT_MS, LIMIT_MANY_S = 150, 3.0
"""What the design asks for."""
SHOWN = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("profile", nargs="?", default=str(ROOT / "configs" / "llama70b-8b.yaml"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check-jsonschema", default=shutil.which("check-jsonschema"), metavar="PROGRAM")
    parser.add_argument("--install", action="store_true", help="into a temporary environment")
    args = parser.parse_args()
    lint = [*specserve(), "lint", args.profile]
    with tempfile.TemporaryDirectory() as folder:
        other = installed(Path(folder)) if args.install else args.check_jsonschema
        rivals = {"python -c pass": [sys.executable, "-c", "pass"], "specserve lint": lint}
        if other:
            rivals["check-jsonschema"] = [other, "--schemafile", str(SCHEMA), args.profile]
        else:
            print("check-jsonschema is not here: --install brings it, --check-jsonschema names it")
        medians = compare(rivals, rounds=args.rounds)
        if other:
            print(
                f"ratio, check-jsonschema to lint: {medians['check-jsonschema'] / medians['specserve lint']:.2f}"
            )
        many = thousand(Path(folder), args.profile)
    print(f"lint, {MANY:,} profiles: {many:.2f} s")
    print_imports(lint)
    good = medians["specserve lint"] <= LIMIT_MS / 1000 and many <= LIMIT_MANY_S
    print(f"asked for: {LIMIT_MS} ms, {LIMIT_MANY_S:.0f} s: {'met' if good else 'missed'}")
    return 0 if good else 1


def specserve() -> list[str]:
    """The program as users start it; as a module where it has no script."""
    script = Path(sys.executable).with_name("specserve")
    return [str(script)] if script.exists() else [sys.executable, "-m", "specserve"]


def installed(folder: Path) -> str:
    """check-jsonschema in an environment of its own below this folder."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "check-jsonschema"]
    subprocess.run(pip, check=True)
    return str(folder / "venv" / "bin" / "check-jsonschema")


def compare(rivals: dict[str, list[str]], *, rounds: int) -> dict[str, float]:
    """Median seconds of each, run in turn; the first round warms the caches and does not count."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds + 1):
        for name, command in rivals.items():
            seconds = timed(command)
            if number:
                times[name].append(seconds)
    for name, seconds_of in times.items():
        low, high = min(seconds_of), max(seconds_of)
        median = statistics.median(seconds_of)
        print(f"{name:<18}{1000 * median:6.0f} ms   ({1000 * low:.0f} to {1000 * high:.0f}, {rounds} runs)")
    return {name: statistics.median(seconds_of) for name, seconds_of in times.items()}


def timed(command: Sequence[str]) -> float:
    """Seconds of one whole process that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def thousand(folder: Path, profile: str) -> float:
    """Seconds for a folder of many profiles, no two of them alike."""
    text = re.sub(r"(?m)^name:.*$", "", Path(profile).read_text(encoding="utf-8"))
    place = folder / "many"
    place.mkdir()
    for number in range(MANY):
        (place / f"p{number}.yaml").write_text(f"name: p{number}\n{text}", encoding="utf-8")
    return min(timed([*specserve(), "lint", str(place)]) for _ in range(3))


def print_imports(lint: Sequence[str]) -> None:
    """What the imports of one run cost, and the most expensive of them by their own time."""
    command = [sys.executable, "-X", "importtime", "-m", "specserve", *lint[-2:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)", done.stderr)
    total_ms = sum(int(own) for own, _ in rows) / 1000
    print(f"imports: {len(rows)} modules, {total_ms:.0f} ms under measurement; the largest:")
    for own, name in sorted(rows, key=lambda row: -int(row[0]))[:SHOWN]:
        print(f"  {int(own) / 1000:6.1f} ms  {name}")


if __name__ == "__main__":
    sys.exit(main())
