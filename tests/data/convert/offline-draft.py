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
