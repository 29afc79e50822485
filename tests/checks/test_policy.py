"""Raw commands: an error is what vLLM refuses or serves wrong; what only specserve refuses is a warning."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.rules import all_rules
from specserve.checks.run import lint, run_rules_on_profile
from specserve.convert.command import profile_of
from specserve.diagnostics import Severity

Write = Callable[..., Path]
SERVE = "vllm serve org/target --host 127.0.0.1"
HEAD = '"method": "eagle3", "model": "org/head", "num_speculative_tokens": 2'


def judged(command: str) -> dict[str, Severity]:
    """The codes that lint finds in a raw command, without the infos."""
    profile, findings = profile_of(shlex.split(command))
    kept = run_rules_on_profile(profile, problems=findings)[0] if profile else findings
    return {item.code: item.severity for item in kept if item.severity is not Severity.INFO}


def spoken(block: str) -> str:
    """A command with a speculative config."""
    return f"{SERVE} --speculative-config {shlex.quote(f'{{{block}}}')}"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"{SERVE} --api-key abcdefgh", "SD107"),
        ("vllm serve org/target --host 0.0.0.0", "SD108"),
        ("vllm serve org/target", "SD108"),
        (f"{SERVE} --grpc", "SD005"),
        (spoken(f'{HEAD}, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2'), "SD127"),
        (spoken('"method": "extract_hidden_states", "num_speculative_tokens": 1'), "SD006"),
        (spoken('"method": "arctic", "model": "org/draft", "num_speculative_tokens": 3'), "SD006"),
        (spoken('"method": "mtp", "num_speculative_tokens": 1, "prompt_lookup_max": 4'), "SD005"),
    ],
)  # fmt: skip
def test_policy_is_a_warning_in_a_raw_command(command: str, code: str) -> None:
    assert judged(command) == {code: Severity.WARNING}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("server: {host: 0.0.0.0}", "SD108"),
        ("env: {MY_TOKEN: averysecretword}", "SD107"),
        ("frontend: {grpc: true}", "SD005"),
        ("speculation: {method: arctic, num_speculative_tokens: 3}", "SD006"),
        ("speculation: {method: extract_hidden_states, num_speculative_tokens: 1}", "SD006"),
    ],
)
def test_policy_stays_an_error_in_a_profile(write: Write, text: str, code: str) -> None:
    report = lint([str(write(f"target: {{model: ./m}}\n{text}"))])
    assert [item.code for item in report.findings if item.severity is Severity.ERROR] == [code]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"{SERVE} --max-num-sequences 3", "SD102"),
        (f"{SERVE} --max-num-seqs many", "SD105"),
        (spoken('"method": "medusa", "model": "org/head", "num_speculative_tokens": 1'), "SD006"),
        (spoken('"method": "ngram", "num_speculative_tokens": 3, "no_such_key": 1'), "SD005"),
        (spoken('"method": "eagle3", "num_speculative_tokens": 3'), "SD007"),
    ],
)
def test_what_vllm_refuses_is_an_error_in_a_raw_command(command: str, code: str) -> None:
    assert judged(command)[code] is Severity.ERROR


def test_a_method_of_a_plug_in_leaves_the_other_rules_running() -> None:
    found = judged(
        f"{spoken(chr(34) + 'method' + chr(34) + ': ' + chr(34) + 'arctic' + chr(34))} --max-num-sequences 3"
    )
    assert found == {"SD006": Severity.WARNING, "SD102": Severity.ERROR}


def test_only_errors_are_policy() -> None:
    assert {rule.code for rule in all_rules() if rule.policy} >= {"SD107", "SD108", "SD127"}
    assert all(rule.severity is Severity.ERROR for rule in all_rules() if rule.policy)
