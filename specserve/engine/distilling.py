"""Trains a draft on a target's answers. Knows no profile.

In, on stdin: one line, `{"draft": folder, "answers": file, …}`; with `target`, a folder, the draft
is an EAGLE-3 head of that target. Out, on what was stdout: `progress` and `evaluated` while it
trains, then `done`, or `failed`. If the parent is gone it ends, and another training begins anew.

An answer is a line of `generate` with `logprobs`: the target's likeliest tokens at each position. A
draft model learns from these; only a head needs the target itself, for its hidden states.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specserve.engine.drafts import DraftModel, Eagle3Head, batches, read_answers
from specserve.engine.jsonlines import JsonLines, error_text

_EVALUATIONS = 10
_TRAINED_SHARES = (0.3, 0.5, 0.7, 1.0)
"""Of the trained weights in a draft, the rest being those it began with: a mean of both keeps more
of what the draft knew, and on few answers knows more of the new (arXiv:2109.01903)."""
_MOST_CHOOSING = 64
"""Answers that choose between states: more would take longer than the training itself."""
_WARM_UP = 0.05
"""Share of the training in which the learning rate rises."""


class Training:
    """One training of a draft, which is in the folder `draft` once it is better than at first."""

    def __init__(self, lines: JsonLines, request: Mapping[str, Any]) -> None:
        self._lines, self._request = lines, request
        self._out = Path(request["out"]) / "draft"
        shutil.rmtree(self._out, ignore_errors=True)  # of a training that was interrupted
        self._draft = Eagle3Head(request) if request.get("target") else DraftModel(request)
        train, choosing = (
            read_answers(request["answers"], part) for part in ("train", "validation")
        )
        self._train = list(batches(train, self._draft.batch_tokens))
        self._rng = random.Random(request["seed"])  # noqa: S311 - no secret
        self._validation = self._rng.sample(choosing, min(len(choosing), _MOST_CHOOSING))
        self._first = {name: value.clone() for name, value in self._draft.state().items()}
        self._step, self._best = 0, -1.0

    def run(self) -> None:
        """Train until the time or the epochs are over; then `done`."""
        import torch

        model, request = self._draft.model, self._request
        highest = request["learning_rate"] or 0.125 / self._draft.width
        parameters = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=highest, betas=(0.9, 0.95), weight_decay=0.01)
        most_steps = request["epochs"] * len(self._train)
        began, due, progress = time.monotonic(), 0.0, 0.0
        while progress < 1:
            if progress >= due:
                self._evaluate(progress)
                due = progress + 1 / _EVALUATIONS
            for group in optimizer.param_groups:
                group["lr"] = highest * _schedule(progress)
            loss = self._draft.loss(self._rng.choice(self._train))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            self._step += 1
            if self._step % 20 == 0:
                self._lines.send("progress", share=progress, step=self._step, loss=loss.item())
            spent_s = time.monotonic() - began
            progress = float(max(spent_s / request["budget_s"], self._step / most_steps))
        self._evaluate(1.0)
        self._lines.send("done", step=self._step, seconds=time.monotonic() - began)

    def _evaluate(self, progress: float) -> None:
        """Keep the draft, or a mean of it and the one it began with, if it is the best so far."""
        model, draft = self._draft.model, self._draft
        model.eval()
        trained = {name: value.clone() for name, value in draft.state().items()}
        found = 0.0
        for share in _TRAINED_SHARES if self._step else (1.0,):
            mean = {name: self._first[name].lerp(value, share) for name, value in trained.items()}
            model.load_state_dict(mean if share < 1 else trained, strict=False)
            rate = draft.acceptance(self._validation, k=self._request["k"])
            found = max(found, rate)
            if rate > self._best:
                self._best = rate
                if self._step:
                    draft.save(self._out, Path(self._request["draft"]))
        model.load_state_dict(trained, strict=False)
        model.train()
        self._lines.send("evaluated", share=progress, step=self._step, acceptance=found)


def _schedule(progress: float) -> float:
    """The learning rate by its highest: it rises, then falls along a cosine to a tenth."""
    if progress < _WARM_UP:
        return max(progress / _WARM_UP, 0.05)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (progress - _WARM_UP) / (1 - _WARM_UP)))


def main() -> int:
    """Do the work of one line; exit code 0 after `done`, 1 after `failed`."""
    lines = JsonLines()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a Ctrl-C reaches it, not us
    messages = lines.read()
    try:
        request = next(messages)
        threading.Thread(target=_watch, args=(messages,), daemon=True).start()
        Training(lines, request).run()
    except Exception as error:
        traceback.print_exc()  # to the log, where the cause is looked for
        lines.send("failed", error=error_text(error), exception=type(error).__name__)
        return 1
    return 0


def _watch(messages: Iterator[Any]) -> None:
    """The parent holds the other end of stdin for as long as it lives."""
    for _ in messages:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
