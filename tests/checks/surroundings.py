"""What the example of a rule is judged in: the models it names, a machine, what vLLM says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.oraclechild import VllmChange, VllmVerdict
from specserve.checks.rule import Context, Rule
from specserve.hardware.accelerators import Machine, accelerator
from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.hub import read_model
from specserve.models.lock import Drift
from specserve.profile.schema import Profile
from specserve.vllm.speculation import SCHEDULE
from specserve.vllm.versions import judged_versions

GIB = 2**30
MACHINES: Mapping[str, Machine] = {
    "SD405": Machine(accelerator("H100-80GB"), 8, basis="found", free_bytes=(80 * GIB,) * 8),
    "SD312": Machine(accelerator("H100-80GB"), 1, basis="found", free_bytes=(40 * GIB,)),
}
"""The machine that is found; elsewhere it is the one that the profile names."""
HUB_BYTES = {"org/small": 2**20, "org/large": 2**60}
"""Models of a Hub that nobody has downloaded yet."""
_SERVED = VllmVerdict(effective={"model_runner": "V2"})


def answers(rule: Rule, loaded: Profile) -> tuple[VllmVerdict, ...]:
    """What vLLM 0.33 says of the examples of its rules."""
    engine, answer = loaded.engine, _SERVED
    if rule.code == "SD501" and (loaded.target.max_model_len or 0) > 2048:
        answer = VllmVerdict(
            refused="User-specified max_model_len (999999) is greater", at="vllm/config/model.py:2662"
        )
    if rule.code == "SD502" and engine.get("max_cudagraph_capture_size") == 300:
        change = VllmChange("max_cudagraph_capture_size", 300, 256)
        answer = replace(_SERVED, changed=(change,))
    if rule.code == "SD503" and engine.get("kv_cache_dtype") == "fp8_e5m2":
        answer = replace(_SERVED, warnings=("kv_cache_dtype fp8_e5m2 is less precise",))
    if rule.code == "SD504" and loaded.speculation and SCHEDULE in loaded.speculation.keys:
        runs = replace(_SERVED, effective={"model_runner": "V2", "cudagraph_mode": "FULL_AND_PIECEWISE"})
        words = "Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE"
        now = {**runs.effective, "cudagraph_mode": "PIECEWISE"}
        answer = replace(runs, path="speculation", effective=now, warnings=(words,), fixed=runs)
    return (replace(answer, basis="vLLM 0.33.0, 1 x H100-80GB"),)


DRIFT: Mapping[str, Drift] = {
    "SD270": Drift("target.model", "unreadable", "p.lock.json", ("`p.lock.json` is not valid JSON",)),
    "SD270 unlocked": Drift("speculation.model", "unlocked", "./llama-draft"),
    "SD270 changed": Drift("target.model", "changed", "./llama", ("`config.json` differs from the lock",)),
}
"""What is not as a lock says, where the example speaks of a lock."""


def surroundings(rule: Rule, loaded: Profile, *, case: str) -> Context:
    """All that a rule may look at; what it does not need is left out. `case`: of which of its examples."""
    models = rule.needs in ("models", "hardware") or case in DRIFT
    context = Context(loaded, judged_versions(loaded.vllm))
    if models:
        wanted = CheckOptions(offline=True, here=False, machine=MACHINES.get(case))
        context = collect(loaded, wanted=wanted, read=read).context
    if case in DRIFT and "p.lock.json" in Path(loaded.file).read_text():
        context = replace(context, drift=(DRIFT[case],))
    if rule.needs == "vllm":
        context = replace(context, vllm=answers(rule, loaded))
    if rule.needs != "hardware" and case not in MACHINES:
        context = replace(context, machine=None)
    return context


def read(model: str, revision: str | None) -> ModelFacts:
    """A directory as it is; a model of the Hub by its size alone."""
    if model in HUB_BYTES:
        llama = read_model(str(Path(__file__).parents[2] / "demo" / "draft"))
        files = {"model.safetensors": ModelFile(HUB_BYTES[model])}
        return replace(llama, model=model, origin="hub", revision=revision, files=files, tensors=None)
    return read_model(model, revision=revision, offline=True)
