"""What holds in which version of vLLM: each fact with the source line that shows its newest value.

The keys are the first minor with a value. A version that is older than all gets the oldest value.
"""

from __future__ import annotations

from specserve.vllm.fact import Fact

EXAMPLE_RANGE = ">=0.32,<0.34"
"""A version range for hints and documentation."""
METHODS_REMOVED = "vLLM 0.33 removed it"
RAY_PIN = "Ray 2.60 asks for vLLM 0.29 by itself"

_CONFIG, _SPECULATIVE = "config/vllm.py", "config/speculative.py"

INVERSE_FLAGS: Fact[bool] = Fact(
    {"0.31": False, "0.33": True}, "utils/argparse_utils.py", "class EnableDisableAction"
)
"""`--disable-x` is the opposite of `--enable-x`, and the other way round."""
SMALL_GB10: Fact[bool] = Fact(
    {"0.31": False, "0.33": True},
    "engine/arg_utils.py",
    "is_gb10 = current_platform.is_device_capability((12, 1))",
)
"""A GB10 takes the steps of a small GPU, whatever its memory."""
SHORTENS_TARGET: Fact[bool] = Fact(
    {"0.31": False, "0.33": True}, _CONFIG, "def _limit_max_model_len_to_draft(self) -> None:"
)
"""V2 lowers the server's context to that of a shorter draft; before, it keeps it."""
ROPES_NOT_MULTIPLIED: Fact[frozenset[str]] = Fact(
    {
        "0.31": frozenset(
            {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
        )
    },
    "config/model.py",
    '"yarn", "deepseek_yarn", "deepseek_llama_scaling",',
)
"""The types of rotary positions whose factor is in the context of config.json already."""
STRETCHED_HEADS: Fact[frozenset[str]] = Fact(
    {
        "0.31": frozenset({"eagle", "eagle3"}),
        "0.33": frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"}),
    },
    _SPECULATIVE,
    "# Every draft but an independent model shares the target's",
)
"""The methods whose heads get as many positions as the target is served with."""


FACTS: dict[str, Fact[object]] = {
    name: value for name, value in globals().items() if isinstance(value, Fact)
}
