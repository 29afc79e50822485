"""Distil the draft from the target: first on corpus text, then on the target's own continuations.

It knows nothing of files and prompts.
"""

import copy
import random
import time
from dataclasses import dataclass
from typing import Any

import torch
from optim import optimisers, update
from samples import continuations, rows
from target import windows
from torch.nn.functional import cross_entropy, kl_div, log_softmax

NEW = 160  # tokens of each continuation
BATCH = 8


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows of one padded batch with the target's last hidden states: its logits without running it again."""

    ids: Any
    lengths: Any
    states: Any


def sample_pool(target: Any, contexts: list[list[int]], *, seed: int) -> list[Pool]:
    """The target's continuations: three fifths greedy, the rest at temperatures 0.7 and 1.0."""
    rng = random.Random(seed)
    ordered = sorted(contexts, key=len)  # batches of like length waste little on padding
    served = copy.deepcopy(target).bfloat16()  # as vLLM runs it, and a fifth faster
    pools, started = [], time.monotonic()
    for first in range(0, len(ordered), 128):
        part = ordered[first : first + 128]
        heat = torch.tensor([rng.choice((0.0, 0.0, 0.0, 0.7, 1.0)) for _ in part])
        tokens = continuations(served, part, new=NEW, temperatures=heat, seed=seed + first)
        ids, lengths = rows(part, tokens)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            states = target.model(input_ids=ids, use_cache=False).last_hidden_state
        pools.append(Pool(ids, lengths, states.bfloat16().clone()))
        if first % 512 == 0:
            print(
                f"sample {first + len(part):5}/{len(ordered)} {time.monotonic() - started:6.0f} s", flush=True
            )
    return pools


def loss_of(draft_logits: Any, target_logits: Any, weights: Any) -> Any:
    """KL at temperatures 1 and 0.7 plus cross-entropy on the target's likeliest token, weighted by position.

    Greedy acceptance asks for the same argmax, sampled acceptance for the same distribution.
    """
    total = 0.0
    for temperature in (1.0, 0.7):
        q = log_softmax(draft_logits / temperature, -1)
        p = log_softmax(target_logits / temperature, -1)
        total = total + 0.5 * (kl_div(q, p, reduction="none", log_target=True).sum(-1) * weights).sum()
    hard = cross_entropy(draft_logits, target_logits.argmax(-1), reduction="none")
    return (total + (hard * weights).sum()) / weights.sum()


def start_from(draft: Any, target: Any) -> None:
    """The draft begins with the target's embedding (tied: its output too) and last norm."""
    with torch.no_grad():
        draft.model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        draft.model.norm.weight.copy_(target.model.norm.weight)


def on_corpus(draft: Any, target: Any, stream: Any, *, generator: Any) -> Any:
    """Loss on random windows of real text."""
    batch = windows(stream, length=256, generator=generator)[:, :-1]
    with torch.autocast("cpu", torch.bfloat16):
        with torch.inference_mode():
            wanted = target(input_ids=batch, use_cache=False).logits
        logits = draft(input_ids=batch, use_cache=False).logits
    wanted, logits = wanted.float().clone().flatten(0, 1), logits.float().flatten(0, 1)
    return loss_of(logits, wanted, torch.ones(len(logits)))


def on_samples(draft: Any, head: Any, pool: Pool, picked: Any) -> Any:
    """Loss on rows of the pool; positions inside the context count a quarter."""
    lengths = pool.lengths[picked]
    width = int(lengths.max()) + NEW - 1
    place = torch.arange(width)[None, :]
    weights = torch.where(place < lengths[:, None] - 1, 0.25, 1.0)
    keep = place < lengths[:, None] + NEW - 1
    with torch.autocast("cpu", torch.bfloat16):
        hidden = draft.model(input_ids=pool.ids[picked, :width], use_cache=False).last_hidden_state[keep]
        logits = draft.lm_head(hidden)
        wanted = pool.states[picked, :width][keep] @ head.T
    return loss_of(logits.float(), wanted.float(), weights[keep])


def distil(
    draft: Any, target: Any, stream: Any, pools: list[Pool], *, steps: int, seed: int, report: Any
) -> None:
    """A quarter of the steps on corpus text, the rest on the pool; `report()` tells how it goes."""
    generator = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    start_from(draft, target)
    parts = optimisers(draft, lr=4e-3, steps=steps)
    head = target.lm_head.weight.detach().bfloat16()
    started = time.monotonic()
    for step in range(steps):
        if step < steps // 4:
            loss = on_corpus(draft, target, stream, generator=generator)
        else:
            pool = rng.choice(pools)
            picked = torch.randperm(len(pool.ids), generator=generator)[:BATCH]
            loss = on_samples(draft, head, pool, picked)
        update(draft, parts, loss)
        if step % 250 == 249 or step == steps - 1:
            told = f"draft {step:5} loss {loss.item():.3f} {time.monotonic() - started:6.0f} s"
            print(f"{told}  {report()}", flush=True)
