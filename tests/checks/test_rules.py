"""Each rule on its example and on a sound counterpart, at its borders, and its manual page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.rules import all_rules
from specserve.checks.run import run_rules, run_rules_on_profile
from specserve.diagnostics import Finding, Severity
from specserve.errors import FactError
from specserve.hardware.accelerators import assume
from specserve.models.drafts import Draft, catalogue
from specserve.models.facts import ModelFacts
from specserve.profile.schema import Profile
from specserve.report.manual import Page, pages
from specserve.vllm import versions
from specserve.vllm.versions import Installed, known_versions
from tests.checks.checkpoints import beside
from tests.checks.judging import judge, recipe_facts
from tests.checks.surroundings import surroundings

Load = Callable[[str], Profile]
FOLDER = Path(__file__).parent
EXAMPLES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "examples.yaml").read_text(encoding="utf-8"))
CASES = [
    pytest.param(code, kind, case, id=f"{code} {kind} {number}")
    for code, kinds in yaml.safe_load((FOLDER / "cases.yaml").read_text(encoding="utf-8")).items()
    if code.startswith("SD")
    for kind, cases in kinds.items()
    for number, case in enumerate(cases)
]
RULES = {rule.code: rule for rule in all_rules()}
each = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["of"])


def judge_example(example: dict[str, Any], which: str, profile: Load, folder: Path) -> list[Finding]:
    """The findings where the rule has what it needs, in surroundings of its own."""
    said = example[which]
    text = said if isinstance(said, str) else yaml.safe_dump(said)
    beside(folder, text)
    return run_rules(surroundings(RULES[example["of"][:5]], profile(text), case=example["of"])).findings


def test_every_rule_has_an_example() -> None:
    wrong = {example["of"][:5] for example in EXAMPLES} ^ RULES.keys()
    assert not wrong, (
        f"tests/checks/examples.yaml: each rule, and no other code, has `of`, `bad`, `good`: {wrong}"
    )


@each
def test_the_example_is_found_and_nothing_else(
    example: dict[str, Any], profile: Load, tmp_path: Path
) -> None:
    (finding,) = judge_example(example, "bad", profile, tmp_path)
    rule = RULES[example["of"][:5]]
    assert (finding.code, finding.name) == (rule.code, rule.name)
    assert finding.severity == example.get("severity", "error")
    assert finding.span.line >= 1 and finding.span.file.endswith("p.yaml")
    assert not finding.message.endswith(".")


@each
def test_its_sound_counterpart_is_clean(example: dict[str, Any], profile: Load, tmp_path: Path) -> None:
    assert judge_example(example, "good", profile, tmp_path) == []


@pytest.mark.parametrize(("code", "kind", "case"), CASES)
def test_a_rule_finds_what_is_at_its_border_and_no_more(
    code: str, kind: str, case: dict[str, Any], profile: Load
) -> None:
    said = {name: case.get(name) for name in ("as", "at", "says")}
    models = {f"org/{name}": recipe_facts(case[name]) for name in "td" if name in case}
    text = {key: value for key, value in case.items() if key not in (*said, "t", "d", "machine")}
    loaded = profile(yaml.safe_dump({**text, "target": {"model": "org/t", **text.get("target", {})}}))
    if models:
        models |= {loaded.target.model: models["org/t"]}
        for block in loaded.blocks.values():
            models |= {block.model: models["org/d"]} if block.model and "d" in case else {}

        def read(model: str, revision: str | None) -> ModelFacts:
            del revision
            if model not in models:
                raise FactError(f"no `{model}`", cause="not_found")
            return models[model]

        machine = assume(case["machine"]) if "machine" in case else None
        wanted = CheckOptions(offline=True, here=False, machine=machine)
        context = collect(loaded, wanted=wanted, read=read).context
        findings = run_rules(context).findings
    else:
        findings = judge(loaded)
    found = [item for item in findings if item.code.startswith(code)]
    if kind == "sound":
        assert found == []
        return
    assert said["as"] in (None, *(item.severity for item in found))
    assert said["at"] in (None, *(item.span.path for item in found))
    words = [f"{item.message} {item.help} {item.notes} {item.label} {item.related}" for item in found]
    assert (said["says"] or "") in " ".join(words) and words
    if code == "SD107":  # what it finds, it does not repeat
        assert re.findall(r"[\w-]{12,}", yaml.safe_dump(text))[-1] not in f"{words}".partition("related")[0]


@pytest.mark.parametrize("draft", catalogue(), ids=lambda draft: f"{draft.model} {draft.target}")
def test_every_pair_of_the_catalogue_is_sound(profile: Load, draft: Draft) -> None:
    block = {"method": draft.method, "num_speculative_tokens": draft.num_speculative_tokens or 3}
    block |= {"model": draft.model} if draft.model else {}
    block |= {"parallel_drafting": True} if draft.parallel_drafting else {}
    text = {"vllm": ">=0.33", "target": {"model": draft.target}, "speculation": block}
    found = judge(profile(yaml.safe_dump(text)))
    assert [item.code for item in found if item.severity is not Severity.INFO] == []


@pytest.mark.parametrize("page", pages().values(), ids=lambda page: page.code)
def test_a_manual_page_has_at_most_six_lines_what_why_instead_and_source(page: Page) -> None:
    what, rest = page.doc.split("\n\n")
    starts = [line.partition(":")[0] for line in rest.splitlines()]
    assert what.endswith(".") and "\n" not in what and len(starts) <= 5
    assert starts.count("Instead") == 1 and 1 <= starts.count("Source") <= 2
    for source in (line for line in rest.splitlines() if line.startswith("Source: ")):
        assert re.match("Source: (vllm/.*, `.+`$|specserve, )", source), (
            "a source in vLLM quotes a line of it"
        )
        for name in re.findall(r"(?:plan|profile|models|memory|checks)/[\w./]+", source):
            assert (FOLDER.parents[1] / "specserve" / name).exists() or "vllm/" in source


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


@pytest.mark.parametrize("spec", [">=0.34", "==0.40.1", "<0.20", ">=0.26,<0.31"])
def test_a_range_without_a_known_version_is_judged_by_the_newest(profile: Load, spec: str) -> None:
    findings = judge(profile(f'vllm: "{spec}"\nengine: {{max_num_sequences: 3}}'))
    assert [item.code for item in findings] == ["SD402", "SD102"]


def test_alternatives_are_judged_too_each_at_its_own_place(profile: Load) -> None:
    block = "{method: ngram, num_speculative_tokens: 129, prompt_lookup_min: 2, prompt_lookup_max: 4}"
    findings = judge(profile(f"speculation: {block}\nalternatives:\n  other: {block}"))
    assert [(item.code, item.span.path) for item in findings] == [
        ("SD109", "speculation.num_speculative_tokens"),
        ("SD109", "alternatives.other.num_speculative_tokens"),
    ]
    assert judge(profile(f"speculation: {block.replace('129', '128')}")) == []


def test_a_lock_beside_the_profile_pins_everything(profile: Load, write: Callable[..., Path]) -> None:
    text = "target: {model: org/t}\nengine: {trust_remote_code: true}"
    assert [item.code for item in judge(profile(text))] == ["SD111"]
    write("{}", "p.lock.json")
    assert judge(profile(text)) == []


def test_a_relative_folder_is_no_model_of_the_hub(
    profile: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for code in ["SD113"], []:
        assert [item.code for item in judge(profile("target: {model: models/llama}"))] == code
        (tmp_path / "models" / "llama").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("load_format", ["auto", "dummy", "runai_streamer"])
def test_another_loader_brings_its_own_weights(profile: Load, tmp_path: Path, load_format: str) -> None:
    text = f"target: {{model: ./llama-empty}}\nengine: {{load_format: {load_format}}}"
    beside(tmp_path, text)
    loaded = profile(text)
    wanted = CheckOptions(offline=True, here=False)
    found = [item.code for item in run_rules(collect(loaded, wanted=wanted).context).findings]
    assert found == (["SD250"] if load_format == "auto" else [])
    (tmp_path / "llama-empty" / "pytorch_model.bin").write_bytes(b"PK")
    assert run_rules(collect(loaded, wanted=wanted).context).findings == []
