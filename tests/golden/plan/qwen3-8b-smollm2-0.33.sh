vllm serve Qwen/Qwen3-8B \
  --max-model-len 8192 \
  --speculative-config '{"method": "draft_model", "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "num_speculative_tokens": 3, "use_heterogeneous_vocab": true, "draft_sample_method": "greedy"}' \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 32 \
  --max-num-batched-tokens 8192 \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --per-request-spec-decode-metrics summary
