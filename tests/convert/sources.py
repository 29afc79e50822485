"""Launches as they circulate, by name: the text, and the file name that says its form."""

from __future__ import annotations

SOURCES: dict[str, tuple[str, str]] = {
    "llm-70b": (
        "offline.py",
        """
from vllm import LLM, SamplingParams

TARGET = "meta-llama/Llama-3.1-70B-Instruct"

llm = LLM(
    model=TARGET,
    speculative_model="Qwen/Qwen2-7B-Instruct",
    num_speculative_tokens=5,
    tensor_parallel_size=4,
    gpu_memory_utilization=0.9,
)
outputs = llm.generate(["The future of AI is"], SamplingParams(temperature=0.8))
""",
    ),
    "api-server": (
        "serve.sh",
        """
#!/bin/bash
# one draft rank beside four of the target
export CUDA_VISIBLE_DEVICES=0,1,2,3
MODEL=meta-llama/Llama-3.1-70B-Instruct

python -m vllm.entrypoints.openai.api_server \\
    --model "$MODEL" \\
    --tensor-parallel-size 4 \\
    --speculative-model meta-llama/Llama-3.2-1B-Instruct \\
    --num-speculative-tokens 5 \\
    --speculative-draft-tensor-parallel-size 1 \\
    --host 0.0.0.0 --port 8000
""",
    ),
    "sglang-eagle": (
        "launch.sh",
        """
python -m sglang.launch_server --model meta-llama/Llama-2-7b-chat-hf --speculative-algo EAGLE \\
    --speculative-draft-model-path lmsys/sglang-EAGLE-llama2-chat-7B --speculative-token-map map.pt \\
    --speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 64 \\
    --context-length 4096 --disable-radix-cache --tool-call-parser qwen25 --api-key $SGLANG_KEY
""",
    ),
    "docker-ngram": (
        "docker.sh",
        """
docker run --runtime nvidia --gpus '"device=0,1"' \\
    -v ~/.cache/huggingface:/root/.cache/huggingface \\
    --env "HUGGING_FACE_HUB_TOKEN=hf_abcdefghijklmnopqrst" -e VLLM_ATTENTION_BACKEND=FLASH_ATTN -e VLLM_USE_V1=0 \\
    -p 8000:8000 --ipc=host \\
    vllm/vllm-openai:v0.6.3 \\
    --model mistralai/Mistral-7B-Instruct-v0.2 \\
    --speculative-model "[ngram]" --num-speculative-tokens 5 --ngram-prompt-lookup-max 4 \\
    --speculative-disable-by-batch-size 32 \\
    --enable-chunked-prefill False --disable-log-requests --swap-space 4 --api-key sk-0123456789abcdefghij
""",
    ),
    "compose": (
        "compose.yaml",
        """
services:
  proxy:
    image: nginx
  vllm:
    image: vllm/vllm-openai:latest
    environment:
      HF_TOKEN: ${HF_TOKEN}
      VLLM_LOGGING_LEVEL: DEBUG
    command: >
      --model Qwen/Qwen3-8B
      --speculative-config '{"method": "eagle3", "model": "AngelSlim/Qwen3-8B_eagle3", "num_speculative_tokens": 3}'
      --max-model-len ${MAX_LEN:-32768}
      --served-model-name qwen qwen3-8b
""",
    ),
}
