"""Train the target on the corpus by next-token prediction.

It knows nothing of the draft.
"""

import time
from typing import Any

import torch
from optim import optimisers, update
from torch.nn.functional import cross_entropy

TOKENS_PER_STEP = 2048


def windows(stream: Any, *, length: int, generator: Any) -> Any:
    """A batch of random windows of the token stream, shape (2048 / length, length + 1)."""
    starts = torch.randint(len(stream) - length - 1, (TOKENS_PER_STEP // length,), generator=generator)
    return torch.stack([stream[start : start + length + 1] for start in starts.tolist()])


def train(model: Any, stream: Any, *, steps: int, seed: int) -> None:
    """Windows of 512 tokens, the last sixth of the steps of 1024, so that long prompts hold too."""
    generator = torch.Generator().manual_seed(seed)
    parts = optimisers(model, lr=6e-3, steps=steps)
    started = time.monotonic()
    for step in range(steps):
        length = 512 if step < steps * 5 // 6 else 1024
        batch = windows(stream, length=length, generator=generator)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        update(model, parts, loss)
        if step % 50 == 0 or step == steps - 1:
            print(f"target {step:5} loss {loss.item():.3f} {time.monotonic() - started:6.0f} s", flush=True)
