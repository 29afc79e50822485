"""What a rule is: a function that yields a profile's violations; its page is in pages.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from specserve.diagnostics import Severity
from specserve.models.config import Config, text_config
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.arguments import human_int
from specserve.vllm.facts import at, registry
from specserve.vllm.limits import context_length
from specserve.vllm.speculation import METHODS
from specserve.vllm.versions import known_versions

if TYPE_CHECKING:
    from specserve.checks.oraclechild import VllmVerdict
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.models.facts import ModelFacts
    from specserve.models.lock import Drift
    from specserve.models.tokenizers import TokenizerComparison

ERROR, WARNING, INFO = Severity
Need = Literal["nothing", "models", "hardware", "vllm"]
"""What of a `Context` a rule looks at: models = `target` and `drafts`, hardware = `machine` and
`memory`."""
_HEADS = {
    "eagle3": {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"},
    "peagle": {"qwen3": "PeagleQwen3ForCausalLM", "llama": "PeagleLlamaForCausalLM"},
}
_ONE_CLASS = {
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "Qwen3DSparkModel",
}
_LIFTED = (
    "draft_vocab_size",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "mask_token_id",
    "block_size",
    "sample_from_anchor",
)


class Violation(NamedTuple):
    """One place where a rule applies; the runner adds code and severity."""

    path: str
    message: str
    label: str = ""
    related: Mapping[str, str] = {}
    """Other places: dotted path and a few words."""
    notes: tuple[str, ...] = ()
    help: str | None = None
    at_key: bool = False
    """The key is what is wrong, not its value."""
    severity: Severity | None = None
    """If this one is less, or more, than the rule's own."""
    policy: bool = False
    """Whether this one is policy although the rule is not."""
    versions: Sequence[str] | None = None
    """The versions in which it is so, if it depends on them: the runner adds a note."""


Violations = Iterator[Violation]


@dataclass(frozen=True, eq=False)
class Context:
    """What a rule may look at. `versions`: the known minors in the range, oldest first."""

    profile: Profile
    versions: tuple[str, ...]
    target: ModelFacts | None = None
    drafts: Mapping[str, ModelFacts] = field(default_factory=dict)
    """The models that draft, by the path of their block; without those that could not be read."""
    tokenizers: Mapping[str, TokenizerComparison] = field(default_factory=dict)
    """The tokenizers of draft models against the target's, by the path of their block."""
    machine: Machine | None = None
    memory: Mapping[str, MemoryEstimate] = field(default_factory=dict)
    """By the path of a block; by `target` for a profile without speculation."""
    drift: tuple[Drift, ...] = ()
    """What is not as the profile's lock says."""
    vllm: tuple[VllmVerdict, ...] = ()
    """What vLLM itself says of the launch, if it was asked."""

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Each way to speculate, `speculation` first."""
        return tuple(Variant(self, path, block) for path, block in self.profile.blocks.items())

    @property
    def engine(self) -> Mapping[str, Any]:
        """The profile's engine arguments."""
        return self.profile.engine

    def count(self, argument: str) -> int | None:
        """The number that an engine argument holds, such as `8192` or `8K`."""
        return count(self.profile.engine.get(argument))

    @cached_property
    def target_versions(self) -> tuple[str, ...]:
        """The known minors of the profile's range, oldest first, else the newest known one."""
        return self.versions or known_versions()[-1:]

    def versions_with(self, fact: Mapping[str, bool]) -> list[str]:
        """The target versions for which a fact holds."""
        return [version for version in self.target_versions if at(fact, version)]

    def versions_whose_registry(self, holds: Callable[..., bool], *arguments: object) -> list[str]:
        """The target versions whose registry of models says so: `holds` takes it first."""
        return [version for version in self.target_versions if holds(registry(version), *arguments)]

    @property
    def platform(self) -> str | None:
        """`cpu` or `gpu`, if the profile says which it is meant for."""
        name = self.profile.hardware and self.profile.hardware.accelerator
        return ("cpu" if name.lower() == "cpu" else "gpu") if name else None

    @cached_property
    def target_config(self) -> Config | None:
        """The target's config.json with `hf_overrides` on it; None if those cannot be applied."""
        overrides = self.engine.get("hf_overrides")
        if self.target is None or not isinstance(overrides, Mapping | None):
            return None
        return {**self.target.config, **overrides} if overrides else self.target.config

    def models(self) -> Iterator[tuple[str, Config]]:
        """The config.json of the target and of each draft, with the path that names the model."""
        if self.target_config is not None:
            yield "target.model", self.target_config
        for variant in self.variants:
            if variant.model is not None and variant.config is not None:
                yield variant.at("model"), variant.config

    def length(self, config: Config | None) -> int | None:
        """The context that vLLM derives from a config.json."""
        return None if config is None else context_length(text_config(config))


@dataclass(frozen=True)
class Variant:
    """One way to speculate in a profile, with what is known of it."""

    ctx: Context
    path: str
    """`speculation`, or `alternatives.NAME`."""
    block: Speculation

    @property
    def method(self) -> str:
        """vLLM's method."""
        return self.block.method

    @property
    def model(self) -> str | None:
        """The draft or head, if the block names one."""
        return self.block.model

    @property
    def k(self) -> int | None:
        """`num_speculative_tokens`, if the block says it."""
        return self.block.num_speculative_tokens

    def get(self, key: str) -> Any:
        """The value of a key of the block, or None."""
        return self.block.keys.get(key)

    def at(self, key: str) -> str:
        """The dotted path of a key of the block."""
        return f"{self.path}.{key}"

    def violation(self, key: str, message: str, **more: Any) -> Violation:
        """A violation at a key of the block."""
        return Violation(self.at(key), message, **more)

    @property
    def draft(self) -> ModelFacts | None:
        """The facts of the block's own model; None without one, or if it could not be read."""
        return self.ctx.drafts.get(self.path)

    @property
    def facts(self) -> ModelFacts | None:
        """The facts of what drafts: its own model, or the target with its further layers."""
        own_layers = self.model is None and METHODS[self.method].in_target
        return self.ctx.target if own_layers else self.draft if self.model is not None else None

    @cached_property
    def config(self) -> Config | None:
        """The config.json of what drafts, as vLLM reads it; None if it is not known."""
        return head_config(self.facts.config) if self.facts else None


def count(value: Any) -> int | None:
    """The integer behind `8192` or `8K`; None for anything else."""
    if isinstance(value, str):
        return human_int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Rule(NamedTuple):
    """A rule of the catalogue."""

    code: str
    severity: Severity
    check: Callable[[Context], Iterable[Violation]]
    needs: Need = "nothing"
    policy: bool = False
    """Whether vLLM takes it and specserve does not want it: a warning for a raw command."""
    in_lint: bool = False
    """Whether it also runs, with less to see, if the models are not read."""

    @property
    def name(self) -> str:
        """The bad thing, so that it reads after the word allow: the name of the function."""
        return self.check.__name__.replace("_", "-")


def rule(
    code: str, severity: Severity, **options: Any
) -> Callable[[Callable[[Context], Iterable[Violation]]], Rule]:
    """Makes a rule of a function that looks at a profile; `options` as a Rule has them."""
    return lambda check: Rule(code, severity, check, **options)


def variant_rule(
    code: str, severity: Severity, **options: Any
) -> Callable[[Callable[[Variant], Iterable[Violation]]], Rule]:
    """Makes a rule of a function that looks at one way to speculate: it is called for each."""

    def wrap(check: Callable[[Variant], Iterable[Violation]]) -> Rule:
        @wraps(check)
        def each(ctx: Context) -> Violations:
            for variant in ctx.variants:
                yield from check(variant)

        return rule(code, severity, **options)(each)

    return wrap


def head_config(config: Config) -> Config | None:
    """The config.json; a head of the speculators library is flattened as vLLM flattens it.

    Source: vllm/transformers_utils/configs/speculators/algos.py, 0.32.
    """
    kind = config.get("speculators_model_type")
    if kind is None:
        return None if isinstance(config.get("model"), Mapping) else config
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping) or not isinstance(kind, str):
        return None
    name = _HEADS.get(kind, {}).get(str(layer.get("model_type", "llama"))) or _ONE_CLASS.get(kind)
    if name is None:
        return None
    flat = {**layer, **{key: config[key] for key in _LIFTED if config.get(key) is not None}}
    ids = config.get("aux_hidden_state_layer_ids")
    return (
        flat
        | {"architectures": [name]}
        | ({"eagle_aux_hidden_state_layer_ids": ids} if ids is not None else {})
    )
