"""Distils the demo's draft for a narrow domain, as a user would, and measures what it costs on the old prompts.

    python scripts/soak_distill.py -o DIR

The domain is constructors of neural networks as transformers writes them (installed with vLLM). The old traffic is
functions of the standard library, from modules that the demo pair was not trained on. Afterwards both drafts are
measured on demo/prompts.jsonl: the same kind of prompts, from other modules that no training has seen.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts" / "demo_pair"))

from corpus import held_out, is_test, library, validation_texts  # noqa: E402
from prompts import heads, mids  # noqa: E402

REQUESTS, OLD_REQUESTS = 230, 96
_MOST_CHARS, _FIRST_LINES, _LEAST_LINES = 260, 5, 8
_SEED = 20261123


def constructors(files: Iterable[Path]) -> Iterator[str]:
    """The first lines of each `__init__` that goes on for longer."""
    for file in files:
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
                indent = len(lines[0]) - len(lines[0].lstrip())
                head = "\n".join(line[indent:] for line in lines[:_FIRST_LINES])
                if len(lines) >= _LEAST_LINES and len(head) <= _MOST_CHARS:
                    yield head


def write_log(file: Path, texts: Iterable[str], *, count: int) -> None:
    """A log of completion requests, drawn by a seed."""
    found = list(dict.fromkeys(texts))
    random.Random(_SEED).shuffle(found)
    rows = [{"model": "demo", "prompt": each, "max_tokens": 64, "temperature": 0} for each in found[:count]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def trained_modules() -> list[str]:
    """The sources that the demo pair was trained on."""
    out = {name for names in held_out().values() for name in names}
    return [text for name, text in library().items() if name not in out and not is_test(name)]


def prompts(sources: Iterable[str]) -> list[str]:
    """Prompts as the demo's own: heads and insides of functions."""
    return [prompt for text in sources for find in (heads, mids) for prompt in find(text)]


def make_inputs(folder: Path) -> None:
    """The profile, the log of the domain and the prompts of the old traffic."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    models = sorted((Path(spec.origin).parent / "models").glob("*/modeling_*.py"))
    write_log(folder / "traffic.jsonl", constructors(models), count=REQUESTS)
    write_log(folder / "old.jsonl", prompts(validation_texts()), count=OLD_REQUESTS)
    profile = (ROOT / "configs" / "demo.yaml").read_text().replace("../demo", str(ROOT / "demo"))
    (folder / "demo.yaml").write_text(profile)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--train-for", default="3m")
    given = parser.parse_args()
    folder = given.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "demo.yaml").exists():
        make_inputs(folder)
    program, profile = Path(sys.executable).with_name("specserve"), folder / "demo.yaml"
    distil = [
        program, "distill", profile, "--traffic", folder / "traffic.jsonl", "--mix", folder / "old.jsonl",
        "--train-for", given.train_for, "--max-tokens", "64", "-o", folder / "run",
    ]  # fmt: skip
    began = time.monotonic()
    code = subprocess.run(distil, check=False).returncode
    print(f"distill: exit code {code} after {(time.monotonic() - began) / 60:.1f} min", flush=True)
    if code != 0:
        return code
    bench = [
        program, "bench", profile, "-w", ROOT / "demo" / "prompts.jsonl", "-c", "4", "--max-tokens", "48",
        "--budget", "5m", "-o", folder / f"old-prompts-{int(time.time())}",
    ]  # fmt: skip
    return subprocess.run(bench, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
