"""A model's facts, wherever it lies: a directory, the Hub cache, or the Hub. Reads no weight."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specserve.errors import FactError, ModelNotFound, NotCached, UnsupportedModel
from specserve.models.facts import ModelFacts, ModelFile, Origin, Tensor
from specserve.models.files import (
    CONFIG,
    GENERATION,
    PARAMS,
    TOKENIZER,
    Header,
    UnknownType,
    list_files,
    object_problem,
    read_header,
    read_object,
    read_regular,
    weight_files,
)
from specserve.models.hub import find_snapshot, hub_cache, is_offline, read_from_hub, recall

_HUB_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_.-][\w.-]{0,95})?", re.ASCII)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_REVISION = re.compile(r"(?!.*\.\.)[\w][\w./-]{0,250}", re.ASCII)
_MAX_NOTE_BYTES = 500


def read_model(
    model: str,
    *,
    revision: str | None = None,
    folder: Path | None = None,
    offline: bool = False,
    cache: Path | None = None,
    need_config: bool = True,
) -> ModelFacts:
    """What is known of a model: its configuration, its files, its tensors.

    A model that lies in the Hub cache with its weights is read from there, without asking the Hub. `folder`: where
    a relative path starts, by default the current directory; `cache`: another Hub cache than the environment's;
    `need_config`: False for what has a tokenizer and perhaps no model.
    Raises FactError: ModelNotFound, GatedModel, NotCached, HubUnreachable, UnsupportedModel, or for broken files.
    """
    place = local_path(model, folder=folder)
    if place is not None:
        if place.is_file():
            raise UnsupportedModel(f"`{model}` is a file: specserve reads directories of models")
        return read_folder(place, model=model, origin="directory", revision=revision, need_config=need_config)
    refuse_no_hub_id(model, revision=revision)
    cache = cache or hub_cache()
    cached = _read_cached(model, revision=revision, cache=cache, need_config=need_config)
    is_complete = cached and cached.weight_files and all(name in cached.files for name in cached.weight_files)
    if cached and (is_complete or not need_config):
        return cached
    if offline or is_offline():
        known = recall(model, revision=cached.commit if cached else revision, cache=cache) or cached
        if known is None:
            raise _not_cached(model, revision, by_environment=not offline)
        return replace(known, revision=revision)
    return read_from_hub(model, revision=revision, need_config=need_config, cache=cache)


def local_path(model: str, *, folder: Path | None = None) -> Path | None:
    """The path that a profile's `model` means; None for a Hub id. vLLM too takes what exists for a path."""
    here = folder or Path.cwd()
    try:
        if model.startswith((".", "/", "~")):
            return here / Path(model).expanduser()
        return here / model if model and (here / model).exists() else None
    except (OSError, ValueError, RuntimeError):  # too long a name, a zero byte, no home
        return None


def refuse_no_hub_id(model: str, *, revision: str | None = None) -> None:
    """Raises FactError if these cannot be a repository and a revision of the Hub."""
    if _SCHEME.match(model):
        raise UnsupportedModel(f"`{model}` is a URL, but specserve reads only directories and Hub ids")
    if re.search(r"(?i)gguf(:|$)|\.gguf$", model):
        raise UnsupportedModel(f"`{model}` is a GGUF model: specserve reads safetensors")
    if not _HUB_ID.fullmatch(model):
        raise ModelNotFound(
            f"`{model}` is neither a directory nor a Hub id",
            hint="a Hub id is ORGANISATION/NAME; a path starts with ./",
        )
    if revision is not None and not _REVISION.fullmatch(revision):
        raise ModelNotFound(f"`{revision}` cannot be a revision of `{model}`")


def _read_cached(model: str, *, revision: str | None, cache: Path, need_config: bool) -> ModelFacts | None:
    """None also without a readable configuration: that is no more than the rest of a download."""
    folder = find_snapshot(model, revision=revision, cache=cache)
    if folder is None:
        return None
    try:
        return read_folder(
            folder,
            model=model,
            origin="cache",
            revision=revision,
            commit=folder.name,
            need_config=need_config,
        )
    except FactError:
        return None


def _not_cached(model: str, revision: str | None, *, by_environment: bool) -> NotCached:
    at = f" at `{revision}`" if revision else ""
    why = "HF_HUB_OFFLINE is set" if by_environment else "the Hub is not asked"
    first = "unset HF_HUB_OFFLINE; then " if by_environment else ""
    return NotCached(
        f"`{model}`{at} is not in the Hub cache, and {why}",
        hint=(
            f"{first}`specserve lock PROFILE` records what `check` needs, or `specserve pull PROFILE` downloads the "
            "whole model"
        ),
    )


def read_folder(
    folder: Path,
    *,
    model: str,
    origin: Origin,
    revision: str | None = None,
    commit: str | None = None,
    need_config: bool = True,
) -> ModelFacts:
    """The facts of a directory. Raises ModelNotFound without one, FactError without a readable configuration."""
    files = list_files(folder)
    facts = assemble(
        model,
        files,
        origin=origin,
        place=str(folder),
        commit=commit,
        need_config=need_config,
        header_of=lambda name: read_header(folder / name),
    )
    return replace(facts, revision=revision)


def assemble(
    model: str,
    files: Mapping[str, ModelFile],
    *,
    origin: Origin,
    place: str,
    commit: str | None,
    need_config: bool,
    header_of: Callable[[str], Header],
    spread: Callable[..., Iterable[Header | FactError]] = map,
) -> ModelFacts:
    """The facts of these files. Raises FactError without a readable configuration; the rest may be broken.

    `place`: the directory or Hub id, for messages; `need_config`: False for a repository with a tokenizer only;
    `header_of`: of the weight file of a name, raises FactError; `spread`: applies it, perhaps several at a time.
    """

    config = _config(files, place=place) if need_config or CONFIG in files else {}
    notes: list[str] = []
    broken: dict[str, str] = {}
    generation = _generation(files, broken)
    weights: tuple[str, ...] = ()
    try:
        weights = weight_files(files, read_index=lambda name: _object(files, name))
    except FactError as error:
        notes.append(error.message)
    names = [name for name in weights if name.endswith(".safetensors")]
    headers = dict(zip(names, spread(lambda name: _header(files, name, header_of), names), strict=True))
    for name, found in headers.items():
        if isinstance(found, UnknownType):
            notes.append(found.message)
        elif isinstance(found, FactError):
            broken[name] = found.message
    broken |= {
        name: f"`{name}` is empty" for name in weights if name in files and files[name].size_bytes == 0
    }
    tokenizer = files[TOKENIZER].path if origin == "directory" and TOKENIZER in files else None
    if tokenizer and (problem := object_problem(tokenizer, where=TOKENIZER)):
        broken[TOKENIZER] = problem
    return ModelFacts(
        model=model,
        origin=origin,
        config=config,
        commit=commit,
        generation_config=generation,
        files={name: _with_hash(file, headers.get(name)) for name, file in files.items()},
        tensors=_tensors(headers),
        notes=(*notes, *broken.values()),
        config_format="hf" if CONFIG in files or not config else "mistral",
        weight_files=weights,
        broken=broken,
    )


def _generation(files: Mapping[str, ModelFile], broken: dict[str, str]) -> Mapping[str, Any] | None:
    try:
        return _object(files, GENERATION) if GENERATION in files else None
    except FactError as error:
        broken[GENERATION] = error.message
        return None


def _header(
    files: Mapping[str, ModelFile], name: str, header_of: Callable[[str], Header]
) -> Header | FactError:
    try:
        return header_of(name) if name in files else FactError(f"`{name}` is missing")
    except FactError as error:
        return error


def _with_hash(file: ModelFile, header: Header | FactError | None) -> ModelFile:
    return replace(file, header_sha256=header.sha256) if isinstance(header, Header) else file


def _tensors(headers: Mapping[str, Header | FactError]) -> dict[str, Tensor] | None:
    """Every tensor of the safetensors files; None without any, or if one of them could not be read."""
    tensors: dict[str, Tensor] = {}
    for header in headers.values():
        if isinstance(header, FactError):
            return None
        tensors.update(header.tensors)
    return tensors if headers else None


def _object(files: Mapping[str, ModelFile], name: str, *, place: str = "") -> Mapping[str, Any]:
    """The JSON object in a file. Messages have no path by default: notes go into locks, which know no machine."""
    path = files[name].path
    where = f"{place}/{name}" if place else name
    if path is None:
        raise FactError(f"`{where}` is too large to be read")
    return read_object(path, where=where)


def _config(files: Mapping[str, ModelFile], *, place: str) -> Mapping[str, Any]:
    if CONFIG in files:
        return _object(files, CONFIG, place=place)
    if PARAMS in files:
        return _as_hugging_face(_object(files, PARAMS, place=place))
    weights = any(name.endswith((".safetensors", ".bin", ".gguf")) for name in files)
    hint = "it has weights without their configuration" if weights else "check that it is a model's directory"
    raise FactError(f"`{place}` has no {CONFIG}", hint=hint)


NOTE = "NOTE.txt"
"""A sentence about a model, in its folder, that is shown to whoever serves it or sends it a request."""


def model_note(folder: Path) -> str | None:
    """The text of NOTE.txt in a model's folder, in one line; None if there is none that can be read."""
    try:
        data = read_regular(folder / NOTE, limit_bytes=_MAX_NOTE_BYTES)
    except (FactError, ValueError):  # ValueError: a null byte in the name
        return None
    return " ".join(data.decode(errors="replace").split()) or None


_RENAMED = {
    "dim": "hidden_size",
    "norm_eps": "rms_norm_eps",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "tied_embeddings": "tie_word_embeddings",
}


_MOE = {
    "route_every_n": "moe_layer_freq",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_experts": "n_routed_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "routed_scale": "routed_scaling_factor",
    "num_shared_experts": "n_shared_experts",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
}


_DEFAULTS = {
    "model_type": "transformer", "hidden_act": "silu", "tie_word_embeddings": False, "max_position_embeddings": 128_000,
}  # fmt: skip


def _as_hugging_face(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration under the names that vLLM gives it."""
    config = {_RENAMED.get(key, key): value for key, value in params.items()}
    config = {**_DEFAULTS, **config}
    moe = config.get("moe")
    if config["model_type"] == "mamba":
        config["architectures"] = ["Mamba2ForCausalLM"]
    elif isinstance(moe, dict) and moe.get("num_shared_experts"):
        config |= {_MOE[key]: value for key, value in moe.items() if key in _MOE}
        config |= {"model_type": "deepseek_v3", "architectures": ["MistralLarge3ForCausalLM"]}
    else:
        config["architectures"] = ["MixtralForCausalLM" if moe else "MistralForCausalLM"]
    return _with_vision(config)


def _with_vision(config: dict[str, Any]) -> dict[str, Any]:
    multimodal = config.get("multimodal")
    inside = multimodal.get("vision_encoder_args") if isinstance(multimodal, dict) else None
    vision = inside or config.get("vision_encoder")
    if not vision:
        return config
    text = {key: value for key, value in config.items() if key not in ("multimodal", "vision_encoder")}
    return {
        "model_type": "pixtral",
        "architectures": ["PixtralForConditionalGeneration"],
        "text_config": text,
        "vision_config": vision,
    }
