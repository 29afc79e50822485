"""The target's own continuations: what the draft learns from and is judged on.

It knows nothing of the draft.
"""

from typing import Any

import torch
from transformers import DynamicCache


def continuations(model: Any, contexts: list[list[int]], *, new: int, temperatures: Any, seed: int) -> Any:
    """`new` tokens after each context, shape (contexts, new); temperature 0 is greedy. One padded batch."""
    generator = torch.Generator().manual_seed(seed)
    width = max(map(len, contexts))
    ids = torch.tensor([[0] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache, tokens = DynamicCache(), []
    scale = temperatures.clamp(min=1e-3)[:, None]
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(new):
            logits = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                logits_to_keep=1,
            ).logits[:, -1]
            probabilities = torch.softmax(logits.float() / scale, -1)
            drawn = torch.multinomial(probabilities, 1, generator=generator)
            ids = torch.where(temperatures[:, None] > 0, drawn, logits.argmax(-1, keepdim=True))
            tokens.append(ids)
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            positions = mask.sum(1, keepdim=True) - 1
    return torch.cat(tokens, 1).clone()


def rows(contexts: list[list[int]], tokens: Any) -> tuple[Any, Any]:
    """Contexts with their continuations, padded on the right (harmless under causal attention).

    Returns ids (rows, width) and the context lengths (rows,).
    """
    new = tokens.shape[1]
    width = max(map(len, contexts)) + new
    ids = torch.zeros(len(contexts), width, dtype=torch.long)
    for row, context in enumerate(contexts):
        ids[row, : len(context)] = torch.tensor(context)
        ids[row, len(context) : len(context) + new] = tokens[row]
    return ids, torch.tensor([len(context) for context in contexts])
