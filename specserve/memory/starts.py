"""Starts of vLLM: what their memory depends on, what was predicted of it, and what vLLM logged.

The server's side keeps a JSON file of each in the state folder; `check` answers with one of exactly
the same question, `doctor --report` shows one.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specserve.errors import gib, system_reason
from specserve.files import private, read_own, read_start, state_folder, write_whole
from specserve.models.config import text_config
from specserve.models.lock import hashed, identity
from specserve.profile.schema import world_size
from specserve.profile.secrets import masked

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.models.facts import ModelFacts
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile

Verdict = Literal["match", "partly", "mismatch", "too little logged"]
LOGGED: Mapping[str, re.Pattern[str]] = {
    name: re.compile(sign)
    for name, sign in {
        "weights_gib": r"Model loading took (\d+\.?\d*) GiB",
        "kv_gib": r"Available KV cache memory: (\d+\.?\d*) GiB"
        r"|reserved (\d+\.?\d*) GiB memory for KV Cache"
        r"|(?:Explicitly|Auto) set \((\d+\.?\d*)/[\d.]+\) GiB for KV cache",
        "kv_tokens": r"KV cache size: (\d[\d,]*) tokens",
        "concurrency": r"Maximum concurrency for [\d,]+ tokens per request: (\d+\.?\d*)x",
        "cudagraph_estimate_gib": r"Estimated CUDA graph memory: (\d+\.?\d*) GiB",
        "cudagraph_gib": r"Graph capturing finished in \d+ secs?, took (-?\d+\.?\d*) GiB",
        "consumed_gib": r"Actual usage is (\d+\.?\d*) GiB for consumed memory",
        "activation_gib": r"(\d+\.?\d*) GiB for peak activation",
        "non_torch_gib": r"(\d+\.?\d*) GiB for non-torch memory",
        "total_gib": r"Free memory on device \S*\s?\([\d.]+/(\d+\.?\d*) GiB\)",
        "model_runner": r"[Uu]sing (?:the )?V(\d) [Mm]odel [Rr]unner",
    }.items()
}
"""Source: vllm 0.26 to 0.33, v1/worker/{gpu,cpu}_worker.py, v1/worker/gpu_model_runner.py,
v1/worker/gpu/model_runner.py, v1/core/kv_cache_utils.py, config/vllm.py."""
OUT_OF_MEMORY = re.compile(
    r"(?i)out of ?memory|No available memory for the cache|KV cache is needed|less than desired GPU"
)
_ROOM = ("kv_gib", "kv_tokens")
_LEAST = (*_ROOM, "concurrency")
"""Of several ranks, the one with the least counts; else the one with the most."""
_SLACK = {"kv_gib": (0.006, 0.0), "kv_tokens": (0.0, 0.02), "weights_gib": (0.05, 0.03)}
"""What a log rounds, and the share by which a formula may differ from vLLM's planner."""
_DECIDING = re.compile(
    r"(?!CUDA_VISIBLE_DEVICES$|VLLM_(API_KEY|RPC_BASE_PATH|NO_USAGE_STATS)$)"
    r"(VLLM|PYTORCH|TORCH|NCCL|CUDA|FLASHINFER|TRITON|MALLOC|OMP|KMP)_|LD_PRELOAD$"
).match
_LIBRARIES = ("torch", "transformers", "flashinfer-python")
_PLACES = (
    *("model", "revision", "tokenizer_revision", "served_model_name", "master_addr"),
    *("master_port", "data_parallel_address", "data_parallel_rpc_port"),
)
_SHAPE = (
    *("model_type", "num_hidden_layers", "num_key_value_heads", "head_dim", "hidden_size"),
    *("vocab_size", "intermediate_size", "moe_intermediate_size", "num_experts"),
    "num_experts_per_tok",
)
_MOST, _MOST_BYTES, _SCHEMA = 200, 1 << 18, 1


def question(
    profile: Profile, plan: LaunchPlan, machine: Machine, models: Mapping[str, ModelFacts]
) -> dict[str, Any]:
    """All that the memory of a launch depends on, in JSON's types: the one place that decides it.

    A key too many only keeps a record from being used; one too few would make a wrong answer, so
    only names, ports and front ends are left out. Secrets are starred. Raises FactError.
    """
    engine = {k: masked(k, v) for k, v in plan.engine_kwargs.items() if k not in _PLACES}
    block = engine.pop("speculative_config", None) or {}
    env = {name: value for name, value in {**os.environ, **plan.env}.items() if _DECIDING(name)}
    shapes = {role: text_config(facts.config) for role, facts in models.items()}
    asked = {
        "vllm": plan.vllm,
        **{name: each.version for name in _LIBRARIES for each in [*distributions(name=name)][:1]},
        "driver": read_start(Path("/proc/driver/nvidia/version"), 200).decode().partition("\n")[0],
        "accelerator": [machine.accelerator.name, machine.accelerator.total_bytes],
        "ranks": [machine.nodes, world_size(profile)],
        "models": {
            role: {
                "model": facts.model if facts.commit else None,
                "is": identity(hashed(facts)),
                **{key: shapes[role][key] for key in _SHAPE if key in shapes[role]},
            }
            for role, facts in models.items()
        },
        "engine": engine,
        "speculation": {key: value for key, value in block.items() if key not in _PLACES},
        "api_server_count": profile.frontend.get("api_server_count"),
        "env": {name: masked(name, value) for name, value in env.items() if isinstance(value, str)},
    }
    plain: dict[str, Any] = json.loads(json.dumps(asked, sort_keys=True, default=str))
    return plain


def note(logged: dict[str, float], text: str) -> None:
    """Take the figures of a line of vLLM's log."""
    for name, sign in LOGGED.items():
        if found := sign.search(text):
            value = float(found[found.lastindex or 0].replace(",", ""))
            value = int(value) if value.is_integer() else value
            logged[name] = (min if name in _LEAST else max)(value, logged.get(name, value))


@dataclass(frozen=True, slots=True)
class Start:
    """One start, ready or failed."""

    at: str
    """When, in ISO 8601."""
    command: str
    vllm: str
    logged: Mapping[str, float]
    """By the names of `LOGGED`."""
    log_path: str
    took_s: float
    asked: Mapping[str, Any] | None = None
    """As `question` says; None: it was not checked before."""
    predicted: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """Of profile, server and folders: not for others."""
    cause: str = ""
    """Of one that failed."""
    schema: int = _SCHEMA

    @property
    def misses(self) -> dict[str, float]:
        """How far each predicted figure of the log lies outside, in its unit; 0: inside."""
        found = {}
        for name, (absolute, share) in _SLACK.items():
            if name in self.predicted and name in self.logged:
                (low, high), value = self.predicted[name], self.logged[name]
                off = min(value - low, 0.0) or max(value - high, 0.0)
                found[name] = off if abs(off) > absolute + share * high else 0.0
        return found

    @property
    def verdict(self) -> Verdict:
        """Of the prediction against what was logged."""
        misses, told = self.misses, self.predicted.get("verdict", "unknown")
        if self.cause and OUT_OF_MEMORY.search(self.cause) and told != "unknown":
            return "mismatch" if told == "fit" else "match"
        if not (rooms := [misses[name] for name in _ROOM if name in misses]):
            return "too little logged"
        return "match" if not any(misses.values()) else "mismatch" if rooms[0] else "partly"

    def __str__(self) -> str:
        """The size of the KV cache in a line, and whether it was predicted."""
        forms = {"kv_gib": "{:.2f} GiB", "kv_tokens": "{:,.0f} tokens"}
        sizes = [form.format(self.logged[n]) for n, form in forms.items() if n in self.logged]
        if not sizes:
            return "the size of the KV cache is not in vLLM's log"
        said, misses = f"KV cache {', '.join(sizes)}", self.misses
        # the first one that was not predicted, else the first
        room = min(
            (name for name in _ROOM if name in misses), key=lambda n: not misses[n], default=""
        )
        if not room:
            return said
        off, is_tokens = misses[room], room == "kv_tokens"
        ends = [f"{end:,.0f}" if is_tokens else f"{end:.1f}" for end in self.predicted[room]]
        by = f"{abs(off):,.0f} tokens" if is_tokens else gib(abs(off) * 2**30)
        word = f"{'less' if off < 0 else 'more'} than predicted by {by}" if off else "as predicted"
        return f"{said}; check had said {'-'.join(dict.fromkeys(ends))}: {word}"


def keep(
    plan: LaunchPlan,
    logged: Mapping[str, float],
    *,
    log_path: str,
    took_s: float,
    cause: str = "",
    command: str = "up",
) -> Start:
    """The record of a start, which is put on disk if that can be written; the oldest ones go."""
    known, models = plan.memory, [plan.engine_kwargs, plan.speculation or {}]
    folders = [str(each.get("model", "")).rstrip("/") for each in models]
    folders = [each for each in folders if each.startswith(("/", "~", "."))]
    served = [plan.model] if plan.model != plan.engine_kwargs.get("model") else []
    start = Start(
        datetime.now().astimezone().isoformat(timespec="seconds"),
        command,
        plan.vllm,
        dict(logged),
        log_path,
        round(took_s, 1),
        # offline, vLLM has other defaults
        known.get("asked") and {**known["asked"], "command": command},
        known.get("predicted", {}),
        (plan.name, *served, *folders, *(each.rpartition("/")[2] for each in folders)),
        cause,
    )
    with suppress(OSError):  # a full disk must not end a server
        folder = private(state_folder() / "starts")
        stem = re.sub(r"\D", "", start.at[:19])
        text = json.dumps(asdict(start), indent=1)
        write_whole(folder / f"{stem}-{os.urandom(4).hex()}.json", text + "\n", mode=0o600)
        for old in sorted(folder.glob("*.json"))[:-_MOST]:
            old.unlink(missing_ok=True)
    return start


def kept(*, warn: Callable[[str], None]) -> list[Start]:
    """The starts on disk, newest first; `warn` hears once of files that are none of ours."""
    found, bad = list[Start](), list[str]()
    for path in sorted((state_folder() / "starts").glob("*.json"), reverse=True)[:_MOST]:
        try:
            found.append(_read(read_own(path, most_bytes=_MOST_BYTES)))
        except FileNotFoundError:  # another command made room
            continue
        except OSError as error:
            bad.append(f"{path}: {system_reason(error)}")
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            bad.append(f"{path}: it does not hold a start that this specserve knows")
    if bad:
        many = f"{len(bad)} records of earlier starts are" if len(bad) > 1 else ""
        warn(f"{many or 'a record of an earlier start is'} ignored: {bad[0]}")
    return found


def _read(data: bytes) -> Start:
    """The start of a file. Raises what Python raises for another text."""
    content: dict[str, Any] = json.loads(data)
    start = Start(**{**content, "names": tuple(content["names"])})
    bands = [start.predicted[name] for name in _SLACK if name in start.predicted]
    figures = [start.took_s, *start.logged.values(), *(end for ends in bands for end in ends)]
    parts = (
        [start.asked[part] for part in ("models", "engine", "speculation")] if start.asked else []
    )
    texts = (start.at, start.command, start.vllm, start.log_path, start.cause, *start.names)
    is_sound = (
        start.schema == _SCHEMA
        and all(isinstance(each, str) for each in texts)
        and all(isinstance(each, int | float) and math.isfinite(each) for each in figures)
        and all(len(ends) == 2 for ends in bands)
        and all(isinstance(each, dict) for each in parts)
        and isinstance(start.predicted, dict)
        and set(start.logged) <= set(LOGGED)
    )
    if not is_sound:
        raise ValueError("it is of another form")
    datetime.fromisoformat(start.at)
    return start


def start_of(asked: Mapping[str, Any], among: Iterable[Start]) -> Start | None:
    """The newest one that served and was asked exactly the same, with the size of its KV cache."""
    wanted, ready = {**asked, "command": "up"}, [each for each in among if not each.cause]
    whole = (each for each in ready if all(name in each.logged for name in _LEAST))
    return next((each for each in whole if each.asked == wanted), None)
