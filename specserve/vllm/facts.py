"""What holds in which version of vLLM: each fact with the source line that shows it."""

from __future__ import annotations

from typing import Any

from specserve.vllm.fact import Era, Fact, fact, since, until

READ = ("0.26", "0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
"""The minor versions whose sources every fact below was compared with."""
EXAMPLE_RANGE = ">=0.32,<0.34"
"""A version range for hints and documentation."""
METHODS_REMOVED = "vLLM 0.33 removed it"
RAY_PIN = "Ray 2.60 asks for vLLM 0.29 by itself"

_CONFIG, _SPECULATIVE, _MODEL = "config/vllm.py", "config/speculative.py", "config/model.py"

VOCABULARY_PADDING: Fact[int] = fact(
    "the tables of a vocabulary are padded to a multiple of so many rows before ranks divide them",
    Era("0.26", 64, "model_executor/layers/vocab_parallel_embedding.py", "DEFAULT_VOCAB_PADDING_SIZE = 64"),
)

_ARGUMENTS = "engine/arg_utils.py"
_LARGEST, _GB10 = (
    "if device_memory >= 160 * GiB_bytes:",
    "is_gb10 = current_platform.is_device_capability((12, 1))",
)
LARGEST_STEP = since(
    "a GPU of 160 GiB or more takes steps of 16,384 tokens by itself", "0.28", _ARGUMENTS, _LARGEST
)
SMALL_GB10 = since("a GB10 takes the steps of a small GPU, whatever its memory", "0.33", _ARGUMENTS, _GB10)

# which of the two model runners serves: `use_v2_model_runner`

V2_BY_ARCHITECTURE = until(
    "V2 serves listed architectures and dense models only, not everything that it can serve",
    "0.29",
    _CONFIG,
    "def _is_default_v2_model_runner_model(self) -> bool:",
)
_LISTED = frozenset(
    {
        "DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "InklingForCausalLM", "InklingForConditionalGeneration",
        "LongcatFlashNgramForCausalLM", "Qwen2MoeForCausalLM",
    }
)  # fmt: skip
_LISTED_LATER = _LISTED | {"KimiK3ForConditionalGeneration"}
V2_ARCHITECTURES: Fact[frozenset[str]] = fact(
    "the architectures that V2 serves by default, though they are not dense",
    Era("0.26", _LISTED, _CONFIG, '"InklingForCausalLM", "InklingForConditionalGeneration", "Longcat'),
    Era("0.27", _LISTED_LATER, _CONFIG, '"KimiK3ForConditionalGeneration",'),
    Era(
        "0.28",
        _LISTED_LATER | {"DeepseekV4ForCausalLM"},
        _CONFIG,
        '"DeepseekV2ForCausalLM", "DeepseekV4ForCausalLM", "GraniteMoeForCausalLM",',
    ),
    Era("0.29", frozenset(), _CONFIG, "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES", is_absent=True),
)
_PREFILL_PARALLEL = "if self.parallel_config.prefill_context_parallel_size > 1: return True"
V2_DEMANDS: Fact[frozenset[str]] = fact(
    "what makes V2 serve unless the environment says otherwise, whether it can or not",
    Era(
        "0.26",
        frozenset({"dspark"}),
        _CONFIG,
        'and self.speculative_config.method == "dspark" ): return True',
    ),
    Era("0.27", frozenset({"dspark", "prefill_context_parallel_size"}), _CONFIG, _PREFILL_PARALLEL),
    Era("0.29", frozenset(), _CONFIG, _PREFILL_PARALLEL, is_absent=True),
)
_HISPARSE = "HiSparse requires Model Runner V2; remove "
V2_ALWAYS: Fact[frozenset[str]] = fact(
    "the arguments that make V2 serve whatever the environment says",
    Era("0.26", frozenset(), _CONFIG, _HISPARSE, is_absent=True),
    Era("0.30", frozenset({"hisparse_config", "watermark_config"}), _CONFIG, _HISPARSE),
)
V2_NEEDS_TRITON = until(
    "V2 refuses to start without Triton, which has no CPU backend",
    "0.33",
    _CONFIG,
    'raise ValueError("Model Runner V2 requires Triton.")',
)

# what V2 lacks: `_get_v2_model_runner_unsupported_features`

_OWN_RUNNER = frozenset({"suffix", "custom_class", "medusa", "mlp_speculator"})
_NGRAM = frozenset({"ngram", "ngram_gpu"})
V2_LACKS_METHODS: Fact[frozenset[str]] = fact(
    "the methods that V2 cannot draft with",
    Era("0.26", _OWN_RUNNER | _NGRAM | {"draft_model"}, _CONFIG, '"ngram/ngram_gpu speculative decoding"'),
    Era(
        "0.30",
        _OWN_RUNNER | _NGRAM | {"draft_model"},
        _CONFIG,
        "# https://github.com/vllm-project/vllm/pull/43091",
    ),
    Era("0.31", _OWN_RUNNER | _NGRAM, _CONFIG, '"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator",'),
    Era("0.32", _OWN_RUNNER, _CONFIG, 'speculative_config.method in ( "suffix", "medusa", "mlp_speculator",'),
    Era(
        "0.33",
        frozenset({"suffix", "custom_class"}),
        _CONFIG,
        'if speculative_config.method in ("suffix", "custom_class"):',
    ),
)
V2_LACKS_OTHER_VOCABULARY = since(
    "V2 refuses `use_heterogeneous_vocab` for a draft model that it could otherwise run",
    "0.32",
    _CONFIG,
    '"heterogeneous-vocabulary draft models"',
)
V2_LACKS_EAGLE3_STAGES = until(
    "V2 does not draft with `eagle3` over pipeline stages",
    "0.30",
    _CONFIG,
    'unsupported.append("EAGLE3 with pipeline parallelism")',
)
_RUNNER = "v1/worker/gpu/model_runner.py"
V2_REFUSES_BLOCK_STAGES = until(
    "V2 refuses `dflash` and `dspark` over pipeline stages, and V1 is not taken in its place",
    "0.30",
    _RUNNER,
    'f"{self.speculative_config.method} with pipeline parallel "',
)
V2_SHORTENS_DRAFTS = since(
    "with a schedule of K, V2 stops the drafts of EAGLE heads and prediction layers at the K of the step; before, it "
    "drafts `num_speculative_tokens` in every step, and verifies fewer",
    "0.32",
    _RUNNER,
    "num_spec_tokens = self.execute_model_state.num_spec_tokens_to_schedule",
)
_V2_GRAPHS = "v1/worker/gpu/cudagraph_utils.py"
_DRAFT_GRAPHS = "and self.decode_query_len > self.vllm_config.num_speculative_tokens"
V2_SIZES_DRAFTS_BY_SCHEDULE = fact(
    "V2 takes K of a schedule as the tokens per request of the draft's own graphs too, although the draft has one per "
    "request in a step: of a smaller K, none are left",
    Era("0.26", True, _V2_GRAPHS, _DRAFT_GRAPHS, is_absent=True),
    Era("0.32", False, _V2_GRAPHS, _DRAFT_GRAPHS),
)
V2_CAPTURES_BY_BATCH = since(
    "V2 captures graphs for each K that a schedule has for up to `max_num_seqs` requests; before, for each row",
    "0.29",
    _V2_GRAPHS,
    "build_dynamic_sd_schedule_lookup",
)
V2_RUNS_MTP_LAYERS = since(
    "V2 runs the prediction layers of a model that has several in turn, and captures them in one graph",
    "0.28",
    "v1/worker/gpu/spec_decode/__init__.py",
    "elif speculative_config.use_multi_module_mtp():",
)
V2_LACKS_ALL_UBATCHES = fact(
    "V2 lacks micro-batches of any kind beside speculation, not `enable_dbo` alone",
    Era(
        "0.26", False, _CONFIG, 'if self.parallel_config.enable_dbo: unsupported.append("dual batch overlap")'
    ),
    Era("0.30", True, _CONFIG, "if self.parallel_config.use_ubatching: unsupported.extend("),
)
_FLAGS_0_29 = {"enable_elastic_ep": True, "kv_sharing_fast_prefill": True, "logits_processors": ...}
_FLAGS_0_28 = {**_FLAGS_0_29, "enable_prompt_embeds": True}
V2_LACKS_ARGUMENTS: Fact[dict[str, Any]] = fact(
    "the arguments, by their value, that V2 does not know, whatever drafts (...: any value but an empty one)",
    Era(
        "0.26",
        {**_FLAGS_0_28, "enable_return_routed_experts": True, "ec_transfer_config": ...},
        _CONFIG,
        'unsupported.append("EC transfer")',
    ),
    Era("0.28", _FLAGS_0_28, _CONFIG, 'unsupported.append("prompt embeds")'),
    Era("0.29", _FLAGS_0_29, _CONFIG, 'unsupported.append("KV sharing fast prefill")'),
    Era(
        "0.30",
        {"enable_elastic_ep": True, "logits_processors": ..., "mamba_cache_mode": "all"},
        _CONFIG,
        'if self.cache_config.mamba_cache_mode == "all": unsupported.append(',
    ),
    Era(
        "0.31",
        {"enable_elastic_ep": True, "mamba_cache_mode": "all"},
        _CONFIG,
        'unsupported.append("custom logits processors")',
        is_absent=True,
    ),
    Era("0.32", {}, _CONFIG, 'unsupported.append("elastic expert parallelism")', is_absent=True),
)

# what V1 lacks: `_get_v1_model_runner_unsupported_features`

_V1 = {
    "prefill_context_parallel_size",
    "enable_batch_sharded_sampling",
    "dspark",
    "enable_adaptive_verification",
}
V1_LACKS: Fact[frozenset[str]] = fact(
    "what V1 refuses to start with; before, it started without it",
    Era("0.26", frozenset(), _CONFIG, "def _validate_v1_model_runner(self) -> None:", is_absent=True),
    Era("0.29", frozenset(_V1), _CONFIG, 'unsupported.append("batch-sharded sampling")'),
    Era(
        "0.33",
        frozenset({*_V1, "draft_lm_head_quantization"}),
        _CONFIG,
        'unsupported.append("draft lm_head quantization")',
    ),
)
V1_LACKS_ASYNC_STAGES = since(
    "V1 refuses asynchronous scheduling over pipeline stages; before, it took turns without a word",
    "0.31",
    _CONFIG,
    '"pipeline parallelism with async scheduling"',
)
ASYNC_BY_RUNNER = fact(
    "only V1 refuses asynchronous scheduling with some methods, V2 takes all; before, both refused",
    Era("0.26", False, _CONFIG, '"Currently, async scheduling is only supported "'),
    Era("0.33", True, _CONFIG, "v1_async_sched_incompat: str | None = None"),
)
V1_KEEPS_SCHEDULE: Fact[frozenset[str] | None] = fact(
    "the methods that follow a schedule of K by batch size on V1; None: every method is let through",
    Era("0.26", None, _CONFIG, "def _maybe_disable_dynamic_sd_for_v1(self) -> None:", is_absent=True),
    Era(
        "0.33",
        frozenset({"ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash"}),
        _CONFIG,
        'in ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash") ): return',
    ),
)

_V2_HEADS = "v1/worker/gpu/spec_decode/eagle/utils.py"
V2_IGNORED_KEYS: Fact[frozenset[str]] = fact(
    "the keys of a block with prediction layers or an EAGLE head that V2 does not pass on to the draft",
    Era(
        "0.26",
        frozenset({"moe_backend", "attention_backend"}),
        _V2_HEADS,
        "speculative_config.moe_backend",
        is_absent=True,
    ),
    Era("0.30", frozenset(), _V2_HEADS, "if speculative_config.moe_backend is not None:"),
    Era("0.31", frozenset(), _V2_HEADS, "speculative_config.apply_draft_overrides(vllm_config)"),
)
V2_CAPTURES_EAGER_DRAFTS = fact(
    "V2 captures CUDA graphs for the draft although the block says `enforce_eager`",
    Era(
        "0.26",
        True,
        "v1/worker/gpu/model_runner.py",
        "self.speculator.init_cudagraph_manager(cudagraph_mode)",
    ),
)

# tokens of a step: `_set_max_num_scheduled_tokens`

SLOTS = fact(
    "the tokens of a step that drafting takes: of every request, of one request, or all that a draft looks ahead",
    Era("0.26", "requests", _CONFIG, "max_num_batched_tokens - scheduled_token_delta"),
    Era("0.28", "one", _CONFIG, "if max_num_batched_tokens <= scheduled_token_delta:"),
    Era("0.33", "lookahead", _CONFIG, "if max_num_batched_tokens <= self.num_lookahead_tokens:"),
)
BLOCK_DRAFTS_CAP_REQUESTS = since(
    "`dflash` and `dspark` lower the number of running requests to what fits into their own pass",
    "0.33",
    _CONFIG,
    '"The %s draft pass needs %d query tokens per request within "',
)

# context lengths

SHORTENS_TARGET = since(
    "V2 lowers the server's context to that of a shorter draft; before, it keeps it",
    "0.33",
    _CONFIG,
    "def _limit_max_model_len_to_draft(self) -> None:",
)
_SCALED = frozenset({"su", "longrope", "llama3"})
ROPES_NOT_MULTIPLIED: Fact[frozenset[str]] = fact(
    "the types of rotary positions whose factor is in the context of config.json already",
    Era("0.26", _SCALED, _MODEL, 'if rope_type not in ("su", "longrope", "llama3"):'),
    Era(
        "0.30",
        _SCALED | {"yarn", "deepseek_yarn", "deepseek_llama_scaling"},
        _MODEL,
        '"yarn", "deepseek_yarn", "deepseek_llama_scaling",',
    ),
)
STRETCHED_HEADS: Fact[frozenset[str]] = fact(
    "the methods whose heads get as many positions as the target is served with",
    Era("0.26", frozenset(), _SPECULATIVE, "_maybe_override_draft_max_position_embeddings", is_absent=True),
    Era(
        "0.27",
        frozenset({"eagle", "eagle3"}),
        _SPECULATIVE,
        "# EAGLE drafts share the target's positional space; a",
    ),
    Era(
        "0.33",
        frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"}),
        _SPECULATIVE,
        "# Every draft but an independent model shares the target's",
    ),
)

# drafts and heads

_DFLASH_FILE = "model_executor/models/qwen3_dflash.py"
QUANTIZED_DFLASH = since(
    "a DFlash head may be quantized; before, vLLM joins its packed matrices as if they were plain",
    "0.31",
    _DFLASH_FILE,
    "isinstance(proj.quant_method, UnquantizedLinearMethod)",
)
DFLASH_COUNTS_OWN_LAYERS = until(
    "a DFlash head, or a DSpark head of its class, takes a hidden state for each of its own layers, unless "
    "`dflash_config` lists those of the target",
    "0.27",
    _DFLASH_FILE,
    "num_features_to_use = self.config.num_hidden_layers",
)
_GRANITE = "model_executor/models/granitemoehybrid.py"
_ROOM = "num_spec=vllm_config.num_speculative_tokens"
UNDRAFTED_HYBRIDS: Fact[frozenset[str]] = fact(
    "the models whose recurrent layers have no room for the states of drafts, whatever drafts",
    Era("0.26", frozenset({"granitemoehybrid", "falcon_h1", "zamba2"}), _GRANITE, _ROOM, is_absent=True),
    Era("0.32", frozenset(), _GRANITE, _ROOM),
)
_WHOLE_BLOCKS = '"DSpark requires num_speculative_tokens >= "'
PARTIAL_DSPARK_BLOCKS = fact(
    "a DSpark head drafts fewer tokens than its block holds; before, vLLM refuses that",
    Era("0.26", False, _SPECULATIVE, _WHOLE_BLOCKS),
    Era("0.28", True, _SPECULATIVE, _WHOLE_BLOCKS, is_absent=True),
)
ARGMAX_NEEDS_ONE_VOCABULARY = since(
    "`use_local_argmax_reduction` is refused beside `use_heterogeneous_vocab`",
    "0.33",
    _SPECULATIVE,
    '"use_local_argmax_reduction because token-level intersection "',
)
# attention

WHOLE_GRAPH_BACKENDS: Fact[frozenset[str]] = fact(
    "backends whose graphs hold decode steps of several tokens on every GPU",
    Era(
        "0.26",
        frozenset({"FLASH_ATTN", "TRITON_ATTN"}),
        "v1/attention/backends/flash_attn.py",
        "else AttentionCGSupport.UNIFORM_BATCH",
    ),
)
_FLASHINFER = "v1/attention/backends/flashinfer.py"
FLASHINFER_WITHOUT_GRAPHS: Fact[frozenset[int]] = fact(
    "the major compute capabilities on which FlashInfer captures no decode step of several tokens",
    Era(
        "0.26",
        frozenset({7, 8, 9, 12}),
        _FLASHINFER,
        "The SM90 XQA integration only enables single-token decode today.",
    ),
    Era(
        "0.28",
        frozenset({7, 8, 9}),
        _FLASHINFER,
        "is_sm12x = current_platform.is_device_capability_family(120)",
    ),
    Era("0.30", frozenset({7, 8}), _FLASHINFER, "is_xqa_arch = current_platform.is_device_capability("),
    Era("0.33", frozenset(), _FLASHINFER, "# fa2 decodes uniform causal spec queries."),
)

# memory and metrics

STATE_CHECKPOINTS = fact(
    "recurrent states are kept inside a prefill too, not only at its end",
    Era("0.26", False, "v1/kv_cache_interface.py", "num_prefill_checkpoint_blocks", is_absent=True),
    Era(
        "0.29",
        True,
        "v1/kv_cache_interface.py",
        "2 + self.num_speculative_blocks + self.num_prefill_checkpoint_",
    ),
)
STEP_METRICS = fact(
    "a request's metrics tell what each step accepted",
    Era("0.26", False, "config/observability.py", "per_request_spec_decode_metrics", is_absent=True),
    Era("0.29", True, "config/observability.py", "per_request_spec_decode_metrics: Literal["),
)

FACTS: tuple[Fact[Any], ...] = tuple(value for value in globals().values() if isinstance(value, Fact))
