"""Takes a configuration of vLLM through what its engine does next and needs no GPU.

Written against vLLM 0.31 to 0.33: v1/worker/gpu/model_runner.py (`load_model`,
`initialize_kv_cache`), v1/core/kv_cache_utils.py and config/compilation.py.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends import utils
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.worker.cp_utils import check_attention_cp_compatibility
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.gpu.spec_decode.eagle import eagle3_utils

from specserve.engine import building

_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")


class Launch:
    """A launch, of which the last pipeline stage stands for all.

    `request`: `draft_lacks` names the tables that the draft's checkpoint does not bring; the KV
    cache is planned for each of `beside`, bytes that a GPU needs beside weights and KV cache.
    """

    def __init__(self, config: Any, request: Mapping[str, Any]) -> None:
        self.config, self.request = config, request
        self.figures: dict[str, Any] = {}
        """Bytes of the weights, kinds of KV cache, and what the planner makes of it."""
        self.backends: list[str] = []
        """Names of those for attention."""
        self.steps = {
            "models": self._build,
            "KV cache": self._plan,
            "CUDA graphs": self._resolve_graphs,
        }
        """What is done, in the order in which vLLM does it; each raises what vLLM raises."""
        self._specs: dict[str, Any] = {}
        self._layers: dict[str, Any] = {}
        self._kv_config: Any = None

    def _build(self) -> None:
        config, speculative = self.config, self.config.speculative_config
        building.become_last_stage(config)
        target, draft = building.build(config), None
        if speculative is not None and speculative.method not in _WITHOUT_MODEL:
            if speculative.method in ("eagle3", "dflash", "dspark"):
                eagle3_utils.set_eagle3_aux_hidden_state_layers(target, speculative)
            names = set(get_layers_from_vllm_config(config, AttentionLayerBase))
            draft = building.build_draft(config)
            lacks = self.request.get("draft_lacks", ())
            building.share(draft, target, config, layers=names, lacks=lacks)
        current_platform.update_block_size_for_backend(config)
        self._specs = dict(get_kv_cache_spec(config))
        self._layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        backends = (layer.get_attn_backend() for layer in self._layers.values())
        self.backends = list(dict.fromkeys(backend.get_name() for backend in backends))
        mine, its = (
            {id(each): each.numel() * each.element_size() for each in model.parameters()}
            for model in (target, draft or torch.nn.Module())
        )
        self.figures = {
            "target": sum(mine.values()),
            "draft": sum(size for number, size in its.items() if number not in mine),
            "kv": sorted({type(spec).__name__ for spec in self._specs.values()}),
        }
        check_attention_cp_compatibility(config)

    def _plan(self) -> None:
        """By vLLM's planner: for all that the weights leave of its share, then less `beside`."""
        cache, model_config = self.config.cache_config, self.config.model_config
        register_all_kvcache_specs(self.config)
        backends = dict.fromkeys(each.get_attn_backend() for each in self._layers.values())
        layouts = utils.get_supported_kv_cache_layouts(list(backends))
        names = [each.name for each in layouts]
        utils.resolve_kv_cache_layout(self.config, [names], list(self._specs.values()))
        fixed, length = cache.kv_cache_memory_bytes, model_config.max_model_len
        if current_platform.is_cpu() and not fixed:
            return
        share = int(current_platform.get_device_total_memory() * cache.gpu_memory_utilization)
        most = fixed or max(share - self.figures["target"] - self.figures["draft"], 0)
        self._planned(most)
        self.figures["plans"] = plans = []
        for beside in self.request.get("beside", ()):
            size = fixed or max(most - beside, 0)
            model_config.max_model_len = length  # planning changes `auto`
            try:
                plans.append({"kv_bytes": size, **self._planned(size)})
            except ValueError as error:
                plans.append({"kv_bytes": size, "error": str(error)})
        model_config.max_model_len = length

    def _planned(self, size: int) -> dict[str, Any]:
        """Blocks, tokens and requests at once for so many bytes."""
        planner: Any = kv_cache_utils
        more = []
        with contextlib.suppress(ImportError):  # 0.33
            planner = importlib.import_module("vllm.v1.core.kv_cache_planning")
            more = [planner.get_global_kv_cache_groups(self.config, [self._specs])]
        configs = planner.get_kv_cache_configs(self.config, [self._specs], [size], *more)
        self._kv_config = self._kv_config or configs[0]
        scheduled = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
        tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(self.config, scheduled)
        return {"blocks": configs[0].num_blocks, "tokens": tokens, "concurrency": concurrency}

    def _resolve_graphs(self) -> None:
        """The kind and the sizes of CUDA graphs, once the attention backends are known."""
        config = self.config
        least, name = AttentionCGSupport.ALWAYS, None
        for layer, spec in self._specs.items():
            backend = self._layers[layer].get_attn_backend()
            support = backend.get_builder_cls().get_cudagraph_support(config, spec)
            if support.value < least.value:
                least, name = support, backend.get_name()
        compilation, speculative = config.compilation_config, config.speculative_config
        given = {"kv_cache_config": self._kv_config}
        resolve = compilation.resolve_cudagraph_mode_and_sizes
        if "tensor_parallel_size" in inspect.signature(resolve).parameters:  # 0.31
            given["tensor_parallel_size"] = config.parallel_config.tensor_parallel_size
        compilation.cudagraph_mode = resolve(
            min_cg_support=least,
            min_cg_attn_backend=name,
            uniform_decode_query_len=1 + getattr(speculative, "num_speculative_tokens", 0),
            use_v2_model_runner=config.use_v2_model_runner,
            max_num_reqs=config.scheduler_config.max_num_seqs,
            **given,
        )
