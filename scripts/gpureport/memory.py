"""memory: what `check` predicts against what vLLM logs, for shapes with dummy weights; a boot is a memory point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpureport import bootlog, shapes
from gpureport.children import filled
from gpureport.machine import versions
from gpureport.servers import Start, servers
from gpureport.step import Outcome, Run, Step, Target

_CHECK_S, _START_LIMIT_S = 3.0, 420.0


@dataclass(frozen=True, slots=True)
class Boot:
    """One start with dummy weights."""

    shape: str
    max_num_seqs: int
    tier: int
    draft: str | None = None
    method: str = "draft_model"
    k: int = 3
    sampling: str = "greedy"
    runner: str | None = None

    @property
    def name(self) -> str:
        """Such as `llama8b-256-draft-k3`."""
        parts = [self.shape, str(self.max_num_seqs)]
        if self.draft:
            parts += ["draft" if self.method == "draft_model" else self.method, f"k{self.k}"]
            parts += ["probabilistic"] if self.sampling == "probabilistic" else []
        return "-".join([*parts, *([self.runner] if self.runner else [])])

    @property
    def title(self) -> str:
        """The same in words."""
        words = f"{self.shape}, {self.max_num_seqs} sequences"
        if self.draft:
            words += f", {self.method} K={self.k}"
            words += f" {self.sampling}" if self.method == "draft_model" else ""
        return words + (f", runner {self.runner.upper()}" if self.runner else "")


GPU = (
    Boot("llama8b", 256, 1),
    Boot("llama8b", 256, 2, "llama1b"),
    Boot("llama8b", 256, 2, runner="v2"),
    Boot("llama70b-fp8", 64, 2),
    Boot("llama8b", 1024, 2),
    Boot("qwen3-30b-fp8", 64, 2),
    Boot("llama8b", 1024, 2, "llama1b", k=7, sampling="probabilistic"),
    Boot("qwen3-next", 64, 2),
    Boot("gpt-oss-20b", 64, 2),
    Boot("llama8b", 64, 3),
    Boot("llama8b", 64, 3, "llama1b"),
    Boot("llama8b", 64, 3, "llama8b-eagle3", method="eagle3", runner="v2"),
    Boot("llama8b", 256, 3, "llama1b", sampling="probabilistic"),
    Boot("llama8b", 256, 3, "llama1b", k=7),
    Boot("llama8b", 1024, 3, "llama1b"),
)
CPU = (
    Boot("tiny", 16, 1),
    Boot("tiny", 16, 1, "tiny-draft"),
    Boot("tiny-moe", 4, 2),
    Boot("tiny", 64, 3, "tiny-draft", k=7, sampling="probabilistic"),
    Boot("tiny-hybrid", 4, 3),
)


def steps(target: Target) -> Iterator[Step]:
    """One step for each boot."""
    for boot in CPU if target.is_small else GPU:
        profile = f"memory-{boot.name}.yaml"
        check = target.check(f"{{profiles}}/{profile}")
        up = (
            "specserve",
            "up",
            f"{{profiles}}/{profile}",
            "--no-check",
            "--no-warm-up",
            "--log-format",
            "json",
        )
        yield Step(
            "memory",
            boot.name,
            boot.title,
            boot.tier,
            _run,
            work_s=_CHECK_S,
            starts={"tiny" if target.is_small else "shape": 1},
            commands={"check": check, "up": up},
            profiles={profile: _profile(boot, target)},
            models=tuple(filter(None, [boot.shape, boot.draft])),
        )


def _profile(boot: Boot, target: Target) -> dict[str, Any]:
    length = 1024 if target.is_small else 8192
    engine: dict[str, Any] = {"load_format": "dummy", "max_num_seqs": boot.max_num_seqs}
    if target.is_small:
        engine |= {"kv_cache_memory_bytes": "128M", "enforce_eager": True}
    else:
        engine |= {"max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9}
    profile: dict[str, Any] = {"target": {"model": f"../models/{boot.shape}", "max_model_len": length}}
    if target.is_small:
        profile["target"]["dtype"] = "float32"
    if boot.draft:
        profile["speculation"] = {
            "method": boot.method,
            "model": f"../models/{boot.draft}",
            "num_speculative_tokens": boot.k,
            **({"draft_sample_method": boot.sampling} if boot.method == "draft_model" else {}),
        }
    profile |= {"engine": engine, "server": {"port": 0}}
    if target.is_small:
        profile["hardware"] = {"accelerator": "cpu"}
    if boot.runner:
        profile["env"] = {"VLLM_USE_V2_MODEL_RUNNER": "1" if boot.runner == "v2" else "0"}
    return profile


def _run(run: Run, step: Step) -> Outcome:
    folder, values = run.folders.work(step.key), {"profiles": str(run.folders.profiles)}
    commands = {name: filled(argv, values) for name, argv in step.commands.items()}
    checked = run.children.run_json(commands["check"], folder=folder, name="check", limit_s=120)
    predicted, findings = prediction(checked), codes(checked)
    with servers(run.children, {"up": commands["up"]}, folder=folder, limit_s=_START_LIMIT_S) as started:
        start = started["up"]
    if start.is_ready:
        run.learned(next(iter(step.starts)), start.took_s)
    return outcome(step, run.target, start=start, predicted=predicted, findings=findings)


def outcome(
    step: Step, target: Target, *, start: Start, predicted: Mapping[str, Any] | None, findings: list[str]
) -> Outcome:
    """The two sides, and the memory point."""
    profile = next(iter(step.profiles.values()))
    made = [shapes.config(name, target=target) for name in step.models]
    cause = None if start.is_ready else start.cause
    machine = {
        "accelerator": target.accelerator,
        "total_bytes": target.total_bytes,
        "versions": versions(),
    }
    point = bootlog.point(
        identity=step.name,
        shape={
            "name": step.models[0],
            "sizes": shapes.sizes(made[0]),
            "draft_sizes": shapes.sizes(made[1]) if len(made) > 1 else None,
            "dtype": "float32" if target.is_small else "bf16",
            "quant": shapes.quantization(made[0]),
        },
        profile=profile,
        machine=machine,
        log=start.log,
        outcome=bootlog.outcome(start.log, is_ready=start.is_ready),
        cause=cause,
    )
    point["predicted"] = predicted
    said = bootlog.logged(start.log)
    if "kv_tokens" not in said and start.figures.get("kv_cache_tokens"):
        said["kv_tokens"] = start.figures["kv_cache_tokens"]
    result = {
        "outcome": point["outcome"],
        "cause": cause,
        "phase": start.phase,
        "ready_s": round(start.took_s, 1) if start.is_ready else None,
        "predicted": predicted,
        "findings": findings,
        "logged": said,
        "runner": bootlog.runner(start.log),
        "point": point,
        "log_tail": None if point["outcome"] == "serves" else start.log_tail,
    }
    return Outcome(result, _line(result))


def prediction(checked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of the memory section of `check`: GiB of the GPU, and tokens; None if it was not judged."""
    memory = (checked.get("profiles") or [{}])[0].get("memory")
    if not memory:
        return None
    per_gpu = memory["per_gpu_bytes"]
    bounds = {
        name: {side: round(per_gpu[name][side] / bootlog.GIB, 3) for side in ("low", "high")}
        for name in ("activation", "other", "kv_cache")
    }
    weights = (per_gpu["target_weights"] + per_gpu["draft_weights"]) / bootlog.GIB
    tokens = memory.get("kv_cache_tokens") or {}
    return {
        "verdict": memory["verdict"],
        "basis": memory["basis"],
        "weights_gib": round(weights, 3),
        "activation_gib": bounds["activation"],
        "other_gib": bounds["other"],
        "kv_gib": bounds["kv_cache"],
        "kv_tokens": {side: tokens.get(side) for side in ("low", "high")},
    }


def codes(checked: Mapping[str, Any]) -> list[str]:
    """`error SD104` and `warning SD203`: what check found, infos left out."""
    found = checked.get("findings", ())
    return [f"{each['severity']} {each['code']}" for each in found if each["severity"] != "info"]


def _line(result: Mapping[str, Any]) -> str:
    if result["outcome"] != "serves":
        return f"did not start: {result['cause']}"
    said, predicted = result["logged"], result["predicted"]
    key, unit = ("kv_gib", "GiB") if "kv_gib" in said else ("kv_tokens", "tokens")
    if key not in said:
        return "served; vLLM logged no KV cache"
    text = f"served with a KV cache of {said[key]:,g} {unit}"
    if not predicted:
        return f"{text}; check gave no estimate"
    low, high = predicted[key]["low"], predicted[key]["high"]
    if low is None or high is None:
        return f"{text}; check gave no {unit}"
    place = "inside" if is_inside(said[key], low, high) else "OUTSIDE"
    return f"{text}; predicted {low:,g} to {high:,g}: {place}"


def is_inside(value: float, low: float, high: float) -> bool:
    """Whether a logged figure lies in the predicted bounds; vLLM logs two decimals."""
    return low - 0.005 <= value <= high + 0.005
