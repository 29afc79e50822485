"""An EAGLE-3 head that learns from a target's hidden states, by the model classes of vllm-project/speculators 0.9.0."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.engine.drafts import Answers, Row, copy_others, device, type_of, walk

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
