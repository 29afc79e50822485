"""Asks the installed vLLM what a launch needs of each GPU: a child builds the models on the meta device.

No weight is read, and no GPU is touched: the child is told to build for the CPU. Its answer is remembered by
configuration and version. What a quantised checkpoint becomes after loading it does not know.
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
from pathlib import Path
from typing import Any

from specserve import __version__
from specserve.checks.answercache import keep_answer, recall_answer
from specserve.errors import FactError
from specserve.facts.model import ModelFacts
from specserve.facts.store import fact_cache
from specserve.plan.memory.demand import Demand
from specserve.plan.memory.settings import Settings
from specserve.plan.memory.speculative import HEADS, Speculative
from specserve.plan.memory.told import demand_of
from specserve.vllm.versions import installed

CHILD = (sys.executable, "-P", "-m", "specserve.engine.memory_probe")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
LIMIT_S = 180.0
_TABLES = ("embed_tokens", "lm_head")
_METHODS_WITHOUT_MODEL = frozenset({"ngram", "ngram_gpu", "suffix"})


def ask(
    target: ModelFacts,
    draft: ModelFacts | None = None,
    *,
    settings: Settings,
    method: str | None = None,
    num_speculative_tokens: int = 0,
    draft_kv_cache_dtype: str | None = None,
    command: Sequence[str] = CHILD,
    version: str | None = None,
    limit_s: float = LIMIT_S,
) -> Demand:
    """The same as `plan.memory.demand.demand`, by vLLM itself; `basis` is then `vllm`. Takes about 10 s, once.

    `command`: the child; `version`: of its vLLM, by default the installed one. Raises FactError where no vLLM is
    installed, where it refuses, and where it does not answer in time.
    """
    version = version or _installed_version()
    speculative = Speculative(method, num_speculative_tokens, draft, draft_kv_cache_dtype)
    request = _request(target, speculative, settings=settings)
    file = _file(request, target, draft, version=version)
    answer = recall_answer(file)
    if answer is None:
        answer = _run(command, request, target, draft, limit_s=limit_s)
        if "error" in answer:
            raise FactError(f"vLLM {version} could not build `{target.model}`: {answer['error']}")
        keep_answer(file, answer)
    try:
        return demand_of(answer, target, settings=settings, speculative=speculative)
    except (KeyError, TypeError, ValueError) as error:
        raise FactError(f"the answer of vLLM {version} on `{target.model}` does not make sense") from error


def _installed_version() -> str:
    found = installed()
    if found is None:
        raise FactError(
            "no vLLM is installed in this Python", hint="leave out `--ask-vllm`: the formula then serves"
        )
    return found.version


def _request(target: ModelFacts, speculative: Speculative, *, settings: Settings) -> dict[str, Any]:
    """What the child is asked; the models are named by the folders that `_run` makes."""
    kwargs: dict[str, Any] = {
        "model": "target",
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
        "enable_expert_parallel": settings.enable_expert_parallel,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "enforce_eager": True,
        "load_format": "dummy",
    }
    if settings.quantization:
        kwargs["quantization"] = settings.quantization
    method, draft = speculative.method, speculative.draft
    if method in _METHODS_WITHOUT_MODEL:
        # They have no weights and no cache; what counts is how many states a request holds.
        kwargs["speculative_config"] = {"method": "ngram", "num_speculative_tokens": speculative.tokens,
                                        "prompt_lookup_max": 2}  # fmt: skip
    elif method is not None:
        keys: dict[str, Any] = {"method": method, "num_speculative_tokens": speculative.tokens}
        if draft is not None:
            keys |= {"model": "draft", "draft_tensor_parallel_size": settings.tensor_parallel_size}
        if speculative.kv_cache_dtype is not None:
            keys["kv_cache_dtype"] = speculative.kv_cache_dtype
        kwargs["speculative_config"] = keys
    return {"engine_kwargs": kwargs, "draft_lacks": _lacks(draft) if method in HEADS else [], "kv_bytes": []}


def _lacks(draft: ModelFacts | None) -> list[str]:
    """The tables that a head's checkpoint does not bring, and so shares with its target."""
    if draft is None:
        return list(_TABLES)
    if draft.tensors is None:
        return ["embed_tokens"]
    return [table for table in _TABLES if not any(table in name for name in draft.tensors)]


def _file(request: Mapping[str, Any], target: ModelFacts, draft: ModelFacts | None, *, version: str) -> Path:
    configs = [dict(facts.config) for facts in (target, draft) if facts is not None]
    asked = json.dumps([request, configs, version, __version__], sort_keys=True, default=str)
    return fact_cache() / "probe" / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"


def _run(
    command: Sequence[str],
    request: Mapping[str, Any],
    target: ModelFacts,
    draft: ModelFacts | None,
    *,
    limit_s: float,
) -> dict[str, Any]:
    """The child's answer. Models are laid out as their config.json alone: no code of theirs can run."""
    with tempfile.TemporaryDirectory(prefix="specserve-probe-") as name:
        folder = Path(name)
        kwargs = dict(request["engine_kwargs"])
        kwargs["model"] = _lay_out(folder / "target", target)
        if draft is not None and "speculative_config" in kwargs:
            kwargs["speculative_config"] = {
                **kwargs["speculative_config"],
                "model": _lay_out(folder / "draft", draft),
            }
        line = json.dumps({**request, "engine_kwargs": kwargs})
        output = _converse(command, line, folder=folder, limit_s=limit_s)
    for told in output.splitlines():
        with contextlib.suppress(ValueError):
            answer = json.loads(told)
            if isinstance(answer, dict):
                return answer
    raise FactError(f"vLLM said nothing on what `{target.model}` needs")


def _lay_out(folder: Path, facts: ModelFacts) -> str:
    folder.mkdir()
    config = {key: value for key, value in facts.config.items() if key != "auto_map"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def _converse(command: Sequence[str], line: str, *, folder: Path, limit_s: float) -> str:
    """One line to the child, all that it writes; its process group does not outlive this."""
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }
    with subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        start_new_session=True,
        env=env,
    ) as child:
        try:
            return child.communicate(line + "\n", timeout=limit_s)[0]
        except subprocess.TimeoutExpired as error:
            raise FactError(f"vLLM did not say within {limit_s:g} s what the models need") from error
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
