LD_PRELOAD=/venv/lib/libiomp5.so \
VLLM_CPU_OMP_THREADS_BIND='0,1|2,3' \
VLLM_PLUGINS=mine,specserve_vllm_cpu \
/venv/bin/vllm serve @@ROOT@@/demo/wide \
  --dtype float32 \
  --tensor-parallel-size 2 \
  --max-model-len 1024 \
  --speculative-config '{"method": "draft_model", "model": "@@ROOT@@/demo/draft", "num_speculative_tokens": 4, "draft_sample_method": "probabilistic"}' \
  --enforce-eager \
  --max-num-seqs 16 \
  --served-model-name demo \
  --host 127.0.0.1 \
  --port 8000 \
  --shutdown-timeout 25 \
  --disable-access-log-for-endpoints /health,/metrics \
  --kv-cache-memory-bytes 2684354560
