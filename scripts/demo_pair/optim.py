"""Optimisers and schedule that target and draft share.

It knows nothing of losses and data.
"""

from typing import Any

import torch

Parts = list[tuple[Any, Any]]  # optimiser, its schedule


def optimisers(model: Any, *, lr: float, steps: int) -> Parts:
    """Muon for the matrices, AdamW for embeddings and norms; warm-up, then linear decay to zero."""
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named.items() if p.ndim != 2 or "embed" in name]
    warm = max(1, steps // 40)

    def rate(step: int) -> float:
        return min((step + 1) / warm, (steps - step) / (steps - warm))

    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [(each, torch.optim.lr_scheduler.LambdaLR(each, rate)) for each in (muon, adam)]


def update(model: Any, parts: Parts, loss: Any) -> None:
    """One step from a loss, gradients clipped to norm 1."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser, schedule in parts:
        optimiser.step()
        schedule.step()
        optimiser.zero_grad(set_to_none=True)
