"""Distils an EAGLE-3 head for the demo's target, then serves it beside the demo's draft model on the widened target.

    make heads && python scripts/soak_head.py -o DIR

The head knows nothing at first, so that this is a training from scratch: possible here because the target has 4 layers
and 2,048 tokens. The traffic is functions of the standard library, without the modules held out when the demo pair was
trained.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from soak_distill import ROOT, prompts, trained_modules, write_log

REQUESTS = 1200
HEADS_PYTHON = ROOT / ".venv-heads" / "bin" / "python"
_PROFILE = """\
vllm: ">=0.32,<0.34"
target: {{model: {target}, dtype: float32, max_model_len: 1024}}
speculation: {{method: {method}, model: {draft}, num_speculative_tokens: 4}}
engine: {{enforce_eager: true, kv_cache_memory_bytes: 512M, max_num_seqs: 16}}
server: {{served_model_name: demo}}
hardware: {{accelerator: cpu}}
"""
_ALTERNATIVE = """\
alternatives:
  head: {{method: eagle3, model: {head}, num_speculative_tokens: 4}}
"""


def make_inputs(folder: Path) -> None:
    """The untrained head, the log, a profile that trains it, and one that serves it for the widened target."""
    write_log(folder / "traffic.jsonl", prompts(trained_modules()), count=REQUESTS)
    demo, head = ROOT / "demo", folder / "head"
    subprocess.run(
        [HEADS_PYTHON, ROOT / "scripts" / "demo_pair" / "head.py", demo / "target", head], check=True
    )
    small = _PROFILE.format(target=demo / "target", method="eagle3", draft=head)
    (folder / "head.yaml").write_text(small, encoding="utf-8")
    wide = _PROFILE.format(target=demo / "wide", method="draft_model", draft=demo / "draft")
    trained = _ALTERNATIVE.format(head=folder / "run" / "draft")
    (folder / "wide.yaml").write_text(wide + trained, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--train-for", default="20m")
    given = parser.parse_args()
    folder = given.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "wide.yaml").exists():
        make_inputs(folder)
    program = Path(sys.executable).with_name("specserve")
    distil = [
        program, "distill", folder / "head.yaml", "--traffic", folder / "traffic.jsonl", "--train-for",
        given.train_for, "--max-tokens", "64", "--python", HEADS_PYTHON, "-o", folder / "run",
    ]  # fmt: skip
    began = time.monotonic()
    code = subprocess.run(distil, check=False).returncode
    print(f"distill: exit code {code} after {(time.monotonic() - began) / 60:.1f} min", flush=True)
    if code != 0:
        return code
    bench = [
        program, "bench", folder / "wide.yaml", "--alternative", "head", "-w", ROOT / "demo" / "prompts.jsonl", "-c",
        "1", "--max-tokens", "48", "--budget", "6m", "-o", folder / f"wide-{int(time.time())}",
    ]  # fmt: skip
    return subprocess.run(bench, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
