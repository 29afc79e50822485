"""A bad value stops the rules that read it, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.check import check
from specserve.checks.collect import CheckOptions
from specserve.checks.run import lint
from specserve.profile.load import examine, examine_partial
from specserve.profile.partial import UnreadableValue

Write = Callable[..., Path]
WRONG = "engine: {max_num_seqs: 8, max_num_batched_tokens: 4}\nserver: {host: 0.0.0.0}\n"
"""SD108 and SD138, whatever stands beside it."""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("name: Bad_Name", "SD006"),
        ("name: [a]", "SD006"),
        ("nmae: x", "SD005"),
        ("schema: one", "SD006"),
        ("expect: [{concurrency: none}]", "SD006"),
        ("expect: {concurrency: 1}", "SD006"),
        ("env: {1X: y}", "SD006"),
        ("hardware: {acelerator: cpu}", "SD005"),
        ("alternatives: {a: {method: sufix}}", "SD006"),
        ("alternatives: [a]", "SD006"),
        ("speculation: {method: sufix}", "SD006"),
        ("speculation: {method: mtp, num_speculative_tokens: none}", "SD006"),
        ("speculation: {method: draft_model, num_speculative_tokens: 3}", "SD007"),
        ("speculation: [ngram]", "SD006"),
        ("vllm: newest", "SD006"),
        ("frontend: {a: 1, a: 2}", "SD004"),
        ("frontend: {port: 3}", "SD005"),
        ("frontend: {a: !x y}", "SD002"),
        ("frontend: {a: 010}", "SD011"),
    ],
)
def test_a_bad_value_hides_nothing_that_does_not_need_it(write: Write, text: str, code: str) -> None:
    report = lint([str(write(f"target: {{model: ./m}}\n{WRONG}{text}"))])
    assert {"SD108", code} <= {item.code for item in report.findings}
    assert [(item.verdict, item.fingerprint) for item in report.verdicts] == [("invalid", None)]


def test_a_value_that_cannot_be_read_makes_no_finding_of_its_default(write: Write) -> None:
    text = """
        target: {model: ./m, tensor_parallel_size: four}
        speculation: {method: draft_model, model: ./d, num_speculative_tokens: 3, draft_tensor_parallel_size: 4}
        engine: {enable_eplb: true, enable_expert_parallel: true}
        hardware: {accelerator: H100-80GB, count: 8}
    """
    assert [item.code for item in lint([str(write(text))]).findings] == ["SD006"]


def test_a_misspelt_key_is_not_taken_for_absent(write: Write) -> None:
    text = """
        target: {model: ./m, tensor_parallel_sise: 4}
        speculation: {method: draft_model, model: ./d, num_speculative_tokens: 3, draft_tensor_parallel_size: 4}
    """
    assert [item.code for item in lint([str(write(text))]).findings] == ["SD005"]


def test_check_judges_a_profile_with_wrong_values_by_what_lint_sees(write: Write) -> None:
    file = str(write("name: Bad_Name\ntarget: {model: ./m}\nhardware: {accelerator: L4-24GB, count: x}"))
    wanted = CheckOptions(offline=True, here=False)
    report = check([(file, *examine_partial(file))], wanted=wanted)
    codes = [item.code for item in report.findings]
    assert codes.count("SD006") == 2 and "SD290" not in codes
    assert [item.verdict for item in report.verdicts] == ["invalid"]


def test_check_reports_a_method_that_does_not_exist(write: Write) -> None:
    file = str(
        write(
            "target: {model: ./m}\nspeculation: {method: medusa, model: org/head, num_speculative_tokens: 3}"
        )
    )
    for wanted in (CheckOptions(offline=True), CheckOptions(offline=True, here=False)):
        report = check([(file, *examine_partial(file))], wanted=wanted)
        assert "SD006" in {item.code for item in report.findings}


def test_a_profile_with_problems_is_still_none_for_who_would_launch_it(write: Write) -> None:
    file = str(write("name: Bad_Name\ntarget: {model: ./m}"))
    assert examine(file)[0] is None
    partial, _ = examine_partial(file)
    assert partial is not None and partial.target.model.endswith("m")


def test_every_bad_value_of_an_alternative_is_unreadable_and_every_other_one_is_read(write: Write) -> None:
    block = "{method: ngram, num_speculative_tokens: x, prompt_lookup_max: y, prompt_lookup_min: 2}"
    text = f"target: {{model: m}}\nalternatives: {{a: {block}, ab: {block.replace(': x', ': 3')}}}\n"
    profile, findings = examine_partial(write(text))
    assert profile is not None and len(findings) == 3
    a, ab = profile.alternatives["a"], profile.alternatives["ab"]
    assert (a.method, a.keys["prompt_lookup_min"], ab.num_speculative_tokens) == ("ngram", 2, 3)
    for block_keys, name in ((a.keys, "num_speculative_tokens"), (a.keys, "prompt_lookup_max"),
                             (ab.keys, "prompt_lookup_max")):  # fmt: skip
        with pytest.raises(UnreadableValue):
            block_keys.get(name)
