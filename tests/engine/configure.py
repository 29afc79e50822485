"""Builds vLLM's configuration for each line of stdin, and says on stdout what it says: a child of the matrix.

A line in: `{"name", "kwargs"}`; a line out: `{"name", "refused": text or null, "elapsed_s"}`. vLLM looks at each class
of models in a new process, 7 s each on an empty cache; with `--one-process` it does so in this one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def refusal(kwargs: dict[str, Any]) -> str | None:
    """What vLLM says against these engine arguments; None where it takes them."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    try:
        AsyncEngineArgs(**kwargs).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    except Exception as error:  # every way to refuse counts
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Line by line, so that the first time counts the imports, as a start of vLLM would."""
    if "--one-process" in sys.argv:
        from vllm.model_executor.models import registry

        registry._run_in_subprocess = lambda function: function()
    start = time.perf_counter()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM logs to stdout
    for line in sys.stdin:
        case = json.loads(line)
        text = refusal(case["kwargs"])
        elapsed_s = time.perf_counter() - start
        out.write(json.dumps({"name": case["name"], "refused": text, "elapsed_s": elapsed_s}) + "\n")
        out.flush()
        start = time.perf_counter()


if __name__ == "__main__":
    main()
