"""config.json of a model: typed fields, what it leaves out, names of model types, how quantization stores tensors."""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from specserve.errors import FactError
from specserve.models.facts import Tensor

if TYPE_CHECKING:
    from specserve.models.facts import ModelFacts

_LARGEST = 1 << 40


@dataclass(frozen=True, slots=True)
class Fields:
    """One mapping of a config.json; `where` is its dotted path, for messages."""

    model: str
    values: Mapping[str, Any]
    where: str = ""

    def has(self, key: str) -> bool:
        """Whether the key is there, and is not null."""
        return self.values.get(key) is not None

    def _value(self, keys: tuple[str, ...], fits: Callable[[Any], bool], wanted: str) -> Any:
        """What stands at the first of these keys that is there; None without one."""
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                if not fits(value):
                    raise self._wrong(key, value, wanted)
                return value
        return None

    def optional(self, *keys: str, least: int = 1) -> int | None:
        """The whole number at the first of these keys that is there; None without one. Raises FactError."""
        value = self._value(keys, _is_whole, "a whole number")
        if value is not None and not least <= value < _LARGEST:
            key = next(key for key in keys if self.has(key))
            raise self._wrong(key, self.values[key], f"a number from {least} up")
        return None if value is None else int(value)

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """As `optional`, with a default. Raises FactError for none of the keys without a default too."""
        value = self.optional(*keys, least=least)
        if value is None and default is None:
            raise self.missing(keys[0])
        return value if value is not None else int(default or 0)

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean. Raises FactError for anything else."""
        value = self._value((key,), lambda value: isinstance(value, bool), "true or false")
        return default if value is None else bool(value)

    def text(self, *keys: str, default: str) -> str:
        """The text at the first of these keys that is there. Raises FactError for another type."""
        value = self._value(keys, lambda value: isinstance(value, str), "text")
        return default if value is None else str(value)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of names; None if it is not there. Raises FactError for another type."""
        value = self._value((key,), lambda value: _is_list(value, str), "a list of names")
        return None if value is None else tuple(value)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers; None if it is not there. Raises FactError for another type."""
        value = self._value((key,), lambda value: _is_list(value, int), "a list of whole numbers")
        return None if value is None else tuple(value)

    def section(self, key: str) -> Fields | None:
        """A mapping inside of this one; None if it is not there. Raises FactError for another type."""
        value = self._value((key,), lambda value: isinstance(value, Mapping), "a mapping")
        return None if value is None else Fields(self.model, value, f"{self.where}{key}.")

    def missing(self, key: str) -> FactError:
        """The error for a key without which nothing can be computed."""
        return FactError(f"`{self.where}{key}` is missing in config.json of `{self.model}`")

    def _wrong(self, key: str, value: object, wanted: str) -> FactError:
        shown = repr(value)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        return FactError(
            f"`{self.where}{key}` in config.json of `{self.model}` is {shown}: expected {wanted}"
        )


def _is_whole(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)


COMPARED = frozenset({
    "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt_oss", "mixtral",
    "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "falcon", "gpt2", "opt", "bloom", "gpt_neox", "olmo2",
    "olmo3", "granite", "cohere2", "glm4", "glm4_moe", "stablelm", "starcoder2", "qwen3_next", "mamba2", "falcon_h1",
    "nemotron_h", "lfm2", "llama4_text", "kimi_k2", "exaone4", "smollm3", "seed_oss", "ernie4_5", "hunyuan_v1_dense",
    "minimax_m2", "olmoe", "phimoe", "nemotron", "apertus", "glm4_moe_lite", "granitemoehybrid", "jamba", "ministral3",
    "gemma4_text", "qwen3_5_text", "qwen3_5_moe_text",
})  # fmt: skip
UNKNOWN = frozenset({
    "deepseek_v4", "deepseek_v41", "mimo_v2_flash", "mimo_v2", "step3p5", "kimi_linear",
    "minimax_m3", "zamba2", "hy_v4", "bailing_hybrid", "inkling", "longcat_flash", "nemotron-nas", "qwen4_exp",
    "dots3_note", "whisper", "t5", "bart", "iquest_loopcoder", "minimax", "plamo2", "rwkv",
})  # fmt: skip
"""Layers of different sizes, shared caches, two kinds of state: what the usual keys of config.json do not say."""
_WRAPPER = re.compile(r"_(?:unified|vl|omni)(?=_|$)")
"""Words for what stands around a language model that is otherwise the same."""


@lru_cache
def family(model_type: str) -> str:
    """The model type that this one is another name of, such as `gemma4_text` of `gemma4_unified_text`; else itself."""
    bare = _WRAPPER.sub("", model_type)
    names = (model_type, bare, bare.removesuffix("_text"))
    return next((name for name in names if name in COMPARED or name in UNKNOWN), model_type)


class UnknownArchitecture(FactError):
    """What a model type keeps for each request cannot be computed from its config.json."""

    def __init__(self, what: str, model_type: str, *, model: str) -> None:
        super().__init__(
            f"the {what} of model type `{model_type}` (`{model}`) is not known",
            hint="run `specserve check --vllm installed` to ask the installed vLLM what it needs",
        )


_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "transformer_layer_config")


@lru_cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files(__package__) / "defaults.json").read_text(encoding="utf-8")
    rows: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return rows


def text_fields(model: str, config: Mapping[str, Any]) -> tuple[Fields, str]:
    """The language model's part of a config.json with its defaults, and its model type by the family's name.

    The keys have the names that most models use: `hidden_size`, not GPT-2's `n_embd`. Raises FactError for a
    config.json without a model type, or a part of it that is not a mapping.
    """
    whole = Fields(model, config)
    model_type = whole.text("model_type", default="")
    part = _part(whole, _table().get(model_type, {}).get("text", {}).get("key"))
    if part is None:
        if not model_type:
            raise FactError(f"`model_type` is missing in config.json of `{model}`")
        return Fields(model, _completed(config, model_type)), family(model_type)
    expected = _table().get(model_type, {}).get("text", {}).get("model_type", "")
    inner_type = part.text("model_type", default=expected or model_type)
    inherited = {key: config[key] for key in ("torch_dtype", "dtype", "quantization_config") if key in config}
    if part.has("text_config") or part.has("llm_config"):  # Qwen Omni: the language model lies one deeper
        return text_fields(model, {**inherited, **part.values, "model_type": inner_type})
    outer = config if part.where.startswith("transformer_layer") else {}  # a head of the speculators library
    values = {**inherited, **outer, **part.values}
    if "tie_word_embeddings" in config:
        values.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return Fields(model, _completed(values, inner_type), part.where), family(inner_type)


def language_part(facts: ModelFacts) -> Fields:
    """The part of a config.json that describes the language model, with what its model type leaves out."""
    if facts.config.get("model_type"):
        return text_fields(facts.model, facts.config)[0]
    config = Fields(facts.model, facts.config)
    return config.section("text_config") or config


_COUNTS = (
    "num_mtp_modules", "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "n_predict",
)  # fmt: skip
"""The first: MiniMax M3 has the second too, and vLLM takes the first (`hf_config_override`)."""
ONE_LAYER = frozenset({
    "gemma4_assistant", "gemma4_unified_assistant", "mimo_v2", "mimo_v2_flash", "mimo_v2_omni",
})  # fmt: skip
"""Model types whose single prediction layer config.json does not count."""


def prediction_layers(config: Mapping[str, Any]) -> int | None:
    """The number of multi-token prediction layers, 0 included; None if config.json does not say it."""
    if str(config.get("model_type")) in ONE_LAYER:
        return 1
    for key in _COUNTS:
        if type(value := config.get(key)) is int and value >= 0:
            return value
    parts = (config.get(key) for key in (*_TEXT_PARTS, "mtp_config"))
    found = (prediction_layers(part) for part in parts if isinstance(part, Mapping))
    return next((count for count in found if count is not None), None)


def _part(whole: Fields, listed: str | None) -> Fields | None:
    for key in (listed, *_TEXT_PARTS):
        if key is not None and whole.has(key):
            return whole.section(key)
    return None


def _completed(config: Mapping[str, Any], model_type: str) -> Mapping[str, Any]:
    """The values under the usual names; what is null stays null, as it overrides the default."""
    row = _table().get(model_type, {})
    values = {**row.get("defaults", {}), **config}
    for usual, own in row.get("names", {}).items():
        # A class reads both names; which it wrote, it wrote under its own.
        for source, goal in ((own, usual), (usual, own)):
            if source in config:
                values[goal] = config[source]
                break
        else:
            if own in values:
                values.setdefault(usual, values[own])
    return values


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`quantization_config`, wherever in config.json; empty without one."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            for key in ("quantization_config", "compression_config"):
                found = part.get(key)
                if isinstance(found, Mapping):
                    return found
    return {}


_LEFT_ALONE = re.compile(
    r"(embed|lm_head|norm|router|\.gate\.weight$|shared_expert_gate|conv|word_embeddings|sinks|positions|in_proj_ba)"
)
_WHOLE = "*"
_FORMATS: Mapping[str, Mapping[str, str]] = {
    "F8_E4M3": {"": "F8_E4M3 *", ".weight_scale": "F32 1"},
    "I8": {"": "I8 *", ".weight_scale": "F32 1"},
    "F8_E4M3 channel": {"": "F8_E4M3 *", ".weight_scale": "F32 rows 1"},
    "I8 channel": {"": "I8 *", ".weight_scale": "F32 rows 1"},
    "block": {"": "F8_E4M3 *", ".weight_scale_inv": "F32 row_blocks column_blocks"},
    "words": {".qweight": "I32 words rows", ".scales": "F16 groups rows"},
    "words and zeros": {
        ".qweight": "I32 words rows", ".scales": "F16 groups rows", ".qzeros": "I32 groups row_words",
    },
    "nvfp4": {
        ".weight_packed": "U8 rows halves", ".weight_scale": "F8_E4M3 rows sixteenths",
        ".weight_global_scale": "F32 1",
    },
    "mxfp4": {"_blocks": "U8 half_count", "_scales": "U8 scale_count"},
}  # fmt: skip
"""What a checkpoint holds in the place of a weight, by what follows its name: type and sizes; `*`: its own."""


class _StoredFormat(NamedTuple):
    """How a quantized checkpoint stores its weights."""

    name: str
    bits: int = 4
    group: int = -1
    block: tuple[int, ...] = (1, 1)


def as_stored(
    tensors: Mapping[str, tuple[int, ...]], *, model: str, config: Mapping[str, Any], online: str | None
) -> dict[str, Tensor] | None:
    """Each tensor with its type. `online`: the method that vLLM applies to an unquantized checkpoint while loading.

    Unquantized ones are BF16: they are served in the type of the model. Raises FactError for a quantization_config
    of wrong types.
    """
    fields = Fields(model, quantization_of(config), "quantization_config.")
    stored = {name: Tensor("I64" if name.endswith("d2t") else "BF16", size) for name, size in tensors.items()}
    if not fields.values and online in (None, "auto"):
        return stored
    form, ignored = _stored_format(fields, online), _ignored(fields)
    if form is None:
        return None
    packed: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        is_plain = _LEFT_ALONE.search(name) or len(tensor.shape) < 2 or any(hits(name) for hits in ignored)
        is_expert = ".experts." in name and not name.endswith("_bias")
        if is_plain or (form.name == "mxfp4" and not is_expert):
            packed[name] = tensor
        else:
            packed |= _packed(name, tensor.shape, form)
    return packed


def _packed(name: str, shape: tuple[int, ...], form: _StoredFormat) -> dict[str, Tensor]:
    lines, columns, count = shape[0], shape[1], math.prod(shape)
    sizes = {
        "1": 1, "rows": lines, "halves": columns // 2, "sixteenths": columns // 16,
        "row_blocks": -(-lines // form.block[0]), "column_blocks": -(-columns // form.block[1]),
        "words": columns * form.bits // 32, "row_words": lines * form.bits // 32,
        "groups": 1 if form.group <= 0 else -(-columns // form.group),
        "half_count": count // 2, "scale_count": count // 32,
    }  # fmt: skip
    found = {}
    for suffix, text in _FORMATS[form.name].items():
        dtype, *dimensions = text.split()
        size = shape if dimensions == [_WHOLE] else tuple(sizes[each] for each in dimensions)
        stem = name.removesuffix(".weight") if suffix.startswith(".") else name
        found[stem + suffix] = Tensor(dtype, size)
    return found


def _ignored(fields: Fields) -> list[Callable[[str], object]]:
    """Tests for modules that a checkpoint leaves in full precision: names, globs, and `re:` expressions."""
    tests: list[Callable[[str], object]] = []
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        for entry in fields.texts(key) or ():
            if entry.startswith("re:"):
                with suppress(re.error):
                    tests.append(re.compile(entry[3:]).match)
            else:
                tests.append(lambda name, entry=entry: entry in name or fnmatch.fnmatch(name, f"{entry}*"))  # type: ignore[misc]
    return tests


def _stored_format(fields: Fields, online: str | None) -> _StoredFormat | None:
    method = fields.text("quant_method", default="").lower().replace("_", "-")
    if not method:
        return _StoredFormat("F8_E4M3") if online == "fp8" else None
    if method == "fp8":
        block = fields.integers("weight_block_size") or ()
        is_block = len(block) == 2 and min(block) > 0
        return _StoredFormat("block", block=block) if is_block else _StoredFormat("F8_E4M3")
    if method in ("gptq", "awq", "gptq-marlin", "awq-marlin"):
        bits = fields.integer("bits", "w_bit", default=4)
        group = fields.integer("group_size", "q_group_size", default=128, least=-1)
        return _StoredFormat("words and zeros", bits, group)
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return _StoredFormat("mxfp4")
    return _compressed(fields) if method == "compressed-tensors" else None


def _compressed(fields: Fields) -> _StoredFormat | None:
    """compressed-tensors with one group of weights: what most public checkpoints are."""
    groups = fields.section("config_groups")
    group = groups.section(next(iter(groups.values))) if groups and len(groups.values) == 1 else None
    weights = group.section("weights") if group else None
    if weights is None:
        return None
    bits, kind = weights.integer("num_bits"), weights.text("type", default="int")
    strategy = weights.text("strategy", default="tensor")
    if bits == 8 and strategy in ("tensor", "channel"):
        dtype = "F8_E4M3" if kind == "float" else "I8"
        return _StoredFormat(dtype if strategy == "tensor" else f"{dtype} channel")
    if bits == 4 and kind == "int":
        return _StoredFormat("words", 4, weights.optional("group_size") or -1)
    return _StoredFormat("nvfp4") if bits == 4 and kind == "float" else None
