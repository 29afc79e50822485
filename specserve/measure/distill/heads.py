"""Heads, which the speculators library trains: the traffic as its training data, and its commands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.errors import FactError
from specserve.measure.distill.plan import DistillPlan
from specserve.serve.files import write_anew

SPECULATORS = "0.9.0"
"""The version whose commands these are."""
KINDS = {"eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark", "mtp": "mtp"}
"""What speculators calls the heads of a method; EAGLE-3 with parallel drafting is `peagle`."""


def write_samples(plan: DistillPlan, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The answers to train on as `input_ids` and `loss_mask`, of which the prompt counts nothing. Raises FactError."""
    lines = [
        {
            "input_ids": [*row["prompt_token_ids"], *row["token_ids"]],
            "loss_mask": [0] * len(row["prompt_token_ids"]) + [1] * len(row["token_ids"]),
        }
        for row in rows
        if str(row["id"]).startswith(("train/", "old-train/"))
    ]
    file = plan.place / "speculators.jsonl"
    try:
        write_anew(file, "".join(json.dumps(line) + "\n" for line in lines).encode())
    except OSError as error:
        raise FactError(f"cannot write `{file}`: {error.strerror}") from error
    return file


def commands(plan: DistillPlan, samples: Path) -> list[tuple[str, list[str]]]:
    """What to run, each with its reason: in an environment of its own, beside a clone of speculators."""
    target, place = plan.profile.target.model, plan.place
    kind = "peagle" if plan.block.keys.get("parallel_drafting") else KINDS[plan.block.method]
    head = ["--from-pretrained", plan.block.model] if plan.block.model else []
    longest = str(plan.profile.target.max_model_len or 8192)
    return [
        (
            "install the library in an environment of its own",
            ["pip", "install", f"speculators=={SPECULATORS}"],
        ),
        (
            "make its data set",
            [
                "speculators", "prepare-data", f"--model={target}", "--data", str(samples), "--output",
                str(place / "data"), "--seq-length", longest,
            ],
        ),
        (
            "serve hidden states of the target (a script in the library's repository)",
            ["python", "scripts/launch_vllm.py", target, "--", "--port", "8000"],
        ),
        (
            "train from the present head, beside that server",
            [
                "speculators", "train", "--speculator-type", kind, "--verifier-name-or-path", target, *head,
                "--data-path", str(place / "data"), "--vllm-endpoint", "http://localhost:8000/v1", "--save-path",
                str(place / "checkpoints"), "--total-seq-len", longest,
            ],
        ),
    ]  # fmt: skip
