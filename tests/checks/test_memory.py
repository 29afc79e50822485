"""What the rules about memory say of real pairs: severity follows what is certain, advice follows the estimate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.collect import CheckOptions, collect
from specserve.diagnostics import Finding, Severity
from specserve.hardware.accelerators import assume
from specserve.models.facts import ModelFacts
from specserve.profile.schema import Profile
from tests.checks.checkpoints import checkpoint
from tests.checks.judging import judged
from tests.memory.models import LLAMA_1B, LLAMA_8B, decoder

Load = Callable[[str], Profile]
DRAFT = "{method: draft_model, model: ./1b, num_speculative_tokens: 5}"


def read(model: str, revision: str | None) -> ModelFacts:
    del revision
    return decoder(LLAMA_1B if model.endswith("1b") else LLAMA_8B, model)


def found(loaded: Profile, machine: str = "1xL4-24GB") -> list[Finding]:
    """What the rules about memory find of an 8B target."""
    wanted = CheckOptions(offline=True, here=False, machine=assume(machine))
    findings = judged(collect(loaded, wanted=wanted, read=read).context)
    return [item for item in findings if item.code in ("SD301", "SD302")]


def profile_of(profile: Load, text: str = "", *, length: int = 8192) -> Profile:
    return profile(f"target: {{model: ./8b, max_model_len: {length}}}\n{text}")


def test_weights_that_are_too_large_are_an_error_with_the_figures(profile: Load) -> None:
    (finding,) = found(profile_of(profile), "1xT4-16GB")
    assert (finding.code, finding.severity, finding.span.path) == ("SD301", Severity.ERROR, "target.model")
    assert (
        finding.message
        == "the launch is too large for 1 x T4-16GB: the weights take 15.0 GiB, and vLLM may use 13.4 GiB"
    )
    assert finding.notes[0].startswith(
        "per GPU or rank: vLLM may use 13.4 GiB of 14.6 GiB; estimated: weights 15.0 GiB; activations, "
    )


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("cpu_offload_gb: 8", "SD302"), ("num_gpu_blocks_override: 1", "SD302"), ("enable_dbo: true", "SD302"),
        ("decode_context_parallel_size: 2", "SD302"), ("kv_sharing_fast_prefill: true", "SD302"),
        ("enable_lora: true", "SD301"), ("cpu_offload_gb: 0", "SD301"), ("hf_overrides: {}", "SD301"),
    ],
)  # fmt: skip
def test_what_may_make_room_and_is_not_counted_is_named_and_the_launch_may_start(
    profile: Load, setting: str, code: str
) -> None:
    (finding,) = found(profile_of(profile, f"engine: {{{setting}}}"), "1xT4-16GB")
    name = setting.partition(":")[0]
    assert finding.code == code
    assert (f"`{name}` may make room, and is not counted" in finding.message) is (code == "SD302")


@pytest.mark.parametrize(
    ("lines", "length", "words"),
    [
        ("", 30000, "may be too large for 1 x L4-24GB: one request may need "),
        ("engine: {gpu_memory_utilization: 0.99}", 8192, "GiB are left unclaimed, but sampling or a prefill may "),
    ],
)  # fmt: skip
def test_what_may_not_fit_is_a_warning_that_says_why(
    profile: Load, lines: str, length: int, words: str
) -> None:
    (finding,) = found(profile_of(profile, lines, length=length))
    assert (finding.code, finding.severity) == ("SD302", Severity.WARNING)
    assert words in finding.message


def test_each_alternative_is_weighed_for_itself(profile: Load) -> None:
    lines = f"""
speculation: {{method: ngram, num_speculative_tokens: 3, prompt_lookup_min: 2, prompt_lookup_max: 4}}
alternatives:
  small: {DRAFT}
"""
    findings = found(profile_of(profile, lines))
    assert [(item.code, item.span.path) for item in findings] == [
        ("SD302", "target.model"),
        ("SD302", "alternatives.small"),
    ]


def test_an_architecture_that_is_not_known_is_an_info_that_says_so(profile: Load, tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama", model_type="deepseek_v4", architectures=["DeepseekV4ForCausalLM"])
    loaded = profile("target: {model: ./llama, max_model_len: 1024}\nengine: {max_num_seqs: 64}")
    wanted = CheckOptions(offline=True, here=False, machine=assume("1xL4-24GB"))
    findings = judged(collect(loaded, wanted=wanted).context)
    (finding,) = [item for item in findings if item.code in ("SD301", "SD302")]
    assert (finding.code, finding.severity) == ("SD302", Severity.INFO)
    assert "the KV cache of this architecture is not known" in finding.message
    assert any("of model type `deepseek_v4` is not known without vLLM" in note for note in finding.notes)
