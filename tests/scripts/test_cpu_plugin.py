"""The vLLM plug-in of the CPU set-up: every request keeps its own temperature under speculation."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

# What the plug-in finds and does in vLLM, told as JSON.
CURE = """
import json, logging, sys
import specserve_vllm_cpu as plugin
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils as kernels
lines = []
plugin.logger.addHandler(h := logging.Handler()); h.emit = lambda record: lines.append(record.getMessage())
plugin.logger.setLevel("INFO")
current_platform.import_kernels()
faulty, seen = kernels._expand_kernel_impl, {}
seen["vllm_keeps_floats"] = plugin.keeps_floats(faulty)
type(current_platform).is_cpu = lambda self: False
plugin.cure(); seen["elsewhere_untouched"] = kernels._expand_kernel_impl is faulty
del type(current_platform).is_cpu
def right(*args, **kwargs): plugin.expand(*args, **kwargs)
kernels._expand_kernel_impl = right
plugin.cure(); seen["right_untouched"] = kernels._expand_kernel_impl is right
seen["lines_before"] = len(lines)
kernels._expand_kernel_impl = faulty
plugin.cure(); plugin.cure(); seen["cured"] = plugin.keeps_floats(kernels._expand_kernel_impl)
seen["lines"] = lines
del kernels._expand_kernel_impl
plugin.cure(); seen["absent_untouched"] = not hasattr(kernels, "_expand_kernel_impl")
# What vLLM's sampler calls, bound as the worker binds it.
kernels._expand_kernel_impl = plugin.expand
current_platform.register_triton_kernel_overrides()
import torch
from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens
x, totals = torch.tensor([0.7, 0.0, 1.0]), torch.tensor([2, 2, 5], dtype=torch.int32)
seen["sampler_floats"] = expand_batch_to_tokens(x, totals, 5, 0, 1).tolist()
seen["sampler_ints"] = expand_batch_to_tokens(torch.tensor([5, 0, 7], dtype=torch.int32), totals, 5).tolist()
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return child(CURE, tmp_path_factory.mktemp("cure"))


def test_vllm_still_has_the_fault_that_the_plugin_is_for(seen: dict[str, Any]) -> None:
    assert seen["vllm_keeps_floats"] is False


def test_the_faulty_kernel_is_replaced_once_and_one_line_says_so(seen: dict[str, Any]) -> None:
    assert seen["cured"] is True
    assert seen["lines_before"] == 0
    (line,) = seen["lines"]
    assert "_expand_kernel_impl" in line and "vllm-project/vllm#55005" in line


@pytest.mark.parametrize("case", ["right_untouched", "absent_untouched", "elsewhere_untouched"])
def test_a_right_kernel_a_missing_one_and_other_platforms_are_left_alone(
    seen: dict[str, Any], case: str
) -> None:
    assert seen[case] is True


def test_the_sampler_of_vllm_then_reads_each_requests_own_values(seen: dict[str, Any]) -> None:
    assert seen["sampler_floats"] == pytest.approx([0.7, 0.7, 1.0, 1.0, 1.0])
    assert seen["sampler_ints"] == [5, 5, 7, 7, 7]


def child(code: str, folder: Path, *args: str) -> dict[str, Any]:
    """Run a script in its own process group; the JSON of its last line."""
    path = folder / "child.py"
    path.write_text(code)
    env = os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    env.pop("VLLM_PLUGINS", None)
    errors = folder / "stderr"
    argv = [sys.executable, str(path), *args]
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            argv, env=env, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=stderr
        ) as process,
    ):
        try:
            out, _ = process.communicate(timeout=180)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # vLLM's own processes do not always end with it
    assert process.returncode == 0, errors.read_text()[-3000:]
    found = [line for line in out.splitlines() if line.startswith("{")]
    return dict(json.loads(found[-1]))
