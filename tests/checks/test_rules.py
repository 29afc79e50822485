"""Each rule on its example and on a sound counterpart, and its manual page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specserve.checks.rules import all_rules
from specserve.checks.run import run_rules, run_rules_on_profile
from specserve.diagnostics import Finding, Severity
from specserve.profile.schema import Profile
from specserve.report.manual import Page, pages
from specserve.vllm import versions
from specserve.vllm.versions import Installed, known_versions
from tests.checks.checkpoints import beside
from tests.checks.judging import judge
from tests.checks.surroundings import surroundings

Load = Callable[[str], Profile]
EXAMPLES: list[dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("examples.yaml").read_text(encoding="utf-8")
)
RULES = {rule.code: rule for rule in all_rules()}
each = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["of"])


def judge_example(example: dict[str, str], which: str, profile: Load, folder: Path) -> list[Finding]:
    """The findings where the rule has what it needs, in surroundings of its own."""
    beside(folder, example[which])
    rule = RULES[example["of"][:5]]
    return run_rules(surroundings(rule, profile(example[which]), case=example["of"])).findings


def test_every_rule_has_an_example() -> None:
    assert {example["of"][:5] for example in EXAMPLES} == set(RULES)


@each
def test_the_example_is_found_and_nothing_else(
    example: dict[str, str], profile: Load, tmp_path: Path
) -> None:
    (finding,) = judge_example(example, "bad", profile, tmp_path)
    rule = RULES[example["of"][:5]]
    assert (finding.code, finding.name) == (rule.code, rule.name)
    assert finding.severity == example.get("severity", "error")
    assert finding.span.line >= 1 and finding.span.file.endswith("p.yaml")
    assert not finding.message.endswith(".")


@each
def test_its_sound_counterpart_is_clean(example: dict[str, str], profile: Load, tmp_path: Path) -> None:
    assert judge_example(example, "good", profile, tmp_path) == []


@pytest.mark.parametrize("page", pages().values(), ids=lambda page: page.code)
def test_a_manual_page_has_at_most_six_lines_what_why_instead_and_source(page: Page) -> None:
    what, rest = page.doc.split("\n\n")
    assert what.endswith(".") and "\n" not in what and (what[0].isupper() or what.startswith("vLLM"))
    lines = rest.splitlines()
    assert len(lines) <= 5
    starts = [line.partition(":")[0] for line in lines]
    assert starts.count("Instead") == 1 and 1 <= starts.count("Source") <= 2
    assert starts.index("Instead") in (1, 2, 3)
    for line in lines:
        if line.startswith("Source: "):
            assert line.removeprefix("Source: ").startswith(("vllm/", "specserve, "))
            for name in re.findall(r"(?:plan|profile|models|memory|checks)/[\w./]+", line):
                assert (Path(__file__).parents[2] / "specserve" / name).exists() or "vllm/" in line


def test_codes_and_names_are_unique_and_in_order() -> None:
    codes = [rule.code for rule in all_rules()]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in all_rules()}) == len(all_rules())
    assert all(re.fullmatch(r"SD[0-5]\d\d", code) for code in codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name) for rule in all_rules())


@pytest.mark.parametrize("minor", known_versions())
def test_a_plain_profile_is_clean_for_every_version(profile: Load, minor: str) -> None:
    text = f'vllm: "~={minor}.0"\nspeculation: {{method: draft_model, model: ./d, num_speculative_tokens: 3}}'
    assert judge(profile(text)) == []


@pytest.mark.parametrize(
    "line",
    [
        "HF_TOKEN_PATH: ./token",
        "HF_TOKEN_PATH: relative/token",
        'TOKENIZERS_PARALLELISM: "false"',
        'MAX_TOKENS: "4096"',
        "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD: 1024",
        "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS: 16",
        "GOOGLE_APPLICATION_CREDENTIALS: /etc/key.json",
        "HF_TOKEN: $HF_TOKEN",
        "OPENAI_API_KEY: EMPTY",
        "MONKEY: business-as-usual",
        "KEYBOARD: qwertz-keyboard",
        "MY_SECRET_NAME: vault-entry-name",
        "LABEL: task-classification-of-2024-models",
        "NCCL_SOCKET_IFNAME: eth0",
        "HTTPS_PROXY: 'http://proxy:3128'",
        "HTTPS_PROXY: 'http://$USER:$PASSWORD@proxy:3128'",
        "MASTER_URL: 'tcp://10.0.0.1:29500'",
    ],
)
def test_a_harmless_variable_is_no_secret(profile: Load, line: str) -> None:
    assert [item for item in judge(profile(f"env: {{{line}}}")) if item.code == "SD107"] == []


@pytest.mark.parametrize(
    "text",
    [
        "env: {HF_TOKEN: a-real-token}",
        "env: {MY_SERVICE_API_KEY: 0123456789abcdef}",
        "env: {DB_PASSWORD: hunter2hunter2}",
        "env: {AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMIK7MDENG}",
        f"env: {{HARMLESS: hf_{'a' * 30}}}",
        f"env: {{HARMLESS: 'Bearer sk-{'a1' * 12}'}}",
        f"engine: {{hf_overrides: {{a: [{{b: ghp_{'x' * 30}}}]}}}}",
        f"frontend: {{chat_template: 'x hf_{'b' * 30}'}}",
        "env: {HTTPS_PROXY: 'http://proxyuser:proxypassword99@proxy:3128'}",
        f"env: {{HARMLESS: nvapi-{'a1' * 20}}}",
        f"alternatives: {{a: {{method: eagle3, model: ./h, num_speculative_tokens: 2, revision: hf_{'c' * 30}}}}}",
        f"target: {{model: ./m, tokenizer: 'https://user:{'p' * 12}@hub/m'}}",
    ],
)
def test_a_secret_is_found_wherever_it_stands_and_never_repeated(profile: Load, text: str) -> None:
    (finding,) = [item for item in judge(profile(text)) if item.code == "SD107"]
    value = re.findall(r"[\w-]{12,}", text)[-1]
    assert value not in f"{finding.message} {finding.help} {finding.notes} {finding.label}"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_no_key(profile: Load, host: str) -> None:
    assert judge(profile(f'server: {{host: "{host}"}}')) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "gpu-7"])
def test_every_other_address_does(profile: Load, host: str) -> None:
    assert [item.code for item in judge(profile(f'server: {{host: "{host}"}}'))] == ["SD108"]


def test_a_finding_of_some_versions_names_them(profile: Load) -> None:
    text = "{method: draft_model, model: ./d, num_speculative_tokens: 2, fly_window_size: 3}"
    (finding,) = judge(profile(f'vllm: ">=0.32,<0.34"\nspeculation: {text}'))
    assert finding.message == "vLLM 0.32 has no `fly_window_size` in its speculative config"
    assert finding.notes == ("the profile's range allows vLLM 0.32, 0.33; this applies to 0.32",)
    assert finding.help == "vLLM 0.33 has it: see the profile's `vllm` range"
    (finding,) = judge(profile('vllm: ">=0.32,<0.34"\nengine: {max_num_sequences: 3}'))
    assert (finding.code, finding.notes) == ("SD102", ())
    (finding,) = judge(profile(f"speculation: {text}"))
    assert finding.notes == ("judged for vLLM 0.32, 0.33; this applies to 0.32",)


@pytest.mark.parametrize(
    ("versions", "value", "help_"),
    [
        ("", "rejection_sample_method: fly", 'vLLM 0.33 accepts it: write `vllm: ">=0.33"`'),
        ("==0.32.*", "rejection_sample_method: fly", "vLLM 0.33 accepts it: see the profile's `vllm` range"),
        (">=0.32,<0.34", "moe_backend: nope", None),
    ],
)
def test_a_value_that_a_newer_version_takes_is_said_to_be_taken(
    profile: Load, versions: str, value: str, help_: str | None
) -> None:
    text = f"speculation: {{method: eagle3, model: ./h, num_speculative_tokens: 2, {value}}}"
    findings = judge(profile(f'vllm: "{versions}"\n{text}' if versions else text))
    (finding,) = (item for item in findings if item.code == "SD105")
    assert finding.help == help_ or (help_ is None and "accepts it" not in str(finding.help))


@pytest.mark.parametrize("word", ["auto_round", "auto-round", "fp4", "nvfp4", "marlin"])
def test_a_quantization_that_vllm_maps_needs_no_plug_in(profile: Load, word: str) -> None:
    assert judge(profile(f"target: {{model: ./t, quantization: {word}}}")) == []
    assert [item.code for item in judge(profile("target: {model: ./t, quantization: autoround9}"))] == [
        "SD105"
    ]


@pytest.mark.parametrize(
    ("installed", "severities"),
    [("0.32.0", [Severity.ERROR]), ("0.33.0", []), (None, [Severity.WARNING])],
)
def test_what_the_installed_version_refuses_is_an_error_else_what_the_newest_does(
    profile: Load, monkeypatch: pytest.MonkeyPatch, installed: str | None, severities: list[Severity]
) -> None:
    text = "{method: draft_model, model: ./d, num_speculative_tokens: 4, fly_window_size: 3}"
    loaded = profile(f"speculation: {text}")
    here = installed and Installed(installed, "cuda", "vllm", Path("vllm"))
    monkeypatch.setattr(versions, "installed", lambda: here)
    found = run_rules_on_profile(loaded, here=True).findings
    assert [item.severity for item in found if item.code == "SD102"] == severities


def test_an_unknown_argument_is_marked_at_its_key_even_above_its_value(profile: Load) -> None:
    (finding,) = judge(profile("engine:\n  compilation_confg:\n    mode: 3"))
    assert (finding.span.line, finding.span.column, finding.span.end_column) == (3, 3, 20)


@pytest.mark.parametrize("spec", [">=0.34", "==0.40.1", "<0.20", "==0.20", ">=0.26,<0.31"])
def test_a_range_without_a_known_version_is_an_info_and_judged_by_the_newest(
    profile: Load, spec: str
) -> None:
    findings = judge(
        profile(f'vllm: "{spec}"\nengine: {{max_num_sequences: 3}}\nenv: {{VLLM_LOGGING_LEVEL: INFO}}')
    )
    assert [(item.code, item.severity) for item in findings] == [
        ("SD402", Severity.INFO), ("SD102", Severity.ERROR),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tensor", "draft", "method", "hits"),
    [
        (4, 4, "draft_model", 0),
        (4, 2, "draft_model", 1),
        (4, 1, "eagle3", 0),
        (4, 2, "eagle3", 1),
        (1, 2, "mtp", 1),
    ],
)
def test_a_draft_is_cut_like_its_target(
    profile: Load, tensor: int, draft: int, method: str, hits: int
) -> None:
    block = (
        f"{{method: {method}, model: ./d, num_speculative_tokens: 2, draft_tensor_parallel_size: {draft}}}"
    )
    loaded = profile(f"target: {{model: ./t, tensor_parallel_size: {tensor}}}\nspeculation: {block}")
    assert [item.code for item in judge(loaded) if item.severity is Severity.ERROR] == ["SD104"] * hits


def test_alternatives_are_judged_too_each_at_its_own_place(profile: Load) -> None:
    block = "{method: ngram, num_speculative_tokens: 200, prompt_lookup_min: 2, prompt_lookup_max: 4}"
    findings = judge(profile(f"speculation: {block}\nalternatives:\n  other: {block}"))
    assert [(item.code, item.span.path) for item in findings] == [
        ("SD109", "speculation.num_speculative_tokens"),
        ("SD109", "alternatives.other.num_speculative_tokens"),
    ]
