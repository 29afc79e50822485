vllm serve meta-llama/Llama-3.1-8B-Instruct \
  --max-model-len 8192 \
  --speculative-config '{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": [[1, 16, 5], [17, 32, 4], [33, 64, 3], [65, 128, 1], [129, 256, 0]]}' \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 256 \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --disable-access-log-for-endpoints /health,/metrics
