vllm serve Qwen/Qwen2.5-Coder-7B-Instruct \
  --max-model-len 16384 \
  --speculative-config '{"method": "draft_model", "model": "Qwen/Qwen2.5-Coder-0.5B-Instruct", "num_speculative_tokens": 4, "use_heterogeneous_vocab": true, "draft_sample_method": "greedy"}' \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 32 \
  --max-num-batched-tokens 8192 \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --disable-access-log-for-endpoints /health,/metrics
