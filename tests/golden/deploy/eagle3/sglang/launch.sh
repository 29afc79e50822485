#!/bin/sh
# Rendered by `specserve render --to sglang` from `llama33-70b-eagle3`
# for SGLang 0.5.23, fingerprint 1bccd07712049d33.
# Do not edit: change the profile and render again, which overwrites this file.
# - K = 6 is --speculative-num-steps 6 --speculative-eagle-topk 1 --speculative-num-draft-tokens 7;
#   its draft tokens count the last verified token too
# - --speculative-use-rejection-sampling: SGLang cannot sample the drafts of a head with a reduced
#   vocabulary
# - --mem-fraction-static: SGLang counts weights and KV cache in this share, vLLM everything: lower
#   it if SGLang runs out of memory
# - `enforce_eager` is --disable-decode-cuda-graph and --disable-prefill-cuda-graph, formerly
#   --disable-cuda-graph
# - --enable-metrics: without it SGLang has no /metrics, which vLLM has
# specserve has never started SGLang: measure before you rely on it.
set -eu
export NCCL_DEBUG=WARN
exec sglang serve \
  --model-path meta-llama/Llama-3.3-70B-Instruct \
  --tp-size 4 \
  --context-length 8192 \
  --speculative-algorithm EAGLE3 \
  --speculative-draft-model-path nebius/EAGLE3-Llama-3.3-70B-Instruct \
  --speculative-num-steps 6 \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 7 \
  --speculative-use-rejection-sampling \
  --mem-fraction-static 0.9 \
  --max-running-requests 64 \
  --disable-decode-cuda-graph \
  --disable-prefill-cuda-graph \
  --host 127.0.0.1 \
  --port 8000 \
  --enable-metrics
