vllm serve Qwen/Qwen3-8B \
  --max-model-len 16384 \
  --speculative-config '{"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5, "draft_sample_method": "probabilistic"}' \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 32 \
  --max-num-batched-tokens 8192 \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --per-request-spec-decode-metrics summary
