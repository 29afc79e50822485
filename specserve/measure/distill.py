"""A draft trained on the traffic that it is to serve: answers, training, and proof that it pays.

Each stage leaves a file, so that it is done once.
"""

from __future__ import annotations

import hashlib
import json
import queue
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import FactError, Interrupted, UsageError
from specserve.files import private, state_folder, write_named
from specserve.measure.bench.passes import RUN, read_passes
from specserve.measure.bench.plan import PROFILE, BenchRequest
from specserve.measure.bench.run import run_benchmark
from specserve.measure.bench.summary import sample, speedup
from specserve.measure.servers import Outlet
from specserve.measure.verdict import COSTS, Estimate, rate, ratio, verdict
from specserve.measure.workloads import Prompt, read
from specserve.models.facts import local_path
from specserve.models.hub import find_snapshot, hub_cache
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile, Speculation
from specserve.profile.writer import write_alternatives
from specserve.serve.batch import generate
from specserve.serve.process import JsonChild, StopRequest, resolve_env, stop_on_signals

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


ALTERNATIVE = "distilled"


@dataclass(frozen=True, slots=True)
class Proof:
    """Both drafts, served in turns on the held-out prompts."""

    old_acceptance: float
    """Accepted over drafted tokens of the present draft."""
    new_acceptance: float
    gain: Estimate
    speedup: Estimate | None
    """Of the new draft over the present one."""


@dataclass(frozen=True, slots=True)
class Distilled:
    """A whole distillation; its fields are the keys of result.json."""

    name: str
    is_better: bool
    folder: str
    """The new draft."""
    proof: Proof | None = None
    """None: no state of the training was better on the validation prompts, and none was served."""
    notes: tuple[str, ...] = ()


def run_distillation(
    plan: DistillPlan,
    *,
    outlet: Outlet,
    generating: Callable[[], AbstractContextManager[Callable[[str], None]]],
    training: Callable[[Mapping[str, Any]], None],
) -> Distilled:
    """Answer, train, prove; a better draft becomes an alternative. Raises SpecserveError.

    `generating` and `training` show how far these two are.
    """
    folder, questions, say = plan.folder, plan.questions, outlet.notices.say
    answers, done_file = folder / "answers.jsonl", folder / "trained.json"
    parts = (("train on", plan.traffic.train), ("choose by", plan.traffic.validation))
    told = ", ".join(f"{len(some)} prompts to {purpose}" for purpose, some in parts)
    say(f"{told}, {len(plan.traffic.test)} held out: {folder}")
    if not answers.exists():
        say("the target answers them")
        lines = "".join(json.dumps(line) + "\n" for line in questions)
        data = plan.write("questions.jsonl", lines).read_bytes()
        with generating() as show:
            generate(plan.launch, data=data, path=answers, show=show, say=say)
    with answers.open(encoding="utf-8") as file:
        answered = sum("token_ids" in row for row in map(json.loads, file))
    if answered < len(questions) / 2:
        some = f"the target answered {answered} of {len(questions)} prompts"
        raise FactError(some, hint=f"`{answers}` says why")
    if not done_file.exists():
        say(f"training for {plan.request.train_for_s / 60:.0f} minutes at most")
        request = {
            "draft": str(plan.draft),
            "answers": str(answers),
            "out": str(folder),
            "budget_s": plan.request.train_for_s,
            "epochs": 20,
        }
        with stop_on_signals() as stop:
            done = train(request, log_path=folder / "train.log", stop=stop, on_event=training)
        plan.write(done_file.name, json.dumps(done))
    found = Distilled(
        name=plan.profile.name,
        is_better=False,
        folder=plan.new_block["model"],
        notes=plan.traffic.remarks,
    )
    if not Path(found.folder).is_dir():
        return found
    say("now both drafts are served")
    found = _proven(found, plan, outlet=outlet)
    if found.is_better and found.proof is not None:
        rates = f"{found.proof.old_acceptance:.2f} to {found.proof.new_acceptance:.2f}"
        remark = f"specserve distill: {date.today()}, acceptance {rates}"
        write_alternatives(plan.request.profile, {ALTERNATIVE: plan.new_block}, remark=remark)
    return found


def train(
    request: Mapping[str, Any],
    *,
    log_path: Path,
    stop: StopRequest,
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """The last message of the child that trains; `on_event` takes the others.

    Raises LaunchError with the log if it dies, Interrupted for a signal.
    """
    command = [sys.executable, "-P", "-m", "specserve.engine.distilling"]
    child = JsonChild(command, env=resolve_env({}), log_path=log_path)
    kept = "interrupted; the answers are kept, and the same command trains anew"
    try:
        child.tell(request)
        while not stop.count:
            try:
                message = child.receive(0.2)
            except queue.Empty:
                continue
            if message and message["event"] == "done":
                return message
            if message is None or message["event"] == "failed":
                child.wait()
                said = str(message["error"]) if message else ""
                raise child.death("train", said=said)
            on_event(message)
        raise Interrupted(kept, exit_code=128 + (stop.signal or signal.SIGINT))
    finally:
        child.close()


def _proven(found: Distilled, plan: DistillPlan, *, outlet: Outlet) -> Distilled:
    """Serve no draft, the present and the new one on what was held out. Raises SpecserveError."""
    is_cpu, place = plan.launch.platform == "cpu", plan.folder / "bench"
    lines = [line_of(each, each.id, each.max_tokens) for each in plan.traffic.test]
    file = plan.write("held-out.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    served = f"alternatives.{ALTERNATIVE}={json.dumps(plan.new_block, ensure_ascii=False)}"
    request = BenchRequest(
        profile=plan.request.profile,
        workloads=(str(file),),
        concurrency="4" if is_cpu else "8",
        alternatives=(ALTERNATIVE,),
        budget="6m" if is_cpu else "15m",
        max_tokens=plan.max_tokens,
        settings=(served,),
    )
    if (place / RUN).is_file():
        result, path = run_benchmark(BenchRequest(), output=None, resumed=str(place), outlet=outlet)
    else:
        result, path = run_benchmark(request, output=str(place), resumed=None, outlet=outlet)
    passes = read_passes(path)
    old, new = (
        [
            sample(each, seen.accepted_tokens, seen.draft_tokens)
            for each in passes
            if each.variant == name and (seen := each.acceptance) is not None
        ]
        for name in (PROFILE, ALTERNATIVE)
    )
    gain, old_rate, new_rate = ratio(new, against=old), rate(old), rate(new)
    if gain is None or old_rate is None or new_rate is None:
        raise FactError("the held-out answers are too short to tell anything")
    faster = speedup(passes, variant=ALTERNATIVE, against=PROFILE, at=result.cells[0].point)
    is_slower = faster is not None and verdict(faster).word == COSTS
    return replace(
        found,
        is_better=gain.bounds()[0] > 1 and not is_slower,
        proof=Proof(
            old_rate.value,
            new_rate.value,
            gain.estimate,
            faster.estimate if faster is not None else None,
        ),
    )
