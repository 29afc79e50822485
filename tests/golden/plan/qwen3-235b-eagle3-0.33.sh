vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507 \
  --tensor-parallel-size 8 \
  --max-model-len 16384 \
  --speculative-config '{"method": "eagle3", "model": "nebius/EAGLE3-Qwen3-235B-A22B-Instruct-2507", "num_speculative_tokens": 6, "draft_sample_method": "probabilistic"}' \
  --gpu-memory-utilization 0.92 \
  --max-num-seqs 32 \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --per-request-spec-decode-metrics summary
