"""Bounds of numbers, keys of mappings and names that vLLM brings: read from its sources, and judged in a profile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from vllmsource import fieldlimits
from vllmsource.annotations import Package, annotated_fields
from vllmsource.parsercalls import class_of

from specserve.plan.arguments import problems
from specserve.profile.schema import Profile
from specserve.vllm.versions import installed, known_versions, table

Load = Callable[[str], Profile]
MODULE = """
    class Mode(enum.Enum):
        NONE = 0
        FULL = 2

    class Level(IntEnum):
        O0 = 0

    @config
    class Inner:
        fuse: bool = False
        mode: Mode = None
        level: Level = None
        backend: Literal["auto", "fast"] | None = None
        open_name: Literal["auto"] | str = "auto"

    @config(config=ConfigDict(arbitrary_types_allowed=True))
    class CacheConfig:
        inner: Inner = None
        share: float = Field(default=0.9, gt=0, le=1)
        least: int = Field(default=-1, ge=-1)
        both: int = Field(default=1, ge=1)
        _own: int = 0

    @config
    class OtherConfig:
        both: int = Field(default=1, ge=0)

    @config(config=ConfigDict(extra="allow"))
    class OpenConfig:
        a: int = 1

    @config
    class OldConfig:
        a: int = 1
        @model_validator(mode="before")
        def rename(cls, data): ...

    class Args:
        cache: CacheConfig = None
        maybe: CacheConfig | None = None
        wide: CacheConfig | dict = None
        open_one: OpenConfig = None
        old: OldConfig = None
        plain: dict = None
"""


INNER = ("backend", "fuse", "level", "mode", "open_name")
KEYS = ("both", "inner", *(f"inner.{name}" for name in INNER), "least", "share")


@pytest.fixture
def package(tmp_path: Path) -> Package:
    root = tmp_path / "vllm"
    root.mkdir()
    (root / "args.py").write_text(dedent(MODULE), encoding="utf-8")
    return Package(root)


def test_bounds_are_what_every_class_with_the_field_says(package: Package) -> None:
    module = package.module("vllm.args")
    assert module is not None
    found = fieldlimits.bounds(package, module)
    assert found["share"] == ("> 0", "<= 1") and found["least"] == (">= -1",)
    assert found["both"] == ()


@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("cache", KEYS),
        ("maybe", KEYS),
        ("wide", ()),
        ("open_one", ()),
        ("old", ()),
        ("plain", ()),
    ],
)
def test_keys_are_said_only_where_vllm_refuses_every_other_one(
    package: Package, field: str, keys: tuple[str, ...]
) -> None:
    module = package.module("vllm.args")
    assert module is not None
    where, definition = class_of(package, module, "Args")
    assert fieldlimits.keys(package, where, dict(annotated_fields(definition))[field]) == keys


def test_texts_are_said_for_keys_that_admit_a_few_only(package: Package) -> None:
    module = package.module("vllm.args")
    assert module is not None
    where, definition = class_of(package, module, "Args")
    field = dict(annotated_fields(definition))["cache"]
    assert fieldlimits.choices(package, where, field) == ("inner.backend=auto|fast", "inner.mode=FULL|NONE")


REFUSED = [
    ("engine: {gpu_memory_utilization: 90}", "engine.gpu_memory_utilization", "value"),
    ("engine: {gpu_memory_utilization: 0}", "engine.gpu_memory_utilization", "value"),
    ("engine: {max_num_seqs: 0}", "engine.max_num_seqs", "value"),
    ("engine: {max_lora_rank: 7}", "engine.max_lora_rank", "value"),
    ("engine: {attention_backend: XFORMERS}", "engine.attention_backend", "value"),
    ("engine: {compilation_config: {level: 3}}", "engine.compilation_config.level", "unknown"),
    (
        "engine: {compilation_config: {pass_config: {enable_noop: true}}}",
        "engine.compilation_config.pass_config.enable_noop",
        "unknown",
    ),
    ("engine: {eplb_config: {windw: 1}}", "engine.eplb_config.windw", "unknown"),
    (
        "engine: {compilation_config: {cudagraph_mode: FULL_ONLY}}",
        "engine.compilation_config.cudagraph_mode",
        "value",
    ),
    (
        "engine: {structured_outputs_config: {backend: lmfe}}",
        "engine.structured_outputs_config.backend",
        "value",
    ),
    ("engine: {reasoning_parser: nope}", "engine.reasoning_parser", "plug-in"),
    ("frontend: {tool_call_parser: nope}", "frontend.tool_call_parser", "plug-in"),
    ("engine: {load_format: foo}", "engine.load_format", "plug-in"),
]
ADMITTED = [
    "engine: {gpu_memory_utilization: 1, max_num_seqs: 1, max_lora_rank: 64, max_logprobs: -1}",
    "engine: {attention_backend: flash_attn, kv_cache_dtype: fp8}",
    "engine: {attention_backend: auto}",
    "engine: {compilation_config: {mode: 3, cudagraph_mode: PIECEWISE, pass_config: {fuse_norm_quant: true}}}",
    "engine: {compilation_config: {cudagraph_mode: full_decode_only}, kernel_config: {moe_backend: deep-gemm}}",
    "engine: {attention_config: {backend: auto}, structured_outputs_config: {backend: xgrammar}}",
    "engine: {hf_overrides: {anything: 1}, mm_processor_kwargs: {fps: 2}}",
    "engine: {kv_transfer_config: {kv_connector: X, kv_role: kv_both, kv_connector_extra_config: {a: 1}}}",
    "engine: {reasoning_parser: mine, reasoning_parser_plugin: ./mine.py}",
    "frontend: {tool_call_parser: mine, tool_parser_plugin: ./mine.py}",
    "engine: {max_num_seqs: null, load_format: auto}",
]


@pytest.mark.parametrize(("line", "path", "kind"), REFUSED)
def test_what_vllm_refuses_in_a_value_is_named_at_its_place(
    profile: Load, line: str, path: str, kind: str
) -> None:
    found = [(item.path, item.kind) for item in problems(profile(line), table("0.32"))]
    assert found == [(path, kind)]


@pytest.mark.parametrize("line", ADMITTED)
@pytest.mark.parametrize("version", known_versions())
def test_what_vllm_admits_is_left_alone(profile: Load, version: str, line: str) -> None:
    assert [item.message for item in problems(profile(line), table(version))] == []


@pytest.mark.parametrize(
    ("line", "path", "kind"),
    [("{dtype: fp16}", "target.dtype", "value"), ("{quantization: awqq}", "target.quantization", "plug-in")],
)
def test_type_and_quantization_of_the_target_are_judged_too(
    profile: Load, line: str, path: str, kind: str
) -> None:
    loaded = profile(f"target: {{model: org/m, {line[1:]}")
    assert [(item.path, item.kind) for item in problems(loaded, table("0.32"))] == [(path, kind)]


CHILD = """
import dataclasses, json, sys, typing
from vllm.engine.arg_utils import EngineArgs
import vllm.config
def keys(cls):
    return sorted(field.name for field in dataclasses.fields(cls) if not field.name.startswith("_"))
hints = {f.name: f.type for f in dataclasses.fields(EngineArgs)}
answer = {}
for name in json.load(sys.stdin):
    cls = next((item for item in [hints[name], *typing.get_args(hints[name])] if dataclasses.is_dataclass(item)), None)
    answer[name] = keys(cls) if cls else None
print("\\n" + json.dumps(answer))
"""


@pytest.mark.vllm
def test_the_keys_are_those_of_the_installed_vllm_s_classes() -> None:
    found = installed()
    assert found is not None
    ours = {
        name: [key for key in argument.keys if "." not in key]
        for name, argument in table(found.version).engine.items()
        if argument.keys
    }
    child = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(list(ours)), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-2000:]
    assert json.loads(child.stdout.splitlines()[-1]) == ours and len(ours) >= 10
