"""Acceptance of a draft by teacher forcing: what vLLM would measure, without vLLM.

It knows nothing of training. At temperature 0 it is exact up to rounding: a proposal is conditioned on
earlier proposals, which equal the target's tokens as long as they are accepted.
"""

from typing import Any

import torch


def greedy(matches: list[list[bool]], *, k: int) -> tuple[float, float]:
    """Acceptance rate (accepted / drafted) and mean acceptance length, from per-position matches."""
    drafted = accepted = steps = 0
    for row in matches:
        position = 1  # the first token comes from the prefill
        while position < len(row):
            run = 0
            while run < k and position + run < len(row) and row[position + run]:
                run += 1
            drafted, accepted, steps = drafted + k, accepted + run, steps + 1
            position += run + 1
    return accepted / drafted, 1 + accepted / steps


def matches(draft: Any, ids: Any, lengths: Any, *, new: int) -> list[list[bool]]:
    """Where the draft's most likely token is the target's, per continuation."""
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        guesses = draft(input_ids=ids, use_cache=False).logits.argmax(-1)
    found = []
    for row, length in enumerate(lengths.tolist()):
        found.append(
            (guesses[row, length - 1 : length + new - 1] == ids[row, length : length + new]).tolist()
        )
    return found


def overlap(target: Any, draft: Any, ids: Any, lengths: Any, *, new: int, temperature: float) -> float:
    """Mean of sum(min(p, q)) over sampled continuations: per-token acceptance of probabilistic drafts."""
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        p = torch.softmax(target(input_ids=ids, use_cache=False).logits.float() / temperature, -1)
        q = torch.softmax(draft(input_ids=ids, use_cache=False).logits.float() / temperature, -1)
        shared = torch.minimum(p, q).sum(-1)
    parts = [shared[row, at - 1 : at + new - 1].mean() for row, at in enumerate(lengths.tolist())]
    return float(torch.stack(parts).mean())
