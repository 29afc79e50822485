vllm serve meta-llama/Llama-3.1-8B-Instruct \
  --max-model-len 16384 \
  --speculative-config '{"method": "eagle", "model": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}' \
  --gpu-memory-utilization 0.9 \
  --max-num-seqs 128 \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --disable-access-log-for-endpoints /health,/metrics
