"""Trains a draft on a target's answers. Knows no profile.

In, on stdin: one line, `{"draft": folder, "target": folder or null, "answers": file, "out": folder,
"k": n, "budget_s": s, "epochs": n}`; with a target, the draft is an EAGLE-3 head of it. Out, on
what was stdout: `progress` and `evaluated` while it trains, then `done`, or `failed`. The draft is
in `out`/draft only if it became better. If the parent is gone, the training ends.

An answer is a line of `generate` with `logprobs`, the target's likeliest tokens at each position.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specserve.engine.drafts import DraftModel, Eagle3Head, Row, batches, read_answers
from specserve.engine.jsonlines import JsonLines, run_child

_EVALUATIONS = 10
_MOST_CHOOSING = 64
"""Answers that choose between states: more would take longer than the training itself."""
_TRAINED_PARTS = (0.3, 0.5, 0.7, 1.0)
"""Of the trained weights in a draft, the rest being those it began with: a mean of both keeps more
of what the draft knew, and on few answers knows more of the new (arXiv:2109.01903)."""
_WARM_UP = 0.05
"""Share of the training in which the learning rate rises."""


def train(lines: JsonLines) -> None:
    """Train until the time or the epochs are over, and keep the state that guessed best.

    The loop is ours: transformers' Trainer needs accelerate, which vLLM does not bring, and that of
    speculators a GPU.
    """
    import torch

    messages = lines.read()
    request = next(messages)
    threading.Thread(target=_end_with_parent, args=(messages,), daemon=True).start()
    out = Path(request["out"]) / "draft"
    shutil.rmtree(out, ignore_errors=True)  # of a training that was interrupted
    draft = Eagle3Head(request) if request["target"] else DraftModel(request)
    training, validation = (
        batches(read_answers(request["answers"], part)[:most], draft.batch_tokens)
        for part, most in (("train", None), ("validation", _MOST_CHOOSING))
    )

    learning = [one for one in draft.model.parameters() if one.requires_grad]
    highest = 0.125 / draft.width
    optimizer = torch.optim.AdamW(learning, lr=highest, betas=(0.9, 0.95), weight_decay=0.01)
    rng = random.Random(0)  # noqa: S311 - no secret
    first = [one.detach().clone() for one in learning]
    began, step, share, due, best = time.monotonic(), 0, 0.0, 0.0, -1.0
    while True:
        if share >= due:
            due = min(share + 1 / _EVALUATIONS, 1.0)
            trained, found = [one.detach().clone() for one in learning], 0.0
            for part in _TRAINED_PARTS if step else (1.0,):
                with torch.no_grad():
                    for one, old, new in zip(learning, first, trained, strict=True):
                        one.copy_(old.lerp(new, part))
                found = max(found, rate := _agreement(draft, validation))
                if rate > best and step:
                    draft.save(out)
                best = max(best, rate)
            lines.send("evaluated", share=share, step=step, agreement=found)
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = highest * min(max(share, 0.001) / _WARM_UP, 1 - 0.9 * share)
        loss, _ = draft.judge(rng.choice(training))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        step += 1
        spent = (time.monotonic() - began) / request["budget_s"]
        share = max(spent, step / (request["epochs"] * len(training)))
        if step % 20 == 0:
            lines.send("progress", share=share, step=step, loss=loss.item())
    lines.send("done", step=step, seconds=time.monotonic() - began)


def _agreement(draft: DraftModel, parts: list[list[Row]]) -> float:
    """Share of the target's tokens that the draft guesses; 0.0 without answers."""
    import torch

    draft.model.eval()
    with torch.inference_mode():
        counts = [draft.judge(rows)[1] for rows in parts]
    draft.model.train()
    right, all_ = (sum(each) for each in zip(*counts, strict=True)) if counts else (0.0, 0.0)
    return right / all_ if all_ else 0.0


def _end_with_parent(messages: Iterator[Any]) -> None:
    """The parent holds the other end of stdin for as long as it lives."""
    for _ in messages:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run_child(train))
