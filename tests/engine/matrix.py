"""Mistakes and sound profiles on small checkpoints, with what vLLM does to each. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.checks.checkpoints import beside

Stage = Literal["config", "load", "served"]


@dataclass(frozen=True)
class Case:
    """One profile: `code` is what check says of it (SD501: if it asks vLLM), `stage` where vLLM ends it."""

    name: str
    text: str
    stage: Stage = "served"
    code: str | None = None

    def lay_out(self, folder: Path) -> Path:
        """The profile in this folder, with the checkpoints that it names beside it."""
        beside(folder, self.text)
        file = folder / "p.yaml"
        file.write_text(self.text, encoding="utf-8")
        return file

    def kwargs(self, folder: Path) -> dict[str, Any]:
        """The arguments of `EngineArgs` that say the same."""
        profile = yaml.safe_load(self.text)
        speculation = profile.get("speculation")
        flat = {**profile["target"], **profile.get("engine", {})}
        if speculation:
            flat["speculative_config"] = _absolute(speculation, folder)
        return _absolute(flat, folder)


def _absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Paths of the profile's own folder, as vLLM needs them."""
    return {
        key: str(folder / value) if isinstance(value, str) and value.startswith("./") else value
        for key, value in values.items()
    }


def _target(model: str = "llama", **more: Any) -> str:
    keys = ", ".join(f"{key}: {value}" for key, value in {"model": f"./{model}", **more}.items())
    return f"target: {{{keys}}}\n"


def _pair(target: str, speculation: str, *, engine: str = "{}") -> str:
    return f'vllm: "==0.32.*"\n{target}speculation: {{{speculation}}}\nengine: {engine}\n'


_DRAFT = "method: draft_model, model: ./llama-draft, num_speculative_tokens: 4"
_NGRAM = "method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2"
_EAGLE3 = "method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3"
_SHORT = _target(max_model_len=2048)

REFUSED: tuple[Case, ...] = (
    Case(
        "7 heads over 2 ranks",
        f'vllm: "==0.32.*"\n{_target("qwen-odd", tensor_parallel_size=2)}',
        "config",
        "SD222",
    ),
    Case(
        "a draft of 7 heads over 4 ranks",
        _pair(
            _target("qwen3", tensor_parallel_size=4),
            "method: draft_model, model: ./qwen-odd-draft, num_speculative_tokens: 4",
        ),
        "config",
        "SD222",
    ),
    Case(
        "more context than the model has",
        f'vllm: "==0.32.*"\n{_target(max_model_len=8192)}',
        "config",
        "SD501",
    ),
    Case(
        "more context than the draft has",
        _pair(_target(), f"{_DRAFT}, max_model_len: 8192"),
        "config",
        "SD501",
    ),
    Case(
        "more context for the draft than for its target",
        _pair(_target(max_model_len=1024), f"{_DRAFT}, max_model_len: 2048"),
        "config",
        "SD501",
    ),
    Case(
        "prediction layers of a plain model",
        _pair(_target(), "method: mtp, num_speculative_tokens: 1"),
        "config",
        "SD501",
    ),
    Case(
        "three tokens by two layers",
        _pair(_target("mimo-two"), "method: mtp, num_speculative_tokens: 3"),
        "config",
        "SD501",
    ),
    Case(
        "a head of a family without heads",
        _pair(_target("qwen"), "method: eagle, model: ./qwen-eagle, num_speculative_tokens: 3"),
        "config",
        "SD235",
    ),
    Case(
        "a head under another method",
        _pair(_SHORT, "method: eagle, model: ./llama-eagle3, num_speculative_tokens: 3"),
        "config",
        "SD235",
    ),
    Case(
        "a vocabulary of another size",
        _pair(_target("qwen"), "method: draft_model, model: ./qwen-draft, num_speculative_tokens: 4"),
        "config",
    ),
    Case(
        "a draft on 2 of 4 ranks",
        _pair(
            _target("qwen3", tensor_parallel_size=4),
            f"{_DRAFT}, draft_tensor_parallel_size: 2".replace("llama", "qwen3"),
        ),
        "config",
        "SD104",
    ),
    Case("bitsandbytes", f'vllm: "==0.32.*"\n{_target("llama-bnb")}', "config", "SD501"),
    Case(
        "another quantization than the checkpoint's",
        f'vllm: "==0.32.*"\n{_target("mimo-packed", quantization="fp8")}',
        "config",
        "SD501",
    ),
    Case("no such draft", _pair(_target(), _DRAFT.replace("llama-draft", "nowhere")), "config"),
    Case(
        "an n-gram window upside down",
        _pair(
            _target(), "method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 2, prompt_lookup_min: 4"
        ),
        "config",
        "SD501",
    ),
    Case("a draft without K", _pair(_target(), "method: draft_model, model: ./llama-draft"), "config"),
    Case("a key of another block", _pair(_target(), f"{_DRAFT}, tensor_parallel_size: 1"), "config"),
    Case("a misspelt key", _pair(_target(), f"{_NGRAM}, ngram_prompt_lookup_max: 4"), "config"),
    Case(
        "an unknown method",
        _pair(_target(), "method: eagle2, model: ./llama-eagle, num_speculative_tokens: 3"),
        "config",
    ),
    Case("K of nought", _pair(_target(), _NGRAM.replace("tokens: 4", "tokens: 0")), "config"),
    Case(
        "a way to sample that is none", _pair(_target(), f"{_DRAFT}, draft_sample_method: random"), "config"
    ),
    Case(
        "another vocabulary, and probabilistic drafts",
        _pair(
            _target("qwen"),
            "method: draft_model, model: ./qwen-draft, num_speculative_tokens: 4, use_heterogeneous_vocab: true, "
            "draft_sample_method: probabilistic",
        ),
        "config",
        "SD501",
    ),
    Case(
        "synthetic acceptance without rates",
        _pair(_target(), f"{_DRAFT}, rejection_sample_method: synthetic"),
        "config",
    ),
    Case(
        "too few slots for adapters",
        _pair(_target(), _DRAFT, engine="{enable_lora: true, max_num_batched_tokens: 64, max_num_seqs: 64}"),
        "config",
    ),
    Case(
        "an unknown argument",
        f'vllm: "==0.32.*"\n{_target()}engine: {{max_num_sequences: 8}}\n',
        "config",
        "SD102",
    ),
    Case(
        "weights that nobody prepared",
        f'vllm: "==0.32.*"\n{_target(quantization="compressed-tensors")}',
        "config",
        "SD501",
    ),
    Case(
        "float16 for a model that overflows in it",
        f'vllm: "==0.32.*"\n{_target("gemma2", dtype="float16")}',
        "config",
        "SD501",
    ),
    Case(
        "experts of a dense model",
        f'vllm: "==0.32.*"\n{_target()}engine: {{enable_expert_parallel: true}}\n',
        "config",
        "SD501",
    ),
)

FAILS_LOADING: tuple[Case, ...] = (
    Case(
        "a target that keeps its hidden states",
        _pair(_target("gemma", max_model_len=2048), _EAGLE3),
        "load",
        "SD224",
    ),
    Case(
        "prediction layers that were lost",
        _pair(_target("mimo-stripped"), "method: mtp, num_speculative_tokens: 1"),
        "load",
        "SD231",
    ),
    Case(
        "an EAGLE head as an EAGLE-3 head",
        _pair(_SHORT, "method: eagle3, model: ./llama-eagle, num_speculative_tokens: 3"),
        "load",
        "SD237",
    ),
    Case(
        "parallel drafts without a mask",
        _pair(_target(), f"{_DRAFT}, parallel_drafting: true"),
        "load",
        "SD241",
    ),
    Case("a head as a model", f'vllm: "==0.32.*"\n{_target("llama-eagle3")}', "load", "SD221"),
    Case(
        "a head for a narrower target",
        _pair(_target("qwen3-wide"), "method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7"),
        "load",
        "SD237",
    ),
    Case(
        "a head for a deeper target",
        _pair(_target("qwen3-flat"), "method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7"),
        "load",
        "SD237",
    ),
    Case(
        "prediction layers as a draft model",
        _pair(_target(), "method: draft_model, model: ./mimo-small, num_speculative_tokens: 1"),
        "load",
        "SD101",
    ),
    Case("a directory without weights", f'vllm: "==0.32.*"\n{_target("llama-empty")}', "load", "SD250"),
    Case("a download that was cut short", f'vllm: "==0.32.*"\n{_target("llama-cut")}', "load", "SD250"),
    Case("an EAGLE head as a model", f'vllm: "==0.32.*"\n{_target("llama-eagle")}', "load", "SD501"),
    Case(
        "adapters for a model that takes none",
        f'vllm: "==0.32.*"\n{_target("gpt2")}engine: {{enable_lora: true}}\n',
        "load",
        "SD253",
    ),
    Case("a model without its tokenizer", f'vllm: "==0.32.*"\n{_target("llama-mute")}', "load", "SD250"),
)

SOUND: tuple[Case, ...] = (
    Case("a model alone", f'vllm: "==0.32.*"\n{_target()}'),
    Case("all of its context", f'vllm: "==0.32.*"\n{_target(max_model_len=4096)}'),
    Case("a draft model", _pair(_target(), _DRAFT)),
    Case("probabilistic drafts", _pair(_target(), f"{_DRAFT}, draft_sample_method: probabilistic")),
    Case("n-grams", _pair(_target(), _NGRAM)),
    Case("prediction layers", _pair(_target("mimo"), "method: mtp, num_speculative_tokens: 1")),
    Case("one layer three times", _pair(_target("mimo"), "method: mtp, num_speculative_tokens: 3")),
    Case("two layers", _pair(_target("mimo-two"), "method: mtp, num_speculative_tokens: 4")),
    Case("an EAGLE-3 head", _pair(_SHORT, _EAGLE3)),
    Case("an EAGLE head", _pair(_SHORT, "method: eagle, model: ./llama-eagle, num_speculative_tokens: 3")),
    Case(
        "a head of the speculators library",
        _pair(_SHORT, "method: eagle3, model: ./llama-speculator, num_speculative_tokens: 3"),
    ),
    Case(
        "a DFlash head",
        _pair(_target("qwen3"), "method: dflash, model: ./qwen3-dflash, num_speculative_tokens: 7"),
    ),
    Case("two ranks", _pair(_target("qwen3", tensor_parallel_size=2), _DRAFT.replace("llama", "qwen3"))),
    Case(
        "another vocabulary",
        _pair(
            _target("qwen"),
            "method: draft_model, model: ./qwen-draft, num_speculative_tokens: 4, use_heterogeneous_vocab: true",
        ),
    ),
    Case("experts", _pair(_target("qwen3-moe"), _NGRAM)),
    Case("a model of another family", _pair(_target("gemma"), _NGRAM)),
    Case(
        "K by running requests",
        _pair(_target(), f"{_DRAFT}, num_speculative_tokens_per_batch_size: [[1, 8, 4], [9, 128, 1]]"),
    ),
    Case("a draft that is quantized alike", _pair(_target(), f"{_DRAFT}, max_model_len: 2048")),
    Case("adapters", f'vllm: "==0.32.*"\n{_target()}engine: {{enable_lora: true, max_lora_rank: 16}}\n'),
    Case("a model with positions of its own", f'vllm: "==0.32.*"\n{_target("gpt2")}'),
)
