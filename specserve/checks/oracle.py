"""Asks vLLM's own code about a launch, for GPUs that need not be there: a child process answers.

The child is `engine/oracle.py`. It gets the exact command line, with each model as a folder that holds its config.json
alone, and what safetensors headers say: no code of a model runs, and no weight is read. Answers are kept by
configuration, version and GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specserve import __version__
from specserve.checks.answercache import keep_answer, recall_answer
from specserve.checks.figures import machine_words
from specserve.checks.rule import Context, Judged
from specserve.errors import FactError
from specserve.facts.accelerators import Machine
from specserve.facts.model import ModelFacts
from specserve.facts.store import fact_cache
from specserve.plan.launch import with_models
from specserve.plan.launchplan import LaunchPlan
from specserve.plan.memory.speculative import HEADS

LIMIT_S = 300.0
CHILD = (sys.executable, "-P", "-m", "specserve.engine.oracle")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_TARGET, _DRAFT = "target", "draft"
_TABLES = ("embed_tokens", "lm_head")


@dataclass(frozen=True, slots=True)
class Vllm:
    """The vLLM that is asked. `source`: a folder that holds its package; None for the installed one."""

    version: str
    source: Path | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One launch, with what is known of its models."""

    plan: LaunchPlan
    target: ModelFacts
    draft: ModelFacts | None = None
    method: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """An argument of the command line, and the value that vLLM runs. `place`: where it is in the configuration."""

    argument: str
    value: Any
    effective: Any
    place: str
    is_changed: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What vLLM said of one launch: refused, not judged, or how it would run."""

    refused: str | None = None
    not_judged: str | None = None
    """Why the question could not be answered without the GPU."""
    at: str = ""
    """The line of vLLM that refused."""
    step: str = ""
    """What vLLM was doing when it refused; empty: the configuration."""
    loc: tuple[str, ...] = ()
    effective: Mapping[str, Any] = field(default_factory=dict)
    asked: tuple[Asked, ...] = ()
    build: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the models, built without memory."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Steps that cannot be taken without the GPU, with the reason."""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[Asked, ...]:
        """What vLLM runs with another value than the one that is asked for."""
        return tuple(item for item in self.asked if item.is_changed)


def ask(
    questions: Sequence[Question],
    *,
    machine: Machine,
    vllm: Vllm,
    kept_only: bool = False,
    command: Sequence[str] = CHILD,
    limit_s: float = LIMIT_S,
) -> tuple[Answer, ...]:
    """An answer for each question, in one child if any of them is new: about 10 s. Raises FactError.

    With `kept_only` no child is started: empty if an answer is not in the cache.
    """
    requests = [_request(question) for question in questions]
    files = [_file(request, machine=machine, vllm=vllm) for request in requests]
    found = [recall_answer(file) for file in files]
    missing = [index for index, answer in enumerate(found) if answer is None]
    if missing and kept_only:
        return ()
    if missing:
        answers = _run(command, [requests[index] for index in missing], machine, vllm, limit_s=limit_s)
        for index, answer in zip(missing, answers, strict=True):
            found[index] = answer
            keep_answer(files[index], answer)
    try:
        return tuple(_read(answer or {}) for answer in found)
    except (KeyError, TypeError, ValueError) as error:
        raise FactError(f"the answer of vLLM {vllm.version} does not make sense") from error


def judgements(
    context: Context,
    shapes: Mapping[str, ModelFacts],
    *,
    machine: Machine,
    vllm: Vllm,
    kept_only: bool = False,
) -> tuple[Judged, ...]:
    """What vLLM says of every arm and of the launch without speculation. `shapes`: the models by dotted path.

    Arms whose models are not known are left out. With `kept_only` the answers of earlier checks are all that there is.
    Raises FactError, and UsageError for what cannot be planned.
    """
    from specserve.plan.launch import launch
    from specserve.vllm.versions import table

    if kept_only and not _folder().is_dir():
        return ()
    known, target = table(vllm.version), shapes["target.model"]
    platform = "cpu" if machine.is_cpu else "cuda"
    paths, questions = [""], []
    profiles = [replace(context.profile, speculation=None)]
    drafts: list[ModelFacts | None] = [None]
    for arm in context.arms:
        draft = shapes.get(f"{arm.path}.model")
        if arm.speculation.model is None or arm.speculation.method == "custom_class" or draft is not None:
            paths.append(arm.path)
            profiles.append(replace(context.profile, speculation=arm.speculation))
            drafts.append(draft)
    for profile, draft in zip(profiles, drafts, strict=True):
        plan = launch(profile, table=known, platform=platform, version=vllm.version)
        method = profile.speculation.method if profile.speculation else None
        questions.append(Question(plan, target, draft, method))
    answers = ask(questions, machine=machine, vllm=vllm, kept_only=kept_only)
    basis = f"vLLM {vllm.version}, {machine_words(machine)}"
    if len(answers) == 1:
        return (Judged("", answers[0], None, basis),)
    pairs = zip(paths[1:], answers[1:], strict=bool(answers))
    return tuple(Judged(path, answer, answers[0], basis) for path, answer in pairs)


def vllm_to_ask(source: Path | None) -> Vllm:
    """The installed vLLM, or the one in a folder that holds its package. Raises FactError if there is none."""
    if source is None:
        from specserve.vllm.versions import installed

        found = installed()
        if found is None:
            raise FactError(
                "no vLLM is installed in this Python", hint="`--vllm-source DIR` names an unpacked wheel"
            )
        return Vllm(found.version)
    package = source / "vllm" / "__init__.py"
    metadata = sorted(source.glob("vllm*.dist-info/METADATA"))
    if not package.is_file() or not metadata:
        raise FactError(
            f"{source} does not hold a vLLM",
            hint="unpack a wheel there: it has a folder `vllm` and one that ends in `.dist-info`",
        )
    lines = metadata[0].read_text(encoding="utf-8", errors="replace").splitlines()
    version = next((line.partition(":")[2].strip() for line in lines if line.startswith("Version:")), "")
    return Vllm(version, source.resolve())


def _request(question: Question) -> dict[str, Any]:
    """The command line with folders in the place of models; `_run` makes the folders."""
    target, draft = question.target, question.draft
    plan = with_models(question.plan, target=_TARGET, draft=_DRAFT if draft else None)
    models = {_TARGET: _config(target)} | ({_DRAFT: _config(draft)} if draft else {})
    env = {name: value for name, value in question.plan.env.items() if isinstance(value, str)}
    own = {name: value for name, value in env.items() if name.startswith("VLLM_") and "KEY" not in name}
    tensors = {_TARGET: _tensors(target)}
    if question.method in HEADS or draft is not None:
        tensors[_DRAFT] = _tensors(draft or target)  # stages inside the target are read from its checkpoint
    lacks = _lacks(draft) if question.method in HEADS else []
    build = {"draft_lacks": lacks, "tensors": tensors}
    return {"argv": list(plan.argv[2:]), "env": own, "models": models, "build": build}


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


def _gpu(machine: Machine) -> dict[str, Any] | None:
    """What the child pretends to have; None for the CPU, which every machine has."""
    if machine.is_cpu:
        return None
    kind = machine.accelerator
    if kind.vendor != "nvidia" or kind.compute_capability is None:
        raise FactError(f"vLLM can be asked about NVIDIA's GPUs and the CPU, not about {kind.name}")
    return {
        "name": f"NVIDIA {kind.name}",
        "capability": list(kind.compute_capability),
        "total_bytes": int(kind.total_bytes),
    }


def _file(request: Mapping[str, Any], *, machine: Machine, vllm: Vllm) -> Path:
    asked = [
        request,
        _gpu(machine),
        machine.count * machine.nodes,
        vllm.version,
        str(vllm.source),
        __version__,
    ]
    name = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:32]
    return _folder() / f"{name}.json"


def _folder() -> Path:
    return fact_cache() / "oracle"


def _run(
    command: Sequence[str],
    requests: Sequence[Mapping[str, Any]],
    machine: Machine,
    vllm: Vllm,
    *,
    limit_s: float,
) -> list[dict[str, Any]]:
    """The child's answers. Raises FactError if it gives fewer."""
    words = [*command, "--count", str(machine.count * machine.nodes)]
    gpu = _gpu(machine)
    words += ["--gpu", json.dumps(gpu)] if gpu else []
    words += ["--source", str(vllm.source)] if vllm.source else []
    lines = []
    with tempfile.TemporaryDirectory(prefix="specserve-oracle-") as name:
        folder = Path(name)
        for index, request in enumerate(requests):
            for role, config in request["models"].items():
                place = folder / str(index) / role
                place.mkdir(parents=True)
                (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
            asked = {key: request[key] for key in ("argv", "env", "build")}
            lines.append({"id": index, **asked, "folder": str(folder / str(index))})
        text, error = _converse(words, lines, folder=folder, limit_s=limit_s)
    answers = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            answers[answer.pop("id")] = answer
    if len(answers) < len(requests):
        last = next(
            (line.strip() for line in reversed(error.splitlines()) if line.strip()), "it said nothing"
        )
        raise FactError(f"vLLM {vllm.version} could not be asked: {last[:300]}")
    return [answers[index] for index in range(len(requests))]


def _converse(
    words: Sequence[str], lines: Sequence[Mapping[str, Any]], *, folder: Path, limit_s: float
) -> tuple[str, str]:
    """Lines to the child, and all that it writes; its process group does not outlive this."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with subprocess.Popen(
        list(words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
        env=env,
    ) as child:
        try:
            text = "".join(json.dumps(line) + "\n" for line in lines)
            return child.communicate(text, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise FactError(f"vLLM did not answer within {limit_s:g} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def _read(answer: Mapping[str, Any]) -> Answer:
    said = {name: tuple(item["text"] for item in answer.get(name, ())) for name in ("warnings", "infos")}
    return Answer(
        refused=answer.get("refused"),
        not_judged=answer.get("not_judged"),
        at=answer.get("at", ""),
        step=answer.get("step", ""),
        loc=tuple(answer.get("loc", ())),
        effective=answer.get("effective", {}),
        asked=tuple(Asked(**item) for item in answer.get("asked", ())),
        build=answer.get("build", {}),
        skipped=answer.get("skipped", {}),
        **said,
    )
