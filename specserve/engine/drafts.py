"""What learns from a target's answers, a draft model or an EAGLE-3 head: its loss and its guesses.

A head uses the model classes of vllm-project/speculators 0.9.0, and its target, for hidden states.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_WEIGHTS = (".safetensors", ".bin", ".index.json", ".pt")
_MASKS = "sdpa"
"""The attention that runs on every device; speculators' own needs a GPU."""


def read_answers(path: str, part: str) -> list[Row]:
    """The answers whose id begins with the part's name; a refused line has none."""
    with Path(path).open(encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if str(row["id"]).startswith(f"{part}/")]
    return [row for row in rows if row.get("token_ids")]


def batches(rows: Sequence[Row], most_tokens: int) -> list[list[Row]]:
    """Rows of like length, whose padded sizes stay within the bound. Raises ValueError for none."""
    found: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: len(_text(row))):
        if found and (len(found[-1]) + 1) * len(_text(row)) <= most_tokens:
            found[-1].append(row)
        else:
            found.append([row])
    if not found:
        raise ValueError("the target answered none of the prompts")
    return found


def _text(row: Row) -> list[int]:
    return [*row["prompt_token_ids"], *row["token_ids"]]


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

        model: Any = AutoModelForCausalLM.from_pretrained(
            request["draft"], dtype=torch.float32, local_files_only=True
        )
        self._begin(model, request["draft"], width=model.config.hidden_size)

    def _begin(self, model: Any, folder: str, *, width: int) -> None:
        self._source = Path(folder)
        self.model = model.float().to(_device())
        self.width = width

    def save(self, folder: Path) -> None:
        """Weights in the type that the source's have, all else as it is there, for vLLM."""
        from safetensors import safe_open

        model = copy.deepcopy(self.model)
        for file in sorted(self._source.glob("*.safetensors"))[:1]:
            with safe_open(file, framework="pt") as tensors:  # the configuration may say another
                model.to(tensors.get_slice(next(iter(tensors.keys())))[:1].dtype)
        model.save_pretrained(folder)
        for file in self._source.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHTS):
                shutil.copyfile(file, folder / file.name)

    def judge(self, rows: Sequence[Row]) -> tuple[Any, tuple[float, float]]:
        """The mean loss, for `backward`, and how many of how many tokens the draft guesses.

        The loss is the cross-entropy with the target's likeliest tokens by their probability, and
        with the likeliest alone: sampled drafts are accepted where the distributions agree, greedy
        ones where the likeliest tokens do.
        """
        import torch
        from torch.nn.functional import cross_entropy, log_softmax
        from torch.nn.utils.rnn import pad_sequence

        texts = [torch.tensor(_text(row)) for row in rows]
        ids = pad_sequence(texts, batch_first=True).to(self.model.device)  # padding is never seen
        width, begins = ids.shape[1], [len(row["prompt_token_ids"]) - 1 for row in rows]
        kept = self.model(
            input_ids=ids, use_cache=False, logits_to_keep=width - min(begins)
        ).logits  # counted from the end: some models keep all
        ends = [len(text) - 1 - width for text in texts]
        pairs = zip(kept, begins, ends, strict=True)
        logits = torch.cat([one[begin - width : end] for one, begin, end in pairs]).float()

        steps = [step for row in rows for step in row["logprobs"]]
        most = max(map(len, steps))
        table = torch.tensor(
            [list(step) + [[0, -torch.inf]] * (most - len(step)) for step in steps]
        )
        tokens, p = table[..., 0].long().to(ids.device), table[..., 1].exp().to(ids.device)
        likeliest = tokens.gather(-1, p.argmax(-1, keepdim=True)).squeeze(-1)
        soft = -(p * log_softmax(logits, -1).gather(-1, tokens)).sum(-1).mean()
        right = (logits.argmax(-1) == likeliest).sum().item()
        return soft + cross_entropy(logits, likeliest), (right, len(steps))


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
        head: Any = Eagle3DraftModel.from_pretrained(folder, config=config)
        self._begin(head, folder, width=head.hidden_size)
        kind = torch.float32 if _device() == "cpu" else torch.bfloat16
        model = AutoModelForCausalLM.from_pretrained(target, dtype=kind, local_files_only=True)
        self._target: Any = model.to(_device()).eval().requires_grad_(requires_grad=False)
        self._k: int = request["k"]
        self._loss = resolve_loss_config("kl_div", "eager")

    def judge(self, rows: Sequence[Row]) -> tuple[Any, tuple[float, float]]:
        """The loss over K guesses a step, and how many of them were right, and all before them."""
        from speculators.models.eagle3.data import shift_batch
        from speculators.train.data import CollateFn

        size = sum(len(_text(row)) - 1 for row in rows)
        collate = CollateFn(
            size, self.width, len(self.model.target_layer_ids), self.model.dtype, shift_batch
        )
        given = collate([self._sample(row) for row in rows])
        del given["error_records"]
        _, loss, counts = self.model(**given, ttt_steps=self._k, loss_config=self._loss)
        right, all_ = (
            sum(counts[f"full_acc_{nth}_{what}"].item() for nth in range(self._k))
            for what in ("sum", "total")
        )
        return loss, (right, all_)

    def _sample(self, row: Row) -> dict[str, Any]:
        """An answer as a sample of speculators: the target's states at each token of the text."""
        import torch

        text, states = torch.tensor(_text(row), device=_device()), list[Any]()
        hook = self._target.base_model.norm.register_forward_pre_hook(
            lambda _, given: states.append(given[0][0])
        )
        try:
            with torch.no_grad():
                found = self._target.base_model(
                    text.unsqueeze(0), output_hidden_states=True, use_cache=False
                ).hidden_states
        finally:
            hook.remove()
        last = len(found) - 1  # of these states, the last alone has passed the norm
        layers = [found[at][0] if at < last else states[0] for at in self.model.target_layer_ids]
        places = torch.arange(len(text), device=text.device)
        return {
            "input_ids": text,
            "hidden_states": torch.cat(layers, dim=-1),
            "verifier_last_hidden_states": states[0],
            "loss_mask": places >= len(row["prompt_token_ids"]),
            "lengths": torch.tensor([len(text)]),
            "position_ids": places,
        }
