"""The tensors of target, head and prediction layers, tallied: from headers where they are known, else by formula.

Knows no KV cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal, NamedTuple

from specserve.errors import FactError
from specserve.memory.weights import Kind, tally
from specserve.models.architecture import as_stored, quantization_of
from specserve.models.config import text_fields
from specserve.models.facts import ModelFacts, Tensor
from specserve.models.tensors import expected_tensors, head_tensors, mtp_tensors

_KEPT = 8


class _Key(NamedTuple):
    facts: int
    part: str
    online: str | None
    target_hidden_size: int


_TALLIES: OrderedDict[_Key, tuple[ModelFacts, Mapping[Kind, int]]] = OrderedDict()


def tallied(
    facts: ModelFacts, *, part: Literal["model", "mtp"] | str, online: str | None, target_hidden_size: int = 0
) -> Mapping[Kind, int]:
    """The tensors of one part: `model`, `mtp` (prediction layers), `assistant` (Gemma 4's second model for `mtp`), or
    the method of a head. Remembered: knobs ask again and again.

    Raises FactError where neither headers nor a formula tell them.
    """
    key = _Key(id(facts), part, online, target_hidden_size)
    held = _TALLIES.get(key)
    if held is None or held[0] is not facts:
        held = facts, tally(_tensors(facts, part=part, online=online, target_hidden_size=target_hidden_size))
        _TALLIES[key] = held
        while len(_TALLIES) > _KEPT:
            _TALLIES.popitem(last=False)
    return held[1]


def _tensors(
    facts: ModelFacts, *, part: str, online: str | None, target_hidden_size: int
) -> Mapping[str, Tensor]:
    is_quantised = bool(quantization_of(facts.config))
    known = _with_values(facts) if facts.tensors and part != "mtp" else None
    if known and (is_quantised or online in (None, "auto")):
        return known
    if known:
        sizes: Mapping[str, tuple[int, ...]] | None = {name: held.shape for name, held in known.items()}
    elif part == "model":
        sizes = expected_tensors(facts.model, facts.config)
    elif part == "mtp":
        sizes = mtp_tensors(facts.model, facts.config)
    else:
        method = "mtp" if part == "assistant" else part
        sizes = head_tensors(facts.model, facts.config, method=method, target_hidden_size=target_hidden_size)
    stored = sizes and as_stored(sizes, model=facts.model, config=facts.config, online=online)
    if not stored:
        raise _unknown(facts, online=online)
    return stored


def _with_values(facts: ModelFacts) -> Mapping[str, Tensor]:
    """The tensors of the headers; where a checkpoint has one projection for keys and values, vLLM holds it twice."""
    tensors = facts.tensors or {}
    if not text_fields(facts.model, facts.config)[0].flag("attention_k_eq_v", default=False):
        return tensors
    twins = {
        name.replace(".k_proj.", ".v_proj."): held for name, held in tensors.items() if ".k_proj." in name
    }
    return {**twins, **tensors}


def _unknown(facts: ModelFacts, *, online: str | None) -> FactError:
    method = quantization_of(facts.config).get("quant_method") or online
    what = f" quantised by `{method}`" if method and method != "auto" else ""
    return FactError(
        (
            f"the size of the weights of `{facts.model}`{what} is not known: there are no safetensors "
            "headers, and no formula"
        ),
        hint="run `specserve check --ask-vllm` to ask the installed vLLM what it needs",
    )


def is_by_formula(facts: ModelFacts) -> bool:
    """Whether the headers of a checkpoint are missing."""
    return not facts.tensors
