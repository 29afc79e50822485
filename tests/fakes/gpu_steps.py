"""What the tests of scripts/gpu_report.py share: two machines, the steps planned for them, a log of vLLM."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import gpu_report
from gpureport import clock
from gpureport.step import Folders, Step, Target

ROOT = Path(__file__).parents[2]
H200 = Target("H200-141GB", 150_023_207_649, False)
SMALL = Target("cpu", 24 * 2**30, True)
MACHINE = {
    "accelerator": "H200-141GB", "device": "NVIDIA H200", "total_bytes": H200.total_bytes, "is_small": False,
    "cores": 16, "memory_bytes": 2**37, "driver": None, "versions": {"vllm": "0.26.0", "python": "3.12.3"},
}  # fmt: skip
LOG_026 = """\
(EngineCore pid=9) INFO 11-22 [gpu_worker.py:300] Using V2 Model Runner
(EngineCore pid=9) INFO 11-22 [gpu_model_runner.py:5150] Model loading took 14.99 GiB memory and 2.4 seconds
(EngineCore pid=9) INFO 11-22 [gpu_model_runner.py:6475] Estimated CUDA graph memory: 0.84 GiB total
(EngineCore pid=9) INFO 11-22 [gpu_worker.py:760] Available KV cache memory: 98.21 GiB
(EngineCore pid=9) INFO 11-22 [kv_cache_utils.py:868] GPU KV cache size: 804,544 tokens
(EngineCore pid=9) INFO 11-22 [kv_cache_utils.py:870] Maximum concurrency for 8,192 tokens per request: 98.21x
(EngineCore pid=9) INFO 11-22 [gpu_model_runner.py:6582] Graph capturing finished in 5 secs, took 0.91 GiB
"""
BUDGET_026 = (
    "Free memory on device (139.12/139.72 GiB) on startup. Desired GPU memory utilization is (0.9, 125.75 GiB). "
    "Actual usage is 14.99 GiB for weight, 1.89 GiB for peak activation, 0.25 GiB for non-torch memory, and "
    "0.91 GiB for CUDAGraph memory. Current kv cache memory in use is 98.21 GiB."
)
BUDGET_033 = (
    "Free memory on device (139.12/139.72 GiB) on startup. Desired GPU memory utilization is (0.9, 125.75 GiB). "
    "Actual usage is 15.31 GiB for consumed memory (weights + non-torch), 1.89 GiB for peak activation, and "
    "0.91 GiB for CUDAGraph memory. Current kv cache memory in use is 98.21 GiB."
)


def steps_of(target: Target, root: Path) -> list[Step]:
    return clock.ordered(gpu_report.plan(target, Folders(root)))
