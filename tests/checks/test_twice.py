"""Arguments that are going away, and settings that stand in two places."""

from __future__ import annotations

from collections.abc import Callable

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile
from specserve.vllm.versions import known_versions, table
from tests.checks.judging import of

Load = Callable[[str], Profile]


def test_every_argument_that_a_table_calls_deprecated_is_found_with_vllm_s_own_words(profile: Load) -> None:
    said = {
        (minor, name): argument.deprecated
        for minor in known_versions()
        for name, argument in table(minor).engine.items()
        if argument.deprecated
    }
    assert len(said) >= 5
    for (minor, name), words in said.items():
        (finding,) = of("SD142", profile(f'vllm: "~={minor}.0"\nengine: {{{name}: x}}'))
        assert finding.severity is Severity.WARNING
        assert finding.notes[0] == f"vLLM: {words}"


def test_a_deprecation_of_some_versions_names_them(profile: Load) -> None:
    (finding,) = of("SD142", profile('vllm: ">=0.32"\nengine: {mamba_cache_mode: all}'))
    assert finding.notes[1:] == ("the profile's range allows vLLM 0.32, 0.33; this applies to 0.33",)
