"""Asks vLLM's own code about launches, for GPUs that need not be there: a child process answers.

The child is `engine/oracle.py`. It gets the exact command line, with each model as a folder that
holds its config.json alone: no code of a model runs, and no weight is read. Answers are kept by
configuration, version and GPU.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import Distribution, distributions
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
from specserve.plan.launch import launch
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile, Speculation, Target
from specserve.vllm.speculation import METHODS, SCHEDULE
from specserve.vllm.versions import known_versions, table

_TARGET, _DRAFT = "target", "draft"
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
_HEAD = {**_LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 512}
_PLAIN = Profile("", "plain", Target(_TARGET), engine={"max_num_seqs": 1})
_BLOCK = Speculation("eagle3", {"method": "eagle3", "model": _DRAFT, "num_speculative_tokens": 1})
_PLAINEST: tuple[dict[str, Any], ...] = tuple(
    {"argv": plan.argv[2:], "models": {_TARGET: _LLAMA, _DRAFT: _HEAD}}
    for plan in (
        launch(each, table=table(known_versions()[0]), platform="cuda", bare=True)
        for each in (_PLAIN, replace(_PLAIN, speculation=_BLOCK))
    )
)
"""Launches that vLLM has nothing to say about: what it warns of is this machine, or vLLM itself."""


@dataclass(frozen=True, slots=True)
class VllmToAsk:
    """The vLLM that is asked. `source`: a folder that holds its package; None for the installed."""

    version: str
    source: Path | None = None
    python: Path | None = None
    """The interpreter that asks, if it is another than this one."""
    whole: bool = False
    """Whether every value of its configuration is part of the answer."""


def vllm_in(folder: Path) -> VllmToAsk:
    """The vLLM whose package a folder holds. Raises FactError."""
    return VllmToAsk(distribution_in(folder).version, folder.resolve())


def distribution_in(folder: Path) -> Distribution:
    """What an unpacked wheel or sdist of vLLM says of itself. Raises FactError."""
    metadata = [*sorted(folder.glob("vllm*.dist-info/METADATA")), *folder.glob("PKG-INFO")]
    if not (folder / "vllm" / "__init__.py").is_file() or not metadata:
        hint = "name the folder of an unpacked wheel: `unzip vllm-….whl -d FOLDER`"
        raise FactError(f"`{folder}` does not contain vLLM", hint=hint)
    return Distribution.at(metadata[0].parent)


@dataclass(frozen=True)
class VllmQuestion:
    """One launch on a machine, with what is known of its models, and the vLLM that is asked."""

    plan: LaunchPlan
    """With the models as `named`."""
    machine: Machine
    vllm: VllmToAsk
    target: ModelFacts
    draft: ModelFacts | None = None
    method: str | None = None
    beside: tuple[int, ...] = ()
    """Bytes of a GPU beside weights and KV cache, at most and at least."""
    path: str = ""
    """Of the block that is launched; empty without speculation."""

    @property
    def models(self) -> dict[str, ModelFacts]:
        """The target and the draft by the name of their folder."""
        return {_TARGET: self.target} | ({_DRAFT: self.draft} if self.draft else {})

    @cached_property
    def request(self) -> dict[str, Any]:
        """The command line, and the models that the child finds under their names."""
        draft = self.draft
        is_head = self.method is not None and METHODS[self.method].draft == "head"
        # the tables that the checkpoint of a head does not bring, and so shares with its target
        lacks = ["embed_tokens", "lm_head"] if is_head else []
        if is_head and draft and draft.tensors is None:
            lacks = ["embed_tokens"]
        elif draft and draft.tensors:
            lacks = [each for each in lacks if not any(each in name for name in draft.tensors)]
        return {
            "argv": list(self.plan.argv[2:]),
            "env": {
                name: value
                for name, value in self.plan.env.items()
                if isinstance(value, str) and name.startswith("VLLM_") and "KEY" not in name
            },
            "models": {
                role: {key: value for key, value in facts.config.items() if key != "auto_map"}
                for role, facts in self.models.items()
            },
            "build": {"draft_lacks": lacks, "beside": list(self.beside)},
            "count": self.machine.count * self.machine.nodes,
            **({"whole": True} if self.vllm.whole else {}),
        }

    @cached_property
    def setting(self) -> tuple[str, ...]:
        """The child's options: the GPU it pretends to have, if any, and the vLLM that it asks."""
        kind, source = self.machine.accelerator, self.vllm.source
        words = ["--source", str(source)] if source else []
        if not self.machine.is_cpu:
            capability = list(kind.compute_capability or ())
            size = int(kind.total_bytes)
            gpu = {"name": f"NVIDIA {kind.name}", "capability": capability, "total_bytes": size}
            words += ["--gpu", json.dumps(gpu)]
        return tuple(words)

    def read(self, answer: Mapping[str, Any], *, usual: set[str]) -> VllmVerdict:
        """The answer without what vLLM warns of at every launch, at its `usual` places."""
        warned = [each for each in answer.get("warnings", ()) if each["at"] not in usual]
        read = {
            "changed": tuple(VllmChange(**each) for each in answer.get("changed", ())),
            "warnings": tuple(each["text"] for each in warned),
            "basis": f"vLLM {self.vllm.version}, {self.machine}",
            "path": self.path,
        }
        verdict = VllmVerdict(**{**answer, **read})
        if verdict.refused is None or all(each.is_whole for each in self.models.values()):
            return verdict
        why = "only the published part of a configuration is known, and vLLM refuses it"
        return replace(verdict, refused=None, not_judged=f"{why}: {verdict.refused}")


def named(profile: Profile, *, draft: bool) -> Profile:
    """The profile with the names that its target, and its draft if that is known, have there."""
    block = profile.speculation
    if block and draft:
        block = replace(block, keys={**block.keys, "model": _DRAFT})
    return replace(profile, target=replace(profile.target, model=_TARGET), speculation=block)


def questions_about(
    context: Context, shapes: Mapping[str, ModelFacts], *, vllm: VllmToAsk
) -> list[VllmQuestion]:
    """The launch without speculation, that of each variant, and that of each without its schedule.

    `shapes`: the models by path of their block. Variants whose models are not known are left out.
    Raises FactError for a machine that cannot be pretended, UsageError for what cannot be planned.
    """
    machine, questions = context.machine, []
    assert machine is not None
    if not machine.is_cpu and (kind := machine.accelerator).vendor != "nvidia":
        raise FactError(f"vLLM can be asked about NVIDIA GPUs and the CPU, not about {kind.name}")
    accepted = table(vllm.version)
    blocks: dict[str, Speculation | None] = {"": None}
    for variant in context.variants:
        if variant.model is None or variant.method == "custom_class" or variant.path in shapes:
            blocks[variant.path] = variant.block
            if variant.get(SCHEDULE):
                keys = {key: value for key, value in variant.block.keys.items() if key != SCHEDULE}
                blocks[f"{variant.path}.{SCHEDULE}"] = replace(variant.block, keys=keys)
    for path, block in blocks.items():
        launched, beside = replace(context.profile, speculation=block), tuple[int, ...]()
        platform = "cpu" if machine.is_cpu else "cuda"
        target, draft = shapes["target"], shapes.get(path.removesuffix(f".{SCHEDULE}"))
        plan = launch(
            named(launched, draft=draft is not None),
            table=accepted,
            platform=platform,
            version=vllm.version,
            bare=not accepted.exact,
        )
        known: dict[str, Any] = {"target": target, "draft": draft, "speculation": block}
        with suppress(FactError):
            band = reserve(memory_inputs(launched, machine=machine, version=vllm.version, **known))
            beside = (int(band.high), int(band.low))
        method = block.method if block else None
        questions.append(VllmQuestion(plan, machine, vllm, target, draft, method, beside, path))
    return questions


def ask(
    questions: Sequence[VllmQuestion],
    *,
    command: Sequence[str] | None = None,
    before: Callable[[], None] = lambda: None,
    limit_s: float | None = None,
) -> list[VllmVerdict]:
    """A verdict for each question; `before` is called if one of them is new, and takes a child.

    There is one child for each kind of GPU. Whole answers of the installed vLLM are kept.
    """
    verdicts: dict[int, VllmVerdict] = {}
    files = sorted(Path(engine.__file__).parent.glob("*.py"))  # another child may answer otherwise
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    names = ("transformers", "torch")  # read configurations, and build models
    libraries = [each.version for name in names for each in [*distributions(name=name)][:1]]
    for setting, vllm in dict.fromkeys((each.setting, each.vllm) for each in questions):
        asked = {
            at: each
            for at, each in enumerate(questions)
            if (each.setting, each.vllm) == (setting, vllm)
        }
        decides = [setting, vllm.version, libraries, __version__, code]

        def kept_in(request: Mapping[str, Any], decides: Sequence[object] = decides) -> Path:
            text = json.dumps([request, *decides], sort_keys=True, default=str)
            name = hashlib.sha256(text.encode()).hexdigest()[:32]
            return answer_cache() / "oracle" / f"{name}.json"

        plain = {kept_in(each): each for each in _PLAINEST}
        mine = {at: kept_in(each.request) for at, each in asked.items()}
        requests = plain | {mine[at]: each.request for at, each in asked.items()}
        is_elsewhere = vllm.source is not None or vllm.python is not None
        kept = {} if is_elsewhere else {file: kept_answer(file) for file in requests}
        said = {file: answer for file, answer in kept.items() if answer is not None}
        if new := [file for file in requests if file not in said]:
            before()
            before = lambda: None  # noqa: E731
            child = [*(command or CHILD), *setting]
            child[0] = str(vllm.python or child[0])
            found = answers(child, [requests[file] for file in new], limit_s=limit_s)
            for file, answer in zip(new, found, strict=True):
                said[file] = answer
                is_whole = "not_judged" not in answer and not answer.get("skipped")
                if is_whole and not is_elsewhere:  # what is not here may come
                    keep_answer(file, answer)
        usual = {item["at"] for file in plain for item in said[file].get("warnings", ())}
        verdicts |= {at: asked[at].read(said[file], usual=usual) for at, file in mine.items()}
    return [verdicts[at] for at in range(len(questions))]
