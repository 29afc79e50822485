"""Trains a draft on a target's answers. Knows no profile.

In, on stdin: one line, `{"draft": folder, "answers": file, …}`; with `target`, a folder, the draft is an EAGLE-3 head
of that target. Out, on what was stdout: `progress` and `evaluated` while it trains, then `done`, or `failed`. On
SIGTERM, or if the parent is gone, the state is saved; the best draft is there already. The same line then goes on from
there.

An answer is a line of `generate` with `logprobs`: the target's likeliest tokens at each position. A draft model learns
from these; only a head needs the target itself, for its hidden states.
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

from specserve.engine.drafts import DraftModel, Eagle3Head, rate_of, read_answers
from specserve.engine.jsonlines import JsonLines, error_text

_EVALUATIONS = 10
_TRAINED_SHARES = (1.0, 0.7, 0.5, 0.3)
"""Of the trained weights in a draft, the rest being those it began with: a mean of both keeps more of what the draft
knew, and on few answers knows more of the new (Wortsman et al., arXiv:2109.01903)."""
_MOST_CHOOSING = 64
"""Answers that choose between states: more would take longer than the training itself."""
_WARM_UP = 0.05
"""Share of the training in which the learning rate rises."""


def load(request: Mapping[str, Any]) -> Any:
    """The draft to train: a draft model, or a head if the request names its target."""
    if request.get("target"):
        return Eagle3Head(request)
    return DraftModel(request)


class Training:
    """One training of a draft, which can be stopped and gone on with."""

    def __init__(self, lines: JsonLines, request: Mapping[str, Any]) -> None:
        import torch

        self._lines, self._request = lines, request
        self._out = Path(request["out"])
        self._source = Path(request["draft"])
        self._draft = load(request)
        size = self._draft.batch_tokens
        self._train = list(read_answers(request["answers"], "train").batches(size))
        choosing = read_answers(request["answers"], "validation")
        self._validation = choosing.sample(_MOST_CHOOSING, seed=request["seed"])
        self._model = self._draft.model
        self._rate = request["learning_rate"] or 0.125 / self._draft.width
        self._parameters = [one for one in self._model.parameters() if one.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=self._rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self._first = {name: value.clone() for name, value in self._draft.state().items()}
        self._step, self._spent_s, self._best, self._next = 0, 0.0, -1.0, 0.0
        self._most_steps = request["epochs"] * len(self._train)
        self.is_stopped = False
        self._resume()

    def _resume(self) -> None:
        import torch

        state = self._out / "state.pt"
        if not state.is_file():
            return
        kept = torch.load(state, weights_only=True)
        self._model.load_state_dict(kept["model"], strict=False)
        self._optimizer.load_state_dict(kept["optimizer"])
        self._step, self._spent_s = kept["step"], kept["spent_s"]
        self._best, self._next = kept["best"], kept["next"]

    def run(self) -> None:
        """Train until the time or the epochs are over; then `done`, or `stopped`."""
        import torch

        rng = random.Random(self._request["seed"])  # noqa: S311 - no secret
        for _ in range(self._step):
            rng.choice(self._train)
        if self._step == 0:
            self._evaluate(0.0)
        began, spent_s = time.monotonic(), self._spent_s
        self._model.train()
        while not self.is_stopped:
            self._spent_s = spent_s + time.monotonic() - began
            progress = self._progress()
            if progress >= 1:
                break
            if progress >= self._next:
                self._evaluate(progress)
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate * _schedule(progress)
            batch = rng.choice(self._train)
            loss = self._draft.loss(batch)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
            self._optimizer.step()
            self._step += 1
            if self._step % 20 == 0:
                self._lines.send("progress", share=progress, step=self._step, loss=loss.item())
        if self.is_stopped:
            self._save()
            self._lines.send("stopped", step=self._step)
            return
        self._evaluate(1.0)
        (self._out / "state.pt").unlink(missing_ok=True)
        self._lines.send("done", step=self._step, seconds=self._spent_s)

    def _progress(self) -> float:
        return float(max(self._spent_s / self._request["budget_s"], self._step / self._most_steps))

    def _evaluate(self, progress: float) -> None:
        """Keep the draft, or a mean of it and the one it began with, if it is the best so far."""
        self._model.eval()
        trained = {name: value.clone() for name, value in self._draft.state().items()}
        found: dict[float, float] = {}
        for share in _TRAINED_SHARES if self._step else (1.0,):
            self._take(trained, share)
            found[share] = rate_of(self._draft.simulate(self._validation, k=self._request["k"]))
        share = max(found, key=lambda each: (found[each], -each))
        if found[share] > self._best:
            self._best = found[share]
            if self._step:
                self._take(trained, share)
                self._save_best()
        self._model.load_state_dict(trained, strict=False)
        self._model.train()
        self._next = progress + 1 / _EVALUATIONS
        self._lines.send("evaluated", share=progress, step=self._step, acceptance=found[share])
        self._save()

    def _take(self, trained: Mapping[str, Any], share: float) -> None:
        """The mean of the trained weights, by this share, and those that it began with."""
        mean = {name: self._first[name].lerp(value, share) for name, value in trained.items()}
        self._model.load_state_dict(mean if share < 1 else trained, strict=False)

    def _save(self) -> None:
        import torch

        state = {
            "model": self._draft.state(),
            "optimizer": self._optimizer.state_dict(),
            "step": self._step,
            "spent_s": self._spent_s,
            "best": self._best,
            "next": self._next,
        }
        torch.save(state, self._out / "state.pt.new")
        (self._out / "state.pt.new").replace(self._out / "state.pt")

    def _save_best(self) -> None:
        """The folder `draft`, replaced in one step."""
        new, place, before = self._out / "draft.new", self._out / "draft", self._out / "draft.old"
        shutil.rmtree(new, ignore_errors=True)
        self._draft.save(new, self._source)
        shutil.rmtree(before, ignore_errors=True)
        if place.exists():
            place.rename(before)
        new.rename(place)
        shutil.rmtree(before, ignore_errors=True)


def _schedule(progress: float) -> float:
    """The learning rate, as a share of the highest: it rises, then falls along a cosine to a tenth."""
    if progress < _WARM_UP:
        return max(progress / _WARM_UP, 0.05)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (progress - _WARM_UP) / (1 - _WARM_UP)))


def main() -> int:
    """Do the work of one line; exit code 0 after `done` or `stopped`, 1 after `failed`."""
    lines, training = JsonLines(), None

    def on_sigterm(_number: int, _frame: Any) -> None:
        if training is None:
            sys.exit(128 + signal.SIGTERM)  # nothing learned that could be lost
        training.is_stopped = True

    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a Ctrl-C reaches it, not us
    messages = lines.read()
    try:
        request = next(messages)
        threading.Thread(target=_watch, args=(messages,), daemon=True).start()
        training = Training(lines, request)
        training.run()
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
