vllm serve meta-llama/Llama-3.1-70B-Instruct \
  --tensor-parallel-size 4 \
  --max-model-len 8192 \
  --speculative-config '{"method": "draft_model", "model": "meta-llama/Llama-3.1-8B-Instruct", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 4, "draft_sample_method": "probabilistic"}' \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 64 \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --per-request-spec-decode-metrics summary
