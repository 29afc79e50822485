"""What vLLM has against the engine arguments of each line of stdin, `{"name", "kwargs"}`: a child of the matrix.

A line out: `{"name", "refused": text or null}`. With `--load` the model is loaded too, and writes four tokens.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def refusal(kwargs: dict[str, Any]) -> str | None:
    """What vLLM says against them; None where it takes them."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    from vllm import LLM, SamplingParams

    try:
        if "--load" in sys.argv:
            model = LLM(**kwargs, enforce_eager=True, kv_cache_memory_bytes=1 << 28, disable_log_stats=True)
            model.generate(["hello there"], SamplingParams(max_tokens=4, temperature=0.0), use_tqdm=False)
        else:
            AsyncEngineArgs(**kwargs).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    except Exception as error:  # every way to refuse counts
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Line by line, in one process: else vLLM looks at each class of models in a new one, 7 s each."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM logs to stdout
    for line in sys.stdin:
        case = json.loads(line)
        out.write(json.dumps({"name": case["name"], "refused": refusal(case["kwargs"])}) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
