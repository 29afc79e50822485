docker run --runtime nvidia --gpus '"device=0,1"' \
    -v ~/.cache/huggingface:/root/.cache/huggingface \
    --env "HUGGING_FACE_HUB_TOKEN=hf_abcdefghijklmnopqrst" -e VLLM_ATTENTION_BACKEND=FLASH_ATTN -e VLLM_USE_V1=0 \
    -p 8000:8000 --ipc=host \
    vllm/vllm-openai:v0.6.3 \
    --model mistralai/Mistral-7B-Instruct-v0.2 \
    --speculative-model "[ngram]" --num-speculative-tokens 5 --ngram-prompt-lookup-max 4 \
    --speculative-disable-by-batch-size 32 \
    --enable-chunked-prefill False --disable-log-requests --swap-space 4 --api-key sk-0123456789abcdefghij
