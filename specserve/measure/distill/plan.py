"""A distillation before it starts: the profile, its draft, the traffic in parts, and where everything is kept."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import FactError, UsageError
from specserve.files import write_whole
from specserve.measure.distill.traffic import Split, read_split
from specserve.measure.workloads.workload import Prompt
from specserve.models.hub import find_snapshot, hub_cache
from specserve.models.read import local_path
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile, Speculation
from specserve.serve.files import private, read_own, state_folder

RUN = "run.json"
VERSION = 1
OLD_SHARE = 0.25
"""Of the training batches with `--mix`: enough to keep what the draft knows (docs/distill.md)."""
EPOCHS = 20
"""Most passes over the answers; the best state by the validation prompts is kept."""
TRAINED = frozenset({"draft_model", "eagle3", "dflash", "dspark", "mtp"})
SIMULATED_K = 4
"""If neither the profile nor the draft says K."""
_LIKELIEST = 10
"""Tokens of each position that a draft model learns from, with their probabilities."""
_CPU_TOKENS, _GPU_TOKENS = 64, 256
_TEMPERATURES = (0.7, 1.0)
"""Of further answers where requests are greedy or few: a draft also learns from what is less likely."""
_ENOUGH = {"cpu": 450, "cuda": 4000}
"""Answers to train on, by platform; if there are more prompts, each gets one."""


@dataclass(frozen=True, slots=True)
class DistillRequest:
    """The options of `distill`."""

    profile: str
    traffic: str
    mix: str | None = None
    train_for_s: float = 600.0
    max_tokens: int | None = None
    output: str | None = None
    python: str | None = None
    """Trains heads, if this Python cannot."""


def line_of(prompt: Prompt, identity: str, most_tokens: int) -> dict[str, Any]:
    """A line of `generate`, or of a file for `bench`."""
    return {"id": identity, **prompt.body, "max_tokens": min(prompt.max_tokens, most_tokens)}


@dataclass(frozen=True, slots=True)
class DistillPlan:
    """What a distillation does."""

    request: DistillRequest
    profile: Profile
    block: Speculation
    launch: LaunchPlan
    """The target alone."""
    draft: Path | None
    """The folder of the present draft; None for heads that are not trained here."""
    target: Path | None
    """The folder of the target, for a head: it learns from the target's hidden states."""
    k: int
    new: Split
    old: Split | None
    max_tokens: int
    place: Path

    @property
    def trained(self) -> Path:
        """The folder of the new draft."""
        return self.place / "draft"

    @property
    def new_block(self) -> dict[str, Any]:
        """The `speculation` block of the new draft."""
        keys = {key: value for key, value in self.block.keys.items() if key != "revision"}
        return {**keys, "model": str(self.trained.resolve())}

    @property
    def questions(self) -> list[dict[str, Any]]:
        """The lines for `generate`, in the order of parts."""
        found = [*self._training("train", self.new.train, enough=self.enough), *self._held_out("", self.new)]
        if self.old:
            found += self._training("old-train", self.old.train, enough=self.enough // 4)
            found += self._held_out("old-", self.old)
        return found

    def _training(self, part: str, prompts: tuple[Prompt, ...], *, enough: int) -> Iterator[dict[str, Any]]:
        """Each prompt at its own temperature, and while answers are few, once or twice at others."""
        more = max(0, min(len(_TEMPERATURES), enough // max(1, len(prompts)) - 1))
        likeliest = _LIKELIEST if self.block.method == "draft_model" else 1
        for prompt in prompts:
            for number, temperature in enumerate((prompt.temperature or 0.0, *_TEMPERATURES[:more])):
                line = line_of(prompt, f"{part}/{prompt.id}/{number}", self.max_tokens)
                yield {**line, "temperature": temperature, "logprobs": likeliest}

    def _held_out(self, mark: str, split: Split) -> Iterator[dict[str, Any]]:
        """Greedy answers: for them, what a draft would have guessed can be told without serving it."""
        for part, prompts in (("validation", split.validation), ("test", split.test)):
            for prompt in prompts:
                line = line_of(prompt, f"{mark}{part}/{prompt.id}", self.max_tokens)
                yield {**line, "temperature": 0.0, "logprobs": 1}

    @property
    def enough(self) -> int:
        """Answers to train on, unless there are more prompts."""
        return _ENOUGH.get(self.launch.platform, _ENOUGH["cuda"])

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it another distillation: only the same one is resumed."""
        lines = json.dumps(self.questions, sort_keys=True)
        return {
            "version": VERSION,
            "fingerprint": self.launch.fingerprint,
            "speculation": json.loads(json.dumps(dict(self.block.keys), default=str)),
            "questions_sha256": hashlib.sha256(lines.encode()).hexdigest(),
            "train_for_s": self.request.train_for_s,
        }

    def write(self, name: str, text: str) -> Path:
        """Write a file into the folder, for its owner alone. Raises FactError."""
        try:
            write_whole(self.place / name, text, mode=0o600)
        except OSError as error:
            raise FactError(f"cannot write `{self.place / name}`: {error.strerror}") from error
        return self.place / name


def plan_distillation(request: DistillRequest, *, notices: Notices, starts: bool = True) -> DistillPlan:
    """Return profile, draft and traffic. Raises ProfileError, CheckFailed, UsageError, FactError."""
    from specserve.checks.prepare import cleared
    from specserve.plan.launch import LaunchOptions

    if request.profile == "-":
        raise UsageError("`distill` cannot read a profile from stdin because it could not be resumed")
    new = read_split(Path(request.traffic))
    old = read_split(Path(request.mix), is_mix=True) if request.mix else None
    options = LaunchOptions(alternative="baseline", starts=starts, check=starts)
    profile, launch = cleared(request.profile, options, notices=notices)
    block = _block(request.profile)
    folder = target = None
    if _is_trainable(block, request.python):
        folder = _folder(str(block.model), block.keys.get("revision"), what="draft")
        if block.method != "draft_model":
            target = _folder(profile.target.model, profile.target.revision, what="target")
    tokens = request.max_tokens or (_CPU_TOKENS if launch.platform == "cpu" else _GPU_TOKENS)
    k = block.num_speculative_tokens or SIMULATED_K
    place = Path(request.output) if request.output else _default_place(profile.name, request)
    return DistillPlan(request, profile, block, launch, folder, target, k, new, old, tokens, place)


def _block(path: str) -> Speculation:
    from specserve.profile.load import load_profile

    block = load_profile(path).speculation
    if block is None:
        raise UsageError(
            f"`{path}` does not speculate: there is no draft to train",
            hint="`specserve drafts` lists drafts to begin with",
        )
    if block.method not in TRAINED:
        raise UsageError(
            f"there is nothing to train for the method `{block.method}`",
            hint="`distill` trains draft models, and prepares data for heads (eagle3, dflash, dspark, mtp)",
        )
    return block


def _is_trainable(block: Speculation, python: str | None) -> bool:
    """Whether this draft is trained here: draft models are. Raises UsageError if `--python` cannot train a head."""
    is_eagle3 = block.method == "eagle3" and block.model and not block.keys.get("parallel_drafting")
    if python is not None and not is_eagle3:
        raise UsageError(
            f"`--python` is for EAGLE-3 heads without parallel drafting; this draft is `{block.method}`"
        )
    if block.method == "draft_model":
        return True
    if not is_eagle3 or has_speculators(python):
        return bool(is_eagle3)
    if python is None:
        return False
    raise UsageError(
        f"`--python {python}` has no speculators",
        hint="docs/distill.md says how to install it; `make heads` does it beside the CPU engine",
    )


def _folder(model: str, revision: str | None, *, what: str) -> Path:
    here = local_path(model)
    if here is not None:
        return here
    snapshot = find_snapshot(model, revision=revision, cache=hub_cache())
    if snapshot is None:
        raise FactError(
            f"the {what} `{model}` is not in the Hub cache", hint="`specserve pull PROFILE` downloads it"
        )
    return snapshot


def _default_place(name: str, request: DistillRequest) -> Path:
    """The same folder for the same request, so that the same command resumes."""
    words = json.dumps(
        [str(Path(request.profile).resolve()), str(Path(request.traffic).resolve()), request.mix]
    )
    mark = hashlib.sha256(words.encode()).hexdigest()[:8]
    return state_folder() / "distill" / f"{name}-{mark}"


def open_place(plan: DistillPlan) -> bool:
    """Make the folder, or find the same distillation in it; whether it was begun before.

    Raises UsageError if something else is there, FactError if it cannot be written.
    """
    place, wanted = plan.place, plan.identity
    try:
        if (place / RUN).is_file():
            found = json.loads(read_own(place / RUN, most_bytes=1 << 20))
            if found != wanted:
                raise UsageError(
                    f"`{place}` holds another distillation: profile, traffic or options have changed",
                    hint="`-o` with another folder starts over",
                )
            return True
        if place.exists() and any(place.iterdir()):
            raise UsageError(f"`{place}` exists already", hint="use another `-o`")
        private(place)
        place.chmod(0o700)  # it holds what users wrote
        (place / "logs").mkdir(mode=0o700)
        write_whole(place / RUN, json.dumps(wanted, indent=2) + "\n", mode=0o600)
    except (OSError, ValueError) as error:
        raise FactError(f"cannot use `{place}`: {error}") from error
    return False


SPECULATORS = "0.9.0"
"""The version whose commands these are."""
KINDS = {"eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark", "mtp": "mtp"}
"""What speculators calls the heads of a method; EAGLE-3 with parallel drafting is `peagle`."""


def write_samples(plan: DistillPlan, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write the answers to train on as speculators reads them; the prompt counts nothing. Raises FactError."""
    lines = (
        {
            "input_ids": [*row["prompt_token_ids"], *row["token_ids"]],
            "loss_mask": [0] * len(row["prompt_token_ids"]) + [1] * len(row["token_ids"]),
        }
        for row in rows
        if str(row["id"]).startswith(("train/", "old-train/"))
    )
    return plan.write("speculators.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def commands(plan: DistillPlan, samples: Path) -> list[tuple[str, list[str]]]:
    """What to run, each with its reason: in an environment of its own, beside a clone of speculators."""
    target, place = plan.profile.target.model, plan.place
    kind = "peagle" if plan.block.keys.get("parallel_drafting") else KINDS[plan.block.method]
    head = ["--from-pretrained", plan.block.model] if plan.block.model else []
    longest = str(plan.profile.target.max_model_len or 8192)
    return [
        (
            "install the library in an environment of its own",
            ["pip", "install", f"speculators=={SPECULATORS}"],
        ),
        (
            "make its data set",
            [
                "speculators", "prepare-data", f"--model={target}", "--data", str(samples), "--output",
                str(place / "data"), "--seq-length", longest,
            ],
        ),
        (
            "serve hidden states of the target (a script in the library's repository)",
            ["python", "scripts/launch_vllm.py", target, "--", "--port", "8000"],
        ),
        (
            "train from the present head, beside that server",
            [
                "speculators", "train", "--speculator-type", kind, "--verifier-name-or-path", target, *head,
                "--data-path", str(place / "data"), "--vllm-endpoint", "http://localhost:8000/v1", "--save-path",
                str(place / "checkpoints"), "--total-seq-len", longest,
            ],
        ),
    ]  # fmt: skip


def has_speculators(python: str | None) -> bool:
    """Whether an interpreter, by default this one, can train heads. Raises UsageError if it does not run."""
    if python is None:
        return importlib.util.find_spec("speculators") is not None
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('speculators') is None)"
    try:
        done = subprocess.run([python, "-P", "-c", probe], check=False, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"`--python {python}` does not run: {error}") from None
    return done.returncode == 0
