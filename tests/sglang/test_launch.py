"""A profile as SGLang's command: each setting is an option of SGLang, or an error with its place, and comes back."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.convert.convert import Converted, converted
from specserve.convert.reading import read
from specserve.errors import UsageError
from specserve.plan.launchplan import shell
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.profile.tree import parse
from specserve.profile.validate import read_profile
from specserve.sglang.options import ARGUMENTS, LEFT_OUT, OPTIONS, SAME, launch_sglang
from specserve.vllm.arguments import human_int

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
LAUNCHES = yaml.safe_load((ROOT / "tests/data/sglang_launches.yaml").read_text("utf-8"))
"""Public launches, each with `url`, `date` and `text`, that SGLang takes as they stand."""
_KINDS: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "dict": json.loads, "human": lambda text: human_int(text) or int(text),
}  # fmt: skip


def table_parser() -> argparse.ArgumentParser:
    """A parser with the options of the shipped table."""
    parser = argparse.ArgumentParser(prog="sglang serve", exit_on_error=False)
    for argument in ARGUMENTS.values():
        flags = [flag for flag in (argument.flag, *argument.aliases) if flag]
        given: dict[str, Any] = {"dest": argument.name}
        if argument.form == "flag":
            given["action"] = argparse.BooleanOptionalAction if argument.negatable else "store_true"
        else:
            kind = "human" if argument.human_int else argument.kind
            given["type"] = _KINDS.get(kind, str)
            if argument.form in ("many", "optional_value"):
                given["nargs"] = "*" if argument.form == "many" else "?"
            if argument.choices:
                given["choices"] = argument.choices
        parser.add_argument(*flags, **given)
    # SGLang's own, for what the launches leave out (srt/arg_groups/fields 0.5.23)
    parser.set_defaults(host="127.0.0.1", port=30000, tp_size=1, pp_size=1)
    return parser


PARSER = table_parser()
DRAFT = "speculation: {method: draft_model, model: a/d, num_speculative_tokens: 3"
NGRAM = "speculation: {method: ngram, num_speculative_tokens: 3"
REFUSED = {
    "demo": "hardware.accelerator",
    "qwen25-coder-7b-draft": "speculation.use_heterogeneous_vocab",
    "qwen3-8b-smollm2": "speculation.use_heterogeneous_vocab",
    "qwen3-coder-30b-suffix": "speculation.method",
}
"""The shipped profiles that SGLang has no method or machine for, with the place that says so."""
SERVED = sorted({file.stem for file in CONFIGS.glob("[!_]*.yaml")} - {*REFUSED})


def parsed(profile: Profile) -> argparse.Namespace:
    """The options of the launch, as SGLang's parser reads them: unknown ones and wrong values are refused."""
    return PARSER.parse_args(launch_sglang(profile).argv[2:])


def profile_of(text: str) -> tuple[Profile, Converted]:
    """The profile that `convert` makes of a command."""
    (start,) = read(text, file="launch.sh", folder=Path("nowhere"))
    result = converted(start, origin="launch.sh")
    tree, problems = parse(result.text.encode(), file="p.yaml")
    assert tree and not problems and not result.unresolved
    found, findings = read_profile(tree, file="p.yaml")
    assert found and not findings
    return found, result


def back(profile: Profile) -> Profile:
    """The profile that `convert` makes of the rendered command."""
    made = launch_sglang(profile)
    return profile_of(shell(made.argv, made.env))[0]


def meaning(profile: Profile) -> dict[str, Any]:
    """What a profile says of the server, without what SGLang does anyway and what concerns the machine."""
    block = dict(profile.speculation.keys) if profile.speculation else {}
    greedy = block.get("draft_sample_method") == "greedy" or block.get("method") == "draft_model"
    left_out = {"speculation.draft_sample_method"} if greedy else set()
    server, said = profile.server, dict[str, Any]()
    sections = {"engine": profile.engine, "frontend": profile.frontend, "speculation": block}
    for section, values in sections.items():
        said |= {f"{section}.{key}": value for key, value in values.items() if value is not None}
    return {
        **{place: value for place, value in said.items() if place not in {*LEFT_OUT, *left_out}},
        "target": profile.target,
        "server": (server.host, server.port, server.served_model_name),
        "env": dict(profile.env),
    }


@pytest.mark.parametrize("name", SERVED)
def test_a_shipped_profile_renders_and_comes_back_from_its_command(name: str) -> None:
    profile = load_profile(str(CONFIGS / f"{name}.yaml"))
    assert meaning(back(profile)) == meaning(profile)
    assert parsed(profile).model_path == profile.target.model


@pytest.mark.parametrize(("name", "place"), REFUSED.items())
def test_a_shipped_profile_that_sglang_cannot_serve_is_an_error_with_its_place(name: str, place: str) -> None:
    profile = load_profile(str(CONFIGS / f"{name}.yaml"))
    with pytest.raises(UsageError) as caught:
        launch_sglang(profile)
    (cause,) = caught.value.causes
    assert cause.startswith(f"{profile.span(place)}: `{place}`: ")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{DRAFT}, draft_sample_method: probabilistic}}", "draft_sample_method"),
        (f"{DRAFT}, draft_tensor_parallel_size: 2}}", "draft_tensor_parallel_size"),
        (f"{DRAFT.replace('draft_model', 'dflash')}, draft_sample_method: greedy}}", "draft_sample_method"),
        (
            f"{DRAFT.replace('draft_model', 'eagle3')}, rejection_sample_method: block}}",
            "rejection_sample_method",
        ),
        (f"{NGRAM}, rejection_sample_method: block}}", "rejection_sample_method"),
        (f"{NGRAM}, prompt_lookup_max: 4}}", "prompt_lookup_max"),
        ("engine: {attention_backend: FLASH_ATTN}", "attention_backend"),
        ("engine: {kv_cache_memory_bytes: 4G}", "kv_cache_memory_bytes"),
    ],
)
def test_what_changes_speed_or_memory_alone_is_left_out_with_a_note(
    profile: Callable[[str], Profile], text: str, key: str
) -> None:
    (note,) = (note for note in launch_sglang(profile(text)).notes if note.startswith(f"`{key}` "))
    assert note.startswith(f"`{key}` is left out: ")


def test_what_needs_no_option_is_noted(profile: Callable[[str], Profile]) -> None:
    made = profile(f"{DRAFT}}}\nengine: {{enable_prefix_caching: true, enforce_eager: false}}")
    notes = " ".join(launch_sglang(made).notes)
    for key in ("enable_prefix_caching: true", "enforce_eager: false", "max_num_seqs"):
        assert f"`{key}`" in notes


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("{method: mtp, num_speculative_tokens: 2}",
         "NEXTN --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"),
        ("{method: ngram, num_speculative_tokens: 4}",
         "NGRAM --speculative-num-draft-tokens 5 --speculative-ngram-max-bfs-breadth 1"),
        ("{method: dflash, model: a/f, revision: x, num_speculative_tokens: 15}",
         "DFLASH --speculative-draft-model-path a/f --speculative-num-draft-tokens 16 "
         "--speculative-draft-model-revision x"),
        ("{method: dspark, num_speculative_tokens: 7}", "DSPARK --speculative-dspark-block-size 7"),
    ],
)  # fmt: skip
def test_each_method_has_its_algorithm_and_k(
    profile: Callable[[str], Profile], block: str, expected: str
) -> None:
    made = profile(f"speculation: {block}\nengine: {{max_num_seqs: 8}}")
    argv = launch_sglang(made).argv
    first = argv.index("--speculative-algorithm") + 1
    assert argv[first : argv.index("--max-running-requests")] == tuple(expected.split())
    assert meaning(back(made)) == meaning(made)


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("speculation: {method: eagle3, model: a/h}", "speculation", "picks the number"),
        ("speculation: {method: eagle, model: a/h, num_speculative_tokens: 3, rejection_sample_method: fly}",
         "speculation.rejection_sample_method", "cannot be `fly`"),
        ("target: {model: a/b, quantization: torchao}", "target.quantization", ""),
        ("engine: {kv_cache_dtype: fp8_inc}", "engine.kv_cache_dtype", "cannot be `fp8_inc`"),
        ("engine: {runner: generate}", "engine.runner", "cannot be `generate`"),
        ("engine: {swap_space: 4}", "engine.swap_space", "no such option"),
        ("frontend: {tool_call_parser: xlam, enable_auto_tool_choice: true}", "frontend.tool_call_parser", "`xlam`"),
        ("frontend: {enable_auto_tool_choice: true}", "frontend.enable_auto_tool_choice", "no such option"),
        ("engine: {enable_expert_parallel: true, data_parallel_size: 2}", "engine.enable_expert_parallel", "one"),
        ("server: {api_key_env: MY_KEY}", "server.api_key_env", "only as an argument"),
        ("server: {port: 0}", "server.port", "name a port"),
        ("hardware: {nodes: 2}", "hardware.nodes", "one node"),
        ("env: {VLLM_USE_V2_MODEL_RUNNER: '0'}", "env.VLLM_USE_V2_MODEL_RUNNER", "only vLLM"),
    ],
)  # fmt: skip
def test_a_setting_without_counterpart_says_why(
    profile: Callable[[str], Profile], text: str, place: str, why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        launch_sglang(profile(text))
    (cause,) = caught.value.causes
    assert f"`{place}`: " in cause and why in cause


def test_graphs_experts_and_parsers_come_back(profile: Callable[[str], Profile]) -> None:
    made = profile(
        """
        target: {model: org/target, tensor_parallel_size: 4, max_model_len: 8k, quantization: fp8}
        engine: {enforce_eager: true, enable_expert_parallel: true, enable_prefix_caching: false, seed: 3,
                 reasoning_parser: deepseek_r1, hf_overrides: {rope_theta: 1}, max_num_batched_tokens: 4096}
        frontend: {tool_call_parser: llama3_json, enable_auto_tool_choice: true}
        server: {served_model_name: it, host: 0.0.0.0, port: 1234}
        """
    )
    said = parsed(made)
    assert (said.ep_size, said.disable_decode_cuda_graph, said.disable_prefill_cuda_graph) == (4, True, True)
    assert (said.tool_call_parser, said.reasoning_parser) == ("llama3", "deepseek-r1")
    again = back(made)
    assert again.server.host == "127.0.0.1"  # `convert` opens no server
    assert again.engine == {**made.engine} and again.frontend == made.frontend
    assert (again.target.max_model_len, again.target.quantization) == (8000, "fp8")


def spellings(name: str) -> Iterator[str]:
    """How a note may name an option: also abbreviated, as the source wrote it."""
    argument = ARGUMENTS[name]
    for flag in filter(None, (f"--{name.replace('_', '-')}", argument.flag, *argument.aliases)):
        yield flag
        yield from (f"{flag[:length]}`" for length in range(4, len(flag)))


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch["url"].rpartition("/")[2])
def test_a_public_launch_keeps_its_settings_or_a_note_says_so(launch: dict[str, Any]) -> None:
    words = shlex.split(launch["text"])
    profile, result = profile_of(launch["text"])
    made = launch_sglang(profile)
    notes = " ".join((*(note.text for note in result.notes), *made.notes))
    theirs, others = PARSER.parse_known_args(words[words.index("sglang.launch_server") + 1 :])
    ours = vars(PARSER.parse_args(made.argv[2:]))
    differ = [name for name in ours if ours[name] != vars(theirs)[name]]
    assert [name for name in differ if not any(flag in notes for flag in spellings(name))] == []
    left_out = [word.partition("=")[0] for word in others if word.startswith("--")]
    assert [flag for flag in left_out if flag not in notes] == []


def test_each_counterpart_is_an_option_of_this_sglang_or_an_earlier_one() -> None:
    assert ARGUMENTS.keys() >= SAME
    gone = {name for name in OPTIONS if name not in ARGUMENTS}
    assert gone == {"enable_ep_moe", "enable_deepep_moe", "num_speculative_tokens"}
    for name, item in OPTIONS.items():
        choices = ARGUMENTS[name].choices if name in ARGUMENTS else ()
        for theirs in item.written.values():
            assert theirs in choices
