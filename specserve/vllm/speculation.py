"""The keys of `speculation` by method, and the method that vLLM really runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specserve.vllm import facts
from specserve.vllm.runner import Name

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
    """Of a text: whether a number without quotes may be meant as one, such as `0123456` for a commit."""
    pattern: str = ""
    """Of a text: what all of it must match; `form` says that in words."""
    form: str = ""


_METHOD = {"method": Key("str", "The speculation method.", required=True, nullable=False)}

_EVERY = {
    "num_speculative_tokens": Key("int", "K: tokens drafted per step.", minimum=1),
    "num_speculative_tokens_per_batch_size": Key(
        "schedule",
        "K by running requests: [[first, last, K], …], inclusive; the last K holds above; K = 0: no speculation.",
    ),
    "rejection_sample_method": Key(
        "str", "How drafts are verified.", choices=("standard", "synthetic", "block", "fly")
    ),
    "synthetic_acceptance_rates": Key(
        "list", "Synthetic acceptance per position, for benchmarks.", items="float"
    ),
    "synthetic_acceptance_length": Key("float", "Synthetic mean acceptance length, for benchmarks."),
    "fly_window_size": Key("int", "Window of the lossy `fly` verification.", minimum=1),
    "fly_entropy_threshold": Key("float", "Entropy threshold of `fly`.", minimum=0),
    "fly_entropy_top_k": Key("int", "Top-k of the entropy of `fly`.", minimum=1),
    "disable_padded_drafter_batch": Key("bool", "Do not pad the drafter's batch."),
    "enforce_eager": Key("bool", "Run the drafter without graphs."),
}

_DRAFT = {
    "model": Key(
        "str", "The draft or head: a Hub id, or a path from the folder of the profile.", numeric=False
    ),
    "draft_tensor_parallel_size": Key("int", "Tensor parallel size of the draft: the target's.", minimum=1),
    "draft_sample_method": Key(
        "str", "How drafts are sampled; vLLM's default is `greedy`.", choices=("greedy", "probabilistic")
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
    "draft_lm_head_quantization": Key("str", "Quantize the draft's head.", choices=("fp8", "nvfp4")),
    "enable_adaptive_verification": Key("bool", "Verify fewer drafts if they are unlikely."),
}
_NGRAM = {
    "prompt_lookup_min": Key("int", "Shortest n-gram looked up in the prompt.", minimum=1),
    "prompt_lookup_max": Key("int", "Longest n-gram looked up in the prompt.", minimum=1),
}
_SUFFIX = {
    "suffix_decoding_max_tree_depth": Key("int", "Depth of the suffix tree.", minimum=1),
    "suffix_decoding_max_cached_requests": Key("int", "Requests kept in the global tree.", minimum=0),
    "suffix_decoding_max_spec_factor": Key("float", "Drafted tokens per matched token.", minimum=0),
    "suffix_decoding_min_token_prob": Key(
        "float", "Least probability of a drafted token.", minimum=0, maximum=1
    ),
}
_HETEROGENEOUS = {
    "use_heterogeneous_vocab": Key("bool", "Draft with another tokenizer: only common tokens are drafted.")
}
_DFLASH = {"xpress_topc": Key("int", "Candidates of an XPress drafter; 0: all.", minimum=0)}
_DSPARK = {"dspark_draft_topk": Key("int", "Top-k of the DSpark draft.", minimum=1)}

METHODS: Mapping[str, Mapping[str, Key]] = {
    "draft_model": {**_METHOD, **_EVERY, **_DRAFT, **_HETEROGENEOUS},
    "ngram": {**_METHOD, **_EVERY, **_NGRAM},
    "ngram_gpu": {**_METHOD, **_EVERY, **_NGRAM},
    "suffix": {**_METHOD, **_EVERY, **_SUFFIX},
    "eagle": {**_METHOD, **_EVERY, **_DRAFT},
    "eagle3": {**_METHOD, **_EVERY, **_DRAFT},
    "mtp": {**_METHOD, **_EVERY, **_DRAFT},
    "dflash": {**_METHOD, **_EVERY, **_DRAFT, **_DFLASH},
    "dspark": {**_METHOD, **_EVERY, **_DRAFT, **_DSPARK},
    "custom_class": {**_METHOD, **_EVERY, **_DRAFT},
}
NEEDS_MODEL = frozenset(
    {"draft_model", "eagle", "eagle3", "dflash", "custom_class"}
)  # dspark may lie in the target
NEEDS_K = frozenset({"draft_model", "ngram", "ngram_gpu", "custom_class"})  # others may know K from the head
OWN_LAYERS = frozenset(
    {"mtp", "dspark"}
)  # without a model, they draft with layers of the target's repository
REMOVED = {
    "medusa": f"{facts.METHODS_REMOVED}; heads for `eagle3` or `mtp` took its place",
    "mlp_speculator": f"{facts.METHODS_REMOVED}; heads for `eagle3` or `mtp` took its place",
    "extract_hidden_states": "it extracts hidden states and does not speculate",
}
GONE = REMOVED.keys() - {"extract_hidden_states"}
"""Methods that the newest vLLM refuses."""
_LOOKS_AHEAD = frozenset({"eagle", "eagle3", "mtp", "dspark", "draft_model"})
HEADS = frozenset({"mtp", "eagle", "eagle3"})
"""Methods whose draft runs once for each token, on the target's hidden states."""
BLOCK_DRAFTS = frozenset({"dflash", "dspark"})
_ASYNC_METHODS = frozenset({"ngram_gpu", "draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"})
_BY_NAME = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
_KEPT = frozenset({"eagle", "eagle3", "dflash", "dspark", "ngram", "ngram_gpu", "suffix", "custom_class"})


def retyped(method: str, model: str) -> tuple[str, str] | None:
    """The method that vLLM puts in place of this one and the part of the name that makes it so; else None.

    The draft's name decides: `__post_init__` in vllm/config/speculative.py.
    `model` is the draft as vLLM gets it, directories included (the target's, for `mtp` without a model).
    """
    if method in _KEPT:
        return None
    name = model.lower()
    for part, other in _BY_NAME:
        if part in name:
            return other, part
    return None


def needed_slots(
    version: str, *, method: str, num_speculative_tokens: int, parallel: bool, sequences: int | None
) -> int:
    """How many of a step's tokens drafting takes at least; one more must be left, or vLLM refuses to start.

    `parallel`: whether the block says `parallel_drafting`; `sequences`: `max_num_seqs`, which counts in versions
    that keep slots for every request. Source: `_set_max_num_scheduled_tokens` in vllm/config/vllm.py.
    """
    k, kind = num_speculative_tokens, facts.SLOTS.at(version)
    parallel = parallel or method in BLOCK_DRAFTS
    if kind == "requests":
        return (sequences or 0) * ((k - 1 if parallel else 0) + (method == "draft_model"))
    if kind == "one":
        if method == "dflash":
            return k
        if parallel:
            return k if method == "draft_model" else k - 1
        return int(method == "draft_model")
    if method == "dflash":
        return k + 1
    return k if method in _LOOKS_AHEAD else 0


def schedule_is_dropped(version: str, *, method: str) -> bool:
    """Whether the V1 runner drops a schedule of K with this method, and drafts the same K at any load."""
    kept = facts.V1_KEEPS_SCHEDULE.at(version)
    return kept is not None and method not in kept


def drafts_are_shortened(version: str, *, method: str) -> bool:
    """Whether the V2 runner drafts no more tokens than a schedule of K says; a block is drafted in one pass anyway."""
    return method in BLOCK_DRAFTS or (method in HEADS and facts.V2_SHORTENS_DRAFTS.at(version))


def uncaptured_row(
    version: str,
    *,
    method: str,
    num_speculative_tokens: int,
    schedule: Sequence[Sequence[int]],
    sequences: int,
) -> int | None:
    """The first row whose K leaves the draft's full CUDA graphs no token per request; None if every row is captured.

    On the V2 runner, which then fails at the start. `sequences`: `max_num_seqs`, or what it is at least.
    Source: `_init_candidates` in vllm/v1/worker/gpu/cudagraph_utils.py.
    """
    if not facts.V2_SIZES_DRAFTS_BY_SCHEDULE.at(version):
        return None
    # a draft step of a head has 1 token per request, a DSpark block `num_speculative_tokens`, a DFlash block one more
    least = num_speculative_tokens if method in HEADS else 1 if method == "dspark" else 0
    by_batch = facts.V2_CAPTURES_BY_BATCH.at(version)
    for index, (first, _, k) in enumerate(schedule):
        if k < least and not (by_batch and first > sequences):
            return index
    return None


def refuses_async(
    version: str, *, method: str, runner: Name | None, unpadded: bool, stages: bool, on_cpu: bool
) -> str | None:
    """What makes vLLM refuse `async_scheduling: true`: `method`, `disable_padded_drafter_batch` or `stages`.

    `unpadded`: whether the block says `disable_padded_drafter_batch`; `stages`: whether there are pipeline stages.
    """
    by_runner = facts.ASYNC_BY_RUNNER.at(version)
    if by_runner and runner != "V1":
        return None
    if method not in _ASYNC_METHODS:
        return "method"
    if unpadded:
        return "disable_padded_drafter_batch"
    # before the question depended on the runner, the CPU platform switched the scheduling off before it was asked
    asked = by_runner or (facts.V1_LACKS_ASYNC_STAGES.at(version) and not on_cpu)
    return "stages" if asked and runner == "V1" and stages else None
