"""The methods of speculation: what each is, the keys of its block, the one that vLLM runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "str", "int", "length", "float", "bool", "list", "map", "schedule", "size_percentiles", "device"
]
WORDS: Mapping[Kind, str] = {
    "str": "a text",
    "int": "an integer",
    "length": "a number of tokens or `auto`",
    "float": "a number",
    "bool": "`true` or `false`",
    "list": "a list",
    "map": "a mapping",
    "schedule": "a list of `[first batch size, last batch size, K]`",
    "size_percentiles": "a mapping such as `{p50: 800, p95: 4000}`",
    "device": "an index or a UUID",
}
PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Key:
    """What one key takes. `nullable` keys take null, which means vLLM's own default."""

    kind: Kind
    doc: str
    default: Any = None
    required: bool = False
    nullable: bool = True
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    items: Kind | None = None
    numeric: bool = True
    """Of a text: whether a number without quotes may be meant, such as `0123456` for a commit."""
    pattern: str = ""
    """Of a text: what all of it must match; `form` says that in words."""
    form: str = ""


_METHOD = {"method": Key("str", "The speculation method.", required=True, nullable=False)}

_EVERY = {
    "num_speculative_tokens": Key("int", "K: tokens drafted per step.", minimum=1),
    "num_speculative_tokens_per_batch_size": Key(
        "schedule",
        "K by running requests: [[first, last, K], …], inclusive; the last K holds above; "
        "K = 0: no speculation.",
    ),
    "rejection_sample_method": Key(
        "str", "How drafts are verified.", choices=("standard", "synthetic", "block", "fly")
    ),
    "synthetic_acceptance_rates": Key(
        "list", "Synthetic acceptance per position, for benchmarks.", items="float"
    ),
    "synthetic_acceptance_length": Key(
        "float", "Synthetic mean acceptance length, for benchmarks."
    ),
    "fly_window_size": Key("int", "Window of the lossy `fly` verification.", minimum=1),
    "fly_entropy_threshold": Key("float", "Entropy threshold of `fly`.", minimum=0),
    "fly_entropy_top_k": Key("int", "Top-k of the entropy of `fly`.", minimum=1),
    "disable_padded_drafter_batch": Key("bool", "Do not pad the drafter's batch."),
    "enforce_eager": Key("bool", "Run the drafter without graphs."),
}

_DRAFT = {
    "model": Key(
        "str",
        "The draft or head: a Hub id, or a path from the folder of the profile.",
        numeric=False,
    ),
    "draft_tensor_parallel_size": Key(
        "int", "Tensor parallel size of the draft: the target's.", minimum=1
    ),
    "draft_sample_method": Key(
        "str",
        "How drafts are sampled; vLLM's default is `greedy`.",
        choices=("greedy", "probabilistic"),
    ),
    "quantization": Key("str", "Quantization of the draft."),
    "moe_backend": Key("str", "MoE kernels of the draft."),
    "attention_backend": Key("str", "Attention backend of the draft."),
    "kv_cache_dtype": Key("str", "KV cache type of the draft."),
    "max_model_len": Key("int", "Longest sequence of the draft, in tokens.", minimum=1),
    "revision": Key("str", "Hub commit of the draft."),
    "code_revision": Key("str", "Hub commit of the draft's code."),
    "draft_load_config": Key("map", "How the draft's weights are loaded."),
    "parallel_drafting": Key("bool", "All K tokens in one draft step (PARD and the like)."),
    "use_local_argmax_reduction": Key("bool", "Argmax per tensor-parallel rank."),
    "disable_eagle_block_drop": Key("bool", "Keep the last block of a prefix-cache hit."),
    "disable_lookahead_block_hashes": Key("bool", "No hashes for lookahead blocks."),
    "index_share_for_mtp_iteration": Key("bool", "Share the sparse index between MTP steps."),
    "draft_lm_head_quantization": Key(
        "str", "Quantize the draft's head.", choices=("fp8", "nvfp4")
    ),
    "enable_adaptive_verification": Key("bool", "Verify fewer drafts if they are unlikely."),
}
_NGRAM = {
    "prompt_lookup_min": Key("int", "Shortest n-gram looked up in the prompt.", minimum=1),
    "prompt_lookup_max": Key("int", "Longest n-gram looked up in the prompt.", minimum=1),
}
_SUFFIX = {
    "suffix_decoding_max_tree_depth": Key("int", "Depth of the suffix tree.", minimum=1),
    "suffix_decoding_max_cached_requests": Key(
        "int", "Requests kept in the global tree.", minimum=0
    ),
    "suffix_decoding_max_spec_factor": Key("float", "Drafted tokens per matched token.", minimum=0),
    "suffix_decoding_min_token_prob": Key(
        "float", "Least probability of a drafted token.", minimum=0, maximum=1
    ),
}
_HETEROGENEOUS = {
    "use_heterogeneous_vocab": Key(
        "bool", "Draft with another tokenizer: only common tokens are drafted."
    )
}
_DFLASH = {"xpress_topc": Key("int", "Candidates of an XPress drafter; 0: all.", minimum=0)}
_DSPARK = {"dspark_draft_topk": Key("int", "Top-k of the DSpark draft.", minimum=1)}


@dataclass(frozen=True, slots=True)
class Method:
    """What a method of speculation is, and which keys its block takes."""

    draft: Literal["model", "head", "text", "class"]
    """What drafts: a model of its own, layers on the target's states, the text so far, a class."""
    keys: Mapping[str, Key]
    needs: tuple[str, ...] = ()
    """The keys that its block must have; a head may know K, and lie in the target's repository."""
    in_one_pass: bool = False
    """Whether the draft writes all K tokens in one pass."""
    in_target: bool = False
    """Whether a block without a model drafts with layers of the target's repository."""


_OF_DRAFT = {**_METHOD, **_EVERY, **_DRAFT}
_OF_TEXT = {**_METHOD, **_EVERY, **_NGRAM}
_K = "num_speculative_tokens"
METHODS: Mapping[str, Method] = {
    "draft_model": Method("model", {**_OF_DRAFT, **_HETEROGENEOUS}, ("model", _K)),
    "ngram": Method("text", _OF_TEXT, (_K,)),
    "ngram_gpu": Method("text", _OF_TEXT, (_K,)),
    "suffix": Method("text", {**_METHOD, **_EVERY, **_SUFFIX}),
    "eagle": Method("head", _OF_DRAFT, ("model",)),
    "eagle3": Method("head", _OF_DRAFT, ("model",)),
    "mtp": Method("head", _OF_DRAFT, in_target=True),
    "dflash": Method("head", {**_OF_DRAFT, **_DFLASH}, ("model",), in_one_pass=True),
    "dspark": Method("head", {**_OF_DRAFT, **_DSPARK}, in_one_pass=True, in_target=True),
    "custom_class": Method("class", _OF_DRAFT, ("model", _K)),
}
EVERY_KEY: Mapping[str, Key] = {
    name: key for method in METHODS.values() for name, key in method.keys.items()
}
BLOCK_DRAFTS = frozenset(name for name, method in METHODS.items() if method.in_one_pass)
HEADS = frozenset(
    name for name, method in METHODS.items() if method.draft == "head" and not method.in_one_pass
)
"""Methods whose draft runs once for each token, on the target's hidden states."""
REMOVED = {
    "medusa": "vLLM 0.33 removed it; heads for `eagle3` or `mtp` took its place",
    "mlp_speculator": "vLLM 0.33 removed it; heads for `eagle3` or `mtp` took its place",
    "extract_hidden_states": "it extracts hidden states and does not speculate",
}
_BY_NAME = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
_KEPT = frozenset(
    {"eagle", "eagle3", "dflash", "dspark", "ngram", "ngram_gpu", "suffix", "custom_class"}
)


def retyped(method: str, model: str) -> tuple[str, str] | None:
    """The method that vLLM puts in place of this one, and the part of the name that does; or None.

    The draft's name decides: `__post_init__` in vllm/config/speculative.py.
    `model` is the draft as vLLM gets it, with its directories (the target's, for a bare `mtp`).
    """
    if method in _KEPT:
        return None
    name = model.lower()
    for part, other in _BY_NAME:
        if part in name:
            return other, part
    return None
