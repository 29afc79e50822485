#!/bin/bash
# one draft rank beside four of the target
export CUDA_VISIBLE_DEVICES=0,1,2,3
MODEL=meta-llama/Llama-3.1-70B-Instruct

python -m vllm.entrypoints.openai.api_server \
    --model "$MODEL" \
    --tensor-parallel-size 4 \
    --speculative-model meta-llama/Llama-3.2-1B-Instruct \
    --num-speculative-tokens 5 \
    --speculative-draft-tensor-parallel-size 1 \
    --host 0.0.0.0 --port 8000
