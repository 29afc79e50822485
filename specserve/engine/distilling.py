"""Trains a draft model on a target's answers, or says how many of them a draft would have guessed. Knows no profile.

In, on stdin: one line, `{"work": "train" | "simulate", "draft": folder, "answers": file, …}`. Out, on what was stdout:
`progress` and `evaluated` while it trains, then `done`, or `failed`. On SIGTERM, or if the parent is gone, the state is
saved; the best draft is there already. The same line then goes on from there.

An answer is a line of `generate` with `logprobs`: the target's likeliest tokens at each position. The target itself is
not loaded.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.engine.jsonlines import JsonLines, error_text

_BATCH_TOKENS = 2048
"""Of a batch, padding included."""
_EVALUATIONS = 10
_WARM_UP = 0.05
"""Share of the training in which the learning rate rises."""
_IGNORED_REST = 1e-6


class Answers:
    """Answers of one part, as tensors in batches of like length."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = sorted(rows, key=lambda row: len(row["prompt_token_ids"]) + len(row["token_ids"]))

    def batches(self) -> Iterator[list[Mapping[str, Any]]]:
        """Rows whose padded sizes stay within the bound."""
        batch: list[Mapping[str, Any]] = []
        for row in self.rows:
            width = len(row["prompt_token_ids"]) + len(row["token_ids"])
            if batch and (len(batch) + 1) * width > _BATCH_TOKENS:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch


def read_answers(path: str, part: str) -> Answers:
    """The answers whose id begins with the part's name; a refused line has none."""
    rows = []
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if str(row["id"]).startswith(f"{part}/") and row.get("token_ids"):
                rows.append(row)
    return Answers(rows)


def logits_of(model: Any, batch: Sequence[Mapping[str, Any]]) -> Any:
    """The draft's logits where the answers' tokens were to be guessed: (all answers' tokens, vocabulary)."""
    import torch

    device = next(model.parameters()).device
    texts = [list(row["prompt_token_ids"]) + list(row["token_ids"]) for row in batch]
    width = max(map(len, texts))
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts], device=device)
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts], device=device)
    hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    picked = [
        hidden[at, len(row["prompt_token_ids"]) - 1 : len(texts[at]) - 1] for at, row in enumerate(batch)
    ]
    return model.lm_head(torch.cat(picked)).float()


def loss_of(logits: Any, batch: Sequence[Mapping[str, Any]]) -> Any:
    """KL divergence from the target's likeliest tokens, the rest as one, plus cross-entropy on the likeliest.

    Sampled drafts are accepted where the distributions agree, greedy ones where the likeliest tokens do.
    """
    import torch
    from torch.nn.functional import cross_entropy, log_softmax

    steps = [step for row in batch for step in row["logprobs"]]
    most = max(map(len, steps))
    padded = [list(step) + [[0, -math.inf]] * (most - len(step)) for step in steps]
    ids = torch.tensor([[token for token, _ in step] for step in padded], device=logits.device)
    target = torch.tensor([[value for _, value in step] for step in padded], device=logits.device)
    mine = log_softmax(logits, -1).gather(-1, ids)
    p = target.exp()
    known = p > 0
    ours = torch.where(known, mine, torch.zeros_like(mine))
    theirs = torch.where(known, target, torch.zeros_like(target))
    divergence = (p * (theirs - ours)).sum(-1)
    rest = (1 - p.sum(-1)).clamp(min=0)
    left = (1 - torch.where(known, mine.exp(), torch.zeros_like(mine)).sum(-1)).clamp(min=_IGNORED_REST)
    divergence = divergence + torch.where(
        rest > _IGNORED_REST,
        rest * (rest.clamp(min=_IGNORED_REST).log() - left.log()),
        torch.zeros_like(rest),
    )
    likeliest = ids.gather(-1, target.argmax(-1, keepdim=True)).squeeze(-1)
    return divergence.mean() + cross_entropy(logits, likeliest)


def simulate(model: Any, answers: Answers, *, k: int) -> list[dict[str, Any]]:
    """For each greedy answer, what a draft of K tokens a step would have had accepted.

    Exact up to rounding at temperature 0: a guess follows earlier guesses, which are the target's tokens as long as
    they are accepted. The first token comes from the prefill.
    """
    import torch

    found = []
    with torch.inference_mode():
        for batch in answers.batches():
            guesses = logits_of(model, batch).argmax(-1).tolist()
            for row in batch:
                ids = row["token_ids"]
                own, guesses = guesses[: len(ids)], guesses[len(ids) :]
                found.append({"id": row["id"], **_walk([a == b for a, b in zip(own, ids, strict=True)], k=k)})
    return found


def _walk(matches: Sequence[bool], *, k: int) -> dict[str, int]:
    steps = accepted = 0
    position = 1
    while position < len(matches):
        run = 0
        while run < k and position + run < len(matches) and matches[position + run]:
            run += 1
        steps, accepted = steps + 1, accepted + run
        position += run + 1
    return {"steps": steps, "accepted": accepted, "drafted": steps * k}


def rate_of(rows: Sequence[Mapping[str, Any]]) -> float:
    """Accepted over drafted tokens."""
    drafted = sum(row["drafted"] for row in rows)
    return sum(row["accepted"] for row in rows) / drafted if drafted else 0.0


def load(folder: str) -> Any:
    """The draft in float32, on a GPU if there is one."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


class Training:
    """One training of a draft, which can be stopped and gone on with."""

    def __init__(self, lines: JsonLines, request: Mapping[str, Any]) -> None:
        import torch

        self._lines, self._request = lines, request
        self._out = Path(request["out"])
        self._source = Path(request["draft"])
        self._train = list(read_answers(request["answers"], "train").batches())
        self._old = list(read_answers(request["answers"], "old-train").batches())
        self._validation = read_answers(request["answers"], "validation")
        self._old_validation = read_answers(request["answers"], "old-validation")
        self._model = load(request["draft"])
        rate = request["learning_rate"] or 0.125 / self._model.config.hidden_size
        self._rate = rate
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01
        )
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
        self._model.load_state_dict(kept["model"])
        self._optimizer.load_state_dict(kept["optimizer"])
        self._step, self._spent_s = kept["step"], kept["spent_s"]
        self._best, self._next = kept["best"], kept["next"]

    def run(self) -> None:
        """Train until the time or the epochs are over; then `done`, or `stopped`."""
        import torch

        rng = random.Random(self._request["seed"])  # noqa: S311 - no secret
        for _ in range(self._step):
            self._pick(rng)
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
            batch = self._pick(rng)
            loss = loss_of(logits_of(self._model, batch), batch)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
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
        self._lines.send(
            "done", step=self._step, seconds=self._spent_s, best=self._best, versions=_versions()
        )

    def _progress(self) -> float:
        return float(max(self._spent_s / self._request["budget_s"], self._step / self._most_steps))

    def _pick(self, rng: random.Random) -> list[Mapping[str, Any]]:
        """A batch of the new traffic; by its share, one of the old."""
        is_old = bool(self._old) and rng.random() < self._request["old_share"]
        return rng.choice(self._old if is_old else self._train)

    def _evaluate(self, progress: float) -> None:
        """Keep the draft if it is the best so far on the prompts that choose; with old traffic, on both."""
        self._model.eval()
        k, share = self._request["k"], self._request["old_share"]
        new = rate_of(simulate(self._model, self._validation, k=k))
        old = rate_of(simulate(self._model, self._old_validation, k=k)) if self._old_validation.rows else None
        score = new if old is None else (1 - share) * new + share * old
        self._model.train()
        self._next = progress + 1 / _EVALUATIONS
        self._lines.send("evaluated", share=progress, step=self._step, acceptance=new, old_acceptance=old)
        if score > self._best:
            self._best = score
            if self._step:
                self._save_best()
        self._save()

    def _save(self) -> None:
        import torch

        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self._step,
            "spent_s": self._spent_s,
            "best": self._best,
            "next": self._next,
        }
        torch.save(state, self._out / "state.pt.new")
        (self._out / "state.pt.new").replace(self._out / "state.pt")

    def _save_best(self) -> None:
        """A folder that vLLM can serve: new weights in the type of the old ones, everything else as it was."""
        new, place, before = self._out / "draft.new", self._out / "draft", self._out / "draft.old"
        shutil.rmtree(new, ignore_errors=True)
        kind, seen = self._type(), set()
        weights = {}
        for name, value in self._model.state_dict().items():
            if value.data_ptr() not in seen:  # a tied output table is the embedding under another name
                seen.add(value.data_ptr())
                weights[name] = value.to(kind)
        self._model.save_pretrained(new, state_dict=weights)
        for file in self._source.iterdir():
            if file.is_file() and not file.name.endswith((".safetensors", ".bin", ".index.json", ".pt")):
                shutil.copyfile(file, new / file.name)
        shutil.rmtree(before, ignore_errors=True)
        if place.exists():
            place.rename(before)
        new.rename(place)
        shutil.rmtree(before, ignore_errors=True)

    def _type(self) -> Any:
        """The type of most of the source's weights."""
        import torch
        from safetensors import safe_open

        for file in sorted(self._source.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - no mapping
                    return tensors.get_slice(name)[:1].dtype
        return torch.float32


def _versions() -> dict[str, str]:
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}


def _schedule(progress: float) -> float:
    """The learning rate, as a share of the highest: it rises, then falls along a cosine to a tenth."""
    if progress < _WARM_UP:
        return max(progress / _WARM_UP, 0.05)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (progress - _WARM_UP) / (1 - _WARM_UP)))


def _simulated(lines: JsonLines, request: Mapping[str, Any]) -> None:
    model = load(request["draft"]).eval()
    rows = {
        part: simulate(model, read_answers(request["answers"], part), k=request["k"])
        for part in request["parts"]
    }
    lines.send("done", rows=rows)


def main() -> int:
    """Do the work of one line; exit code 0 after `done` or `stopped`, 1 after `failed`."""
    lines, training = JsonLines(), None
    stop = threading.Event()

    def on_sigterm(_number: int, _frame: Any) -> None:
        stop.set()
        if training is not None:
            training.is_stopped = True

    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a Ctrl-C reaches it, not us
    messages = lines.read()
    try:
        request = next(messages)
        threading.Thread(target=_watch, args=(messages,), daemon=True).start()
        if request["work"] == "simulate":
            _simulated(lines, request)
        else:
            training = Training(lines, request)
            training.is_stopped = stop.is_set()
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
