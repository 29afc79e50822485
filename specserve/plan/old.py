"""Arguments that vLLM once had, and what says the same today. Source: `EngineArgs` of earlier vLLM releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specserve.profile.problems import did_you_mean


@dataclass(frozen=True, slots=True)
class Old:
    """What became of an argument or key. `now` is its dotted place in a profile; None where nothing took its place."""

    now: str | None
    why: str


def _moved(key: str) -> Old:
    return Old(f"speculation.{key}", f"`--speculative-config '{{\"{key}\": …}}'` took its place")


_GONE_WITH_V0 = "it went with the V0 engine"

ARGUMENTS: Mapping[str, Old] = {
    "speculative_model": _moved("model"),
    "num_speculative_tokens": _moved("num_speculative_tokens"),
    "speculative_draft_tensor_parallel_size": _moved("draft_tensor_parallel_size"),
    "spec_draft_tensor_parallel_size": _moved("draft_tensor_parallel_size"),
    "speculative_max_model_len": _moved("max_model_len"),
    "speculative_model_quantization": _moved("quantization"),
    "ngram_prompt_lookup_max": _moved("prompt_lookup_max"),
    "ngram_prompt_lookup_min": _moved("prompt_lookup_min"),
    "speculative_disable_by_batch_size": Old(
        None, "`num_speculative_tokens_per_batch_size` says since when K is smaller, or 0"
    ),
    "speculative_disable_mqa_scorer": Old(None, _GONE_WITH_V0),
    "spec_decoding_acceptance_method": Old(
        "speculation.rejection_sample_method",
        "its lossy `typical_acceptance_sampler` is gone; `standard` is lossless",
    ),
    "typical_acceptance_sampler_posterior_threshold": Old(None, "lossy typical acceptance is gone"),
    "typical_acceptance_sampler_posterior_alpha": Old(None, "lossy typical acceptance is gone"),
    "disable_logprobs_during_spec_decoding": Old(
        None, "log probabilities no longer cost anything unless asked for"
    ),
    "qlora_adapter_name_or_path": Old(None, _GONE_WITH_V0),
    "num_lookahead_slots": Old(None, "vLLM counts the slots from the method and K"),
    "use_v2_block_manager": Old(None, "there has been no other block manager for long"),
    "num_scheduler_steps": Old(None, "multi-step scheduling went with the V0 engine"),
    "multi_step_stream_outputs": Old(None, "multi-step scheduling went with the V0 engine"),
    "scheduler_delay_factor": Old(None, _GONE_WITH_V0),
    "preemption_mode": Old(None, "preempted requests are always computed anew"),
    "swap_space": Old(None, "nothing is swapped to the CPU any more; `kv_offloading_size` is another thing"),
    "worker_use_ray": Old(
        "engine.distributed_executor_backend", "`--distributed-executor-backend ray` says so"
    ),
    "engine_use_ray": Old(None, _GONE_WITH_V0),
    "max_context_len_to_capture": Old(None, "CUDA graphs are captured by batch size, not by length"),
    "max_seq_len_to_capture": Old(None, "CUDA graphs are captured by batch size, not by length"),
    "cuda_graph_sizes": Old("engine.cudagraph_capture_sizes", "so it is called today"),
    "device": Old(None, "vLLM finds its platform itself"),
    "task": Old(None, "the runner is found from the model; `--runner pooling` for embeddings"),
    "disable_log_requests": Old(None, "requests are logged only where `--enable-log-requests` asks for it"),
    "disable_async_output_proc": Old(None, _GONE_WITH_V0),
    "guided_decoding_backend": Old(
        "engine.structured_outputs_config", "`structured_outputs_config.backend` took its place"
    ),
    "enable_reasoning": Old(None, "`reasoning_parser` alone switches it on"),
    "rope_scaling": Old("engine.hf_overrides", "`hf_overrides` changes the model's configuration"),
    "rope_theta": Old("engine.hf_overrides", "`hf_overrides` changes the model's configuration"),
    "override_neuron_config": Old(None, "vLLM's Neuron platform is a plug-in of its own"),
    "override_pooler_config": Old("engine.pooler_config", "so it is called today"),
    "tokenizer_pool_size": Old(None, _GONE_WITH_V0),
    "tokenizer_pool_type": Old(None, _GONE_WITH_V0),
    "tokenizer_pool_extra_config": Old(None, _GONE_WITH_V0),
    "enable_prompt_adapter": Old(None, "prompt adapters are gone"),
    "max_prompt_adapters": Old(None, "prompt adapters are gone"),
    "max_prompt_adapter_token": Old(None, "prompt adapters are gone"),
    "lora_extra_vocab_size": Old(None, "adapters no longer add words"),
    "long_lora_scaling_factors": Old(None, "long LoRA is gone"),
    "image_input_type": Old(None, "vLLM reads it from the model"),
    "image_token_id": Old(None, "vLLM reads it from the model"),
    "image_input_shape": Old(None, "vLLM reads it from the model"),
    "image_feature_size": Old(None, "vLLM reads it from the model"),
    "disable_mm_preprocessor_cache": Old(
        "engine.mm_processor_cache_gb", "`mm_processor_cache_gb: 0` says so"
    ),
    "enable_multimodal_encoder_data_parallel": Old(
        "engine.mm_encoder_tp_mode", "`mm_encoder_tp_mode: data` says so"
    ),
    "enable_microbatching": Old("engine.enable_dbo", "so it is called today"),
    "num_redundant_experts": Old("engine.eplb_config", "`eplb_config.num_redundant_experts` took its place"),
    "eplb_window_size": Old("engine.eplb_config", "`eplb_config.window_size` took its place"),
    "eplb_step_interval": Old("engine.eplb_config", "`eplb_config.step_interval` took its place"),
    "eplb_log_balancedness": Old("engine.eplb_config", "`eplb_config.log_balancedness` took its place"),
    "enable_lora_bias": Old(None, "adapters no longer have a bias"),
    "guided_decoding_disable_fallback": Old(None, "there is no fallback any more"),
    "guided_decoding_disable_any_whitespace": Old(
        None, "`structured_outputs_config.disable_any_whitespace` says so"
    ),
    "guided_decoding_disable_additional_properties": Old(
        None, "`structured_outputs_config.disable_additional_properties` says so"
    ),
    "disable_frontend_multiprocessing": Old(None, "the engine always is a process of its own"),
    "max_num_partial_prefills": Old(None, "vLLM 0.32 no longer has it"),
    "max_long_partial_prefills": Old(None, "vLLM 0.32 no longer has it"),
    "calculate_kv_scales": Old(None, "scales come with the checkpoint"),
}
"""By vLLM's own name of the time, underscores for dashes."""

KEYS: Mapping[str, Old] = {
    "ngram_prompt_lookup_max": Old("prompt_lookup_max", "so it is called today"),
    "ngram_prompt_lookup_min": Old("prompt_lookup_min", "so it is called today"),
    "speculative_model": Old("model", "so it is called today"),
    "draft_model": Old("model", "so it is called today"),
    "tensor_parallel_size": Old("draft_tensor_parallel_size", "vLLM refuses the other name"),
    "speculative_draft_tensor_parallel_size": Old("draft_tensor_parallel_size", "so it is called today"),
    "speculative_max_model_len": Old("max_model_len", "so it is called today"),
    "disable_by_batch_size": Old(
        None, "`num_speculative_tokens_per_batch_size` says since when K is smaller, or 0"
    ),
    "speculative_disable_by_batch_size": Old(
        None, "`num_speculative_tokens_per_batch_size` says since when K is smaller, or 0"
    ),
    "disable_mqa_scorer": Old(None, _GONE_WITH_V0),
    "disable_logprobs": Old(None, "log probabilities no longer cost anything unless asked for"),
    "acceptance_method": Old(None, "lossy typical acceptance is gone; verification is lossless"),
    "posterior_threshold": Old(None, "lossy typical acceptance is gone"),
    "posterior_alpha": Old(None, "lossy typical acceptance is gone"),
    "speculative_token_tree": Old(None, "drafts are chains, trees are gone"),
    "adaptive_verification": Old("enable_adaptive_verification", "so it is called today"),
    "synthetic_acceptance_rate": Old(None, "`synthetic_acceptance_rates` is a list, one for each position"),
    "enable_adaptive_k": Old(None, "no vLLM that was released has it"),
}
"""Keys that `speculative_config` once had."""


def advice(name: str, known: set[str]) -> str | None:
    """What to write in place of an argument that no vLLM has any more, or never had."""
    old = ARGUMENTS.get(name)
    if old is None:
        guess = did_you_mean(name, known)
        return f"did you mean `--{guess.replace('_', '-')}`?" if guess else None
    return old.why if old.now else f"leave it out: {old.why}"
