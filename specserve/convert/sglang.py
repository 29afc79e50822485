"""SGLang's launch flags to vLLM's arguments. Source: ServerArgs, sglang/srt/server_args.py, 0.4 to 0.5.

Knows the flags that both engines have something to say to; every other one is left out, and that is noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specserve.convert.given import Given, Note
from specserve.convert.settings import Setting
from specserve.convert.speculative import inferred_method
from specserve.plan.table import Argument, Form, Kind, VllmTable
from specserve.profile.problems import quoted
from specserve.profile.tree import Node

RENAMED: Mapping[str, str] = {
    "model_path": "model",
    "tokenizer_path": "tokenizer",
    "tp": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dp_size": "data_parallel_size",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "random_seed": "seed",
    "cuda_graph_max_bs": "max_cudagraph_capture_size",
    "cuda_graph_bs": "cudagraph_capture_sizes",
    "json_model_override_args": "hf_overrides",
    "log_level": "uvicorn_log_level",
}
_SWITCHES: Mapping[str, tuple[str, bool | str]] = {
    "disable_radix_cache": ("enable_prefix_caching", False),
    "disable_cuda_graph": ("enforce_eager", True),
    "enable_ep_moe": ("enable_expert_parallel", True),
    "enable_deepep_moe": ("enable_expert_parallel", True),
    "is_embedding": ("runner", "pooling"),
}
_METHODS: Mapping[str, str] = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "nextn": "mtp",
    "mtp": "mtp",
    "standalone": "draft_model",
    "ngram": "ngram",
    "dflash": "dflash",
}
_TOOLS: Mapping[str, str] = {
    "qwen": "hermes", "qwen25": "hermes", "llama3": "llama3_json", "deepseekv3": "deepseek_v3", "hermes": "hermes",
    "deepseekv31": "deepseek_v31", "deepseekv32": "deepseek_v32", "gpt-oss": "openai", "glm": "glm45",
    "minimax-m2": "minimax_m2", "glm45": "glm45", "glm47": "glm47", "kimi_k2": "kimi_k2", "mistral": "mistral",
    "pythonic": "pythonic", "qwen3_coder": "qwen3_coder", "step3": "step3",
}  # fmt: skip
_REASONING: Mapping[str, str] = {
    "deepseek-r1": "deepseek_r1", "deepseek-v3": "deepseek_v3", "qwen3": "qwen3", "qwen3-thinking": "qwen3",
    "gpt-oss": "openai_gptoss", "glm45": "glm45", "kimi_k2": "kimi_k2", "step3": "step3", "minimax": "minimax_m2",
}  # fmt: skip
_WHY: Mapping[str, str] = {
    "mem_fraction_static": "it counts weights and KV cache alone; vLLM's `gpu_memory_utilization` counts all",
    "chunked_prefill_size": "vLLM sizes its steps itself; `max_num_batched_tokens` changes them",
    "speculative_eagle_topk": "vLLM drafts chains, not trees",
    "speculative_token_map": "vLLM has no reduced draft vocabulary beside that of an `eagle3` head",
    "speculative_accept_threshold_single": "it makes speculation lossy",
    "speculative_accept_threshold_acc": "it makes speculation lossy",
    "attention_backend": "the backends of the two engines differ; vLLM picks one",
}
_SPECULATIVE = (
    "speculative_algorithm", "speculative_algo", "speculative_draft_model_path", "speculative_draft_model",
    "speculative_num_steps", "speculative_num_draft_tokens", "num_speculative_tokens",
    "speculative_draft_model_revision", "speculative_draft_model_quantization",
)  # fmt: skip
_DEFAULT_K = 3
_HAS_SAME_NAME = frozenset(
    {
        "model", "tokenizer_mode", "load_format", "dtype", "kv_cache_dtype", "quantization", "served_model_name",
        "chat_template", "revision", "host", "port", "api_key", "trust_remote_code", "download_dir", "nnodes",
        "node_rank", "disable_custom_all_reduce", "skip_tokenizer_init", "tensor_parallel_size",
        "pipeline_parallel_size", "data_parallel_size", "max_model_len", "max_num_seqs", "gpu_memory_utilization",
        "enforce_eager", "seed", "max_num_batched_tokens", "enable_prefix_caching",
    }
)  # fmt: skip


def options(table: VllmTable) -> dict[str, tuple[Argument, bool]]:
    """SGLang's option strings over those of vLLM, for flags of both stand in what people pass on."""
    known = dict(table.options())
    for name, ours in RENAMED.items():
        argument = table.engine.get(ours) or table.frontend.get(ours)
        kind: Kind = argument.kind if argument else "str"
        form: Form = argument.form if argument else "value"
        known[_flag(name)] = (Argument(name, _flag(name), kind, form), False)
    for name in (*_SWITCHES, "trust_remote_code", "enable_metrics", "log_requests"):
        known[_flag(name)] = (Argument(name, _flag(name), "bool", "flag"), False)
    return known


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def translated(given: Given) -> Given:
    """The same start for vLLM: speculation as its own block, flags without a counterpart left out and noted."""
    settings: dict[str, Setting] = {}
    notes = list(given.notes)
    speculation = _speculation(given, notes)
    for name, setting in given.settings.items():
        if name in _SPECULATIVE:
            continue
        if name in _SWITCHES:
            ours, value = _SWITCHES[name]
            settings[ours] = Setting(ours, replace(setting.node, value=value, raw=None), setting.written)
            notes.append(_note(setting, f"`{setting.written}` is `{ours}` in vLLM", path=f"engine.{ours}"))
        elif name in ("ep", "ep_size") and setting.node.value not in (0, 1):
            node = replace(setting.node, value=True, raw=None)
            settings["enable_expert_parallel"] = Setting("enable_expert_parallel", node, setting.written)
        elif name in ("tool_call_parser", "reasoning_parser"):
            settings |= _parser(setting, notes)
        elif name in RENAMED or name in _HAS_SAME_NAME:
            ours = RENAMED.get(name, name)
            settings[ours] = Setting(ours, setting.node, setting.written)
        else:
            why = _WHY.get(name, "vLLM has nothing of the kind")
            notes.append(_note(setting, f"`{setting.written}` is left out: {why}"))
    if speculation:
        settings["speculative_config"] = speculation
    return Given("vllm", given.what, given.place, settings, given.env, notes)


def _note(setting: Setting, text: str, *, path: str = "") -> Note:
    return Note(path, text, setting.place.line)


def _parser(setting: Setting, notes: list[Note]) -> dict[str, Setting]:
    """A parser under vLLM's name for it; tool calls need a switch of their own there."""
    tools = setting.name == "tool_call_parser"
    written = str(setting.node.value)
    name = (_TOOLS if tools else _REASONING).get(written)
    if name is None:
        notes.append(
            _note(setting, f"`{setting.written} {written}` is left out: vLLM has no parser of that name")
        )
        return {}
    node = replace(setting.node, value=name, raw=name)
    if name != written:
        notes.append(
            _note(setting, f"vLLM calls this parser {quoted(name)}", path=f"frontend.{setting.name}")
        )
    if not tools:
        return {setting.name: Setting(setting.name, node, setting.written)}
    switch = Setting("enable_auto_tool_choice", replace(node, value=True, raw=None), setting.written)
    return {
        "tool_call_parser": Setting(setting.name, node, setting.written),
        "enable_auto_tool_choice": switch,
    }


def _speculation(given: Given, notes: list[Note]) -> Setting | None:
    """`speculative_config` for vLLM, where SGLang speculates."""
    said = {name: given.settings[name] for name in _SPECULATIVE if name in given.settings}
    if not said:
        return None
    first = next(iter(said.values()))
    algorithm = said.get("speculative_algorithm") or said.get("speculative_algo")
    draft = said.get("speculative_draft_model_path") or said.get("speculative_draft_model")
    method = _method(algorithm, draft, notes)
    keys = {"method": Node(method, (algorithm or draft or first).node.span)} if method else {}
    if draft and method != "ngram":
        keys["model"] = draft.node
    keys["num_speculative_tokens"] = _count(said, method, notes)
    for name, key in (("revision", "revision"), ("quantization", "quantization")):
        setting = said.get(f"speculative_draft_model_{name}")
        if setting:
            keys[key] = setting.node
    return Setting("speculative_config", Node(keys, first.node.span, key=first.node.key), first.written)


def _method(algorithm: Setting | None, draft: Setting | None, notes: list[Note]) -> str | None:
    """vLLM's method for SGLang's algorithm; without one, that of the draft's name."""
    name = str(algorithm.node.value).lower() if algorithm else ""
    method = _METHODS.get(name)
    if algorithm and method == "eagle" and draft is None:
        notes.append(_note(algorithm, "without a draft SGLang's EAGLE runs the target's own prediction layers",
                           path="speculation.method"))  # fmt: skip
        return "mtp"
    if algorithm and method:
        return method
    if draft is None:
        return None
    inferred = inferred_method(str(draft.node.value))
    what = f"`{algorithm.node.value}` is no algorithm of vLLM's" if algorithm else "no algorithm is said"
    notes.append(_note(draft, f"{what}: the draft's name says `{inferred}`", path="speculation.method"))
    return inferred


def _count(said: Mapping[str, Setting], method: str | None, notes: list[Note]) -> Node:
    """K: SGLang's steps; its draft tokens count the root of the tree too."""
    path = "speculation.num_speculative_tokens"
    steps, drafts = said.get("speculative_num_steps"), said.get("speculative_num_draft_tokens")
    ours = said.get("num_speculative_tokens")
    if ours and isinstance(ours.node.value, int):
        if method is not None:
            notes.append(
                _note(ours, "`--num-speculative-tokens` is no flag of SGLang's; taken as K", path=path)
            )
        return ours.node
    if steps and isinstance(steps.node.value, int) and steps.node.value > 0:
        notes.append(
            _note(steps, "SGLang's steps are vLLM's K: tokens drafted one after the other", path=path)
        )
        return steps.node
    if drafts and isinstance(drafts.node.value, int) and drafts.node.value > 1:
        chained = method not in ("ngram", None)
        value = drafts.node.value - 1 if chained else drafts.node.value
        why = "; the first of SGLang's draft tokens is verified, not drafted" if chained else ""
        notes.append(_note(drafts, f"from `--speculative-num-draft-tokens`{why}", path=path))
        return replace(drafts.node, value=value, raw=str(value))
    first = next(iter(said.values()))
    notes.append(_note(first, f"SGLang picks a number by the model; {_DEFAULT_K} is a start", path=path))
    return Node(_DEFAULT_K, first.node.span, raw=str(_DEFAULT_K))
