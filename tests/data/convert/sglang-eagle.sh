python -m sglang.launch_server --model meta-llama/Llama-2-7b-chat-hf --speculative-algo EAGLE \
    --speculative-draft-model-path lmsys/sglang-EAGLE-llama2-chat-7B --speculative-token-map map.pt \
    --speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 64 \
    --context-length 4096 --disable-radix-cache --tool-call-parser qwen25 --api-key $SGLANG_KEY
