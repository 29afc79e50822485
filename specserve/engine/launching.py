"""Takes a configuration of vLLM through what its engine does next and needs no GPU.

Written against vLLM 0.26 and 0.31 to 0.33: v1/worker/gpu/model_runner.py (`load_model`,
`initialize_kv_cache`), v1/core/kv_cache_utils.py and config/compilation.py.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specserve.engine.building import (
    BuiltStage,
    as_rank,
    build_draft,
    build_stage,
    has_draft,
    weightless,
)

_DTYPES = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "uint8", "U8": "uint8",
    "I8": "int8", "I16": "int16", "I32": "int32", "U32": "int32", "I64": "int64", "BOOL": "bool",
}  # fmt: skip
"""Types of safetensors as torch names them."""


class Launch:
    """A launch, step by step. `answer` collects the figures.

    `request`: `draft_lacks` names the tables that the draft's checkpoint does not bring; `tensors`
    is what safetensors headers say of `target` and `draft`, lists of name, type and shape. The KV
    cache is planned for each of `beside`, bytes that a GPU needs beside weights and KV cache.
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
        tensors = {} if self._last else self.request.get("tensors", {})
        if tensors.get("target"):
            yield "weights of the target", self._load_target
        if tensors.get("draft") and has_draft(self.config):
            yield "weights of the draft", self._load_draft

    def _build(self) -> None:
        lacks = frozenset(self.request.get("draft_lacks", ()))
        for number in range(self._last + 1):
            self._stages.append(build_stage(self.config, number=number, lacks=lacks))
        self._backends = list(
            dict.fromkeys(each for stage in self._stages for each in stage.backends)
        )
        self.answer = {
            "backends": [backend.get_name() for backend in self._backends],
            "stages": [stage.figures for stage in self._stages],
        }

    def _check_attention(self) -> None:
        from vllm.v1.worker.cp_utils import check_attention_cp_compatibility

        with as_rank(self.config, stage=self._last):
            check_attention_cp_compatibility(self.config)

    def _make_speculator(self) -> None:
        """What the model runner makes for speculation; that of V1 is asked what it refuses."""
        import torch

        speculative = self.config.speculative_config
        if speculative is None:
            return
        with as_rank(self.config, stage=self._last), weightless():
            if speculative.method in ("eagle3", "dflash", "dspark"):
                from vllm.v1.worker.gpu.spec_decode.eagle import eagle3_utils

                target = self._stages[-1].target
                eagle3_utils.set_eagle3_aux_hidden_state_layers(target, speculative)
            if self.config.use_v2_model_runner:
                from vllm.v1.worker.gpu.spec_decode import init_speculator

                given = (self.config, torch.device("meta"), None)  # 0.26 does not take the third
                init_speculator(*given[: len(inspect.signature(init_speculator).parameters)])
            elif speculative.method == "draft_model":
                from vllm.v1.spec_decode.draft_model import DraftModelProposer

                proposer = object.__new__(DraftModelProposer)
                proposer.vllm_config, proposer.speculative_config = self.config, speculative
                proposer._raise_if_draft_tp_mismatch()

    def _plan(self) -> None:
        """By vLLM's planner: for all that the weights leave of its share, then less `beside`."""
        model_config = self.config.model_config
        with as_rank(self.config, stage=self._last):
            from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

            register_all_kvcache_specs(self.config)
            self._choose_layout()
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

    def _choose_layout(self) -> None:
        """0.26 chooses none."""
        with contextlib.suppress(ImportError):
            from vllm.v1.attention.backends import utils

            layouts = utils.get_supported_kv_cache_layouts(self._backends)
            specs = [spec for stage in self._stages for spec in stage.specs.values()]
            utils.resolve_kv_cache_layout(self.config, [[each.name for each in layouts]], specs)

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
        return {
            "blocks": configs[0].num_blocks, "tokens": tokens, "concurrency": concurrency,
            "max_model_len": self.config.model_config.max_model_len,
        }  # fmt: skip

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
            given = {
                "min_cg_support": least,
                "min_cg_attn_backend": backend,
                "uniform_decode_query_len": 1
                + (speculative.num_speculative_tokens if speculative else 0),
                "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
                "use_v2_model_runner": config.use_v2_model_runner,
                "kv_cache_config": self._kv_config,
                "max_num_reqs": config.scheduler_config.max_num_seqs,
            }
            resolve = config.compilation_config.resolve_cudagraph_mode_and_sizes
            takes = inspect.signature(resolve).parameters  # 0.26 takes fewer
            known = {name: value for name, value in given.items() if name in takes}
            config.compilation_config.cudagraph_mode = resolve(**known)

    def _load_target(self) -> None:
        config = self.config
        with as_rank(config, stage=0), weightless():
            target = self._stages[0].target
            self._load("target", target, config.model_config, config.load_config)

    def _load_draft(self) -> None:
        """Anew: the draft of the stage has tables of the target by now."""
        speculative = self.config.speculative_config
        context = self.config.compilation_config.static_forward_context
        for name in context.keys() - self._stages[0].target_layers:
            del context[name]
        own = getattr(speculative, "draft_load_config", None)  # 0.26 does not have it
        with as_rank(self.config, stage=0), weightless():
            draft = build_draft(self.config)
            model_config = speculative.draft_model_config
            self._load("draft", draft, model_config, own or self.config.load_config)

    def _load(self, role: str, model: Any, model_config: Any, load_config: Any) -> None:
        """Names, types and shapes of a checkpoint through vLLM's loader; no byte of it is read."""
        import torch
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        tensors = self.request["tensors"][role]
        loader = get_model_loader(load_config)  # refuses what its format does not have
        if not isinstance(loader, DefaultModelLoader):
            return  # it reads other files, or takes a part of them for the whole

        class Headers(DefaultModelLoader):  # type: ignore[misc]
            """Gives tensors that are as the headers say, on the meta device."""

            counter_before_loading_weights = 0.0

            def get_all_weights(self, *_arguments: Any) -> Iterator[tuple[str, Any]]:
                for name, dtype, shape in tensors:
                    kind = getattr(torch, _DTYPES[dtype])
                    yield name, torch.empty(shape, dtype=kind, device="meta")

        Headers(load_config).load_weights(model, model_config)
