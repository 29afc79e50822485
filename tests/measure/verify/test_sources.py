"""What the verification rests on stands in the installed vLLM: a scored request skips prefix cache and drafts."""

from __future__ import annotations

import pytest

from specserve.vllm.versions import installed

TEXTS = [
    ("sampling_params.py", "if self.skip_reading_prefix_cache is None:"),
    ("sampling_params.py", "self.prompt_logprobs is not None"),
    ("v1/core/kv_cache_manager.py", "request.skip_reading_prefix_cache"),
    ("v1/core/sched/scheduler.py", "if request.spec_token_ids:"),
    ("v1/worker/gpu_model_runner.py", "prompt_hidden_states = hidden_states[offset : offset + num_logits]"),
    ("v1/worker/gpu_model_runner.py", "prompt tokens skip sampling processors"),
    ("v1/worker/gpu/sample/prompt_logprob.py", "def compute_prompt_logprobs("),
    ("v1/engine/logprobs.py", "def _update_prompt_logprobs("),
    ("v1/sample/rejection_sampler.py", "def apply_sampling_constraints("),
    ("config/model.py", "max_logprobs: int = Field(default=20"),
]


@pytest.mark.vllm
@pytest.mark.parametrize(("file", "text"), TEXTS)
def test_the_text_is_in_the_installed_file(file: str, text: str) -> None:
    vllm = installed()
    assert vllm is not None
    assert text in (vllm.package / file).read_text(encoding="utf-8")
