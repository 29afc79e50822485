"""The profile: its sections, typed and frozen, its schema for editors, and its fingerprint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from specserve.diagnostics import Span
from specserve.profile import keys
from specserve.vllm.arguments import human_int, jsonable
from specserve.vllm.speculation import METHODS

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BASELINE = "baseline"
"""The profile without speculation, wherever an alternative is named."""


@dataclass(frozen=True, slots=True)
class Target:
    """The model whose output is wanted."""

    model: str = ""
    revision: str | None = None
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """Where and how the server answers."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_key_env: str | None = None
    stall_timeout_s: float = 600
    shutdown_timeout_s: float = 30


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the profile is meant for."""

    accelerator: str | None = None
    count: int = 1
    nodes: int = 1
    devices: tuple[int | str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """One promise: what must hold at one operating point."""

    workload: str | None = None
    concurrency: int | None = None
    temperature: float | None = None
    prompt_tokens: Mapping[str, float] | None = None
    output_tokens: Mapping[str, float] | None = None
    min_speedup: float | None = None
    min_mean_acceptance_length: float | None = None
    min_acceptance_rate: float | None = None
    max_ttft_p99_ms: float | None = None
    max_tpot_p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """One way to speculate. `keys`: all of vLLM's `speculative_config`, `method` included."""

    method: str
    keys: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        """The draft or head, if the method has one of its own."""
        value = self.keys.get("model")
        return str(value) if value is not None else None

    @property
    def num_speculative_tokens(self) -> int | None:
        """K, if the profile says it."""
        value = self.keys.get("num_speculative_tokens")
        return int(value) if value is not None else None


def _nothing(**more: Any) -> Any:
    return field(default_factory=lambda: MappingProxyType({}), **more)


@dataclass(frozen=True, slots=True)
class Profile:
    """One deployment."""

    file: str
    name: str
    target: Target
    speculation: Speculation | None = None
    alternatives: Mapping[str, Speculation] = _nothing()
    engine: Mapping[str, Any] = _nothing()
    frontend: Mapping[str, Any] = _nothing()
    server: Server = field(default_factory=Server)
    hardware: Hardware | None = None
    expect: tuple[Expectation, ...] = ()
    env: Mapping[str, str] = _nothing()
    vllm: str | None = None
    schema: int = 1
    spans: Mapping[str, Span] = _nothing(repr=False, compare=False)
    """Where each value was written, by dotted path."""
    key_spans: Mapping[str, Span] = _nothing(repr=False, compare=False)
    """Where each key was written."""
    identities: Mapping[tuple[str, str | None], str] = _nothing(repr=False, compare=False)
    """What each model at a revision is, by its lock: commits and hashes, for the fingerprint."""
    relative_paths: frozenset[object] = field(default=frozenset(), repr=False, compare=False)
    """The paths that were written from a folder; here they are absolute."""

    @property
    def blocks(self) -> dict[str, Speculation]:
        """Every block of speculation by its dotted path."""
        own = {"speculation": self.speculation} if self.speculation else {}
        return own | {f"alternatives.{name}": block for name, block in self.alternatives.items()}

    def span(self, path: str) -> Span:
        """Where a value was written; else the nearest section around it; else the file."""
        while path:
            if path in self.spans:
                return self.spans[path]
            path = path.rpartition(".")[0]
        return Span(self.file)

    def key_span(self, path: str) -> Span:
        """Where the key of a value was written; else where the value was."""
        return self.key_spans.get(path) or self.span(path)


SECTIONS: Mapping[str, type] = {
    "target": Target,
    "server": Server,
    "hardware": Hardware,
    "expectation": Expectation,
}


def defaults_of(section: type) -> dict[str, Any]:
    """The keys of a section with their defaults."""
    return {item.name: item.default for item in fields(section)}


ELSEWHERE: Mapping[str, str] = {
    "speculative_config": "speculation",
    "num_speculative_tokens": "speculation.num_speculative_tokens",
    "api_key": "server.api_key_env",
    "expectations": "expect",
    **{name: f"hardware.{name}" for name in ("accelerator", "devices")},
    **{name: f"server.{name}" for name in ("host", "port", "served_model_name", "api_key_env")},
    **{name: f"target.{name}" for name in defaults_of(Target)},
}
"""The place of what the profile does not take where a stranger would write it."""


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a profile as it is in one file; `extends` may bring more."""
    schema = deepcopy(keys.SCHEMA)
    for name, section in SECTIONS.items():
        for key, default in defaults_of(section).items():
            if default not in (None, ""):
                schema["$defs"][name]["properties"][key]["default"] = default
    for name in ("engine", "frontend"):
        schema["properties"][name]["propertyNames"] = {"not": {"enum": sorted(ELSEWHERE)}}
    rules = schema["$defs"]["speculation"]["allOf"] = []
    for method, known in METHODS.items():
        needs = f"needs {', '.join(known.needs) or 'no more keys'}"
        then = {"description": needs, "propertyNames": {"enum": sorted(keys.BLOCK_KEYS[method])}}
        chosen = {"properties": {"method": {"const": method}}, "required": ["method"]}
        rules.append({"if": chosen, "then": then})
    return schema


def world_size(profile: Profile) -> int:
    """vLLM's ranks of one launch, each on an accelerator of its own, over all its nodes.

    Source: vllm/config/parallel.py, `world_size_across_dp`.
    """
    target, engine = profile.target, profile.engine
    data = _count(engine.get("data_parallel_size"))
    prefill = _count(engine.get("prefill_context_parallel_size"))
    return target.tensor_parallel_size * target.pipeline_parallel_size * data * prefill


def ranks_started(profile: Profile) -> int:
    """The ranks that this launch starts itself: others may hold the rest of data parallelism.

    Source: vllm/engine/arg_utils.py, `data_parallel_size_local` and `data_parallel_rank`.
    """
    engine, ranks = profile.engine, world_size(profile)
    local = engine.get("data_parallel_size_local")
    if engine.get("data_parallel_rank") is not None or engine.get("data_parallel_backend") == "ray":
        local = 1
    if local is None:
        return ranks
    return ranks // _count(engine.get("data_parallel_size")) * _count(local)


def _count(value: Any) -> int:
    """1 where nothing usable is written: another rule tells that."""
    number = human_int(value) if isinstance(value, str) else value
    return number if type(number) is int and number > 0 else 1


def fingerprint(profile: Profile) -> str:
    """sha256 (hex) of what can change tokens or speed.

    Placement is left out: where the server listens, which devices it uses, how many nodes there
    are; so are the name, the promises and the alternatives that are not in use. A model that the
    profile's lock knows counts by its commit or content, whatever revision was asked for.
    """
    import hashlib  # most of lint needs no fingerprint

    hardware = profile.hardware
    content = {
        "schema": profile.schema,
        "vllm": sorted(part.replace(" ", "") for part in (profile.vllm or "").split(",")),
        **_models(profile),
        "frontend": profile.frontend,
        "env": profile.env,
        "hardware": [hardware.accelerator, hardware.count] if hardware else None,
    }
    plain = jsonable(content, _number)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _number(item: Any) -> Any:
    """Each number spelled as one: `32k` is `32000`, and `1.0` is `1`."""
    if isinstance(item, float) and item.is_integer():
        return int(item)
    found = human_int(item) if isinstance(item, str) else None
    return item if found is None else found


def _models(profile: Profile) -> dict[str, Any]:
    """The sections that name models, with what the lock knows in place of names and revisions."""
    target, engine = profile.target, dict(profile.engine)
    for placement in ("master_addr", "master_port"):
        engine.pop(placement, None)
    keys = dict(profile.speculation.keys) if profile.speculation else None
    revision = engine.get("tokenizer_revision") or target.revision
    own = _identity(profile, target.model, target.revision)
    tokenizer = _identity(profile, target.tokenizer or target.model, revision)
    if tokenizer and (target.tokenizer or engine.get("tokenizer_revision")):
        target = replace(target, tokenizer=tokenizer)
        engine.pop("tokenizer_revision", None)
    if keys is not None:
        draft = _identity(profile, keys.get("model") or target.model, keys.get("revision"))
        if draft and (keys.get("model") or METHODS[keys["method"]].in_target):
            keys |= {"model": draft, "revision": None}
    if own:
        target = replace(target, model=own, revision=None)
    return {"target": target, "speculation": keys, "engine": engine}


def _identity(profile: Profile, model: str, revision: str | None) -> str | None:
    """What the lock says that a model is; a directory is the same at whatever revision."""
    found = profile.identities.get((model, revision))
    alone = profile.identities.get((model, None), "")
    return found or (alone if alone.startswith("sha256:") else None)
