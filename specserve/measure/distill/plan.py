"""A distillation before it starts: the profile, its draft, the traffic in parts, and its folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import FactError, UsageError
from specserve.files import write_named
from specserve.measure.workloads.load import Prompt, read
from specserve.models.hub import find_snapshot, hub_cache
from specserve.models.read import local_path
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile, Speculation
from specserve.serve.files import private, state_folder

MIN_PROMPTS = 100
"""Different prompts below which a held-out part says nothing."""
_WORDS, _ALIKE = 8, 0.5
"""Words of an n-gram; the share of a prompt's n-grams in earlier parts that leaves it out."""
_TEMPLATE, _OWN_NGRAMS = 50, 12
"""An n-gram in more prompts is a template's, unless a prompt has fewer of its own beside those."""


@dataclass(frozen=True, slots=True)
class Split:
    """Prompts by what they are for."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    test: tuple[Prompt, ...]
    remarks: tuple[str, ...] = ()


def read_split(path: Path) -> Split:
    """The prompts of a file, split; the same each time. Raises FactError, also for too few."""
    found, remarks = read(path)
    prompts: dict[str, Prompt] = {}
    for prompt in found:  # those that differ in blanks alone are equal
        prompts.setdefault(" ".join(prompt.content.split()), prompt)
    if len(prompts) < MIN_PROMPTS:
        raise FactError(
            f"`{path}` has {len(prompts)} different prompts; {MIN_PROMPTS} are needed",
            hint="a day of requests usually has more",
        )
    ngrams = {key: ngrams_of(prompt) for key, prompt in prompts.items()}
    count = Counter(gram for each in ngrams.values() for gram in each)
    for key, each in ngrams.items():
        rare = frozenset(gram for gram in each if count[gram] <= _TEMPLATE)
        ngrams[key] = rare if len(rare) >= _OWN_NGRAMS else each
    # near-duplicates mostly have the same smallest hash: they become neighbours, in one part
    order = sorted(prompts, key=lambda key: (min(ngrams[key]), key))
    fifth, tenth = len(order) // 5, len(order) // 10
    parts = [order[fifth + tenth :], order[fifth:][:tenth], order[:fifth]]
    seen, chosen = set[int](), list[tuple[Prompt, ...]]()
    for keys in parts:
        kept = [key for key in keys if len(ngrams[key] & seen) < _ALIKE * len(ngrams[key])]
        seen.update(*(ngrams[key] for key in kept))
        chosen.append(tuple(prompts[key] for key in kept))
        if len(kept) < len(keys) // 2:
            raise FactError(
                f"the prompts of `{path}` are too alike: most of {len(keys)} prompts to hold out "
                "are near-duplicates of others",
                hint="use traffic of more users or of more days",
            )
    train, validation, test = chosen
    return Split(train, validation, test, tuple(remarks))


def ngrams_of(prompt: Prompt) -> frozenset[int]:
    """Hashes of the n-grams of what users wrote: of messages, those of the system are left out."""
    said = [each for each in prompt.messages or () if each["role"] not in ("system", "developer")]
    text = "\n".join([prompt.text or "", *(each["content"] for each in said)])
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    width = min(_WORDS, len(words)) or 1
    texts = (" ".join(words[at : at + width]) for at in range(max(1, len(words) - width + 1)))
    hashes = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return frozenset(map(int.from_bytes, hashes))


@dataclass(frozen=True, slots=True)
class DistillRequest:
    """The options of `distill`."""

    profile: str
    traffic: str
    train_for_s: float = 600.0


@dataclass(frozen=True, slots=True)
class DistillPlan:
    """What a distillation does."""

    request: DistillRequest
    profile: Profile
    block: Speculation
    launch: LaunchPlan
    """The target alone."""
    draft: Path
    traffic: Split

    @property
    def max_tokens(self) -> int:
        """Of an answer, at most."""
        return 64 if self.launch.platform == "cpu" else 256

    @property
    def questions(self) -> list[dict[str, Any]]:
        """The lines for `generate`; an id begins with its part.

        Each prompt is answered at its own temperature; the draft learns from the likeliest tokens.
        """
        parts = {"train": self.traffic.train, "validation": self.traffic.validation}
        return [
            line_of(prompt, f"{part}/{number}", self.max_tokens)
            | {"temperature": prompt.temperature or 0.0, "logprobs": 10}
            for part, prompts in parts.items()
            for number, prompt in enumerate(prompts)
        ]

    @property
    def folder(self) -> Path:
        """Where all that it makes is kept: another one for another profile, traffic or time."""
        keys = json.dumps(dict(self.block.keys), default=str)
        test = [prompt.body for prompt in self.traffic.test]
        said = [self.launch.fingerprint, keys, self.request.train_for_s, self.questions, test]
        mark = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]
        return state_folder() / "distill" / f"{self.profile.name}-{mark}"

    @property
    def new_block(self) -> dict[str, Any]:
        """The `speculation` block of the new draft."""
        keys = {key: value for key, value in self.block.keys.items() if key != "revision"}
        return {**keys, "model": str(self.folder.resolve() / "draft")}

    def write(self, name: str, text: str) -> Path:
        """Write a file into the folder, for its owner alone. Raises FactError."""
        file = self.folder / name
        try:
            private(self.folder).chmod(0o700)  # it holds what users wrote
        except OSError as error:
            raise FactError(f"cannot write `{file}`: {error.strerror}") from error
        write_named(file, text, mode=0o600)
        return file


def line_of(prompt: Prompt, identity: str, max_tokens: int) -> dict[str, Any]:
    """A line of `generate`, or of a file for `bench`."""
    return {"id": identity, **prompt.body, "max_tokens": min(prompt.max_tokens, max_tokens)}


def plan_distillation(
    request: DistillRequest, *, notices: Notices, starts: bool = True
) -> DistillPlan:
    """The plan; `starts`: it is carried out. Raises SpecserveError."""
    from specserve.checks.prepare import prepare
    from specserve.plan.launch import LaunchOptions
    from specserve.profile.load import load_profile

    if request.profile == "-":
        raise UsageError("`distill` cannot read a profile from stdin: it could not be resumed")
    traffic = read_split(Path(request.traffic))
    block = load_profile(request.profile).speculation
    if block is None or not block.model or block.method != "draft_model":
        method = f"it speculates by `{block.method}`" if block else "it does not speculate"
        raise UsageError(
            f"`{request.profile}` has no draft model to train: {method}",
            hint="`specserve drafts` lists draft models; docs/distill.md says what trains heads",
        )
    if block.keys.get("parallel_drafting"):
        raise UsageError("`distill` does not train a draft with parallel drafting")
    options = LaunchOptions(alternative="baseline", starts=starts, check=starts)
    profile, launch = prepare(request.profile, options, notices=notices)
    revision = block.keys.get("revision")
    draft = local_path(block.model) or find_snapshot(
        block.model, revision=revision, cache=hub_cache()
    )
    if draft is None:
        hint = "`specserve pull PROFILE` downloads it"
        raise FactError(f"the draft `{block.model}` is not in the Hub cache", hint=hint)
    return DistillPlan(request, profile, block, launch, draft, traffic)
