vllm serve org/target \
  --tensor-parallel-size 2 \
  --max-model-len 4000 \
  --speculative-config '{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}' \
  --max-num-seqs 8 \
  --no-enable-prefix-caching \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --disable-access-log-for-endpoints /health,/metrics
