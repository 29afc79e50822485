"""The drafts that learn from a target's answers, a draft model or an EAGLE-3 head: loss, guesses, and files.

A head uses the model classes of vllm-project/speculators 0.9.0, and its target, for hidden states.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_IGNORED_REST = 1e-6


class Answers:
    """The answers of one part, in batches of like length."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = sorted(rows, key=_length)

    def sample(self, most: int, *, seed: int) -> Answers:
        """So many of them, drawn by a seed; all if there are fewer."""
        rng = random.Random(seed)  # noqa: S311 - no secret
        return self if len(self.rows) <= most else Answers(rng.sample(self.rows, most))

    def batches(self, most_tokens: int) -> Iterator[list[Row]]:
        """Rows whose padded sizes stay within the bound."""
        batch: list[Row] = []
        for row in self.rows:
            if batch and (len(batch) + 1) * _length(row) > most_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch


def _length(row: Row) -> int:
    return len(row["prompt_token_ids"]) + len(row["token_ids"])


def read_answers(path: str, part: str) -> Answers:
    """The answers whose id begins with the part's name; a refused line has none."""
    rows = []
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if str(row["id"]).startswith(f"{part}/") and row.get("token_ids"):
                rows.append(row)
    return Answers(rows)


def walk(length: int, is_right: Callable[[int, int], bool], *, k: int) -> dict[str, int]:
    """Steps, and what they accepted, of an answer of so many tokens.

    `is_right(at, nth)`: whether the nth guess of the step whose first guess is token `at` is the target's token.
    Exact up to rounding at temperature 0: a guess follows earlier guesses, which are the target's tokens as long as
    they are accepted. The first token comes from the prefill.
    """
    steps = accepted = 0
    at = 1
    while at < length:
        run = 0
        while run < k and at + run < length and is_right(at, run):
            run += 1
        steps, accepted = steps + 1, accepted + run
        at += run + 1
    return {"steps": steps, "accepted": accepted, "drafted": steps * k}


def rate_of(rows: Sequence[Mapping[str, Any]]) -> float:
    """Accepted over drafted tokens."""
    drafted = sum(row["drafted"] for row in rows)
    return sum(row["accepted"] for row in rows) / drafted if drafted else 0.0


def device() -> str:
    """A GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class DraftModel:
    """A draft model in float32. What it learns is the target's likeliest tokens, as `generate` keeps them."""

    batch_tokens = 2048
    """Of a batch, padding included."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        folder = request["draft"]
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        self.model = model.to(device()).eval()
        self.width: int = self.model.config.hidden_size

    def state(self) -> dict[str, Any]:
        """Every weight, by name."""
        return dict(self.model.state_dict())

    def loss(self, batch: Sequence[Row]) -> Any:
        """The mean loss of a batch, for `backward`."""
        return _loss(self._logits(batch), batch)

    def simulate(self, answers: Answers, *, k: int) -> list[dict[str, Any]]:
        """For each greedy answer, what this draft with K tokens a step would have had accepted."""
        import torch

        found = []
        with torch.inference_mode():
            for batch in answers.batches(self.batch_tokens):
                guesses = self._logits(batch).argmax(-1).tolist()
                for row in batch:
                    ids = row["token_ids"]
                    own, guesses = guesses[: len(ids)], guesses[len(ids) :]
                    right = [guess == token for guess, token in zip(own, ids, strict=True)]
                    found.append({"id": row["id"], **walk(len(ids), lambda at, n, r=right: r[at + n], k=k)})  # type: ignore[misc]
        return found

    def save(self, folder: Path, source: Path) -> None:
        """Weights in the type of the source's, everything else as it is there: what vLLM can serve."""
        kind, seen = type_of(source), set()
        weights = {}
        for name, value in self.model.state_dict().items():
            if value.data_ptr() not in seen:  # a tied output table is the embedding under another name
                seen.add(value.data_ptr())
                weights[name] = value.to(kind)
        self.model.save_pretrained(folder, state_dict=weights)
        copy_others(source, folder)

    def _logits(self, batch: Sequence[Row]) -> Any:
        """Where the answers' tokens were to be guessed: (all answers' tokens, vocabulary)."""
        import torch

        place = next(self.model.parameters()).device
        texts = [list(row["prompt_token_ids"]) + list(row["token_ids"]) for row in batch]
        width = max(map(len, texts))
        ids = torch.tensor([text + [0] * (width - len(text)) for text in texts], device=place)
        mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts], device=place)
        hidden = self.model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        picked = [
            hidden[at, len(row["prompt_token_ids"]) - 1 : len(texts[at]) - 1] for at, row in enumerate(batch)
        ]
        return self.model.lm_head(torch.cat(picked)).float()


def _loss(logits: Any, batch: Sequence[Row]) -> Any:
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


def type_of(folder: Path) -> Any:
    """The type of a checkpoint's first weight."""
    import torch
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                return tensors.get_slice(name)[:1].dtype
    return torch.float32


def copy_others(source: Path, folder: Path) -> None:
    """Configuration and tokenizer as the source has them."""
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith((".safetensors", ".bin", ".index.json", ".pt")):
            shutil.copyfile(file, folder / file.name)


_MASKS = "sdpa"
"""The attention that runs on every device; speculators' own needs a GPU."""


class Eagle3Head:
    """A head in float32 and its target, whose hidden states are computed for each batch and kept nowhere."""

    batch_tokens = 1024
    """Of a batch: attention grows with its square, once for each guess of a step."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        import torch
        from speculators.losses import resolve_loss_config
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
        from transformers import AutoModelForCausalLM

        folder, target = request["draft"], request["target"]
        said = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        if "speculators_model_type" not in said:
            raise ValueError(
                "the head is not in the format of speculators; `speculators convert` makes it so"
            )
        config = Eagle3SpeculatorConfig.from_pretrained(folder)
        config.transformer_layer_config._attn_implementation = _MASKS
        config.speculators_config.verifier.name_or_path = target
        self.model = Eagle3DraftModel.from_pretrained(folder, config=config).float().to(device()).eval()
        kind = torch.float32 if device() == "cpu" else torch.bfloat16
        model = AutoModelForCausalLM.from_pretrained(target, dtype=kind, local_files_only=True)
        self._target = model.to(device()).eval().requires_grad_(requires_grad=False)
        self._layers: list[int] = list(self.model.target_layer_ids)
        self._k: int = request["k"]
        self._loss = resolve_loss_config("kl_div", "eager")
        self.width: int = self.model.hidden_size

    def state(self) -> dict[str, Any]:
        """The weights that learn, by name."""
        learning = {name for name, one in self.model.named_parameters() if one.requires_grad}
        return {name: value for name, value in self.model.state_dict().items() if name in learning}

    def loss(self, batch: Sequence[Row]) -> Any:
        """The loss of a batch over K guesses a step, for `backward`."""
        given = self._given(batch)
        counted = [
            at >= len(row["prompt_token_ids"])
            for row in batch
            for at in range(1, len(row["prompt_token_ids"]) + len(row["token_ids"]))
        ]
        _, loss, _ = self.model(
            **given,
            loss_mask=self._one(counted).bool(),
            ttt_steps=self._k,
            loss_config=self._loss,
        )
        return loss

    def simulate(self, answers: Answers, *, k: int) -> list[dict[str, Any]]:
        """For each greedy answer, what this head with K tokens a step would have had accepted."""
        import torch

        found = []
        with torch.inference_mode():
            for batch in answers.batches(self.batch_tokens):
                given = self._given(batch)
                given.pop("verifier_last_hidden_states")
                guesses = [self._ids(step).tolist() for step in self.model(**given, ttt_steps=k)]
                begin = 0
                for row in batch:
                    prompt, own = len(row["prompt_token_ids"]), row["token_ids"]
                    # position i of a text guesses its token i + 2: it has seen token i + 1 and the state before it
                    first = begin + prompt - 2

                    def is_right(at: int, nth: int, first: int = first, own: list[int] = own) -> bool:
                        return bool(guesses[nth][first + at] == own[at + nth])  # noqa: B023 - used at once

                    found.append({"id": row["id"], **walk(len(own), is_right, k=k)})
                    begin += prompt + len(own) - 1
        return found

    def save(self, folder: Path, source: Path) -> None:
        """The head as speculators writes it, in the type of the source's weights."""
        kind = type_of(source)
        self.model.save_pretrained(folder, state_dict=self._saved(kind))
        copy_others(source, folder)

    def _saved(self, kind: Any) -> dict[str, Any]:
        left_out = set(self.model._keys_to_ignore_on_save or ())
        return {
            name: value.to(kind) if value.is_floating_point() else value
            for name, value in self.model.state_dict().items()
            if name not in left_out
        }

    def _ids(self, drafted: Any) -> Any:
        """Guesses as tokens of the target: a head may have a smaller vocabulary."""
        ids = drafted.squeeze(0)
        return ids if self.model.d2t is None else ids + self.model.d2t[ids]

    def _given(self, batch: Sequence[Row]) -> dict[str, Any]:
        """What the head is given: the texts one after the other, each token with the state before it."""
        import torch

        ids: list[int] = []
        documents: list[int] = []
        positions: list[int] = []
        states, lasts = [], []
        for number, row in enumerate(batch):
            text = [*row["prompt_token_ids"], *row["token_ids"]]
            state, last = self._states(text)
            ids += text[1:]
            states.append(state[:-1])
            lasts.append(last[1:])
            documents += [number] * (len(text) - 1)
            positions += range(1, len(text))
        return {
            "input_ids": self._one(ids),
            "hidden_states": torch.cat(states).unsqueeze(0).float(),
            "verifier_last_hidden_states": torch.cat(lasts).unsqueeze(0).float(),
            "document_ids": self._one(documents),
            "position_ids": self._one(positions),
        }

    def _one(self, values: Sequence[int]) -> Any:
        import torch

        return torch.tensor([list(values)], device=device())

    def _states(self, text: Sequence[int]) -> tuple[Any, Any]:
        """The target's hidden states at the head's layers, side by side, and those before its last norm."""
        import torch

        before_norm: list[Any] = []
        hook = self._target.base_model.norm.register_forward_pre_hook(
            lambda _, given: before_norm.append(given[0])
        )
        try:
            with torch.no_grad():
                found = self._target.base_model(
                    self._one(text), output_hidden_states=True, use_cache=False
                ).hidden_states
        finally:
            hook.remove()
        layers = [found[layer][0] if layer < len(found) - 1 else before_norm[0][0] for layer in self._layers]
        return torch.cat(layers, dim=-1), before_norm[0][0]
