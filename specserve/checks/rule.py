"""What a rule is: a function from a context to hits, with its code, severity and manual page (the docstring)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from specserve.checks.arms import Config, choice, head_config, text_config
from specserve.diagnostics import Severity
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.context import Length, context_length
from specserve.vllm.fact import Fact, minor
from specserve.vllm.registry import Registry, registry
from specserve.vllm.runner import RunnerChoice
from specserve.vllm.versions import known_versions

if TYPE_CHECKING:
    from specserve.checks.vllmanswer import Judged
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.models.facts import ModelFacts
    from specserve.models.lock import Drift
    from specserve.models.tokenizercompare import TokenizerComparison
    from specserve.plan.host import Host
    from specserve.plan.launchplan import LaunchPlan
    from specserve.vllm.arguments import ArgumentProblem

Need = Literal["nothing", "models", "hardware", "host", "vllm"]
"""What a rule looks at besides the profile: models = `target` and the arms' drafts, hardware = `machine` and the
arms' memory, host = `plan` and `host`, vllm = `vllm`."""


@dataclass(frozen=True)
class CheckedArm:
    """One way to speculate in a profile, with what is known of it."""

    path: str
    """`speculation`, or `alternatives.NAME`."""
    speculation: Speculation
    draft: ModelFacts | None = None
    """None without a second model, and if it could not be read."""
    tokenizer: TokenizerComparison | None = None
    memory: MemoryEstimate | None = None


@dataclass(frozen=True)
class Context:
    """What a rule may look at. `versions`: the known vLLM minors in the profile's range, oldest first.

    The rest is there for the rules that need it: the models, the machine with the memory, the launch here.
    """

    profile: Profile
    versions: tuple[str, ...]
    target: ModelFacts | None = None
    arms: tuple[CheckedArm, ...] = ()
    tokenizer: TokenizerComparison | None = None
    """The tokenizer of another repository that the profile names, against the target's own."""
    machine: Machine | None = None
    memory: MemoryEstimate | None = None
    """Of the profile without speculation, if it has none."""
    plan: LaunchPlan | None = None
    host: Host | None = None
    drift: tuple[Drift, ...] = ()
    """What is not as the profile's lock says."""
    vllm: tuple[Judged, ...] = ()
    """What vLLM itself says of the launch, if it was asked."""

    @cached_property
    def blocks(self) -> tuple[tuple[str, Speculation], ...]:
        """Each block of speculation with its dotted path, `speculation` first."""
        own = (("speculation", self.profile.speculation),) if self.profile.speculation else ()
        return (*own, *((f"alternatives.{name}", block) for name, block in self.profile.alternatives.items()))

    @cached_property
    def judged(self) -> tuple[str, ...]:
        """The known minors of the profile's range, oldest first; for a range of newer ones, the newest known."""
        return self.versions or known_versions()[-1:]

    def during(self, fact: Fact[Any]) -> list[str]:
        """The judged versions for which a fact holds."""
        return [version for version in self.judged if fact.at(version)]

    def where(self, holds: Callable[[Registry], bool]) -> list[str]:
        """The judged versions whose registry of models says so."""
        return [version for version in self.judged if holds(registry(version))]

    def is_past(self, found: Sequence[str]) -> bool:
        """Whether a profile names no versions, and the newest and the one that is about to run it are not found.

        Nobody said that such a profile is for the older ones.
        """
        own = [version for version in found if self.plan and minor(version) == minor(self.plan.vllm)]
        return self.profile.vllm is None and self.judged[-1] not in found and not own

    def choices(self, block: Speculation, *, by_target: bool = False) -> dict[str, RunnerChoice | None]:
        """The runner of each judged version. `by_target`: the target's config.json may decide, if it was read."""
        config = self.target.config if by_target and self.target else None
        key = (id(block), config is None)
        if key not in self._choices:
            self._choices[key] = {
                v: choice(self.profile, block, version=v, config=config) for v in self.judged
            }
        return self._choices[key]

    def on(self, runner: Literal["V1", "V2"], block: Speculation, *, by_target: bool = False) -> list[str]:
        """The judged versions that serve a block with this runner."""
        taken = self.choices(block, by_target=by_target)
        return [
            version for version, choice in taken.items() if choice is not None and choice.runner == runner
        ]

    @cached_property
    def target_config(self) -> Config | None:
        """The target's config.json with the profile's `hf_overrides` on it; None if those cannot be applied."""
        overrides = self.profile.engine.get("hf_overrides")
        if self.target is None or not isinstance(overrides, Mapping | None):
            return None
        return {**self.target.config, **overrides} if overrides else self.target.config

    def draft_facts(self, arm: CheckedArm) -> ModelFacts | None:
        """The facts of what drafts: a model of its own, or the target, whose further layers `mtp` and `dspark` run."""
        if arm.speculation.model is None:
            return self.target if arm.speculation.method in ("mtp", "dspark") else None
        return arm.draft

    def draft_config(self, arm: CheckedArm) -> Config | None:
        """Its config.json as vLLM reads it; None if it is not known, or not read."""
        facts = self.draft_facts(arm)
        return head_config(facts.config) if facts else None

    def models(self) -> Iterator[tuple[str, Config]]:
        """The target's and each draft model's config.json, with the dotted path that names the model."""
        if self.target_config is not None:
            yield "target.model", self.target_config
        for arm in self.arms:
            config = self.draft_config(arm) if arm.speculation.model is not None else None
            if config is not None:
                yield f"{arm.path}.model", config

    def length(self, config: Config) -> Length | None:
        """The context that the newest judged version derives; None if config.json does not show it."""
        return context_length(text_config(config), self.judged[-1])

    @cached_property
    def argument_problems(self) -> dict[str, list[ArgumentProblem]]:
        """What is wrong with the arguments, by version, as far as it was asked for."""
        return {}

    @cached_property
    def _choices(self) -> dict[tuple[int, bool], dict[str, RunnerChoice | None]]:
        return {}


class Hit(NamedTuple):
    """One place where a rule applies; the runner stamps code and severity on it."""

    path: str
    message: str
    label: str = ""
    related: tuple[tuple[str, str], ...] = ()
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
    """The versions in which it is so, if it depends on them: the runner adds a note, and softens what is past."""


class Rule(NamedTuple):
    """A rule of the catalogue."""

    code: str
    name: str
    severity: Severity
    check: Callable[[Context], Iterable[Hit]]
    needs: Need = "nothing"
    policy: bool = False
    """Whether vLLM takes it and specserve does not want it: a warning for a raw command."""

    @property
    def doc(self) -> str:
        """The manual page in Markdown: what, why, example, what to use instead, source."""
        from inspect import cleandoc

        heads = "Example|Use instead|Instead|Source"
        text, *parts = re.split(rf"^({heads}):", cleandoc(self.check.__doc__ or ""), flags=re.M)
        what, _, why = text.partition("\n\n")
        bodies = dict(zip(parts[::2], map(cleandoc, parts[1::2]), strict=True))
        if "Instead" in bodies:
            bodies["Use instead"] = _changed(bodies["Example"], bodies["Instead"])
        page = [what, "", "## Why is this bad?", why.strip()]
        for heading, indent in (("Example", "    "), ("Use instead", "    "), ("Source", "")):
            page += ["", f"## {heading}", *(f"{indent}{line}" for line in bodies[heading].splitlines())]
        return "\n".join(page)


def _changed(example: str, changes: str) -> str:
    """The example with these top-level keys instead of its own, or as well."""
    blocks = {}
    for block in re.split(r"^(?=\S)", f"{example}\n{changes}", flags=re.M):
        if block:
            blocks[block.partition(":")[0]] = block.rstrip()
    return "\n".join(blocks.values())


def rule(
    code: str, name: str, severity: Severity, *, needs: Need = "nothing", policy: bool = False
) -> Callable[[Callable[[Context], Iterable[Hit]]], Rule]:
    """Makes a rule of a function; `name` is the bad thing, so that it reads after the word allow."""

    def wrap(check: Callable[[Context], Iterable[Hit]]) -> Rule:
        return Rule(code, name, severity, check, needs, policy)

    return wrap
