"""What learns from a target's answers, a draft model or an EAGLE-3 head: loss and guesses.

A head uses the model classes of vllm-project/speculators 0.9.0, and its target, for hidden states.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_IGNORED_REST = 1e-6
_WEIGHTS = (".safetensors", ".bin", ".index.json", ".pt")
_MASKS = "sdpa"
"""The attention that runs on every device; speculators' own needs a GPU."""


def read_answers(path: str, part: str) -> list[Row]:
    """The answers whose id begins with the part's name, by length; a refused line has none."""
    with Path(path).open(encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if str(row["id"]).startswith(f"{part}/")]
    return sorted((row for row in rows if row.get("token_ids")), key=_length)


def _length(row: Row) -> int:
    return len(row["prompt_token_ids"]) + len(row["token_ids"])


def batches(rows: Sequence[Row], most_tokens: int) -> Iterator[list[Row]]:
    """Rows of like length, whose padded sizes stay within the bound."""
    batch: list[Row] = []
    for row in sorted(rows, key=_length):
        if batch and (len(batch) + 1) * _length(row) > most_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def walk(length: int, is_right: Callable[[int, int], bool], *, k: int) -> tuple[int, int]:
    """Steps, and what they accepted, of an answer of so many tokens.

    `is_right(at, nth)`: whether the nth guess of the step whose first guess is token `at` is the
    target's token. Exact up to rounding at temperature 0: a guess follows earlier guesses, which
    are the target's tokens as long as they are accepted. The first token comes from the prefill.
    """
    steps = accepted = 0
    at = 1
    while at < length:
        run = 0
        while run < k and at + run < length and is_right(at, run):
            run += 1
        steps, accepted = steps + 1, accepted + run
        at += run + 1
    return steps, accepted


def _device() -> str:
    """A GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class DraftModel:
    """A draft model in float32, which learns the target's likeliest tokens."""

    batch_tokens = 2048
    """Of a batch, padding included."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        folder = request["draft"]
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
        self.model: Any = model.to(_device()).eval()
        self.width: int = self.model.config.hidden_size

    def state(self) -> dict[str, Any]:
        """The weights that learn, by name."""
        learning = {name for name, one in self.model.named_parameters() if one.requires_grad}
        return {name: value for name, value in self.model.state_dict().items() if name in learning}

    def loss(self, batch: Sequence[Row]) -> Any:
        """The mean loss of a batch, for `backward`."""
        return _loss(self._logits(batch), batch)

    def acceptance(self, rows: Sequence[Row], *, k: int) -> float:
        """Accepted over drafted tokens of greedy answers with K tokens a step."""
        import torch

        steps = accepted = 0
        with torch.inference_mode():
            for batch in batches(rows, self.batch_tokens):
                for row, is_right in zip(batch, self._guessed(batch, k), strict=True):
                    walked = walk(len(row["token_ids"]), is_right, k=k)
                    steps, accepted = steps + walked[0], accepted + walked[1]
        return accepted / (steps * k) if steps else 0.0

    def save(self, folder: Path, source: Path) -> None:
        """Weights in the type of the source's, all else as it is there: what vLLM can serve."""
        import torch
        from safetensors import safe_open

        kind = torch.float32
        for file in sorted(source.glob("*.safetensors"))[:1]:
            with safe_open(file, framework="pt") as tensors:
                kind = tensors.get_slice(next(iter(tensors.keys())))[:1].dtype
        left_out = self._left_out()
        weights = {
            name: value.to(kind) if value.is_floating_point() else value
            for name, value in self.model.state_dict().items()
            if name not in left_out
        }
        self.model.save_pretrained(folder, state_dict=weights)
        for file in source.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHTS):
                shutil.copyfile(file, folder / file.name)

    def _left_out(self) -> set[str]:
        """A tied output table is the embedding under another name."""
        state = self.model.state_dict()
        firsts = {value.data_ptr(): name for name, value in reversed(state.items())}
        return state.keys() - firsts.values()  # type: ignore[no-any-return]

    def _guessed(self, batch: Sequence[Row], _k: int) -> Iterator[Callable[[int, int], bool]]:
        """For each answer, what `walk` asks."""
        guesses = self._logits(batch).argmax(-1).tolist()
        for row in batch:
            ids = row["token_ids"]
            own, guesses = guesses[: len(ids)], guesses[len(ids) :]
            right = [guess == token for guess, token in zip(own, ids, strict=True)]
            yield lambda at, nth, right=right: right[at + nth]  # type: ignore[misc]

    def _logits(self, batch: Sequence[Row]) -> Any:
        """Where the answers' tokens were to be guessed: (all answers' tokens, vocabulary)."""
        import torch

        texts = [[*row["prompt_token_ids"], *row["token_ids"]] for row in batch]
        width, place = max(map(len, texts)), self.model.device
        ids = torch.tensor([text + [0] * (width - len(text)) for text in texts], device=place)
        sizes = torch.tensor([len(text) for text in texts], device=place)
        mask = (torch.arange(width, device=place) < sizes[:, None]).long()
        found = self.model.model(input_ids=ids, attention_mask=mask, use_cache=False)
        picked = [
            found.last_hidden_state[at, len(row["prompt_token_ids"]) - 1 : len(texts[at]) - 1]
            for at, row in enumerate(batch)
        ]
        return self.model.lm_head(torch.cat(picked)).float()


def _loss(logits: Any, batch: Sequence[Row]) -> Any:
    """KL divergence from the target's likeliest tokens, the rest as one, plus cross-entropy.

    Sampled drafts are accepted where the distributions agree, greedy ones where the likeliest
    tokens do.
    """
    import torch
    from torch.nn.functional import cross_entropy, log_softmax

    steps = [step for row in batch for step in row["logprobs"]]
    most = max(map(len, steps))
    padded = [list(step) + [[0, -math.inf]] * (most - len(step)) for step in steps]
    ids = torch.tensor([[token for token, _ in step] for step in padded], device=logits.device)
    target = torch.tensor([[value for _, value in step] for step in padded], device=logits.device)
    p = target.exp()
    known = p > 0
    mine = log_softmax(logits, -1).gather(-1, ids)
    divergence = (p * (target.where(known, 0.0) - mine.where(known, 0.0))).sum(-1)
    rest = (1 - p.sum(-1)).clamp(min=0)
    left = (1 - mine.exp().where(known, 0.0).sum(-1)).clamp(min=_IGNORED_REST)
    of_rest = rest * (rest.clamp(min=_IGNORED_REST).log() - left.log())
    divergence = divergence + of_rest.where(rest > _IGNORED_REST, 0.0)
    likeliest = ids.gather(-1, target.argmax(-1, keepdim=True)).squeeze(-1)
    return divergence.mean() + cross_entropy(logits, likeliest)


class Eagle3Head(DraftModel):
    """A head in float32 and its target, whose hidden states are computed for each batch."""

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
        head = Eagle3DraftModel.from_pretrained(folder, config=config)
        self.model = head.float().to(_device()).eval()
        kind = torch.float32 if _device() == "cpu" else torch.bfloat16
        model = AutoModelForCausalLM.from_pretrained(target, dtype=kind, local_files_only=True)
        self._target = model.to(_device()).eval().requires_grad_(requires_grad=False)
        self._layers: list[int] = list(self.model.target_layer_ids)
        self._k: int = request["k"]
        self._loss = resolve_loss_config("kl_div", "eager")
        self.width = self.model.hidden_size

    def loss(self, batch: Sequence[Row]) -> Any:
        """The loss of a batch over K guesses a step, for `backward`."""
        counted = [
            at >= len(row["prompt_token_ids"]) for row in batch for at in range(1, _length(row))
        ]
        mask, given = self._one(counted).bool(), self._given(batch)
        options = {"loss_mask": mask, "ttt_steps": self._k, "loss_config": self._loss}
        _, loss, _ = self.model(**given, **options)
        return loss

    def _left_out(self) -> set[str]:
        return set(self.model._keys_to_ignore_on_save or ())

    def _guessed(self, batch: Sequence[Row], k: int) -> Iterator[Callable[[int, int], bool]]:
        given = self._given(batch)
        given.pop("verifier_last_hidden_states")
        d2t, guesses = self.model.d2t, []  # a head may have a smaller vocabulary
        for step in self.model(**given, ttt_steps=k):
            ids = step.squeeze(0)
            guesses.append((ids if d2t is None else ids + d2t[ids]).tolist())
        begin = 0
        for row in batch:
            # position i of a text guesses its token i + 2, from token i + 1 and the state before it
            first, own = begin + len(row["prompt_token_ids"]) - 2, row["token_ids"]
            yield lambda at, nth, first=first, own=own: guesses[nth][first + at] == own[at + nth]  # type: ignore[misc]
            begin += _length(row) - 1

    def _given(self, batch: Sequence[Row]) -> dict[str, Any]:
        """What the head is given: the texts one by one, each token with the state before it."""
        import torch

        ids, documents, positions = list[int](), list[int](), list[int]()
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

        return torch.tensor([list(values)], device=_device())

    def _states(self, text: Sequence[int]) -> tuple[Any, Any]:
        """The target's states at the head's layers, side by side, and before its last norm."""
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
        last = len(found) - 1  # which has the norm
        layers = [found[at][0] if at < last else before_norm[0][0] for at in self._layers]
        return torch.cat(layers, dim=-1), before_norm[0][0]
