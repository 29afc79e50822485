"""Three canaries beside the demo under traffic: an equal draft, a worse one, none. Which verdicts does `watch` give?

    python scripts/soak_canary.py [--for 15m] [--concurrency 2] [--noise 0.5] [--only equal]

Both servers of a pair get prompts of demo/prompts.jsonl at random, 48 tokens each at temperature 0. The worse draft has
noise in its weights, `--noise` standard deviations of each tensor. The margins are wide, so that few minutes of a CPU
decide. The exit code is 1 if a verdict is wrong, or a request failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from soak_watch import PROMPTS, post

from specserve.hardware.host import free_port

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "specserve")
MARGINS = ("--margin", "acceptance=0.15", "--margin", "tpot=0.5", "--margin", "errors=0.05")


@dataclass(frozen=True)
class Canary:
    """How a canary is started, and what must be said of it."""

    about: str
    settings: tuple[str, ...]
    codes: frozenset[int]
    """Exit codes that are right; 4, not decided, is right of an equal draft on a machine that is slow."""
    figures: frozenset[str]
    """Those of which at least one must be worse."""


def canaries(worse_draft: Path) -> Mapping[str, Canary]:
    """The pairs by name."""
    draft = ("--set", f"speculation.model={worse_draft}")
    return {
        "equal": Canary("the same draft", (), frozenset({0, 4}), frozenset()),
        "worse": Canary("noise in the draft", draft, frozenset({1}), frozenset({"acceptance"})),
        "none": Canary("no speculation", ("--baseline",), frozenset({1}), frozenset({"tpot"})),
    }


class Traffic:
    """Requests without a pause to one server, until it is closed; a context manager."""

    def __init__(self, port: int, *, concurrency: int, seed: int) -> None:
        self.failed: list[str] = []
        self._port, self._ended = port, threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(random.Random(seed * 1000 + number),), daemon=True)
            for number in range(concurrency)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, rng: random.Random) -> None:
        while not self._ended.is_set():
            body = {"model": "demo", "prompt": rng.choice(PROMPTS), "max_tokens": 48, "temperature": 0}
            try:
                post(self._port, "/v1/completions", body)
            except (OSError, ValueError) as error:
                self.failed.append(str(error)[:200])
                self._ended.wait(1)


def spoil(folder: Path, *, noise: float) -> Path:
    """A copy of the demo's draft with noise in its weights."""
    import torch
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(ROOT / "demo" / "draft", folder / "draft")
    file = copy / "model.safetensors"
    generator = torch.Generator().manual_seed(1)
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            wide = tensor.float()
            wide += noise * wide.std() * torch.randn(wide.shape, generator=generator)
            tensors[name] = wide.to(tensor.dtype)
    save_file(tensors, file, metadata={"format": "pt"})
    return copy


@contextlib.contextmanager
def server(name: str, folder: Path, env: dict[str, str], *settings: str, core: int) -> Iterator[int]:
    """The demo, detached; its port. Two servers that compute on one core may starve each other."""
    port = free_port("127.0.0.1")
    profile = folder / f"{name}.yaml"
    base = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text(encoding="utf-8"))
    base["target"]["model"] = str(ROOT / "demo" / "wide")
    base["speculation"]["model"] = str(ROOT / "demo" / "draft")
    base["env"] = {"VLLM_CPU_OMP_THREADS_BIND": str(core)}
    profile.write_text(yaml.safe_dump(base), encoding="utf-8")
    up = ("up", str(profile), "--detach", "--name", name, "--port", str(port), "--no-check", *settings)
    subprocess.run([*COMMAND, *up], env=env, check=True, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        subprocess.run([*COMMAND, "down", name], env=env, check=False, stdout=subprocess.DEVNULL)


def compare(ports: tuple[int, int], *, for_time: str, env: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """The exit code of `watch --against`, and its last object."""
    canary, other = (f"http://127.0.0.1:{port}" for port in ports)
    options = ("--against", other, "--for", for_time, "--interval", "5s", "--format", "json", *MARGINS)
    done = subprocess.run(
        [*COMMAND, "watch", canary, *options], env=env, check=False, stdout=subprocess.PIPE, text=True
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def run(args: argparse.Namespace, folder: Path) -> list[str]:
    """All pairs; what was wrong."""
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state"), "HF_HUB_OFFLINE": "1"}
    pairs = canaries(spoil(folder, noise=args.noise))
    bad: list[str] = []
    cores = sorted(os.sched_getaffinity(0))
    with server("other", folder, env, core=cores[0]) as other:
        for number, name in enumerate(args.only or pairs):
            pair = pairs[name]
            with (
                server(name, folder, env, *pair.settings, core=cores[-1]) as port,
                contextlib.ExitStack() as stack,
            ):
                traffic = [
                    stack.enter_context(Traffic(each, concurrency=args.concurrency, seed=2 * number + side))
                    for side, each in enumerate((port, other))
                ]
                code, found = compare((port, other), for_time=args.for_time, env=env)
            print(f"{pair.about}: {found['state']}, {found['sentence']}; exit code {code}")
            print(
                f"  after {found['seconds']:.0f} s, {found['canary']['requests']} requests of the canary and "
                f"{found['other']['requests']} of the other server, {found['blocks']} blocks"
            )
            for key, figure in found["figures"].items():
                print(f"  {key}: {json.dumps(figure)}")
            bad += [f"{pair.about}: exit code {code}"] if code not in pair.codes else []
            worse = {key for key, figure in found["figures"].items() if figure["verdict"] == "worse"}
            if bool(worse & pair.figures) != bool(pair.figures) or (worse and not pair.figures):
                bad.append(f"{pair.about}: worse in {worse or 'nothing'}")
            bad += [f"{pair.about}: {text}" for each in traffic for text in each.failed[:3]]
    return bad


def main() -> int:
    """0: every verdict is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--for", dest="for_time", default="15m")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--only", choices=("equal", "worse", "none"), action="append")
    args = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix="specserve-canary-") as name:
        bad = run(args, Path(name))
    print("\n".join(bad) or "all verdicts are right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
