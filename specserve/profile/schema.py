"""The profile: its sections, typed and frozen, its fingerprint, and its keys as JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from specserve.diagnostics import Span
from specserve.profile.keys import BLOCK_KEYS, EVERY_KEY, PERCENTILES, Key, Kind
from specserve.vllm.arguments import human_int, jsonable
from specserve.vllm.facts import EXAMPLE_RANGE
from specserve.vllm.speculation import METHODS

SCHEMA = 1
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IPV4 = r"[0-9]{1,3}(\.[0-9]{1,3}){3}"
HOST = (
    r"(?!-)(?=.{1,253}$)([A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+\.?"
    r"|(?=[^%]*::|([^:]*:){7}|([^:]*:){6}[0-9.]+(%|$))(?!.*::.*::|.*:::)"
    rf"([0-9A-Fa-f]{{0,4}}:){{2,7}}([0-9A-Fa-f]{{0,4}}|{_IPV4})(%[A-Za-z0-9_.-]+)?"
)
"""A host name or an IPv4 address, or an IPv6 address, with a zone if need be."""
DEVICE = r"[A-Za-z0-9][A-Za-z0-9_:./-]*"
"""The UUID of an accelerator, such as `GPU-…` or `MIG-…`."""
ALTERNATIVE = r"[A-Za-z0-9][A-Za-z0-9_-]*"
BASELINE = "baseline"
"""The profile without speculation, wherever an alternative is named: no alternative can have this name."""
"""What the name of an alternative is made of."""


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


def _key(key: Key) -> Any:
    return field(default=key.default, metadata={"key": key})


def keys_of(section: type) -> dict[str, Key]:
    """The keys of a section by name, as its dataclass declares them."""
    return {item.name: item.metadata["key"] for item in fields(section)}


@dataclass(frozen=True, slots=True)
class Target:
    """The model whose output is wanted."""

    model: str = _key(
        Key(
            "str",
            "Hub id, or a path from the folder of the profile.",
            required=True,
            nullable=False,
            numeric=False,
        )
    )
    revision: str | None = _key(Key("str", "Hub commit, tag or branch."))
    tokenizer: str | None = _key(Key("str", "Tokenizer, if it is not the model's own.", numeric=False))
    dtype: str = _key(Key("str", "Type of weights and activations.", default="auto"))
    quantization: str | None = _key(Key("str", "Quantization method; default: what the checkpoint says."))
    tensor_parallel_size: int = _key(Key("int", "GPUs that share each layer.", default=1, minimum=1))
    pipeline_parallel_size: int = _key(
        Key("int", "Groups of layers on different GPUs.", default=1, minimum=1)
    )
    max_model_len: int | None = _key(
        Key("length", "Longest prompt plus output, in tokens; auto: what fits.", minimum=-1)
    )


@dataclass(frozen=True, slots=True)
class Server:
    """Where and how the server answers."""

    host: str = _key(
        Key(
            "str",
            "Address to listen on.",
            default="127.0.0.1",
            pattern=HOST,
            form="a host name or an address, such as `0.0.0.0` or `::1`",
        )
    )
    port: int = _key(Key("int", "Port to listen on; 0: a free one.", default=8000, minimum=0, maximum=65535))
    served_model_name: str | None = _key(Key("str", "Name that clients send; default: the target itself."))
    api_key_env: str | None = _key(Key("str", "NAME of the environment variable that holds the API key."))
    stall_timeout_s: float = _key(
        Key("float", "Start-up is given up when nothing moves for so long.", default=600, minimum=1)
    )
    shutdown_timeout_s: float = _key(
        Key("float", "Running requests may finish for so long.", default=30, minimum=0)
    )


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the profile is meant for."""

    accelerator: str | None = _key(Key("str", "Name of the accelerator, such as H100-80GB, or cpu."))
    count: int = _key(Key("int", "Accelerators per node.", default=1, minimum=1))
    nodes: int = _key(Key("int", "Nodes.", default=1, minimum=1))
    devices: tuple[int | str, ...] | None = _key(
        Key("list", "Indices or UUIDs of the accelerators on this host.", items="device")
    )


@dataclass(frozen=True, slots=True)
class Expectation:
    """One promise: what must hold at one operating point."""

    workload: str | None = _key(Key("str", "Name of the workload, such as chat or code."))
    concurrency: int | None = _key(Key("int", "Requests in flight.", minimum=1))
    temperature: float | None = _key(Key("float", "Sampling temperature.", minimum=0))
    prompt_tokens: Mapping[str, float] | None = _key(Key("size_percentiles", "Prompt lengths."))
    output_tokens: Mapping[str, float] | None = _key(Key("size_percentiles", "Output lengths."))
    min_speedup: float | None = _key(
        Key("float", "Output tokens/s over the same server without speculation.", minimum=0)
    )
    min_mean_acceptance_length: float | None = _key(
        Key("float", "Tokens per verification step, 1 to K + 1.", minimum=1)
    )
    min_acceptance_rate: float | None = _key(
        Key("float", "Accepted over drafted tokens.", minimum=0, maximum=1)
    )
    max_ttft_p99_ms: float | None = _key(Key("float", "Time to first token, 99th percentile.", minimum=0))
    max_tpot_p99_ms: float | None = _key(Key("float", "Time per output token, 99th percentile.", minimum=0))


@dataclass(frozen=True, slots=True)
class Speculation:
    """One way to speculate. `keys` is the whole of vLLM's `speculative_config`, `method` included."""

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


@dataclass(frozen=True, slots=True)
class Profile:
    """One deployment. `spans` says where each value was written, by dotted path; `key_spans`, where its key."""

    file: str
    name: str
    target: Target
    speculation: Speculation | None = None
    alternatives: Mapping[str, Speculation] = field(default_factory=_nothing)
    engine: Mapping[str, Any] = field(default_factory=_nothing)
    frontend: Mapping[str, Any] = field(default_factory=_nothing)
    server: Server = field(default_factory=Server)
    hardware: Hardware | None = None
    expect: tuple[Expectation, ...] = ()
    env: Mapping[str, str] = field(default_factory=_nothing)
    vllm: str | None = None
    schema: int = SCHEMA
    spans: Mapping[str, Span] = field(default_factory=_nothing, repr=False, compare=False)
    key_spans: Mapping[str, Span] = field(default_factory=_nothing, repr=False, compare=False)
    identities: Mapping[tuple[str, str | None], str] = field(default_factory=dict, repr=False, compare=False)
    """What each model at a revision is, by its lock: commits and hashes, for the fingerprint."""
    relative_paths: frozenset[object] = field(default_factory=frozenset, repr=False, compare=False)
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


# The place of an argument of vLLM that the profile does not take where a stranger would write it.
ELSEWHERE: Mapping[str, str] = {
    "speculative_config": "speculation",
    "num_speculative_tokens": "speculation.num_speculative_tokens",
    "api_key": "server.api_key_env",
    "expectations": "expect",
    **{name: f"hardware.{name}" for name in ("accelerator", "devices")},
    **{name: f"server.{name}" for name in ("host", "port", "served_model_name", "api_key_env")},
    **{name: f"target.{name}" for name in keys_of(Target)},
}
SECTIONS: Mapping[str, type] = {"target": Target, "server": Server, "hardware": Hardware}
TOP: Mapping[str, Key] = {
    "schema": Key("int", "Number of the profile schema.", default=SCHEMA),
    "name": Key("str", "Name of the deployment; default: the file's stem."),
    "extends": Key("str", "A parent profile in the same repository; its values lie underneath."),
    "vllm": Key("str", f"vLLM versions this profile is for, such as {EXAMPLE_RANGE}."),
    "target": Key("map", "The model whose output is wanted.", required=True, nullable=False),
    "speculation": Key("map", "How to speculate, by vLLM's SpeculativeConfig; null: not at all."),
    "alternatives": Key("map", "Other `speculation` blocks for the same target, by name."),
    "engine": Key("map", "Any other vLLM engine argument."),
    "frontend": Key("map", "Arguments of vLLM's server: chat_template, tool_call_parser, …"),
    "server": Key("map", "Where and how the server answers."),
    "hardware": Key("map", "What the profile is meant for."),
    "expect": Key("list", "Promises, one per operating point."),
    "env": Key("map", "Environment of the server process; never a secret."),
}


_OF_ENGINE = ("data_parallel_size", "prefill_context_parallel_size")


def world_size(profile: Profile) -> int:
    """vLLM's ranks of one launch, each on an accelerator of its own, over all its nodes.

    Source: vllm/config/parallel.py, `world_size_across_dp`.
    """
    target = profile.target
    found = target.tensor_parallel_size * target.pipeline_parallel_size
    for name in _OF_ENGINE:
        found *= _count(profile.engine.get(name))
    return found


def ranks_started(profile: Profile) -> int:
    """The ranks that this launch starts itself: other launches may hold the rest of data parallelism.

    Source: vllm/engine/arg_utils.py, `data_parallel_size_local` and `data_parallel_rank`.
    """
    engine = profile.engine
    ranks = world_size(profile)
    local = engine.get("data_parallel_size_local")
    if engine.get("data_parallel_rank") is not None or engine.get("data_parallel_backend") == "ray":
        local = 1
    return ranks if local is None else ranks // _count(engine.get("data_parallel_size")) * _count(local)


def _count(value: Any) -> int:
    """1 where nothing usable is written: another rule tells that."""
    number = human_int(value) if isinstance(value, str) else value
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 1


_PLACEMENT = ("master_addr", "master_port")
"""Arguments of the engine that say where it runs, and nothing else."""


def fingerprint(profile: Profile) -> str:
    """sha256 (hex) of the target, speculation, engine, frontend, environment, vLLM range and hardware kind.

    Placement is left out: where the server listens, which devices it uses, how many nodes there are; so are
    the name, the promises and the alternatives that are not in use. A model that the profile's lock knows counts
    by its commit or content, wherever it lies and whatever revision was asked for.
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
    text = json.dumps(_canonical(content), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """A value in JSON's types, each number spelled as one: `32k` is `32000`, and `1.0` is `1`."""

    def number(item: Any) -> Any:
        if isinstance(item, float) and item.is_integer():
            return int(item)
        found = human_int(item) if isinstance(item, str) else None
        return item if found is None else found

    return jsonable(value, number)


def _models(profile: Profile) -> dict[str, Any]:
    """The sections that name models, with what the lock knows in the place of names and revisions."""
    target = profile.target
    engine = {name: value for name, value in profile.engine.items() if name not in _PLACEMENT}
    keys = dict(profile.speculation.keys) if profile.speculation else None
    revision = engine.get("tokenizer_revision") or target.revision
    own = _identity(profile, target.model, target.revision)
    tokenizer = _identity(profile, target.tokenizer or target.model, revision)
    if tokenizer and (target.tokenizer or engine.get("tokenizer_revision")):
        target = replace(target, tokenizer=tokenizer)
        engine.pop("tokenizer_revision", None)
    if keys is not None:
        draft = _identity(profile, keys.get("model") or profile.target.model, keys.get("revision"))
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


_HUMAN: dict[str, Any] = {"type": ["integer", "string"], "pattern": r"^\d+(\.\d+)?[kKmMgGtT]$"}
_TYPES: Mapping[Kind, dict[str, Any]] = {
    "str": {"type": ["string", "number"], "minLength": 1},  # a revision of digits alone is a number to YAML
    "int": _HUMAN,
    "length": {"type": ["integer", "string"], "pattern": r"^([aA][uU][tT][oO]|\d+(\.\d+)?[kKmMgGtT])$"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "schedule": {"type": "array", "items": {"type": "array", "items": _HUMAN, "minItems": 3, "maxItems": 3}},
    "size_percentiles": {
        "type": "object",
        "properties": {name: {"type": "number", "minimum": 0} for name in PERCENTILES},
        "additionalProperties": False,
    },
    "device": {"type": ["integer", "string"], "pattern": f"^{DEVICE}$"},
}


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a profile as it stands in one file; `extends` may bring the rest."""
    properties = {name: _property(key) for name, key in TOP.items()}
    for name, section in SECTIONS.items():
        properties[name] |= _object(keys_of(section)) | {"type": ["object", "null"]}
    properties["expect"] |= {"items": _object(keys_of(Expectation))}
    properties["env"] |= {"additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
    for name in ("engine", "frontend"):
        properties[name] |= {"propertyNames": {"not": {"enum": sorted(ELSEWHERE)}}}
    block = {"$ref": "#/$defs/speculation"}
    properties["speculation"] = {"description": TOP["speculation"].doc, "anyOf": [{"type": "null"}, block]}
    properties["alternatives"] |= {
        "additionalProperties": {"anyOf": [{"type": "null"}, block]},
        "propertyNames": {"pattern": f"^{ALTERNATIVE}$", "not": {"const": BASELINE}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specserve profile",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "anyOf": [{"required": ["target"]}, {"required": ["extends"]}],
        "$defs": {"speculation": _speculation()},
    }


def _speculation() -> dict[str, Any]:
    """A block: its keys are judged by its method; a child's block may leave the method to its parent."""
    rules = []
    for method, known in METHODS.items():
        note = f"needs {', '.join(known.needs)}" if known.needs else "needs no more keys"
        then = {"description": note, "propertyNames": {"enum": sorted(BLOCK_KEYS[method])}}
        chosen = {"properties": {"method": {"const": method}}, "required": ["method"]}
        rules.append({"if": chosen, "then": then})
    properties = _object(EVERY_KEY)["properties"]
    properties["method"] = {"enum": list(METHODS), "description": EVERY_KEY["method"].doc}
    return {"type": "object", "properties": properties, "additionalProperties": False, "allOf": rules}


def _object(keys: Mapping[str, Key]) -> dict[str, Any]:
    properties = {name: _property(key) for name, key in keys.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(key: Key) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": key.doc, **_TYPES[key.kind]}
    if key.items:
        schema["items"] = _TYPES[key.items]
    if key.pattern:
        schema["pattern"] = f"^({key.pattern})$"
    if key.choices:
        schema = {"description": key.doc, "enum": [*key.choices, *([None] if key.nullable else [])]}
    elif key.nullable:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*kinds, "null"]
    for name, bound in (("minimum", key.minimum), ("maximum", key.maximum)):
        if bound is not None:
            schema[name] = bound
    if key.default is not None:
        schema["default"] = key.default
    return schema
