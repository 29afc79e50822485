"""`specserve check` against vLLM itself on the matrix of mistakes: how long each takes to say no.

    python scripts/bench_check.py [--rounds 3] [--config-cases N] [--load-cases N]

Both are whole processes. vLLM's side builds its configuration, or loads the model and writes four tokens, in a
process that does nothing else: `vllm serve` takes longer. The checkpoints are small, so loading costs vLLM nothing
here. Prints a table; ends with 1 where the two do not agree on a case.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.engine.matrix import FAILS_LOADING, REFUSED, SOUND, Case  # noqa: E402

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
GOALS = {"config": 5.0, "load": 15.0}


def main() -> int:
    """Every case through check; the mistakes through vLLM too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="of check; the median counts")
    parser.add_argument("--config-cases", type=int, default=len(REFUSED))
    parser.add_argument("--load-cases", type=int, default=len(FAILS_LOADING))
    args = parser.parse_args()
    cases = [*REFUSED[: args.config_cases], *FAILS_LOADING[: args.load_cases], *SOUND]
    agreed = True
    ratios: dict[str, list[float]] = {"config": [], "load": []}
    with tempfile.TemporaryDirectory(prefix="matrix-") as directory:
        folder = Path(directory)
        for case in cases:
            profile = case.lay_out(folder)
            runs = [check(profile) for _ in range(args.rounds)]
            own_s = statistics.median(elapsed_s for elapsed_s, _ in runs)
            refused = runs[0][1]
            agreed &= refused == (case.stage != "served")
            line = f"{case.stage:6}  check {'error' if refused else 'ok':5} {own_s:5.2f} s"
            if case.stage != "served":
                theirs_s, said_no = vllm(case, folder)
                agreed &= said_no
                ratios[case.stage].append(theirs_s / own_s)
                line += f"  vLLM {'error' if said_no else 'ok':5} {theirs_s:5.2f} s  {theirs_s / own_s:5.1f}x"
            print(f"{line}  {case.name}", flush=True)
    summarise(ratios)
    print("both agree on every case" if agreed else "the two do not agree")
    return 0 if agreed else 1


def check(profile: Path) -> tuple[float, bool]:
    """Seconds of a whole process, and whether it says no: an error (1), or a model that is not there (2)."""
    start = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-m", "specserve", "check", str(profile), "--offline"],
        capture_output=True, cwd=ROOT, check=False,
    )  # fmt: skip
    elapsed_s = time.perf_counter() - start
    if ran.returncode not in (0, 1, 2):
        raise SystemExit(ran.stderr.decode())
    return elapsed_s, ran.returncode != 0


def vllm(case: Case, folder: Path) -> tuple[float, bool]:
    """The same for vLLM: from the start of the process until it says no."""
    script = "configure.py" if case.stage == "config" else "load.py"
    start = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "engine" / script)],
        input=json.dumps({"name": case.name, "kwargs": case.kwargs(folder)}) + "\n",
        capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, check=True,
    )  # fmt: skip
    elapsed_s = time.perf_counter() - start
    return elapsed_s, json.loads(ran.stdout.splitlines()[-1])["refused"] is not None


def summarise(ratios: dict[str, list[float]]) -> None:
    """Median and worst ratio of each kind, against the goal."""
    for stage, values in ratios.items():
        if values:
            text = f"median {statistics.median(values):.1f}x, least {min(values):.1f}x of {len(values)}"
            print(f"{stage}: check is sooner by {text} (goal: {GOALS[stage]:.0f}x)")


if __name__ == "__main__":
    sys.exit(main())
