"""Trains a draft model on a target's answers. Knows no profile.

In, on stdin: one line, `{"draft": folder, "answers": file, "out": folder, "budget_s": s, "epochs":
n}`. Out, on what was stdout: `progress` and `evaluated` while it trains, then `done`, or `failed`.
The draft is in `out`/draft only if it became better. If the parent is gone, the training ends.

An answer is a line of `generate` with `logprobs`, the target's likeliest tokens at each position.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.engine.jsonlines import JsonLines, run_child

Row = Mapping[str, Any]
_BATCH_TOKENS = 2048
"""Of a batch, padding included."""
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

    The loop is ours: transformers' Trainer needs accelerate, which vLLM does not bring.
    """
    messages = lines.read()
    request = next(messages)
    threading.Thread(target=_end_with_parent, args=(messages,), daemon=True).start()
    out = Path(request["out"]) / "draft"
    shutil.rmtree(out, ignore_errors=True)  # of a training that was interrupted
    answers = [json.loads(line) for line in Path(request["answers"]).read_bytes().splitlines()]
    training, validation = (
        _batches(
            [row for row in answers if row["id"].startswith(part) and row.get("token_ids")][:most]
        )
        for part, most in (("train/", None), ("validation/", _MOST_CHOOSING))
    )
    import torch  # seconds: after all that can fail without it
    from torch.nn.utils import parameters_to_vector, vector_to_parameters
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(request["draft"], local_files_only=True)
    model = model.float().to("cuda" if torch.cuda.is_available() else "cpu").train()
    highest = 0.125 / model.config.hidden_size
    optimizer = torch.optim.AdamW(model.parameters(), highest, betas=(0.9, 0.95))
    rng = random.Random(0)  # noqa: S311 - no secret
    first = parameters_to_vector(model.parameters()).detach().clone()
    began, step, share, due, best = time.monotonic(), 0, 0.0, 0.0, -1.0
    while True:
        if share >= due:
            due = min(share + 1 / _EVALUATIONS, 1.0)
            trained, found = parameters_to_vector(model.parameters()).detach(), 0.0
            for part in _TRAINED_PARTS if step else (1.0,):
                vector_to_parameters(first.lerp(trained, part), model.parameters())
                found = max(found, rate := _agreement(model, validation))
                if rate > best and step:
                    _save(model, out, source=Path(request["draft"]))
                best = max(best, rate)
            lines.send("evaluated", share=share, step=step, agreement=found)
        if share >= 1:
            break
        optimizer.param_groups[0]["lr"] = highest * min(
            max(share, 0.001) / _WARM_UP, 1 - 0.9 * share
        )
        loss, _ = _judge(model, rng.choice(training))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        spent = (time.monotonic() - began) / request["budget_s"]
        share = max(spent, step / (request["epochs"] * len(training)))
        if step % 20 == 0:
            lines.send("progress", share=share, step=step, loss=loss.item())
    lines.send("done", step=step, seconds=time.monotonic() - began)


def _batches(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of like length, whose padded sizes stay within the bound. Raises ValueError for none."""
    found: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: len(_text(row))):
        if found and (len(found[-1]) + 1) * len(_text(row)) <= _BATCH_TOKENS:
            found[-1].append(row)
        else:
            found.append([row])
    if not found:
        raise ValueError("the target answered none of the prompts")
    return found


def _text(row: Row) -> list[int]:
    return [*row["prompt_token_ids"], *row["token_ids"]]


def _judge(model: Any, rows: Sequence[Row]) -> tuple[Any, int]:
    """The mean loss, for `backward`, and how many of the target's likeliest tokens it guesses.

    The loss is the cross-entropy with the target's likeliest tokens by their probability, and with
    the likeliest alone: sampled drafts are accepted where the distributions agree, greedy ones
    where the likeliest tokens do.
    """
    import torch
    from torch.nn.functional import cross_entropy, log_softmax
    from torch.nn.utils.rnn import pad_sequence

    texts = [torch.tensor(_text(row)) for row in rows]
    ids = pad_sequence(texts, batch_first=True).to(model.device)  # padding is never seen
    width, begins = ids.shape[1], [len(row["prompt_token_ids"]) - 1 for row in rows]
    kept = model(input_ids=ids, use_cache=False, logits_to_keep=width - min(begins)).logits
    # counted from the end: some models keep all
    pairs = zip(kept, begins, texts, strict=True)
    logits = torch.cat(
        [one[begin - width : len(text) - 1 - width] for one, begin, text in pairs]
    ).float()

    steps = [step for row in rows for step in row["logprobs"]]
    most = max(map(len, steps))
    table = torch.tensor([list(step) + [[0, -torch.inf]] * (most - len(step)) for step in steps])
    tokens, p = table[..., 0].long().to(ids.device), table[..., 1].exp().to(ids.device)
    likeliest = tokens.gather(-1, p.argmax(-1, keepdim=True)).squeeze(-1)
    soft = -(p * log_softmax(logits, -1).gather(-1, tokens)).sum(-1).mean()
    return soft + cross_entropy(logits, likeliest), int((logits.argmax(-1) == likeliest).sum())


def _agreement(model: Any, parts: list[list[Row]]) -> float:
    """Share of the target's tokens that the draft guesses."""
    import torch

    model.eval()
    with torch.inference_mode():
        right = sum(_judge(model, rows)[1] for rows in parts)
    model.train()
    return right / sum(len(row["token_ids"]) for rows in parts for row in rows)


def _save(model: Any, folder: Path, *, source: Path) -> None:
    """Weights in the type that the source's have, all else as it is there, for vLLM."""
    from safetensors import safe_open

    saved = copy.deepcopy(model)
    for file in sorted(source.glob("*.safetensors"))[:1]:
        with safe_open(file, framework="pt") as tensors:  # the configuration may say another
            saved.to(tensors.get_slice(next(iter(tensors.keys())))[:1].dtype)
    saved.save_pretrained(folder)
    weights = (".safetensors", ".bin", ".index.json", ".pt")
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(weights):
            shutil.copyfile(file, folder / file.name)


def _end_with_parent(messages: Iterator[Any]) -> None:
    """The parent holds the other end of stdin for as long as it lives."""
    for _ in messages:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run_child(train))
