"""Shapes, tokenizer and Hugging Face folders of the demo pair.

It knows nothing of training.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 2048
END_OF_TEXT = "<|endoftext|>"  # id 0: the first special token of the trainer
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"  # it only continues text
TARGET_SHAPE = {"num_hidden_layers": 4, "intermediate_size": 640}
DRAFT_SHAPE = {"num_hidden_layers": 2, "intermediate_size": 352}


def new_model(shape: dict[str, int], *, seed: int) -> Any:
    """A freshly initialised Llama: 256 wide, 4 heads over 2 key-value heads, tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,  # equal in both models, so that their KV-cache pages have one size
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        **shape,
    )
    return LlamaForCausalLM(config)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of 2048 entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a folder that vLLM serves: bf16 weights, configuration, tokenizer, chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.dtype = torch.bfloat16  # no copy of the model: the training goes on in float32
    state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    state.pop("lm_head.weight")  # tied
    model.save_pretrained(folder, state_dict=state)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END_OF_TEXT,
                "pad_token": END_OF_TEXT,
                "model_max_length": 2048,
                "clean_up_tokenization_spaces": False,
                "chat_template": CHAT_TEMPLATE,
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )


def load(folder: Path) -> Any:
    """A saved model in float32, its weights rounded to bf16 as they are served."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
