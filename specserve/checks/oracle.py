"""Asks vLLM's own code about a launch, for GPUs that need not be there: a child process answers.

The child is `engine/oracle.py`. It gets the exact command line, with each model as a folder that holds its config.json
alone, and what safetensors headers say: no code of a model runs, and no weight is read. Answers are kept by
configuration, version and GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specserve import __version__, engine
from specserve.checks.oraclechild import (
    CHILD,
    VllmArgument,
    VllmVerdict,
    child_of,
    keep_answer,
    kept_answer,
)
from specserve.checks.rule import Context
from specserve.checks.rules.memory import machine_words
from specserve.errors import FactError
from specserve.hardware.accelerators import Machine
from specserve.memory.inputs import HEADS, memory_inputs
from specserve.memory.reserve import reserve
from specserve.models.facts import ModelFacts
from specserve.models.hub import fact_cache
from specserve.plan.launch import with_models
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Speculation

LIMIT_S = 300.0
_WHEEL = "name a wheel of vLLM, or a folder with its files: `vllm` and one that ends in `.dist-info`"
_KEPT = (".py", ".json", "/METADATA", "/entry_points.txt")
"""What the configuration code reads of a wheel; the kernels are most of its size."""
_MOST_BYTES = 1 << 30
_TARGET, _DRAFT = "target", "draft"
_TABLES = ("embed_tokens", "lm_head")


@dataclass(frozen=True, slots=True)
class VllmJudge:
    """The vLLM that is asked. `source`: a folder that holds its package; None for the installed one."""

    version: str
    source: Path | None = None


def vllm_to_ask(source: Path | None) -> VllmJudge:
    """The installed vLLM, or the one in a wheel or in a folder that holds its package. Raises FactError."""
    if source is None:
        from specserve.vllm.versions import installed

        found = installed()
        if found is None:
            hint = "name a wheel of vLLM, or a folder with its files; nothing is installed"
            text = "vLLM is not installed in specserve's environment, so it cannot be asked"
            raise FactError(text, hint=hint)
        return VllmJudge(found.version)
    if not source.exists():
        raise FactError(f"there is no file or folder `{source}`", hint=_WHEEL)
    folder = _unpacked(source) if source.is_file() else source
    metadata = sorted(folder.glob("vllm*.dist-info/METADATA"))
    if not (folder / "vllm" / "__init__.py").is_file() or not metadata:
        raise FactError(f"{source} does not contain vLLM", hint=_WHEEL)
    return VllmJudge(Distribution.at(metadata[0].parent).version, folder.resolve())


def _unpacked(wheel: Path) -> Path:
    """The folder in the cache with the wheel's Python files, by their checksums. Raises FactError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            items = [item for item in archive.infolist() if item.filename.endswith(_KEPT)]
            if sum(item.file_size for item in items) > _MOST_BYTES:
                raise FactError(f"{wheel} contains more than {_MOST_BYTES >> 30} GiB of Python files")
            digest = hashlib.sha256(repr([(item.filename, item.CRC) for item in items]).encode())
            folder = fact_cache() / "wheels" / f"{wheel.stem}-{digest.hexdigest()[:12]}"
            if not folder.is_dir():
                folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                part = Path(tempfile.mkdtemp(dir=folder.parent))
                try:
                    archive.extractall(part, items)  # checks every CRC, and writes nothing outside of it
                    part.rename(folder)
                except OSError:
                    if not folder.is_dir():  # another check was faster
                        raise
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        hint = "name a wheel (.whl) of vLLM, or a folder with its files"
        raise FactError(f"cannot read {wheel} as a wheel: {error}", hint=hint) from error
    return folder


@dataclass(frozen=True, slots=True)
class VllmQuestion:
    """One launch, with what is known of its models."""

    plan: LaunchPlan
    target: ModelFacts
    draft: ModelFacts | None = None
    method: str | None = None
    beside: tuple[int, ...] = ()
    """What vLLM takes beside weights and KV cache, at most and at least: it plans for what each leaves."""


def judgements(
    context: Context,
    shapes: Mapping[str, ModelFacts],
    *,
    vllm: VllmJudge,
    kept_only: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[VllmVerdict, ...]:
    """What vLLM says of every variant and of the launch without speculation.

    `shapes`: the models by path of their block.
    Variants whose models are not known are left out. With `kept_only` the answers of earlier checks are all that
    there is. Raises FactError, and UsageError for what cannot be planned.
    """
    from specserve.plan.launch import launch
    from specserve.vllm.versions import table

    machine = context.machine
    assert machine is not None
    if kept_only and not _folder().is_dir():
        return ()
    blocks: dict[str, Speculation | None] = {"": None}
    for variant in context.variants:
        if variant.model is None or variant.method == "custom_class" or variant.path in shapes:
            blocks[variant.path] = variant.block
    questions = []
    for path, block in blocks.items():
        profile, platform = replace(context.profile, speculation=block), "cpu" if machine.is_cpu else "cuda"
        plan = launch(profile, table=table(vllm.version), platform=platform, version=vllm.version)
        target, draft = shapes["target"], shapes.get(path)
        beside: tuple[int, ...] = ()
        with contextlib.suppress(FactError):
            inputs = memory_inputs(
                profile, target=target, machine=machine, version=vllm.version, speculation=block, draft=draft
            )
            band = reserve(inputs)
            beside = (int(band.high), int(band.low))
        questions.append(VllmQuestion(plan, target, draft, block.method if block else None, beside))
    answers = ask(questions, machine=machine, vllm=vllm, kept_only=kept_only, tell=tell)
    if not answers:
        return ()
    without, *others = map(as_far_as_known, answers, questions)
    basis = f"vLLM {vllm.version}, {machine_words(machine)}"
    if not others:
        return (replace(without, basis=basis),)
    named = zip(list(blocks)[1:], others, strict=True)
    return tuple(replace(answer, path=path, without=without, basis=basis) for path, answer in named)


def ask(
    questions: Sequence[VllmQuestion],
    *,
    machine: Machine,
    vllm: VllmJudge,
    kept_only: bool = False,
    command: Sequence[str] | None = None,
    limit_s: float = LIMIT_S,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[VllmVerdict, ...]:
    """An answer for each question, in one child if any of them is new: about 10 s. Raises FactError.

    Whole answers are kept. With `kept_only` no child is started: empty if an answer is not in the cache.
    """
    setting, found = _setting(machine, vllm), []
    for request in map(_request, questions):
        key = [request, setting, vllm.version, libraries(), __version__, _child_digest()]
        name = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:32]
        answer = kept_answer(file := _folder() / f"{name}.json")
        if answer is None and kept_only:
            return ()
        if answer is None:
            tell("asking vLLM, about 10 s")
            answer = child_of((*(command or CHILD), *setting)).ask(request, limit_s=limit_s)
            if "not_judged" not in answer and not answer.get("skipped"):
                keep_answer(file, answer)  # what is not here today, such as a library, may be here tomorrow
        found.append(answer)
    try:
        return tuple(map(_read, found))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FactError(f"specserve cannot read the answer of vLLM {vllm.version}") from error


def as_far_as_known(answer: VllmVerdict, question: VllmQuestion) -> VllmVerdict:
    """A refusal says nothing about a model of which only a part of its configuration is known."""
    models = (question.target, question.draft)
    if answer.refused is None or all(facts is None or facts.is_whole for facts in models):
        return answer
    why = f"only the published part of a configuration is known, and vLLM refuses it: {answer.refused}"
    return VllmVerdict(not_judged=why)


def _request(question: VllmQuestion) -> dict[str, Any]:
    """The command line with folders in the place of models; the child makes them."""
    target, draft, is_head = question.target, question.draft, question.method in HEADS
    plan = with_models(question.plan, target=_TARGET, draft=_DRAFT if draft else None)
    models = {_TARGET: _config(target)} | ({_DRAFT: _config(draft)} if draft else {})
    env = {
        name: value
        for name, value in question.plan.env.items()
        if isinstance(value, str) and name.startswith("VLLM_") and "KEY" not in name
    }
    tensors = {_TARGET: _tensors(target)}
    if is_head or draft is not None:
        tensors[_DRAFT] = _tensors(draft or target)  # stages inside the target are read from its checkpoint
    lacks = _lacks(draft) if is_head else []
    build = {"draft_lacks": lacks, "beside": question.beside, "tensors": tensors}
    return {"argv": list(plan.argv[2:]), "env": env, "models": models, "build": build}


def _tensors(facts: ModelFacts) -> list[tuple[str, str, tuple[int, ...]]]:
    tensors = facts.tensors or {}
    return [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]


def _lacks(draft: ModelFacts | None) -> list[str]:
    """The tables that a head's checkpoint does not bring, and so shares with its target."""
    if draft is None:
        return list(_TABLES)
    if draft.tensors is None:
        return ["embed_tokens"]
    return [table for table in _TABLES if not any(table in name for name in draft.tensors)]


def _config(facts: ModelFacts) -> dict[str, Any]:
    return {key: value for key, value in facts.config.items() if key != "auto_map"}


def _setting(machine: Machine, vllm: VllmJudge) -> list[str]:
    """The options of the child: what it pretends to have (on the CPU, nothing), and the vLLM that it asks."""
    kind, words = machine.accelerator, ["--count", str(machine.count * machine.nodes)]
    if not machine.is_cpu:
        if kind.vendor != "nvidia" or kind.compute_capability is None:
            text = f"specserve can ask vLLM about NVIDIA GPUs and the CPU, but not about {kind.name}"
            raise FactError(text)
        capability, size = list(kind.compute_capability), int(kind.total_bytes)
        gpu = {"name": f"NVIDIA {kind.name}", "capability": capability, "total_bytes": size}
        words += ["--gpu", json.dumps(gpu)]
    return words + (["--source", str(vllm.source)] if vllm.source else [])


@lru_cache
def libraries() -> dict[str, str]:
    """The versions of what decides beside vLLM: it reads configurations by the one, and builds models of the other."""
    found = {}
    for name in ("transformers", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@lru_cache
def _child_digest() -> str:
    """Another child may answer otherwise."""
    files = sorted(Path(engine.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _folder() -> Path:
    return fact_cache() / "oracle"


def _read(answer: Mapping[str, Any]) -> VllmVerdict:
    plain = ("refused", "not_judged", "at", "step", "effective", "build", "skipped")
    found = {name: answer[name] for name in plain if name in answer}
    for name in ("warnings", "infos"):
        found[name] = tuple(item["text"] for item in answer.get(name, ()))
    asked = tuple(VllmArgument(**item) for item in answer.get("asked", ()))
    return VllmVerdict(**found, loc=tuple(answer.get("loc", ())), asked=asked)
