"""Builds the models of a launch without memory: on the meta device, no weight is read.

What a quantized checkpoint becomes after loading is not computed. Written against vLLM 0.31 to
0.33.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

_SMALL, _SHORT = 1 << 20, 1 << 18
"""Elements of a tensor, and of a range such as the positions of a rotary embedding."""
_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")


@dataclass(frozen=True, slots=True)
class BuiltStage:
    """A pipeline stage: the KV cache of each layer by its name, and the attention backends."""

    specs: dict[str, Any]
    backends: list[Any]
    figures: dict[str, Any]
    """Bytes of the weights and of each layer's KV cache, as JSON."""


class _Group(SimpleNamespace):
    """Stands for vLLM's GroupCoordinator: building a model asks for sizes and ranks alone."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _group(size: int, rank: int = 0) -> _Group:
    processes = _Group(size=lambda: size, rank=lambda: rank, world_size=size, rank_in_group=rank)
    return _Group(
        world_size=size, rank_in_group=rank, rank=rank, local_rank=rank, ranks=list(range(size)),
        is_first_rank=rank == 0, is_last_rank=rank == size - 1, first_rank=0, last_rank=size - 1,
        device_group=processes, cpu_group=processes, unique_name="oracle:0",
    )  # fmt: skip


def as_rank(config: Any, *, stage: int) -> contextlib.AbstractContextManager[Any]:
    """Be the first GPU of a pipeline stage from here on (vllm/distributed/parallel_state.py)."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    parallel = config.parallel_config
    tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    dp = parallel.data_parallel_size
    sizes = {
        "TP": tp, "ETP": tp, "DP": dp, "EP": tp * dp, "EPLB": tp * dp,
        "DCP": parallel.decode_context_parallel_size,
        "PCP": parallel.prefill_context_parallel_size,
    }  # fmt: skip
    groups = {name: _group(size) for name, size in sizes.items()}
    groups |= {"WORLD": _group(tp * pp, stage * tp), "PP": _group(pp, stage)}
    for name, group in groups.items():
        setattr(parallel_state, f"_{name}", group)
    return set_current_vllm_config(config)  # type: ignore[no-any-return]


@contextlib.contextmanager
def weightless() -> Iterator[None]:
    """Tensors of more than a megabyte are made on the meta device; models read small ones.

    What is meant for a GPU stays here; what is copied from or to the meta device is compared by its
    shape.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    makers = (torch.empty, torch.zeros, torch.ones, torch.full)

    def is_gpu(value: Any) -> bool:
        return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")

    def is_number(value: Any) -> bool:
        return isinstance(value, (int, float))

    class Weightless(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                return args[0]
            if func is torch.Tensor.copy_ and (args[0].is_meta or args[1].is_meta):
                args[0].to("meta").copy_(args[1].to("meta"))
                return args[0]
            if func is torch.Tensor.to:
                args = tuple(args[0].device if is_gpu(item) else item for item in args)
            if is_gpu(kwargs.get("device")) or type(kwargs.get("device")) is int:
                kwargs["device"] = args[0].device if func is torch.Tensor.to else None
            size: Any = ()
            if func in makers and kwargs.get("device") is None:
                size = kwargs.get("size", args[0] if args and not is_number(args[0]) else args)
            is_long = func is torch.arange and is_number(args[0]) and args[0] > _SHORT
            if is_long or math.prod(filter(is_number, size)) > _SMALL:
                kwargs["device"] = "meta"
            if func in (torch.einsum, torch.outer):
                tensors = [item for item in args if isinstance(item, torch.Tensor)]
                if any(item.is_meta for item in tensors):
                    args = (*args[: -len(tensors)], *(item.to("meta") for item in tensors))
            return func(*args, **kwargs)

    with Weightless():
        yield


def _build(config: Any, *, model_config: Any = None, prefix: str = "") -> Any:
    """One model of the configuration, without memory."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype

    if current_platform.is_cpu():  # it may lack the instructions for a format; no kernel runs here
        linear.is_supported_and_can_implement_kernel = lambda *_: (True, "")
    dtype = (model_config or config.model_config).dtype
    with set_current_vllm_config(config), weightless(), set_default_torch_dtype(dtype):
        return initialize_model(config, model_config=model_config, prefix=prefix)


def _build_draft(config: Any) -> Any:
    """The draft, which shares nothing yet (v1/spec_decode/llm_base_proposer.py)."""
    from vllm.v1.spec_decode.draft_model import DraftModelProposer
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    speculative = config.speculative_config
    is_draft_model = speculative.method == "draft_model"
    proposer = object.__new__(DraftModelProposer if is_draft_model else SpecDecodeBaseProposer)
    proposer.vllm_config, proposer.speculative_config = config, speculative
    draft_config = proposer._create_draft_vllm_config()
    if is_draft_model:
        return _build(draft_config, prefix="draft_model")
    return _build(draft_config, model_config=speculative.draft_model_config)


def _share(draft: Any, target: Any, config: Any, *, names: set[str], lacks: frozenset[str]) -> None:
    """Let the draft use what vLLM lets it use of the target. `names`: the target's layers."""
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
        proposer._setup_gemma4_kv_sharing(names)
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
    layers = getattr(inner, "layers", None) or ()
    for layer in layers.values() if hasattr(layers, "values") else layers:
        if hasattr(getattr(layer, "shared_head", None), "head"):
            layer.shared_head.head = head


def _new_bytes(model: Any, *, seen: set[int]) -> dict[str, int]:
    """Bytes of the parameters that were not seen before, however often they are tied."""
    parameters = model.parameters() if model is not None else ()
    new = {id(each): each for each in parameters if id(each) not in seen}
    seen.update(new)
    return {"parameters": sum(each.numel() * each.element_size() for each in new.values())}


def build_stage(
    config: Any, *, number: int, lacks: frozenset[str], load_draft: Callable[[Any], None]
) -> BuiltStage:
    """A pipeline stage. `lacks`: the tables that the draft's checkpoint does not bring."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.gpu.spec_decode.eagle import eagle3_utils

    config.compilation_config.static_forward_context.clear()
    speculative, parallel = config.speculative_config, config.parallel_config
    has_draft = speculative is not None and speculative.method not in _WITHOUT_MODEL
    with as_rank(config, stage=number):
        target, draft = _build(config), None
        names = set(get_layers_from_vllm_config(config, AttentionLayerBase))
        if has_draft and number == parallel.pipeline_parallel_size - 1:
            if speculative.method in ("eagle3", "dflash", "dspark"):
                eagle3_utils.set_eagle3_aux_hidden_state_layers(target, speculative)
            draft = _build_draft(config)
            load_draft(draft)
            _share(draft, target, config, names=names, lacks=lacks)
        current_platform.update_block_size_for_backend(config)
        specs = dict(get_kv_cache_spec(config))
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        backends = list(dict.fromkeys(layer.get_attn_backend() for layer in layers.values()))
    seen: set[int] = set()
    figures = {
        "target": _new_bytes(target, seen=seen),
        "draft": _new_bytes(draft, seen=seen),
        "kv": [
            {
                "draft": name not in names,
                "kind": type(spec).__name__,
                "block_size": spec.block_size,
                "page_bytes": spec.page_size_bytes,
            }
            for name, spec in specs.items()
        ],
    }
    return BuiltStage(specs, backends, figures)
