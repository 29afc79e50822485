"""Models by their config.json alone, as an estimate reads them: a dense pair, and a mixture of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specserve.hardware.accelerators import Machine, accelerator
from specserve.memory.inputs import MemoryInputs, memory_inputs
from specserve.profile.load import load_profile
from tests.memory.models import LLAMA_1B, LLAMA_8B, decoder

MIXTURE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "vocab_size": 151936,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
PAIR = "{method: draft_model, model: m/1b, num_speculative_tokens: 4}"
NGRAM = "{method: ngram, prompt_lookup_max: 4, num_speculative_tokens: 4}"


def variant(
    folder: Path,
    *,
    name: str = "H100-80GB",
    speculation: str = PAIR,
    target: dict[str, Any] = LLAMA_8B,
    count: int | None = None,
    **sizes: Any,
) -> MemoryInputs:
    """A target and how it speculates, on accelerators of that name; `sizes` go to `target` of the profile."""
    file = folder / "p.yaml"
    keys = {"max_model_len": 8192, **sizes}
    told = ", ".join(f"{key}: {value}" for key, value in keys.items())
    file.write_text(f"target: {{model: m/target, {told}}}\nspeculation: {speculation}\n", encoding="utf-8")
    profile = load_profile(str(file))
    return memory_inputs(
        profile,
        target=decoder(target, "m/target"),
        machine=Machine(accelerator(name), count or keys.get("tensor_parallel_size", 1)),
        version="0.33",
        speculation=profile.speculation,
        draft=decoder(LLAMA_1B, "m/1b") if speculation == PAIR else None,
    )
