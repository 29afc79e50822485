"""Record how many KV tokens vLLM logs when it really serves: random weights, a fixed KV space. Needs the CPU engine.

Each case of `tests/memory/served.json` is started with `load_format: dummy` until it has logged its KV cache
size; the tokens are written back to the file:

    python scripts/record_served.py [CASE…]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from record_memory import FOLDER, engine_kwargs

SERVED = FOLDER / "served.json"
_SIZE = re.compile(r"KV cache size: ([\d,]+) tokens")
_LIMIT_S = 300.0
_START = "import json, sys; import vllm; vllm.LLM(**json.load(sys.stdin))"


def tokens_logged(case: Mapping[str, Any]) -> int:
    """Start one case, read its log up to the size, end it. Raises SystemExit with the log's end if it never comes."""
    with tempfile.TemporaryDirectory() as name:
        kwargs = engine_kwargs(case, Path(name)) | {
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "kv_cache_memory_bytes": case["kv_bytes"][0],
        }
        kept: list[str] = []
        with _started(kwargs, folder=name) as lines:
            for line in lines:
                kept.append(line)
                found = _SIZE.search(line)
                if found:
                    return int(found[1].replace(",", ""))
    raise SystemExit("".join(kept[-15:]))


@contextlib.contextmanager
def _started(kwargs: Mapping[str, Any], *, folder: str) -> Iterator[Iterator[str]]:
    """vLLM in a process group of its own, which does not outlive this; gives the lines of its log."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.Popen(
        [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, cwd=folder, env=env, start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    timer = threading.Timer(_LIMIT_S, _end, (child,))
    timer.start()
    try:
        child.stdin.write(json.dumps(kwargs))
        child.stdin.close()
        yield iter(child.stdout)
    finally:
        timer.cancel()
        _end(child)
        child.wait()
        child.stdout.close()


def _end(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def main() -> None:
    """Record all cases, or those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", nargs="*", help="name of a case; default: all")
    wanted = set(parser.parse_args().case)
    cases = json.loads(SERVED.read_text())
    for case in cases:
        if not wanted or case["name"] in wanted:
            case["tokens"] = tokens_logged(case)
            print(f"{case['name']:24} {case['tokens']:>12,} tokens", flush=True)
            SERVED.write_text("[\n" + ",\n".join(json.dumps(item) for item in cases) + "\n]\n")


if __name__ == "__main__":
    main()
