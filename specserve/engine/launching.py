"""Takes a configuration of vLLM through what its engine does next and needs no GPU.

Models are built without memory, on the meta device: no weight is read, and what a quantized
checkpoint becomes after loading is not computed. Written against vLLM 0.31 to 0.33:
v1/worker/gpu/model_runner.py (`load_model`, `initialize_kv_cache`), v1/core/kv_cache_utils.py and
config/compilation.py. Importing it imports what nearly every launch needs of vLLM.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import Container, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends import utils
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.cp_utils import check_attention_cp_compatibility
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.gpu.spec_decode.eagle import eagle3_utils

_SMALL, _SHORT = 1 << 20, 1 << 14
"""Elements of a tensor, and of a range such as the positions of a rotary embedding."""
_MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full)


class _Group(SimpleNamespace):
    """Stands for vLLM's GroupCoordinator: building a model asks for sizes and ranks alone."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _group(size: int, rank: int = 0) -> _Group:
    processes = _Group(size=lambda: size, rank=lambda: rank)
    return _Group(
        world_size=size,
        rank_in_group=rank,
        rank=rank,
        local_rank=rank,
        ranks=list(range(size)),
        is_first_rank=rank == 0,
        is_last_rank=rank == size - 1,
        device_group=processes,
    )


def become_last_stage(config: Any) -> None:
    """Be the first GPU of the last pipeline stage, which has the draft, from here on."""
    parallel = config.parallel_config
    tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    dp, last = parallel.data_parallel_size, pp - 1
    groups = {
        name: _group(size)
        for name, size in {
            "TP": tp,
            "ETP": tp,
            "DP": dp,
            "EP": tp * dp,
            "EPLB": tp * dp,
            "DCP": parallel.decode_context_parallel_size,
            "PCP": parallel.prefill_context_parallel_size,
        }.items()
    }
    groups |= {"WORLD": _group(tp * pp, last * tp), "PP": _group(pp, last)}
    for name, group in groups.items():
        setattr(parallel_state, f"_{name}", group)


def _is_gpu(value: Any) -> bool:
    return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


class _Weightless(TorchFunctionMode):  # type: ignore[misc]
    """Tensors of more than a megabyte are made on the meta device; models read small ones.

    What is meant for a GPU stays here; what is copied from or to the meta device is compared by its
    shape.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.copy_ and (args[0].is_meta or args[1].is_meta):
            args[0].to("meta").copy_(args[1].to("meta"))
            return args[0]
        if func is torch.Tensor.to:
            args = tuple(args[0].device if _is_gpu(item) else item for item in args)
        if _is_gpu(kwargs.get("device")) or type(kwargs.get("device")) is int:
            kwargs["device"] = args[0].device if func is torch.Tensor.to else None
        size: Any = ()
        if func in _MAKERS and kwargs.get("device") is None:
            size = kwargs.get("size", args[0] if args and not _is_number(args[0]) else args)
        is_long = func is torch.arange and _is_number(args[0]) and args[0] > _SHORT
        if is_long or math.prod(filter(_is_number, size)) > _SMALL:
            kwargs["device"] = "meta"
        if func in (torch.einsum, torch.outer):
            tensors = [item for item in args if isinstance(item, torch.Tensor)]
            if any(item.is_meta for item in tensors):
                args = (*args[: -len(tensors)], *(item.to("meta") for item in tensors))
        return func(*args, **kwargs)


def build(config: Any, *, model_config: Any = None, prefix: str = "") -> Any:
    """One model of the configuration, without memory."""
    if current_platform.is_cpu():  # it may lack the instructions for a format; no kernel runs here
        linear.is_supported_and_can_implement_kernel = lambda *_: (True, "")
    dtype = (model_config or config.model_config).dtype
    with set_current_vllm_config(config), _Weightless(), set_default_torch_dtype(dtype):
        return initialize_model(config, model_config=model_config, prefix=prefix)


def build_draft(config: Any) -> Any:
    """The draft, which shares nothing yet (v1/spec_decode/llm_base_proposer.py)."""
    speculative = config.speculative_config
    is_draft_model = speculative.method == "draft_model"
    proposer = object.__new__(DraftModelProposer if is_draft_model else SpecDecodeBaseProposer)
    proposer.vllm_config, proposer.speculative_config = config, speculative
    draft_config = proposer._create_draft_vllm_config()
    if is_draft_model:
        return build(draft_config, prefix="draft_model")
    return build(draft_config, model_config=speculative.draft_model_config)


def share(draft: Any, target: Any, config: Any, *, layers: set[str], lacks: Container[str]) -> None:
    """Let the draft use what vLLM lets it use of the target.

    `layers`: the target's; `lacks`: the tables that the draft's checkpoint does not bring.
    """
    speculative = config.speculative_config
    if speculative.method == "draft_model":
        return
    has_language = hasattr(target, "get_language_model")
    language = target.get_language_model() if has_language else target
    if speculative.use_gemma4_mtp():  # it reads the target's cache, too
        from vllm.v1.spec_decode.gemma4 import Gemma4Proposer

        proposer = object.__new__(Gemma4Proposer)
        proposer.model, proposer.vllm_config = draft, config
        proposer.speculative_config = speculative
        proposer._setup_gemma4_kv_sharing(layers)
        draft.model.embed_tokens = language.model.embed_tokens
        return
    is_mtp = speculative.method == "mtp"
    inner, outer = getattr(draft, "model", None), getattr(language, "model", None)
    table: Any = getattr(outer, "embed_tokens", None) or getattr(outer, "embedding", None)
    own = getattr(inner, "embed_tokens", None)
    if inner is not None and own is not None and hasattr(table, "weight"):
        is_as_wide = table.weight.shape[-1] == own.weight.shape[-1]
        if is_mtp or ("embed_tokens" in lacks and is_as_wide):
            inner.embed_tokens = table
    head = getattr(language, "lm_head", None)
    if head is None or not (is_mtp or "lm_head" in lacks):
        return
    if hasattr(draft, "lm_head"):
        draft.lm_head = head
    blocks = getattr(inner, "layers", None) or ()
    for block in blocks.values() if hasattr(blocks, "values") else blocks:
        if hasattr(getattr(block, "shared_head", None), "head"):
            block.shared_head.head = head


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
        become_last_stage(config)
        target, draft = build(config), None
        if speculative is not None and speculative.method not in _WITHOUT_MODEL:
            if speculative.method in ("eagle3", "dflash", "dspark"):
                eagle3_utils.set_eagle3_aux_hidden_state_layers(target, speculative)
            names = set(get_layers_from_vllm_config(config, AttentionLayerBase))
            draft = build_draft(config)
            lacks = self.request.get("draft_lacks", ())
            share(draft, target, config, layers=names, lacks=lacks)
            layers = get_layers_from_vllm_config(config, AttentionLayerBase)
            for name in layers.keys() - names:  # since 0.33 the planner asks
                layers[name].is_draft_layer = True
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
