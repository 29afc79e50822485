"""Public boot logs of vLLM as launches that the memory estimate can be asked about.

One JSON object per line: model, config (layers, kv_heads, head_dim, hidden, vocab, params, intermediate; experts,
topk, moe_intermediate; mla, kv_lora_rank, qk_rope_head_dim), gpu, gpu_mem_gib, tp, pp, what the command set, what
the log reported (reported_weights_gib, …_activation_gib, …_non_torch_gib, …_cudagraph_gib, …_consumed_gib, …_kv_gib,
…_kv_tokens), the outcome, vllm_version, regime and source. Every field may be missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from specserve.errors import FactError
from specserve.hardware.accelerators import Accelerator, Machine, catalogue
from specserve.memory.breakdown import Footprint, sizes_of
from specserve.memory.constants import Regime, Runner, regime
from specserve.memory.demand import demand
from specserve.memory.pool import BlockTable, Demand, PipelineStage
from specserve.memory.situation import (
    GPU_MEMORY_UTILIZATION,
    MemorySituation,
    Settings,
    Speculative,
    batch_of,
)
from specserve.models.facts import ModelFacts, Tensor
from specserve.vllm.fact import minor

GIB = 2**30
BLOCK = 16
POINTS = Path(__file__).resolve().parents[1] / "tests" / "memory" / "vram_points.jsonl"
_DEFAULT_VERSIONS = {"v0": "0.7", "v1_no_graph_deduction": "0.16", "v1_graph_deducted": "0.21", "v2": "0.26"}
"""Where a log does not state its version: one that most launches of its time had."""
_BYTES = {"bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1}
_QWEN_27B = {
    "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1, "mamba_ssm_dtype": "float32", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "parameters": 27_800_000_000,
    "vision_config": {}, "architectures": ["Qwen3_5ForConditionalGeneration"],
}  # fmt: skip
_GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "sliding_window": 128,
    "num_experts_per_tok": 4, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4"}, "architectures": ["GptOssForCausalLM"],
}  # fmt: skip


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    return {**_GPT_OSS, "num_hidden_layers": layers, "num_local_experts": experts, "layer_types": kinds}


_PUBLISHED = (
    (re.compile(r"qwen3\.[568]-27b", re.I), _QWEN_27B),
    (re.compile(r"gpt-oss-20b", re.I), _gpt_oss(24, 32)),
    (re.compile(r"gpt-oss-120b", re.I), _gpt_oss(36, 128)),
)
"""Published configurations of models that a layer count does not describe."""
_DRAFT_PARAMETERS = ((re.compile(r"qwen3-8b[\w./-]*dflash", re.I), 1_050_000_000),)
"""Parameters of drafts that logs name and do not describe, without the tables that the target shares."""


class Row(NamedTuple):
    """A launch that a log describes: what the estimate takes in, and the log."""

    point: Mapping[str, Any]
    situation: MemorySituation
    demand: Demand


def read(file: Path) -> list[dict[str, Any]]:
    """The points of one file; exits if a line is not a JSON object."""
    points = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            point = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise SystemExit(f"{file}:{number}: not JSON: {error}") from error
        if point is not None and not isinstance(point, dict):
            raise SystemExit(f"{file}:{number}: not a JSON object")
        points += [point] if point else []
    return points


def row(point: Mapping[str, Any], *, rules: Regime | None = None) -> Row | str:
    """The launch of one point, with `rules` instead of the constants that ship; a string says why it is not scored."""
    try:
        return _row(point, rules=rules)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, FactError) as error:
        return f"a field is missing or not of its type ({type(error).__name__})"


def _row(point: Mapping[str, Any], *, rules: Regime | None) -> Row | str:
    for name, value in point.items():
        if name.startswith("reported_") and value is not None:
            float(value)
    if not has_gpu(point):
        return "the GPU's memory is not stated"
    if re.search(r"\bfork\b|not CUDA", f"{point.get('vllm_version')} {point.get('notes')}"):
        return "not a release of vLLM on CUDA"
    if point.get("outcome") is None:
        return "the outcome is not stated"
    s = situation(point)
    drafted = _draft_bytes(point)
    if drafted is None and all(reported(point, what) is None for what in ("weights", "consumed")):
        return "the draft's weights are not known"
    needed = _cache(point, s)
    known, is_own = _weights(point, s, rules=rules or regime(s.settings.version, runner=s.runner))
    if known is None:
        return "weights are not known: quantized, and not in the log"
    stage = replace(needed.stages[0], target_weights_bytes=known, draft_weights_bytes=(drafted or 0) * is_own)
    return Row(point, s, replace(needed, stages=(stage,)))


def _gpu_gib(point: Mapping[str, Any]) -> float | None:
    """The GPU's memory; of a `24 GB class`, what such cards report."""
    told, named = point.get("gpu_mem_gib"), re.search(r"(\d+) GB class", str(point.get("gpu")))
    return float(told) if told else 0.985 * int(named[1]) if named else None


def has_gpu(point: Mapping[str, Any]) -> bool:
    """Whether a log says how much memory its GPU has."""
    return _gpu_gib(point) is not None


def _weights(point: Mapping[str, Any], s: MemorySituation, *, rules: Regime) -> tuple[int | None, bool]:
    """Weights of one GPU, and whether they come from elsewhere than the log."""
    counted = weights_bytes(point)
    if counted is not None:
        return counted, True
    logged, consumed = reported(point, "weights"), reported(point, "consumed")
    if logged is not None:
        return int(logged), False
    if consumed is not None:
        footprint = Footprint(sizes_of(s.target), s.settings, rules, s.speculative)
        beside = footprint.outside(s.capability)
        return int(consumed - (beside.low + beside.high) / 2 - footprint.buffers), False
    return _published_weights(point), True


def _published_weights(point: Mapping[str, Any]) -> int | None:
    """Of models with a published count of parameters; the tables of FP8 checkpoints keep 16 bits."""
    config, quant = _published(point) or {}, str(point.get("quant") or "bf16").lower()
    count = config.get("parameters")
    if not count or not quant.startswith(("bf16", "fp8")):
        return None
    tables = 2 * config["vocab_size"] * config["hidden_size"]
    total = 2 * count if quant.startswith("bf16") else count + tables
    return int(total / (int(point.get("tp") or 1) * int(point.get("pp") or 1)))


def _cache(point: Mapping[str, Any], s: MemorySituation) -> Demand:
    """The KV cache of the last stage, which has the sampler; without groups if it is not known."""
    if _published(point):
        nominal = replace(s.target, tensors={"model.norm.weight": Tensor("BF16", (1,))})
        found = demand(nominal, settings=s.settings)
        return replace(found, stages=found.stages[-1:], notes=())
    per_token = kv_bytes_per_token(point)
    if per_token is None:
        return Demand((PipelineStage(0, 0, 0, 0, 0, 0, 0, 0),), (), s.settings.max_model_len)
    drafted = _draft(point)
    extra = (kv_bytes_per_token(drafted) or 0) if drafted else 0
    page = (per_token + extra) * BLOCK
    stage = PipelineStage(0, 0, 0, page, per_token, extra, 0, 0)
    return Demand((stage,), (BlockTable(BLOCK, page),), s.settings.max_model_len)


def logged_kv(launch: Row) -> float | None:
    """The KV cache of a log, in bytes: what it says, or what its blocks or tokens take, the smallest of its ranks."""
    told, page = reported(launch.point, "kv"), launch.demand.stages[0].bytes_per_block
    blocks, tokens = launch.point.get("reported_kv_blocks"), launch.point.get("reported_kv_tokens")
    groups = launch.demand.groups
    if len(groups) == 1 and tokens:
        blocks = tokens / groups[0].block_size
    counted = blocks * page if blocks and groups else None
    if told is None or counted is None:
        return counted if told is None else told
    return min(told, counted) if counted < 0.98 * told else told


def _published(point: Mapping[str, Any]) -> dict[str, Any] | None:
    return next((dict(config) for name, config in _PUBLISHED if name.search(str(point.get("model")))), None)


def _draft(point: Mapping[str, Any]) -> dict[str, Any] | None:
    """The draft as a point of its own, where its sizes are told."""
    draft = point.get("draft")
    if not isinstance(draft, dict) or not isinstance(draft.get("config"), dict):
        return None
    return {**point, "model": draft.get("model"), "quant": draft.get("quant"), "config": draft["config"]}


def _draft_bytes(point: Mapping[str, Any]) -> int | None:
    """Weights of the draft on one GPU; 0 without a model of its own, None where they are not known."""
    draft, words = point.get("draft"), str(point.get("draft") or "")
    if not draft or _method(draft) in ("ngram", "suffix"):
        return 0
    described = _draft(point)
    if described:
        return weights_bytes(described)
    if isinstance(draft, dict) and draft.get("params"):
        return weights_bytes({**point, "quant": draft.get("quant"), "config": {"params": draft["params"]}})
    tp = int(point.get("tp") or 1)
    return next((2 * count // tp for name, count in _DRAFT_PARAMETERS if name.search(words)), None)


def _method(draft: Any) -> str | None:
    if not draft:
        return None
    if isinstance(draft, dict):
        return str(draft.get("method") or "draft_model")
    known = re.match(r"(mtp|eagle3?|dflash|dspark|ngram|suffix|medusa)", str(draft).lower())
    return known[1] if known else "draft_model"


def _draft_tokens(draft: Any) -> int:
    if isinstance(draft, dict):
        return int(draft.get("k") or draft.get("num_speculative_tokens") or 3)
    told = re.search(r"\bK\s*=\s*(\d+)", str(draft or ""), re.I)
    return int(told[1]) if told else 3 if draft else 0


def reported(point: Mapping[str, Any], what: str) -> float | None:
    """A figure of the log, in bytes."""
    value = point.get(f"reported_{what}_gib")
    return None if value is None else float(value) * GIB


def version_of(point: Mapping[str, Any]) -> str:
    """The vLLM version of a log, `0.26`; where it states none, one of its time."""
    if point.get("regime") == "v0":  # the old engine lived on beside the first releases of the new one
        return _DEFAULT_VERSIONS["v0"]
    told = str(point.get("vllm_version") or "")
    found = None if "dev" in told and re.match(r"v?0\.1\.dev", told) else re.search(r"(\d+)\.(\d+)", told)
    return f"{found[1]}.{found[2]}" if found else _DEFAULT_VERSIONS.get(str(point.get("regime")), "0.26")


def situation(point: Mapping[str, Any]) -> MemorySituation:
    """The launch behind a log, after the defaults of its version."""
    version = version_of(point)
    runner: Runner = "v2" if point.get("regime") == "v2" else "v1"
    tp, pp = int(point.get("tp") or 1), int(point.get("pp") or 1)
    machine = Machine(_accelerator(point), int(point.get("num_gpus") or tp * pp), basis="assumed")
    config = _config(point)
    length = int(point.get("max_model_len") or config.get("max_position_embeddings") or 4096)
    tokens, seqs = _batch(machine, length=length, version=version)
    tokens, seqs = int(point.get("max_num_batched_tokens") or tokens), int(point.get("max_num_seqs") or seqs)
    default = 0.9 if minor(version) < (0, 22) else GPU_MEMORY_UTILIZATION
    utilization = point.get("gpu_memory_utilization") or default
    draft = point.get("draft")
    return MemorySituation(
        target=ModelFacts(str(point.get("model")), "lock", config),
        machine=machine,
        settings=Settings(
            length, min(seqs, tokens), tokens, tp, pp,
            kv_cache_dtype=str(point.get("kv_cache_dtype") or "auto"), version=version,
        ),
        runner=runner,
        gpu_memory_utilization=float(utilization),
        speculative=Speculative(_method(draft), _draft_tokens(draft)),
        enforce_eager=bool(point.get("enforce_eager")),
        longest=length,
    )  # fmt: skip


def _batch(machine: Machine, *, length: int, version: str) -> tuple[int, int]:
    """Tokens and requests of a step; the old engine took whole prompts, up to 32k tokens."""
    if minor(version) < (0, 8):
        return (length if length <= 32768 else 2048), 256
    return batch_of(machine, version)


def _accelerator(point: Mapping[str, Any]) -> Accelerator:
    name = str(point.get("gpu"))
    words = name.replace(" ", "-").lower()
    known = next((item for item in catalogue() if item.name.lower().rpartition("-")[0] in words), None)
    capability = known.compute_capability if known else None
    return Accelerator(name, int((_gpu_gib(point) or 80) * GIB), capability)


def is_described(point: Mapping[str, Any]) -> bool:
    """Whether the sizes of the model are known."""
    return bool(_published(point) or (point.get("config") or {}).get("hidden"))


def _config(point: Mapping[str, Any]) -> dict[str, Any]:
    published = _published(point)
    quant = str(point.get("quant") or "")
    quantized = {"quant_method": quant} if quant and quant != "bf16" else None
    if published:
        if quant.startswith("fp8"):
            quantized = {"quant_method": "fp8"}
        return {**published, "quantization_config": published.get("quantization_config") or quantized}
    sizes = point.get("config") or {}
    return {
        "hidden_size": sizes.get("hidden", 4096), "vocab_size": sizes.get("vocab", 128256),
        "num_hidden_layers": sizes.get("layers", 32), "intermediate_size": intermediate(sizes),
        "num_experts_per_tok": sizes.get("topk", 0), "moe_intermediate_size": sizes.get("moe_intermediate", 0),
        "n_shared_experts": None, "shared_expert_intermediate_size": sizes.get("intermediate", 0),
        "torch_dtype": "float32" if point.get("dtype") == "float32" else "bfloat16",
        "quantization_config": quantized,
    }  # fmt: skip


def intermediate(sizes: Mapping[str, Any]) -> int:
    """The width of the MLP; by parameter count where the point does not say."""
    if "intermediate" in sizes:
        return int(sizes["intermediate"])
    hidden, layers = sizes.get("hidden"), sizes.get("layers")
    if not (sizes.get("params") and hidden and layers) or sizes.get("experts"):
        return int(3.5 * (hidden or 4096))
    tables = sizes.get("vocab", 0) * hidden * (1 if sizes.get("tied_embeddings") else 2)
    attention = 2 * hidden * (hidden + sizes.get("kv_heads", 8) * sizes.get("head_dim", 128))
    return int(max(hidden, (sizes["params"] - tables - layers * attention) / (3 * hidden * layers)))


def weights_bytes(point: Mapping[str, Any]) -> int | None:
    """Weights of one GPU by parameter count; None with pipeline stages, quantized, or of unknown size."""
    params, width = (point.get("config") or {}).get("params"), _BYTES.get(str(point.get("dtype") or "bf16"))
    if not params or not width or point.get("quant") or int(point.get("pp") or 1) > 1:
        return None
    return int(params * width / int(point.get("tp") or 1))


def kv_bytes_per_token(point: Mapping[str, Any]) -> int | None:
    """KV cache of one token on one GPU, every layer as if full."""
    sizes, dtype = point.get("config") or {}, str(point.get("kv_cache_dtype") or "auto")
    width = 1 if dtype.startswith("fp8") else _BYTES.get(str(point.get("dtype") or "bf16"), 2)
    if sizes.get("mla"):
        if not all(sizes.get(key) for key in ("layers", "kv_lora_rank", "qk_rope_head_dim")):
            return None
        return int(sizes["layers"] * (sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"]) * width)
    if not all(sizes.get(key) for key in ("layers", "kv_heads", "head_dim")):
        return None
    heads = max(1, sizes["kv_heads"] // int(point.get("tp") or 1))
    return int(-(-sizes["layers"] // int(point.get("pp") or 1)) * heads * 2 * sizes["head_dim"] * width)
