"""What a model needs of each GPU, asked of vLLM: built on the meta device, no weight is read. Knows no profile.

In, on stdin, one JSON object a line: `{"engine_kwargs": {…}, "kv_bytes": [n, …], "draft_lacks": ["embed_tokens",
"lm_head"]}`. Out, on what was stdout, one JSON object a line: the figures, or `{"error": …}`. vLLM's own output goes
to stderr. `draft_lacks` names the tables that the draft's checkpoint does not bring: vLLM then shares the target's.
What it does not know: what a quantised checkpoint becomes after loading.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

_GROUPS = ("_WORLD", "_TP", "_ETP", "_PP", "_DP", "_EP", "_EPLB", "_DCP", "_PCP")
_SMALL = 1 << 20
"""Elements."""


def _group(world_size: int, rank: int = 0) -> SimpleNamespace:
    """A stand-in for vLLM's GroupCoordinator: sizes and ranks are all that building a model asks for."""
    process_group = SimpleNamespace(size=lambda: world_size, rank=lambda: rank)
    return SimpleNamespace(
        world_size=world_size, rank_in_group=rank, rank=rank, local_rank=rank, ranks=list(range(world_size)),
        is_first_rank=rank == 0, is_last_rank=rank == world_size - 1, first_rank=0, last_rank=world_size - 1,
        device_group=process_group, cpu_group=process_group, device_communicator=None, unique_name="probe:0",
    )  # fmt: skip


@contextlib.contextmanager
def _as_rank(config: Any, *, stage: int) -> Iterator[None]:
    """Be the first GPU of a pipeline stage. Source: vllm/distributed/parallel_state.py 0.32."""
    from vllm.distributed import parallel_state

    parallel = config.parallel_config
    tp, pp, dp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.data_parallel_size
    groups = {
        "_WORLD": _group(tp * pp, stage * tp), "_TP": _group(tp), "_ETP": _group(tp), "_PP": _group(pp, stage),
        "_DP": _group(dp), "_EP": _group(tp * dp), "_EPLB": _group(tp * dp), "_DCP": _group(1), "_PCP": _group(1),
    }  # fmt: skip
    before = {name: getattr(parallel_state, name) for name in _GROUPS if hasattr(parallel_state, name)}
    for name in before:
        setattr(parallel_state, name, groups[name])
    try:
        yield
    finally:
        for name, group in before.items():
            setattr(parallel_state, name, group)


@contextlib.contextmanager
def _weightless() -> Iterator[None]:
    """Tensors of more than a megabyte are made on the meta device; small ones are real, as models read them."""
    import math

    import torch
    from torch.overrides import TorchFunctionMode

    class Weightless(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func in (torch.empty, torch.zeros, torch.ones, torch.full) and kwargs.get("device") is None:
                size = kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args)
                if math.prod(item for item in size if isinstance(item, int)) > _SMALL:
                    kwargs["device"] = "meta"
            return func(*args, **kwargs)

    with Weightless():
        yield


@contextlib.contextmanager
def _any_kernel() -> Iterator[None]:
    """Let a machine without the instructions for a quantised format build it: no kernel runs here."""
    from vllm.model_executor.kernels import linear

    before = linear.is_supported_and_can_implement_kernel
    linear.is_supported_and_can_implement_kernel = lambda *_: (True, "")
    try:
        yield
    finally:
        linear.is_supported_and_can_implement_kernel = before


def _build(config: Any, *, model_config: Any = None, prefix: str = "") -> Any:
    """One model of the configuration, without memory."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    dtype = (model_config or config.model_config).dtype
    with set_current_vllm_config(config), _weightless(), _any_kernel(), set_default_torch_dtype(dtype):
        return initialize_model(config, model_config=model_config, prefix=prefix)


def _build_draft(config: Any, target: Any, *, lacks: frozenset[str]) -> Any:
    """The draft of the configuration, sharing what vLLM shares (v1/spec_decode/llm_base_proposer.py 0.32)."""
    from vllm.v1.spec_decode.draft_model import DraftModelProposer
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    speculative = config.speculative_config
    is_draft_model = speculative.method == "draft_model"
    proposer = object.__new__(DraftModelProposer if is_draft_model else SpecDecodeBaseProposer)
    proposer.vllm_config, proposer.speculative_config = config, speculative
    draft_config = proposer._create_draft_vllm_config()
    if is_draft_model:
        return _build(draft_config, prefix="draft_model")
    names = _attention_names(config)
    draft = _build(draft_config, model_config=speculative.draft_model_config)
    is_gemma4 = getattr(speculative, "use_gemma4_mtp", None)  # other versions may not have it
    if is_gemma4 is not None and is_gemma4():
        _share_gemma4(draft, target, config, names=names)
        return draft
    _share(draft, target, lacks=lacks, is_mtp=speculative.method == "mtp")
    return draft


def _share_gemma4(draft: Any, target: Any, config: Any, *, names: set[str]) -> None:
    """Gemma 4's assistant reads the target's cache and embeddings, and keeps its own output table."""
    from vllm.v1.spec_decode.gemma4 import Gemma4Proposer

    proposer = object.__new__(Gemma4Proposer)
    proposer.model, proposer.vllm_config = draft, config
    proposer.speculative_config = config.speculative_config
    proposer._setup_gemma4_kv_sharing(names)
    language = target.get_language_model() if hasattr(target, "get_language_model") else target
    draft.model.embed_tokens = language.model.embed_tokens


def _attention_names(config: Any) -> set[str]:
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    return set(get_layers_from_vllm_config(config, AttentionLayerBase))


def _share(draft: Any, target: Any, *, lacks: frozenset[str], is_mtp: bool) -> None:
    language = target.get_language_model() if hasattr(target, "get_language_model") else target
    inner = getattr(draft, "model", None)
    given = getattr(language, "model", None)
    table = getattr(given, "embed_tokens", None) or getattr(given, "embedding", None)
    own = getattr(inner, "embed_tokens", None)
    if inner is not None and own is not None and table is not None and hasattr(table, "weight"):
        is_as_wide = table.weight.shape[-1] == own.weight.shape[-1]
        if is_mtp or ("embed_tokens" in lacks and is_as_wide):
            inner.embed_tokens = table
    head = getattr(language, "lm_head", None)
    if head is None or not (is_mtp or "lm_head" in lacks):
        return
    if hasattr(draft, "lm_head"):
        draft.lm_head = head
    layers = getattr(inner, "layers", None) or ()
    for layer in layers.values() if hasattr(layers, "values") else layers:
        if hasattr(getattr(layer, "shared_head", None), "head"):
            layer.shared_head.head = head


def _bytes(tensors: Iterable[Any], *, seen: set[int]) -> int:
    """Bytes of tensors, each counted once however often it is tied."""
    total = 0
    for tensor in tensors:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            total += tensor.numel() * tensor.element_size()
    return total


def _weights(model: Any, *, seen: set[int]) -> dict[str, int]:
    if model is None:
        return {"parameters": 0, "buffers": 0}
    return {
        "parameters": _bytes(model.parameters(), seen=seen),
        "buffers": _bytes(model.buffers(), seen=seen),
    }


def _kv_specs(config: Any) -> dict[str, Any]:
    """KV cache of each layer that has one, by layer name."""
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    return dict(get_kv_cache_spec(config))


def _describe(spec: Any, config: Any) -> dict[str, Any]:
    """One layer's KV cache in plain figures."""
    described = {
        "kind": type(spec).__name__,
        "block_size": spec.block_size,
        "page_bytes": spec.page_size_bytes,
    }
    for name in ("num_kv_heads", "head_size", "head_size_v", "sliding_window", "attention_chunk_size",
                 "page_size_padded", "num_speculative_blocks", "mamba_cache_mode"):  # fmt: skip
        value = getattr(spec, name, None)
        if value is not None:
            described[name] = value
    if hasattr(spec, "shapes"):
        described["state_bytes"] = spec.state_content_size_bytes
        described["state_shapes"] = [list(shape) for shape in spec.shapes]
        described["state_blocks"] = spec.max_memory_usage_bytes(config) // spec.page_size_bytes
    return described


def _stage(
    config: Any, *, stage: int, lacks: frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """What the GPUs of one stage hold: figures, KV specs, attention backends."""
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform

    config.compilation_config.static_forward_context.clear()
    with _as_rank(config, stage=stage), set_current_vllm_config(config):
        target = _build(config)
        names = _attention_names(config)
        is_last = stage == config.parallel_config.pipeline_parallel_size - 1
        speculative = config.speculative_config
        has_draft = speculative is not None and is_last and _has_model(speculative)
        draft = _build_draft(config, target, lacks=lacks) if has_draft else None
        current_platform.update_block_size_for_backend(config)
        specs = _kv_specs(config)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        backends = list(dict.fromkeys(layer.get_attn_backend() for layer in layers.values()))
        seen: set[int] = set()
        figures = {
            "target": _weights(target, seen=seen),
            "draft": _weights(draft, seen=seen),
            "kv": [
                {"layer": name, "draft": name not in names, **_describe(spec, config)}
                for name, spec in specs.items()
            ],
        }
    return figures, specs, backends


def _has_model(speculative: Any) -> bool:
    return speculative.method not in ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")


def _plan(
    config: Any, specs: list[dict[str, Any]], backends: list[Any], kv_bytes: list[int]
) -> dict[str, Any]:
    """vLLM's planner over the specs of all stages, for each KV size asked."""
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    planner = _planner()
    register_all_kvcache_specs(config)
    names = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    layout = resolve_kv_cache_layout(config, [names], [spec for stage in specs for spec in stage.values()])
    answers = []
    for given in kv_bytes:
        try:
            configs = planner.get_kv_cache_configs(config, specs, [given] * len(specs))
        except ValueError as error:
            answers.append({"kv_bytes": given, "error": str(error)})
            continue
        tokens, concurrency = planner.get_kv_cache_capacity(
            config, planner.generate_scheduler_kv_cache_config(configs)
        )
        answers.append(
            {
                "kv_bytes": given,
                "blocks": configs[0].num_blocks,
                "tokens": tokens,
                "concurrency": concurrency,
                "groups": [_group_figures(config, group) for group in configs[0].kv_cache_groups],
            }
        )
    return {"layout": layout.name, "plans": answers}


def _planner() -> Any:
    """The module of vLLM's planner: it moved between 0.32 and 0.33."""
    from vllm.v1.core import kv_cache_utils

    with contextlib.suppress(ImportError):
        from vllm.v1.core import kv_cache_planning

        names = ("generate_scheduler_kv_cache_config", "get_kv_cache_capacity")
        found = {
            name: getattr(kv_cache_planning, name, None) or getattr(kv_cache_utils, name) for name in names
        }
        return SimpleNamespace(get_kv_cache_configs=kv_cache_planning.get_kv_cache_configs, **found)
    return kv_cache_utils


def _group_figures(config: Any, group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    blocks = -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)
    return {"layers": len(group.layer_names), "block_size": spec.block_size, "blocks_per_request": blocks,
            "kind": type(spec).__name__}  # fmt: skip


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """The figures of one configuration. Raises what vLLM raises."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(**{"skip_tokenizer_init": True, **request["engine_kwargs"]}).create_engine_config()
    lacks = frozenset(request.get("draft_lacks", ()))
    stages = [
        _stage(config, stage=stage, lacks=lacks)
        for stage in range(config.parallel_config.pipeline_parallel_size)
    ]
    backends = list(dict.fromkeys(backend for _, _, found in stages for backend in found))
    planned = _plan(config, [specs for _, specs, _ in stages], backends, request.get("kv_bytes", []))
    return {
        "vllm": vllm.__version__,
        "max_model_len": config.model_config.max_model_len,
        "block_size": config.cache_config.block_size,
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "lookahead_tokens": config.num_lookahead_tokens,
        "backends": [backend.get_name() for backend in backends],
        "stages": [figures for figures, _, _ in stages],
        **planned,
    }


def main() -> None:
    """Answer until the input ends."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM prints to stdout
    for line in requests:
        try:
            answer = probe(json.loads(line))
        except Exception as error:  # whatever vLLM refuses is an answer
            name = type(error).__name__
            answer = {"error": " ".join(str(error).split())[:2000] or name, "exception": name}
            if os.environ.get("SPECSERVE_DEBUG"):
                import traceback

                traceback.print_exc()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
