"""Record what vLLM says that models need of each GPU, for the tests of the memory formula. Needs the CPU engine.

Each case of `tests/memory/cases.json` is built by the installed vLLM on the meta device, from its config.json
alone; the figures go to `tests/memory/recorded.json`. Run it anew when a case or the vLLM version changes:

    python scripts/record_memory.py [CASE…]

vLLM imports Qwen3.5 only where torchvision is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tests" / "memory"
CASES, RECORDED, CONFIGS = FOLDER / "cases.json", FOLDER / "recorded.json", FOLDER / "configs.json"
CHILD = (sys.executable, "-P", "-m", "specserve.engine.oracle")


def lay_out(folder: Path, config: str) -> Path:
    """A model directory that holds nothing but the named config.json."""
    model = folder / config
    if not model.exists():
        model.mkdir()
        known = json.loads(CONFIGS.read_text())[config]
        (model / "config.json").write_text(json.dumps(known))
    return model


def engine_kwargs(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The arguments of `vllm.LLM` for one case."""
    kwargs: dict[str, Any] = {
        "model": str(lay_out(folder, case["model"])),
        "enforce_eager": True,
        **case["engine"],
    }
    speculation = case.get("speculation")
    if speculation is not None:
        kwargs["speculative_config"] = dict(speculation)
        if "model" in speculation:
            kwargs["speculative_config"]["model"] = str(lay_out(folder, speculation["model"]))
    return kwargs


def request(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What the oracle is asked for one case."""
    argv = []
    for name, value in engine_kwargs(case, folder).items():
        flag = f"--{name.replace('_', '-')}"
        if value is False:
            argv.append(flag.replace("--", "--no-", 1))
        else:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            argv += [flag] if value is True else [flag, text]
    build = {"kv_bytes": case["kv_bytes"], "draft_lacks": case.get("draft_lacks", ())}
    return {"id": case["name"], "argv": argv, "folder": str(folder), "build": build}


def ask(cases: Iterable[Mapping[str, Any]], *, limit_s: float = 1800.0) -> list[dict[str, Any]]:
    """The oracle's figures, from one child."""
    with tempfile.TemporaryDirectory() as name:
        lines = [json.dumps(request(case, Path(name))) for case in cases]
        child = subprocess.run(
            CHILD,
            input="\n".join(lines) + "\n",
            stdout=subprocess.PIPE,
            text=True,
            timeout=limit_s,
            check=True,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "VLLM_LOGGING_LEVEL": "ERROR",
                "CUDA_VISIBLE_DEVICES": "",
            },
        )
    answers = (json.loads(line) for line in child.stdout.splitlines())
    return [_figures(answer) for answer in answers]


def _figures(answer: Mapping[str, Any]) -> dict[str, Any]:
    why = [answer.get("refused"), answer.get("not_judged"), *answer.get("skipped", {}).values()]
    figures: dict[str, Any] = answer.get("build") or {"error": next(filter(None, why))}
    return figures


def main() -> None:
    """Record all cases, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*", help="name of a case; default: all")
    wanted = set(parser.parse_args().case)
    cases = json.loads(CASES.read_text())
    chosen = [case for case in cases if not wanted or case["name"] in wanted]
    began = time.monotonic()
    answers = dict(zip([case["name"] for case in chosen], ask(chosen), strict=True))
    kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    merged = {case["name"]: answers.get(case["name"], kept.get(case["name"])) for case in cases}
    RECORDED.write_text(dumps(merged))
    for name, answer in answers.items():
        print(f"{name:32} {answer.get('error') or summary(answer)}")
    print(f"{len(answers)} cases in {time.monotonic() - began:.0f} s")


def summary(answer: Mapping[str, Any]) -> str:
    """One line of figures."""
    stages = ", ".join(
        f"{stage['target']['parameters']:,} + {stage['draft']['parameters']:,}" for stage in answer["stages"]
    )
    plan = answer["plans"][-1] if answer["plans"] else {}
    return f"{stages} B; {plan.get('tokens', plan.get('error'))} tokens"


def dumps(recorded: Mapping[str, Any]) -> str:
    """One case a line: a change of one shows as one line."""
    rows = [
        f"{json.dumps(name)}: {json.dumps(answer, separators=(',', ':'))}"
        for name, answer in recorded.items()
    ]
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    main()
