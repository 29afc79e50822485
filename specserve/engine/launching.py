"""Takes a configuration of vLLM through what its engine does next and needs no GPU.

Written against vLLM 0.31 to 0.33: v1/worker/gpu/model_runner.py (`load_model`,
`initialize_kv_cache`), v1/core/kv_cache_utils.py and config/compilation.py.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specserve.engine.building import BuiltStage, as_rank, build_stage, weightless

_DTYPES = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "uint8", "U8": "uint8",
    "I8": "int8", "I16": "int16", "I32": "int32", "U32": "int32", "I64": "int64", "BOOL": "bool",
}  # fmt: skip
"""Types of safetensors as torch names them."""


class Launch:
    """A launch, step by step. `answer` collects the figures, `backends` those for attention.

    `request`: `draft_lacks` names the tables that the draft's checkpoint does not bring;
    `draft_tensors` is what its safetensors headers say, a list of name, type and shape. The KV
    cache is planned for each of `beside`, bytes that a GPU needs beside weights and KV cache.
    """

    def __init__(self, config: Any, request: Mapping[str, Any]) -> None:
        self.config, self.request = config, request
        self.answer: dict[str, Any] = {}
        self.backends: list[str] = []
        self._last = config.parallel_config.pipeline_parallel_size - 1
        self._stages: list[BuiltStage] = []
        self._kv_config: Any = None
        self._not_loaded: Exception | None = None

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """What is done, in the order in which vLLM does it; each raises what vLLM raises."""
        yield "models", self._build
        yield "weights of the draft", self._raise_what_loading_raised
        yield "KV cache", self._plan
        yield "CUDA graphs", self._resolve_graphs

    def _build(self) -> None:
        from vllm.v1.worker.cp_utils import check_attention_cp_compatibility

        lacks = frozenset(self.request.get("draft_lacks", ()))
        for number in range(self._last + 1):
            stage = build_stage(self.config, number=number, lacks=lacks, load_draft=self._load)
            self._stages.append(stage)
        with as_rank(self.config, stage=self._last):
            check_attention_cp_compatibility(self.config)
        names = (each.get_name() for stage in self._stages for each in stage.backends)
        self.backends = list(dict.fromkeys(names))
        self.answer = {"stages": [stage.figures for stage in self._stages]}

    def _load(self, draft: Any) -> None:
        """The headers of the draft through vLLM's loader; its figures are known without them."""
        import torch
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        speculative = self.config.speculative_config
        tensors = [] if self._last else self.request.get("draft_tensors", [])
        load_config = speculative.draft_load_config or self.config.load_config

        class Headers(DefaultModelLoader):  # type: ignore[misc]
            """Gives tensors that are as the headers say, on the meta device."""

            counter_before_loading_weights = 0.0

            def get_all_weights(self, *_arguments: Any) -> Iterator[tuple[str, Any]]:
                for name, dtype, shape in tensors:
                    kind = getattr(torch, _DTYPES[dtype])
                    yield name, torch.empty(shape, dtype=kind, device="meta")

        try:
            with weightless():
                loader = get_model_loader(load_config)  # refuses what its format does not have
                # another one reads other files, or takes a part of them for the whole
                if tensors and isinstance(loader, DefaultModelLoader):
                    Headers(load_config).load_weights(draft, speculative.draft_model_config)
        except Exception as error:
            self._not_loaded = error

    def _raise_what_loading_raised(self) -> None:
        if self._not_loaded is not None:
            raise self._not_loaded

    def _plan(self) -> None:
        """By vLLM's planner: for all that the weights leave of its share, then less `beside`."""
        from vllm.v1.attention.backends import utils
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

        model_config = self.config.model_config
        with as_rank(self.config, stage=self._last):
            register_all_kvcache_specs(self.config)
            backends = [each for stage in self._stages for each in stage.backends]
            layouts = utils.get_supported_kv_cache_layouts(list(dict.fromkeys(backends)))
            specs = [spec for stage in self._stages for spec in stage.specs.values()]
            utils.resolve_kv_cache_layout(self.config, [[each.name for each in layouts]], specs)
            length = model_config.max_model_len
            most = self._left_bytes(0)
            if most:
                self._planned(most)
            self.answer["plans"] = plans = []
            for beside in self.request.get("beside", ()) if most else ():
                sizes = self._left_bytes(beside)
                model_config.max_model_len = length  # planning changes `auto`
                try:
                    plans.append({"kv_bytes": min(sizes), **self._planned(sizes)})
                except ValueError as error:
                    plans.append({"kv_bytes": min(sizes), "error": str(error)})
            model_config.max_model_len = length

    def _left_bytes(self, beside: int) -> list[int]:
        """What each stage has for its KV cache beside weights and these; empty for the CPU."""
        from vllm.platforms import current_platform

        cache = self.config.cache_config
        if cache.kv_cache_memory_bytes:
            return [int(cache.kv_cache_memory_bytes)] * len(self._stages)
        if current_platform.is_cpu():
            return []
        share = int(current_platform.get_device_total_memory() * cache.gpu_memory_utilization)
        weights = [
            sum(stage.figures[role]["parameters"] for role in ("target", "draft"))
            for stage in self._stages
        ]
        return [max(share - taken - beside, 0) for taken in weights]

    def _planned(self, sizes: list[int]) -> dict[str, Any]:
        """Blocks, tokens and requests at once for these bytes of the stages."""
        from vllm.v1.core import kv_cache_utils

        specs = [stage.specs for stage in self._stages]
        planner: Any = kv_cache_utils
        more = []
        with contextlib.suppress(ImportError):  # 0.33
            planner = importlib.import_module("vllm.v1.core.kv_cache_planning")
            more = [planner.get_global_kv_cache_groups(self.config, specs)]
        configs = planner.get_kv_cache_configs(self.config, specs, sizes, *more)
        if self._kv_config is None:
            self._kv_config = configs[-1]
        scheduled = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
        tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(self.config, scheduled)
        return {"blocks": configs[0].num_blocks, "tokens": tokens, "concurrency": concurrency}

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
            compilation, speculative = config.compilation_config, config.speculative_config
            given = {"kv_cache_config": self._kv_config}
            resolve = compilation.resolve_cudagraph_mode_and_sizes
            if "tensor_parallel_size" in inspect.signature(resolve).parameters:  # 0.31
                given["tensor_parallel_size"] = config.parallel_config.tensor_parallel_size
            compilation.cudagraph_mode = resolve(
                min_cg_support=least,
                min_cg_attn_backend=backend,
                uniform_decode_query_len=1 + getattr(speculative, "num_speculative_tokens", 0),
                use_v2_model_runner=config.use_v2_model_runner,
                max_num_reqs=config.scheduler_config.max_num_seqs,
                **given,
            )
