"""Distils the demo's draft for a narrow domain, as a user would, and measures what it costs on the old prompts.

    python scripts/soak_distill.py -o DIR

The domain is symbolic mathematics as sympy writes it (installed with torch): heads of its functions. The demo pair was
trained on the standard library; heads of that, without the modules held out then, are the old traffic. Afterwards both
drafts are measured on demo/prompts.jsonl, which neither of them has seen.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUESTS, OLD_REQUESTS = 400, 96
_MOST_CHARS, _LEAST_CHARS = 500, 80
_NO_TEXT = {"test", "tests", "site-packages", "encodings", "pydoc_data", "idlelib", "lib2to3"}
_SEED = 20261123


def heads(files: Iterable[Path]) -> Iterator[str]:
    """Signature and docstring of functions, dedented, as far as they are not too long."""
    for file in files:
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                lines = text.splitlines()[first - 1 : node.body[0].end_lineno]
                indent = len(lines[0]) - len(lines[0].lstrip())
                head = "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)
                if _LEAST_CHARS <= len(head) <= _MOST_CHARS:
                    yield head


def sources(folder: Path, *, without: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The modules of a package, without tests and tables."""
    for file in sorted(folder.rglob("*.py")):
        inner = file.relative_to(folder)
        if not _NO_TEXT & set(inner.parts) and inner.as_posix() not in without:
            yield file


def write_log(file: Path, texts: Iterable[str], *, count: int) -> None:
    """A log of completion requests, drawn by a seed."""
    found = list(dict.fromkeys(texts))
    random.Random(_SEED).shuffle(found)
    rows = [{"model": "demo", "prompt": each, "max_tokens": 64, "temperature": 0} for each in found[:count]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_inputs(folder: Path) -> None:
    """The profile, the log of the domain and the prompts of the old traffic."""
    spec = importlib.util.find_spec("sympy")
    assert spec is not None and spec.origin is not None
    write_log(folder / "traffic.jsonl", heads(sources(Path(spec.origin).parent)), count=REQUESTS)
    held_out = json.loads((ROOT / "scripts" / "demo_pair" / "held_out.json").read_text())["files"]
    without = frozenset(name for names in held_out.values() for name in names)
    library = Path(sysconfig.get_path("stdlib"))
    write_log(folder / "old.jsonl", heads(sources(library, without=without)), count=OLD_REQUESTS)
    profile = (ROOT / "configs" / "demo.yaml").read_text().replace("../demo", str(ROOT / "demo"))
    (folder / "demo.yaml").write_text(profile)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--train-for", default="5m")
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
        program, "bench", profile, "-w", ROOT / "demo" / "prompts.jsonl", "-c", "1", "--max-tokens", "48",
        "--budget", "4m", "-o", folder / f"old-prompts-{int(time.time())}",
    ]  # fmt: skip
    return subprocess.run(bench, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
