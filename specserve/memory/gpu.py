"""What the weights and the requests of a launch take of one GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from specserve.memory.inputs import MemoryInputs
from specserve.models.config import (
    LAYER_COUNT,
    integer,
    prediction_layers,
    quantization_of,
    text_config,
)
from specserve.models.sizes import (
    Layer,
    Serving,
    Weights,
    attention_bytes,
    layers_of,
    model_family,
    number_bytes,
    weights_of,
)
from specserve.vllm.limits import Ranks


def target_weights(inputs: MemoryInputs) -> Weights:
    """Those of the target. Raises FactError."""
    return weights_of(inputs.target, dtype=inputs.dtype, quantization=inputs.quantization)


def draft_weights(inputs: MemoryInputs) -> Weights | None:
    """Those of the draft; None without one. Raises FactError if they are not known."""
    facts = inputs.draft
    if facts is None and (inputs.method != "mtp" or inputs.unknown_draft is not None):
        return None
    is_mtp, facts = facts is None, facts or inputs.target
    is_head = not is_mtp and inputs.method != "draft_model"
    return weights_of(facts, dtype=inputs.dtype, is_head=is_head, is_mtp=is_mtp)


def draft_bytes(inputs: MemoryInputs) -> float:
    """Bytes of the draft on each GPU of the last stage. Raises FactError if they are not known."""
    weights = draft_weights(inputs)
    return per_gpu(weights, inputs, (inputs.draft or inputs.target).config) if weights else 0.0


def per_gpu(
    weights: Weights, inputs: MemoryInputs, config: Mapping[str, Any], *, stages: int = 1
) -> float:
    """Bytes on the fullest GPU."""
    tp, text = inputs.tensor_parallel_size, text_config(config)
    ranks = Ranks(tp, inputs.data_parallel_size, keeps_experts_whole=inputs.enable_expert_parallel)
    experts, words = weights.experts / ranks.experts, repr(dict(quantization_of(config))).lower()
    is_mxfp4 = "mxfp4" in words or ("fp4" in words and "e8m0" in words)
    if is_mxfp4 and not inputs.machine.is_cpu:
        # kernels round the hidden size up to 256, the inner one to 64: public logs of gpt-oss
        width = 1 if inputs.enable_expert_parallel else tp
        inner = integer(text, "moe_intermediate_size", "intermediate_size") / width
        hidden = integer(text, "hidden_size")
        experts *= 256 * -(-hidden // 256) / hidden * (64 * -(-inner // 64) / inner)
    shared = weights.shared / (1 if ranks.copies_shared_expert else tp)
    count = integer(text, *LAYER_COUNT, default=1, least=0)
    part = -(-count // stages) / max(count, 1)
    tables = [weights.embeddings, weights.output]
    table = sum(tables) if stages == 1 else max(tables)
    encoders = weights.encoders / (1 if model_family(text) == "gemma4_text" else tp)
    layers = (weights.layers / tp + shared + experts + weights.whole) * part
    return layers + table / tp + encoders * inputs.has_encoders


class KvCache(NamedTuple):
    """What requests take of one GPU. `in_flight`: tokens of the steps that run at once."""

    layers: Counter[Layer]
    states: int = 1
    """States that a request holds: one, one more for each draft token and for prefix caching."""
    in_flight: int = 0

    def per_token(self, *, draft: bool = False) -> int:
        """Bytes of one token in all layers, those with a window as if they saw all."""
        own = (each for each in self.layers if each.is_draft is draft and each.kind != "state")
        return sum(each.bytes * self.layers[each] for each in own)

    @property
    def _group(self) -> int:
        """Layers that share a block table: vLLM groups different kinds of layers by the fewest.

        A draft's layers are of a target's kind, or of one more if their size differs, and each kind
        is padded to whole groups. 0: one table serves all. Source: vllm/v1/core/kv_cache_utils.py,
        `num_padding_layers`.
        """
        kinds = self._kinds
        if len({(each.kind, each.window) for each in kinds}) < 2:
            return 0
        fewest, most = min(kinds.values()), max(kinds.values())
        return most if most < 1.5 * fewest else fewest

    @property
    def _kinds(self) -> Counter[Layer]:
        found = Counter[Layer]()
        for each, count in self.layers.items():
            found[each._replace(is_draft=False)] += count
        return found

    @property
    def _state(self) -> int:
        return max((each.bytes for each in self.layers if each.kind == "state"), default=0)

    def request_bytes(self, tokens: int) -> float:
        """Bytes of one request, in whole blocks: an attention page is as long as a state's."""
        total, group = 0, self._group
        per_token = next((each.bytes for each in self.layers if each.kind != "state"), 0)
        page = max(16, -(-self._state // (16 * per_token)) * 16) if per_token else 16
        for each, count in self._kinds.items():
            kept = self.states if each.kind == "state" else -(-tokens // page) * page
            if each.kind == "window":
                kept = min(kept, each.window - 1 + self.in_flight + page)
            total += each.bytes * kept * (-(-count // group) * group if group else count)
        return total

    def state_blocks(self, kv_bytes: float) -> int | None:
        """Blocks that can hold a state, of which vLLM wants one for each request; None without."""
        page = self._state * (self._group or self.layers.total())
        return int(max(kv_bytes, 0.0) // page) if page else None


def kv_cache(inputs: MemoryInputs) -> KvCache:
    """What requests take of one GPU of the last pipeline stage, with the draft's layers.

    Raises FactError for an unknown architecture, and for a config.json that does not make sense.
    """
    stages, draft, target = inputs.pipeline_parallel_size, inputs.draft, inputs.target.config
    serving = Serving(
        number_bytes(inputs.dtype, text_config(target)),
        inputs.tensor_parallel_size,
        inputs.kv_cache_dtype,
        inputs.num_speculative_tokens,
        inputs.machine.is_cpu,
    )
    found = layers_of(target, serving)
    for layer in found:
        found[layer] = -(-found[layer] // stages)
    is_hybrid = {"state", "full"} <= {each.kind for each in found}
    if draft is not None:
        if inputs.method == "draft_model":
            size = number_bytes(inputs.dtype, text_config(draft.config))
            serving = serving._replace(number_bytes=size)
        drafted = layers_of(draft.config, serving)
        found.update({each._replace(is_draft=True): count for each, count in drafted.items()})
    elif inputs.method == "mtp" and inputs.unknown_draft is None:
        size = attention_bytes(text_config(target), serving)
        found[Layer("full", size, 0, True)] = prediction_layers(target) or 1
    states = 1 + inputs.num_speculative_tokens + (inputs.enable_prefix_caching and is_hybrid)
    batches = stages + (not inputs.machine.is_cpu)  # asynchronous scheduling has one more
    return KvCache(found, states, inputs.max_num_batched_tokens * batches)
