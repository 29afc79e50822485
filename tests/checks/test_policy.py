"""Raw commands: an error is what vLLM refuses or serves wrong; what only specserve refuses is a warning."""

from __future__ import annotations

import shlex

import pytest

from specserve.checks.rules import all_rules
from specserve.checks.run import run_rules_on_profile
from specserve.convert.command import profile_of
from specserve.diagnostics import Severity

SYNTHETIC = '"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2'
PLUG_IN = '"method": "arctic", "num_speculative_tokens": 3'
SERVE = "vllm serve org/target --host 127.0.0.1"
HEAD = '"method": "eagle3", "model": "org/head", "num_speculative_tokens": 2'
WARNING, ERROR = Severity.WARNING, Severity.ERROR


def spoken(block: str) -> str:
    """A command with a speculative config."""
    return f"{SERVE} --speculative-config {shlex.quote(f'{{{block}}}')}"


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (f"{SERVE} --api-key abcdefgh", {"SD107": WARNING}),
        ("vllm serve org/target --host 0.0.0.0", {"SD108": WARNING}),
        ("vllm serve org/target", {"SD108": WARNING}),
        (f"{SERVE} --grpc", {"SD005": WARNING}),
        (spoken(f"{HEAD}, {SYNTHETIC}"), {"SD127": WARNING}),
        (spoken('"method": "extract_hidden_states", "num_speculative_tokens": 1'), {"SD006": WARNING}),
        (f"{spoken(PLUG_IN)} --max-num-sequences 3", {"SD006": WARNING, "SD102": ERROR}),
        (spoken('"method": "mtp", "num_speculative_tokens": 1, "prompt_lookup_max": 4'), {"SD005": WARNING}),
        (f"{SERVE} --max-num-seqs many", {"SD105": ERROR}),
        (spoken('"method": "medusa", "model": "org/head", "num_speculative_tokens": 1'), {"SD006": ERROR}),
        (spoken('"method": "ngram", "num_speculative_tokens": 3, "no_such_key": 1'), {"SD005": ERROR}),
        (spoken('"method": "eagle3", "num_speculative_tokens": 3'), {"SD007": ERROR}),
    ],
)  # fmt: skip
def test_policy_is_a_warning_in_a_raw_command_and_what_vllm_refuses_an_error(
    command: str, found: dict[str, Severity]
) -> None:
    profile, findings = profile_of(shlex.split(command))
    kept = run_rules_on_profile(profile, problems=findings).findings if profile else findings
    said = {item.code: item.severity for item in kept if item.severity is not Severity.INFO}
    assert said | found == said and (ERROR in found.values() or said == found)


def test_only_errors_are_policy() -> None:
    assert {rule.code for rule in all_rules() if rule.policy} >= {"SD107", "SD108", "SD127"}
    assert all(rule.severity is ERROR for rule in all_rules() if rule.policy)
