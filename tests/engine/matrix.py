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


def _cases(stage: Stage, table: str) -> tuple[Case, ...]:
    """A row each: name | code | target, and what is set of it | method, draft and K, and more | engine."""
    found = []
    for row in table.strip().splitlines():
        name, code, target, speculation, engine, *_ = [*row.split(" | "), *["-"] * 3]
        model, _, more = target.partition(", ")
        text = f'vllm: "==0.32.*"\ntarget: {{model: ./{model}, {more}}}\n'
        if speculation != "-":
            head, _, more = speculation.partition(", ")
            method, draft, *k = head.split()
            keys = [f"method: {method}", *([f"model: ./{draft}"] if draft != "-" else [])]
            keys += [f"num_speculative_tokens: {number}" for number in k]
            text += f"speculation: {{{', '.join([*keys, more])}}}\n"
        text += f"engine: {{{engine.removeprefix('-')}}}\n"
        found.append(Case(name, text, stage, None if code == "-" else code))
    return tuple(found)


REFUSED = _cases(
    "config",
    """
7 heads over 2 ranks | SD222 | qwen-odd, tensor_parallel_size: 2
a draft of 7 heads over 4 ranks | SD222 | qwen3, tensor_parallel_size: 4 | draft_model qwen-odd-draft 4
more context than the model has | SD501 | llama, max_model_len: 8192
more context than the draft has | SD501 | llama | draft_model llama-draft 4, max_model_len: 8192
more context for the draft than for its target | SD501 | llama, max_model_len: 1024 | draft_model llama-draft \
    4, max_model_len: 2048
prediction layers of a plain model | SD501 | llama | mtp - 1
three tokens by two layers | SD501 | mimo-two | mtp - 3
a head of a family without heads | SD235 | qwen | eagle qwen-eagle 3
a head under another method | SD235 | llama, max_model_len: 2048 | eagle llama-eagle3 3
a vocabulary of another size | - | qwen | draft_model qwen-draft 4
a draft on 2 of 4 ranks | SD104 | qwen3, tensor_parallel_size: 4 | draft_model qwen3-draft 4, \
    draft_tensor_parallel_size: 2
bitsandbytes | SD501 | llama-bnb
another quantization than the checkpoint's | SD501 | mimo-packed, quantization: fp8
no such draft | - | llama | draft_model nowhere 4
an n-gram window upside down | SD501 | llama | ngram - 4, prompt_lookup_max: 2, prompt_lookup_min: 4
a draft without K | - | llama | draft_model llama-draft
a key of another block | - | llama | draft_model llama-draft 4, tensor_parallel_size: 1
a misspelt key | - | llama | ngram - 4, prompt_lookup_max: 4, prompt_lookup_min: 2, ngram_prompt_lookup_max: 4
an unknown method | - | llama | eagle2 llama-eagle 3
K of nought | - | llama | ngram - 0, prompt_lookup_max: 4, prompt_lookup_min: 2
a way to sample that is none | - | llama | draft_model llama-draft 4, draft_sample_method: random
another vocabulary, and probabilistic drafts | SD501 | qwen | draft_model qwen-draft 4, \
    use_heterogeneous_vocab: true, draft_sample_method: probabilistic
synthetic acceptance without rates | - | llama | draft_model llama-draft 4, rejection_sample_method: synthetic
too few slots for adapters | - | llama | draft_model llama-draft 4 | enable_lora: true, max_num_batched_tokens: \
    64, max_num_seqs: 64
an unknown argument | SD102 | llama | - | max_num_sequences: 8
weights that nobody prepared | SD252 | llama, quantization: compressed-tensors
float16 for a model that overflows in it | SD501 | gemma2, dtype: float16
experts of a dense model | SD501 | llama | - | enable_expert_parallel: true
""",
)
FAILS_LOADING = _cases(
    "load",
    """
a target that keeps its hidden states | SD224 | gemma, max_model_len: 2048 | eagle3 llama-eagle3 3
prediction layers that were lost | SD231 | mimo-stripped | mtp - 1
an EAGLE head as an EAGLE-3 head | SD237 | llama, max_model_len: 2048 | eagle3 llama-eagle 3
parallel drafts without a mask | SD241 | llama | draft_model llama-draft 4, parallel_drafting: true
a head as a model | SD221 | llama-eagle3
a head for a narrower target | SD237 | qwen3-wide | dflash qwen3-dflash 7
a head for a deeper target | SD237 | qwen3-flat | dflash qwen3-dflash 7
prediction layers as a draft model | SD101 | llama | draft_model mimo-small 1
a directory without weights | SD250 | llama-empty
a download that was cut short | SD250 | llama-cut
an EAGLE head as a model | SD501 | llama-eagle
adapters for a model that takes none | SD253 | gpt2 | - | enable_lora: true
a model without its tokenizer | SD250 | llama-mute
""",
)
SOUND = _cases(
    "served",
    """
a model alone | - | llama
all of its context | - | llama, max_model_len: 4096
a draft model | - | llama | draft_model llama-draft 4
probabilistic drafts | - | llama | draft_model llama-draft 4, draft_sample_method: probabilistic
n-grams | - | llama | ngram - 4, prompt_lookup_max: 4, prompt_lookup_min: 2
prediction layers | - | mimo | mtp - 1
one layer three times | - | mimo | mtp - 3
two layers | - | mimo-two | mtp - 4
an EAGLE-3 head | - | llama, max_model_len: 2048 | eagle3 llama-eagle3 3
an EAGLE head | - | llama, max_model_len: 2048 | eagle llama-eagle 3
a head of the speculators library | - | llama, max_model_len: 2048 | eagle3 llama-speculator 3
a DFlash head | - | qwen3 | dflash qwen3-dflash 7
two ranks | - | qwen3, tensor_parallel_size: 2 | draft_model qwen3-draft 4
another vocabulary | - | qwen | draft_model qwen-draft 4, use_heterogeneous_vocab: true
experts | - | qwen3-moe | ngram - 4, prompt_lookup_max: 4, prompt_lookup_min: 2
a model of another family | - | gemma | ngram - 4, prompt_lookup_max: 4, prompt_lookup_min: 2
K by running requests | - | llama | draft_model llama-draft 4, num_speculative_tokens_per_batch_size: [[1, 8, \
    4], [9, 128, 1]]
a draft that is quantized alike | - | llama | draft_model llama-draft 4, max_model_len: 2048
adapters | - | llama | - | enable_lora: true, max_lora_rank: 16
a model with positions of its own | - | gpt2
""",
)
_HEAD = 'vllm: "==0.32.*"\nhardware: {accelerator: cpu}\ntarget: {model: ./llama, max_model_len: 1024}\n'
DRAFT = "method: draft_model, model: ./llama-draft, num_speculative_tokens: 4"
WHOLE = "{enable_chunked_prefill: false, max_num_seqs: 4, max_num_batched_tokens: N}"
PARALLEL = f"{DRAFT}, parallel_drafting: true"
HEAD_3 = "method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3"
NGRAM = "method: ngram, num_speculative_tokens: 4"
WINDOW = "prompt_lookup_min: 2, prompt_lookup_max: 4"
ALONE = "SD501"
"""What vLLM alone names: `lint` has no rule for it, and `check` shows it where vLLM is asked."""


def _edge(name: str, speculation: str | None, engine: str = "{}", code: str | None = None) -> Case:
    block = f"speculation: {{{speculation}}}\n" if speculation else ""
    return Case(f"static rules: {name}", f"{_HEAD}{block}engine: {engine}\n", code=code)


BORDERS = (
    _edge("a draft", DRAFT),
    _edge("a window", f"{NGRAM}, {WINDOW}"),
    _edge("a window of one size", f"{NGRAM}, prompt_lookup_min: 3, prompt_lookup_max: 3"),
    _edge("layers without K", "method: mtp", code="SD007"),
    _edge("async with n-grams", f"{NGRAM}, {WINDOW}", "{async_scheduling: true}", ALONE),
    _edge("async with a draft", DRAFT, "{async_scheduling: true}"),
    _edge("async, unpadded", f"{HEAD_3}, disable_padded_drafter_batch: true", "{async_scheduling: true}", ALONE),
    _edge(
        "another vocabulary, sampled",
        f"{DRAFT}, use_heterogeneous_vocab: true, draft_sample_method: probabilistic",
        code=ALONE,
    ),
    _edge("adaptive verification on a CPU", f"{DRAFT}, enable_adaptive_verification: true", code=ALONE),
    _edge("LoRA, a token short", DRAFT, "{enable_lora: true, max_num_seqs: 64, max_num_batched_tokens: 319}", "SD138"),
    _edge("LoRA, enough", DRAFT, "{enable_lora: true, max_num_seqs: 64, max_num_batched_tokens: 320}"),
    _edge("fewer tokens than requests", DRAFT, "{max_num_seqs: 64, max_num_batched_tokens: 63}", "SD138"),
    _edge("a prompt in one piece", DRAFT, WHOLE.replace("N", "1023"), ALONE),
    _edge("room for it", DRAFT, WHOLE.replace("N", "1024")),
    _edge("no token left to schedule", DRAFT, "{max_num_seqs: 1, max_num_batched_tokens: 1}", ALONE),
    _edge("one token left", DRAFT, "{max_num_seqs: 1, max_num_batched_tokens: 2}"),
    _edge("all slots of parallel drafts", PARALLEL, "{max_num_seqs: 1, max_num_batched_tokens: 4}", ALONE),
    _edge("one slot more", PARALLEL, "{max_num_seqs: 1, max_num_batched_tokens: 5}"),
    _edge("a draft longer than its target", f"{DRAFT}, max_model_len: 2048", code=ALONE),
    _edge("a draft shorter than its target", f"{DRAFT}, max_model_len: 512"),
    _edge("three ranks of one", f"{DRAFT}, draft_tensor_parallel_size: 3", code="SD104"),
    _edge("block verification", f"{DRAFT}, rejection_sample_method: block"),
    _edge("local argmax", f"{DRAFT}, use_local_argmax_reduction: true"),
    _edge("no drafts", None, "{max_num_batched_tokens: 128, max_num_seqs: 128}"),
)  # fmt: skip
