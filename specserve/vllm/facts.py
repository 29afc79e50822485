"""What holds in which vLLM: facts, tables, its models, what fails together, what was replaced.

A fact is a value by the first minor that has it, oldest first. In the tables an item of a section
may say `since` (the first minor that has it), `until` (the first that no longer does) and `changed`
(what it says otherwise in an older minor); scripts/update_vllm.py writes them.

The combinations stand in features.json, back to 0.19. `when` holds what must be so; `*` is any
value, null none, a list one of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

FOLDER = Path(__file__).parent  # importlib.resources costs a lint 6 ms
T = TypeVar("T")
RAY_PIN = "Ray 2.60 asks for vLLM 0.29 by itself"
EXAMPLE_RANGE = ">=0.32,<0.34"
"""A version range for hints and documentation."""

INVERSE_FLAGS = {"0.31": False, "0.33": True}
"""`--disable-x` is the opposite of `--enable-x`, and the other way round."""
SMALL_GB10 = {"0.31": False, "0.33": True}
"""A GB10 takes the steps of a small GPU, whatever its memory."""
SHORTENS_TARGET = {"0.31": False, "0.33": True}
"""The server's context is lowered to that of a shorter draft model."""
STRETCHES_BLOCK_HEADS = {"0.31": False, "0.33": True}
"""A head that drafts all K tokens at once gets as many positions as its target is served with."""
SHOWN = {
    "INVERSE_FLAGS": ("utils/argparse_utils.py", "class EnableDisableAction"),
    "SMALL_GB10": ("engine/arg_utils.py", "current_platform.is_device_capability((12, 1))"),
    "SHORTENS_TARGET": ("config/vllm.py", "def _limit_max_model_len_to_draft(self) -> None:"),
    "STRETCHES_BLOCK_HEADS": (
        "config/speculative.py",
        "# Every draft but an independent model shares the target's",
    ),
}
"""The file of vLLM and the line in it that every version of a fact's newest value has, no older."""


@lru_cache(maxsize=256)
def minor(version: str) -> tuple[int, int]:
    """(0, 32) of `0.32.1+cpu`; (0, 0) for a text that starts with no version."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def at(fact: Mapping[str, T], version: str) -> T:
    """A fact's value in a version such as `0.32.1+cpu`; one older than all gets the first value."""
    found = [value for first, value in fact.items() if minor(first) <= minor(version)]
    return found[-1] if found else next(iter(fact.values()))


@lru_cache
def merged(name: str) -> Mapping[str, Any]:
    """A whole table: `versions` (the release by minor), and the sections by name."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return data


def items(section: Mapping[str, Mapping[str, Any]], version: str) -> dict[str, dict[str, Any]]:
    """The items of a section that one known minor has, as it has them."""
    found, this = {}, minor(version)
    for name, item in section.items():
        values = dict(item)
        since, until, changed = (values.pop(mark, None) for mark in ("since", "until", "changed"))
        if (not since or minor(since) <= this) and (not until or this < minor(until)):
            found[name] = {**values, **(changed or {}).get(version, {})}
    return found


Kind = Literal["text", "pooling", "multimodal", "draft", "transformers"]
Trait = Literal["pp", "eagle3", "aux_pp", "lora"]


class ModelClass(NamedTuple):
    """One name of vLLM's model registry.

    `kind`: what it serves; `draft` only speculates, `transformers` runs on the backend of that
    library.
    """

    kind: Kind
    traits: frozenset[str] = frozenset()
    """`pp`: pipeline stages; `lora`: adapters; `eagle3`: it hands hidden states to a head;
    `aux_pp`: over stages, too. `?`: it could not be imported, and may have more."""


class Registry(NamedTuple):
    """What one vLLM version can load."""

    classes: Mapping[str, ModelClass]
    """By the name that `architectures` of config.json has."""
    mtp: frozenset[str]
    """Model types and architectures that `method: mtp` takes; each stands as vLLM compares it."""
    speculators: frozenset[str]
    """Values of `speculators_model_type` that it reads."""

    def class_of(self, architectures: Iterable[str]) -> ModelClass | None:
        """That of the first of these names that it knows, which is the one it takes."""
        return next((self.classes[name] for name in architectures if name in self.classes), None)

    def has_kind(self, architectures: Iterable[str], kind: Kind) -> bool:
        """Whether the class that it takes is of this kind."""
        found = self.class_of(architectures)
        return found is not None and found.kind == kind

    def lacks(self, architectures: Iterable[str], trait: Trait) -> bool:
        """Whether it is known to serve such a model without a trait, such as adapters."""
        found = self.class_of(architectures)
        serves = found is not None and found.kind in ("text", "multimodal")
        return found is not None and serves and not found.traits & {trait, "?"}


@lru_cache
def registry(minor: str) -> Registry:
    """The registry of a known minor version, `0.33`."""
    data = merged("models")
    classes = {}
    for name, item in items(data["classes"], minor).items():
        kind, *traits = item["is"].split()
        classes[name] = ModelClass(kind, frozenset(traits))
    return Registry(
        classes=classes,
        mtp=frozenset(items(data["mtp"], minor)),
        speculators=frozenset(items(data["speculators"], minor)),
    )


OLDER = tuple(f"0.{number}" for number in range(19, 31))
"""The minors that only the rows know, oldest first."""


class Feature(NamedTuple):
    """One combination, in the versions in which it fails."""

    text: str
    severity: str
    source: str
    """Threads, or the file of vLLM that shows it."""
    since: str = OLDER[0]
    until: str | None = None
    """The first minor that is sound again."""
    methods: tuple[str, ...] = ()
    """Empty: whatever drafts."""
    when: Mapping[str, Any] = {}
    place: str = "method"
    """The key of the block at which it is reported."""
    help: str | None = None

    def minors(self, newest: str) -> list[str]:
        """The minors in which it fails, up to the newest."""
        last = _number(newest) + 1
        until = min(_number(self.until), last) if self.until else last
        return [f"0.{number}" for number in range(_number(self.since), until)]

    def applies(self, value: Callable[[str], Any]) -> bool:
        """Whether a block of such a method is this combination. `value` answers for `when`."""
        return all(_matches(value(name), wanted) for name, wanted in self.when.items())


def _matches(found: Any, wanted: Any) -> bool:
    if wanted == "*" or isinstance(wanted, list):
        return found is not None if wanted == "*" else found in wanted
    return found == wanted and type(found) is type(wanted)


def _number(minor: str) -> int:
    return int(minor.partition(".")[2])


@lru_cache
def features(method: str | None = None) -> tuple[Feature, ...]:
    """Every row, or those that a method can meet."""
    if method:
        return tuple(row for row in features() if not row.methods or method in row.methods)
    text = Path(__file__).with_name("features.json").read_text(encoding="utf-8")
    return tuple(
        Feature(**{**row, "methods": tuple(row.get("methods", ()))}) for row in json.loads(text)
    )


@dataclass(frozen=True, slots=True)
class Replacement:
    """What became of an argument, a key or a variable."""

    why: str = ""
    now: str | None = None
    """Its dotted place in a profile; None if nothing took its place."""
    values: Mapping[str, Any] | None = None
    """The value of today by the earlier one as JSON, `*` for any other; None: the same ones."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What has to be set beside it, by dotted place."""


_DATA = json.loads((FOLDER / "replacements.json").read_text(encoding="utf-8"))
ARGUMENTS, KEYS, VARIABLES = (  # keys of a mapping are dotted
    {key: Replacement(**item) for key, item in _DATA[part].items()} for part in _DATA
)
