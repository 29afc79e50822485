"""Takes a configuration of vLLM through what its engine does next and needs no GPU. Part of the oracle.

Written against vLLM 0.26 to 0.33: v1/worker/gpu/model_runner.py (`load_model`, `initialize_kv_cache`),
v1/core/kv_cache_utils.py, v1/core/kv_cache_planning.py and config/compilation.py.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specserve.engine.building import (
    BuiltStage,
    as_rank,
    build,
    build_draft,
    build_stage,
    has_draft,
    weightless,
)

_DTYPES = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "uint8", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32",
    "U32": "int32", "I64": "int64", "BOOL": "bool",
}  # fmt: skip
"""Types of safetensors as torch names them."""


class Launch:
    """A launch, step by step. `answer` collects the figures.

    `request`: `draft_lacks` names the tables that the draft's checkpoint does not bring; `beside` lists bytes that
    something else than weights and KV cache takes, for each of which the KV cache is planned; `tensors` holds what
    safetensors headers say of `target` and `draft`: lists of name, type and shape.
    """

    def __init__(self, config: Any, request: Mapping[str, Any]) -> None:
        self.config, self.request = config, request
        self.answer: dict[str, Any] = {}
        self._last = config.parallel_config.pipeline_parallel_size - 1
        self._stages: list[BuiltStage] = []
        self._kv_config: Any = None

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """What is done, in the order in which vLLM does it; each raises what vLLM raises."""
        yield "models", self._build
        yield "attention backends", self._check_attention
        yield "speculator", self._make_speculator
        yield "KV cache", self._plan
        yield "CUDA graphs", self._resolve_graphs
        for role, tensors in self.request.get("tensors", {}).items():
            if tensors and not self._last:
                yield f"weights of the {role}", lambda role=role, tensors=tensors: self._load(role, tensors)  # type: ignore[misc]

    def _build(self) -> None:
        lacks = frozenset(self.request.get("draft_lacks", ()))
        self._stages = [
            build_stage(self.config, number=number, lacks=lacks) for number in range(self._last + 1)
        ]
        self.answer = {
            # before 0.28 the scheduler computed it
            "lookahead_tokens": getattr(self.config, "num_lookahead_tokens", None),
            "backends": [backend.get_name() for backend in self._backends()],
            "stages": [stage.figures for stage in self._stages],
        }

    def _backends(self) -> list[Any]:
        return list(dict.fromkeys(backend for stage in self._stages for backend in stage.backends))

    def _check_attention(self) -> None:
        from vllm.v1.worker.cp_utils import check_attention_cp_compatibility

        with as_rank(self.config, stage=self._last):
            check_attention_cp_compatibility(self.config)

    def _make_speculator(self) -> None:
        """What the model runner makes for speculation; that of V1 is only asked what it refuses."""
        import torch

        speculative = self.config.speculative_config
        if speculative is None:
            return
        with as_rank(self.config, stage=self._last), weightless():
            if speculative.method in ("eagle3", "dflash", "dspark"):
                from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import (
                    set_eagle3_aux_hidden_state_layers,
                )

                set_eagle3_aux_hidden_state_layers(self._stages[-1].target, speculative)
            if self.config.use_v2_model_runner:
                from vllm.v1.worker.gpu.spec_decode import init_speculator

                given = (self.config, torch.device("meta"), None)  # the third argument is that of 0.32
                init_speculator(*given[: len(inspect.signature(init_speculator).parameters)])
            elif speculative.method == "draft_model":
                from vllm.v1.spec_decode.draft_model import DraftModelProposer

                proposer = object.__new__(DraftModelProposer)
                proposer.vllm_config, proposer.speculative_config = self.config, speculative
                proposer._raise_if_draft_tp_mismatch()

    def _plan(self) -> None:
        """The KV cache of what the weights leave of vLLM's share of the GPU, and of what `beside` leaves of that."""
        with as_rank(self.config, stage=self._last):
            from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

            register_all_kvcache_specs(self.config)
            self._choose_layout()
            most, plans = self._most_kv_bytes(), []
            is_fixed = bool(self.config.cache_config.kv_cache_memory_bytes)
            for beside in self.request.get("beside", ()) if most else ():
                sizes = [size if is_fixed else max(size - beside, 0) for size in most]
                try:
                    plans.append({"kv_bytes": min(sizes), **self._planned(sizes)})
                except ValueError as error:
                    plans.append({"kv_bytes": min(sizes), "error": str(error)})
            self.answer["plans"] = plans
            if most:
                self._planned(most)

    def _choose_layout(self) -> None:
        """Versions before 0.29 choose none."""
        with contextlib.suppress(ImportError):
            from vllm.v1.attention.backends.utils import (
                get_supported_kv_cache_layouts,
                resolve_kv_cache_layout,
            )

            names = [layout.name for layout in get_supported_kv_cache_layouts(self._backends())]
            specs = [spec for stage in self._stages for spec in stage.specs.values()]
            resolve_kv_cache_layout(self.config, [names], specs)

    def _most_kv_bytes(self) -> list[int]:
        """What every stage has for its KV cache at most: activations are not counted. Empty for the CPU."""
        from vllm.platforms import current_platform

        cache = self.config.cache_config
        if cache.kv_cache_memory_bytes:
            return [int(cache.kv_cache_memory_bytes)] * len(self._stages)
        if current_platform.is_cpu():
            return []
        budget = int(current_platform.get_device_total_memory() * cache.gpu_memory_utilization)
        weights = (
            sum(stage.figures[role]["parameters"] for role in ("target", "draft")) for stage in self._stages
        )
        return [max(budget - taken, 0) for taken in weights]

    def _planned(self, sizes: list[int]) -> dict[str, Any]:
        """By vLLM's planner, which has moved to a module of its own in 0.33."""
        from vllm.v1.core import kv_cache_utils

        specs = [stage.specs for stage in self._stages]
        try:
            from vllm.v1.core import kv_cache_planning

            groups = kv_cache_planning.get_global_kv_cache_groups(self.config, specs)
            configs = kv_cache_planning.get_kv_cache_configs(self.config, specs, sizes, groups)
        except ImportError:
            configs = kv_cache_utils.get_kv_cache_configs(self.config, specs, sizes)
        self._kv_config = configs[-1]
        scheduled = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
        tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(self.config, scheduled)
        groups = [_group_figures(self.config, group) for group in configs[0].kv_cache_groups]
        blocks = configs[0].num_blocks
        return {"blocks": blocks, "tokens": tokens, "concurrency": concurrency, "groups": groups}

    def _resolve_graphs(self) -> None:
        """The kind and the sizes of CUDA graphs, once the attention backends are known."""
        from vllm.config import get_layers_from_vllm_config
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
        from vllm.v1.attention.backend import AttentionCGSupport

        config = self.config
        with as_rank(config, stage=self._last):
            layers = get_layers_from_vllm_config(config, AttentionLayerBase)
            least, backend = AttentionCGSupport.ALWAYS, None
            for name, spec in self._stages[-1].specs.items():
                if name in layers:
                    found = layers[name].get_attn_backend()
                    support = found.get_builder_cls().get_cudagraph_support(config, spec)
                    if support.value < least.value:
                        least, backend = support, found.get_name()
            speculative = config.speculative_config
            resolve = config.compilation_config.resolve_cudagraph_mode_and_sizes
            given = {
                "min_cg_support": least,
                "min_cg_attn_backend": backend,
                "uniform_decode_query_len": 1 + (speculative.num_speculative_tokens if speculative else 0),
                "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
                "use_v2_model_runner": config.use_v2_model_runner,
                "kv_cache_config": self._kv_config,
                "max_num_reqs": config.scheduler_config.max_num_seqs,
            }
            takes = inspect.signature(resolve).parameters  # not the same in all versions
            config.compilation_config.cudagraph_mode = resolve(
                **{name: value for name, value in given.items() if name in takes}
            )

    def _load(self, role: str, tensors: list[tuple[str, str, list[int]]]) -> None:
        """Names, types and shapes of a checkpoint through vLLM's default loader; no byte of it is read."""
        import torch
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        config = self.config
        model_config, load_config = config.model_config, config.load_config
        if role == "draft":
            if not has_draft(config):
                return
            speculative = config.speculative_config
            model_config = speculative.draft_model_config
            load_config = getattr(speculative, "draft_load_config", None) or load_config
        loader = get_model_loader(load_config)  # refuses what its format does not have
        if not isinstance(loader, DefaultModelLoader):
            return  # it reads other files, or takes a part of them for the whole

        class Headers(DefaultModelLoader):  # type: ignore[misc]
            """Gives tensors that are as the headers say, on the meta device."""

            counter_before_loading_weights = 0.0

            def get_all_weights(self, *_arguments: Any) -> Iterator[tuple[str, Any]]:
                for name, dtype, shape in tensors:
                    yield name, torch.empty(shape, dtype=getattr(torch, _DTYPES[dtype]), device="meta")

        config.compilation_config.static_forward_context.clear()
        with as_rank(config, stage=0), weightless():
            model = build(config)
            model = build_draft(config) if role == "draft" else model
            Headers(load_config).load_weights(model, model_config)


def _group_figures(config: Any, group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    blocks = -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)
    return {"block_size": spec.block_size, "blocks_per_request": blocks}
