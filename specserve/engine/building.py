"""Builds the models of a launch without memory: on the meta device, no weight is read.

What a quantized checkpoint becomes after loading is not computed. Written against vLLM 0.31 to
0.33. Importing it imports what nearly every launch needs of vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Container
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.kernels import linear
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

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
