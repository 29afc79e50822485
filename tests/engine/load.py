"""Loads one model as vLLM would serve it and writes four tokens: a child of the matrix.

stdin: `{"kwargs"}`; stdout, one line: `{"refused": text or null, "elapsed_s", "accepted"}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """The time counts from the start of the process, imports included."""
    start = time.perf_counter()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM logs to stdout
    kwargs: dict[str, Any] = json.load(sys.stdin)["kwargs"]
    refused = None
    try:
        from vllm import LLM, SamplingParams

        model = LLM(**kwargs, enforce_eager=True, kv_cache_memory_bytes=1 << 28, disable_log_stats=True)
        model.generate(["hello there"], SamplingParams(max_tokens=4, temperature=0.0), use_tqdm=False)
    except Exception as error:  # every way to fail counts
        refused = f"{type(error).__name__}: {error}"
    out.write(json.dumps({"refused": refused, "elapsed_s": time.perf_counter() - start}) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
