"""The profile: its sections, typed and frozen, and its fingerprint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any

from specserve.diagnostics import Span
from specserve.profile.tree import Node
from specserve.vllm.arguments import human_int, jsonable

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
        return self.keys.get("model")

    @property
    def num_speculative_tokens(self) -> int | None:
        """K, if the profile says it."""
        return self.keys.get("num_speculative_tokens")


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
    nodes: Mapping[str, Node] = _nothing(repr=False, compare=False)
    """What was written, by dotted path."""
    identities: Mapping[str, str] = _nothing(repr=False, compare=False)
    """A hash of the content of each directory that the lock knows, for the fingerprint."""

    @property
    def blocks(self) -> dict[str, Speculation]:
        """Every block of speculation by its dotted path."""
        own = {"speculation": self.speculation} if self.speculation else {}
        return own | {f"alternatives.{name}": block for name, block in self.alternatives.items()}

    def place(self, path: str) -> Span | None:
        """Where a value was written; None for a default."""
        return self.nodes[path].span._replace(path=path) if path in self.nodes else None

    def span(self, path: str) -> Span:
        """Where a value was written; else the nearest section around it; else the file."""
        while path and path not in self.nodes:
            path = path.rpartition(".")[0]
        return self.place(path) or Span(self.file)

    def key_span(self, path: str) -> Span:
        """Where the key of a value was written; else where the value was."""
        key = self.nodes[path].key if path in self.nodes else None
        return key._replace(path=path) if key else self.span(path)

    def was_relative(self, path: str) -> bool:
        """Whether this absolute path was written from a folder."""
        return any(node.is_relative and node.value == path for node in self.nodes.values())


_ALL = (Target, Server, Hardware, Expectation)
SECTIONS: Mapping[str, type] = {section.__name__.lower(): section for section in _ALL}


def defaults_of(section: type) -> dict[str, Any]:
    """The keys of a section with their defaults."""
    return {item.name: item.default for item in fields(section)}


def world_size(profile: Profile) -> int:
    """vLLM's ranks of one launch, each on an accelerator of its own, over all its nodes.

    Source: vllm/config/parallel.py, `world_size_across_dp`.
    """
    target, engine = profile.target, profile.engine
    data = count_of(engine.get("data_parallel_size"))
    prefill = count_of(engine.get("prefill_context_parallel_size"))
    return target.tensor_parallel_size * target.pipeline_parallel_size * data * prefill


def count_of(value: Any) -> int:
    """A number of ranks; 1 where nothing usable is written, which another rule tells."""
    number = human_int(value) if isinstance(value, str) else value
    return number if type(number) is int and number > 0 else 1


def fingerprint(profile: Profile) -> str:
    """sha256 (hex) of what can change tokens or speed.

    Placement is left out: where the server listens, which devices it uses, how many nodes there
    are; so are the name, the promises and the alternatives that are not in use. A directory that
    the profile's lock knows counts by its content.
    """
    import hashlib  # most of lint needs no fingerprint

    def content(values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with what the lock says of a directory in the place of its path."""
        names = {key: str(values.get(key)) for key in ("model", "tokenizer")}
        known = profile.identities
        return {**values, **{key: known[name] for key, name in names.items() if name in known}}

    hardware, block = profile.hardware, profile.speculation
    placement = ("master_addr", "master_port")
    counts = {
        "schema": profile.schema,
        "vllm": sorted(part.replace(" ", "") for part in (profile.vllm or "").split(",")),
        "target": content(asdict(profile.target)),
        "speculation": content(block.keys) if block else None,
        "engine": {key: value for key, value in profile.engine.items() if key not in placement},
        "frontend": profile.frontend,
        "env": profile.env,
        "hardware": [hardware.accelerator, hardware.count] if hardware else None,
    }
    plain = jsonable(counts, _number)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _number(item: Any) -> Any:
    """Each number spelled as one: `32k` is `32000`, and `1.0` is `1`."""
    if isinstance(item, float) and item.is_integer():
        return int(item)
    found = human_int(item) if isinstance(item, str) else None
    return item if found is None else found
