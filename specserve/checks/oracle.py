"""Asks vLLM's own code about launches, for GPUs that need not be there: a child process answers.

The child is `engine/oracle.py`. It gets the exact command line, with each model as a folder that
holds its config.json alone, and what safetensors headers say: no code of a model runs, and no
weight is read. Answers are kept by configuration, version and GPU.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specserve import __version__, engine
from specserve.checks.oraclechild import (
    CHILD,
    VllmChange,
    VllmVerdict,
    answers,
    keep_answer,
    kept_answer,
)
from specserve.checks.rule import Context
from specserve.errors import FactError
from specserve.hardware.accelerators import Machine
from specserve.memory.inputs import memory_inputs
from specserve.memory.reserve import reserve
from specserve.models.facts import ModelFacts
from specserve.models.hub import answer_cache
from specserve.plan.launch import plainest, with_models
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Speculation
from specserve.vllm.speculation import METHODS

LIMIT_S = 300.0
_TARGET, _DRAFT = "target", "draft"
_TABLES = ("embed_tokens", "lm_head")
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048,
}  # fmt: skip
_HEAD = {**_LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 512}
_PLAINEST: tuple[dict[str, Any], ...] = tuple(
    {"argv": argv, "models": {_TARGET: _LLAMA, _DRAFT: _HEAD}} for argv in plainest(_TARGET, _DRAFT)
)
"""Launches that vLLM has nothing to say about: what it warns of is this machine, or vLLM itself."""


@dataclass(frozen=True, slots=True)
class VllmToAsk:
    """The vLLM that is asked. `source`: a folder that holds its package; None for the installed."""

    version: str
    source: Path | None = None


def vllm_in(folder: Path) -> VllmToAsk:
    """The vLLM whose package a folder holds. Raises FactError."""
    if folder.is_file():
        raise FactError(
            f"`{folder}` is a file", hint=f"run `unzip {folder} -d FOLDER`, and name that"
        )
    metadata = sorted(folder.glob("vllm*.dist-info/METADATA"))
    if not (folder / "vllm" / "__init__.py").is_file() or not metadata:
        hint = "name a folder with the files of a wheel: `vllm` and one in `.dist-info`"
        raise FactError(f"`{folder}` does not contain vLLM", hint=hint)
    version = Distribution.at(metadata[0].parent).version
    return VllmToAsk(version, folder.resolve())


@dataclass(frozen=True, slots=True)
class VllmQuestion:
    """One launch on a machine, with what is known of its models, and the vLLM that is asked."""

    plan: LaunchPlan
    machine: Machine
    vllm: VllmToAsk
    target: ModelFacts
    draft: ModelFacts | None = None
    method: str | None = None
    beside: tuple[int, ...] = ()
    """Bytes of a GPU beside weights and KV cache, at most and at least."""


def questions_about(
    context: Context, shapes: Mapping[str, ModelFacts], *, vllm: VllmToAsk
) -> dict[str, VllmQuestion]:
    """The launch without speculation, under an empty path, and that of each variant.

    `shapes`: the models by path of their block. Variants whose models are not known are left out.
    Raises FactError for a machine that cannot be pretended, UsageError for what cannot be planned.
    """
    from specserve.plan.launch import launch, without_additions
    from specserve.vllm.versions import installed, table

    machine, found = context.machine, {}
    assert machine is not None
    if not machine.is_cpu and (kind := machine.accelerator).vendor != "nvidia":
        raise FactError(f"vLLM can be asked about NVIDIA GPUs and the CPU, not about {kind.name}")
    here = installed() if vllm.source is None else None
    accepted = table(here.version if here else vllm.version)
    blocks: dict[str, Speculation | None] = {"": None}
    for variant in context.variants:
        if variant.model is None or variant.method == "custom_class" or variant.path in shapes:
            blocks[variant.path] = variant.block
    for path, block in blocks.items():
        profile = replace(context.profile, speculation=block)
        platform = "cpu" if machine.is_cpu else "cuda"
        plan = launch(profile, table=accepted, platform=platform, version=vllm.version)
        plan = plan if accepted.exact else without_additions(plan)
        target, draft = shapes["target"], shapes.get(path)
        method, beside = block.method if block else None, tuple[int, ...]()
        known: dict[str, Any] = {"target": target, "draft": draft, "speculation": block}
        with suppress(FactError):
            band = reserve(memory_inputs(profile, machine=machine, version=vllm.version, **known))
            beside = (int(band.high), int(band.low))
        found[path] = VllmQuestion(plan, machine, vllm, target, draft, method, beside)
    return found


def ask(
    questions: Sequence[VllmQuestion],
    *,
    command: Sequence[str] | None = None,
    before: Callable[[], None] = lambda: None,
    limit_s: float = LIMIT_S,
) -> tuple[VllmVerdict, ...]:
    """A verdict for each question; `before` is called if one of them is new, and takes a child.

    There is one child for each kind of GPU. Whole answers of the installed vLLM are kept.
    """
    verdicts: dict[int, VllmVerdict] = {}
    is_told = False
    for setting in dict.fromkeys(map(_setting, questions)):
        asked = {at: each for at, each in enumerate(questions) if _setting(each) == setting}
        vllm = next(iter(asked.values())).vllm
        plain = {_file(request, setting, vllm): request for request in _PLAINEST}
        files = {at: _file(_request(each), setting, vllm) for at, each in asked.items()}
        requests = plain | {files[at]: _request(each) for at, each in asked.items()}
        kept = {file: None if vllm.source else kept_answer(file) for file in requests}
        said = {file: answer for file, answer in kept.items() if answer is not None}
        new = [file for file in requests if file not in said]
        if new and not is_told:
            is_told = True
            before()
        try:
            found = answers(
                [*(command or CHILD), *setting], [requests[file] for file in new], limit_s=limit_s
            )
            for number, answer in found if new else ():
                said[new[number]] = answer
                is_whole = "not_judged" not in answer and not answer.get("skipped")
                if is_whole and vllm.source is None:
                    keep_answer(new[number], answer)  # what is not here may come
        except FactError as error:
            said = {file: {"not_judged": error.message} for file in new} | said
        usual = {item["at"] for file in plain for item in said[file].get("warnings", ())}
        verdicts |= {at: _read(said[files[at]], each, usual=usual) for at, each in asked.items()}
    return tuple(verdicts[at] for at in range(len(questions)))


def _read(answer: Mapping[str, Any], question: VllmQuestion, *, usual: set[str]) -> VllmVerdict:
    """A refusal says nothing about a model of which only a part of its config.json is known."""
    plain = ("refused", "not_judged", "at", "step", "effective", "build", "skipped")
    try:
        verdict = VllmVerdict(
            basis=f"vLLM {question.vllm.version}, {question.machine}",
            **{name: answer[name] for name in plain if name in answer},
            loc=tuple(answer.get("loc", ())),
            changed=tuple(VllmChange(**item) for item in answer.get("changed", ())),
            warnings=tuple(
                item["text"] for item in answer.get("warnings", ()) if item["at"] not in usual
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"specserve cannot read the answer of vLLM {question.vllm.version}"
        raise FactError(why) from error
    is_whole = question.target.is_whole and (question.draft is None or question.draft.is_whole)
    if verdict.refused is not None and not is_whole:
        why = "only the published part of a configuration is known, and vLLM refuses it"
        return VllmVerdict(basis=verdict.basis, not_judged=f"{why}: {verdict.refused}")
    return verdict


def _request(question: VllmQuestion) -> dict[str, Any]:
    """The command line with folders in the place of models; these are laid out for the child."""
    target, draft, method = question.target, question.draft, METHODS.get(question.method or "")
    is_head = method is not None and method.draft == "head"
    plan = with_models(question.plan, target=_TARGET, draft=_DRAFT if draft else None)
    models = {_TARGET: target} | ({_DRAFT: draft} if draft else {})
    # stages inside the target are read from its checkpoint
    tensors = (draft or target).tensors if draft or is_head else None
    lacks: list[str] = []
    if is_head and draft is not None and draft.tensors is None:
        lacks = ["embed_tokens"]
    elif is_head:  # the tables that its checkpoint does not bring, and so shares with its target
        own = draft.tensors or {} if draft else {}
        lacks = [table for table in _TABLES if not any(table in name for name in own)]
    return {
        "argv": list(plan.argv[2:]),
        "env": {
            name: value
            for name, value in question.plan.env.items()
            if isinstance(value, str) and name.startswith("VLLM_") and "KEY" not in name
        },
        "models": {
            role: {key: value for key, value in facts.config.items() if key != "auto_map"}
            for role, facts in models.items()
        },
        "build": {
            "draft_lacks": lacks,
            "draft_tensors": [
                (name, tensor.dtype, tensor.shape) for name, tensor in (tensors or {}).items()
            ],
            "beside": list(question.beside),
        },
        "count": question.machine.count * question.machine.nodes,
    }


def _setting(question: VllmQuestion) -> tuple[str, ...]:
    """The options of the child: the GPU it pretends to have, if any, and the vLLM that it asks."""
    kind, source = question.machine.accelerator, question.vllm.source
    words = ["--source", str(source)] if source else []
    if not question.machine.is_cpu:
        capability = list(kind.compute_capability or ())
        size = int(kind.total_bytes)
        gpu = {"name": f"NVIDIA {kind.name}", "capability": capability, "total_bytes": size}
        words += ["--gpu", json.dumps(gpu)]
    return tuple(words)


def _file(request: Mapping[str, Any], setting: Sequence[str], vllm: VllmToAsk) -> Path:
    """Where the answer is kept: its name says all that decides about the answer."""
    decides = [request, setting, vllm.version, libraries(), __version__, _digest()]
    text = json.dumps(decides, sort_keys=True, default=str)
    return answer_cache() / "oracle" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@lru_cache
def libraries() -> dict[str, str]:
    """The versions of what decides beside vLLM: configurations are read and models built by it."""
    found = {}
    for name in ("transformers", "torch"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@lru_cache
def _digest() -> str:
    """Of the child's code: another child may answer otherwise."""
    files = sorted(Path(engine.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
